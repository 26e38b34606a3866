//! The launcher pods of the cluster, by the machines that own them.
//!
//! Fed by one watch. A machine's pods are found without looking at the others', and a change of a pod names the
//! machine to look at again. After a watch broke, everything is listed anew: what is missing in the new list is
//! gone, and its machine is named, too.
//!
//! A pod that loses its controller reference (`kubectl delete --cascade=orphan`, the garbage collector) stays the
//! machine's that it was known as: its guest runs on, and its end must be seen.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use podvirt_api::migration::pod_by_migration;
use podvirt_api::names::{annotation, label};
use podvirt_api::v1::VirtualMachineInstance;
use tokio::sync::watch;

use super::observe;
use crate::expectations::Expectations;
use crate::template::pod_name;

/// Pods of one machine, by UID.
type OfMachine = BTreeMap<String, Arc<Pod>>;

/// All launcher pods.
#[derive(Debug)]
pub struct Pods {
    by_machine: RwLock<HashMap<String, OfMachine>>,
    /// Pods of a list that is not complete yet.
    listed: RwLock<HashSet<String>>,
    complete: watch::Sender<bool>,
}

impl Default for Pods {
    fn default() -> Self {
        Self { by_machine: RwLock::default(), listed: RwLock::default(), complete: watch::Sender::new(false) }
    }
}

/// The machine that controls a pod.
pub fn owner(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata.owner_references.iter().flatten().find(|owner| {
        owner.controller == Some(true)
            && owner.kind == "VirtualMachineInstance"
            && owner.api_version.split('/').next() == Some(podvirt_api::v1::GROUP)
    })
}

/// UID and name of the machine that a pod is of: a launcher pod by its controller, an attachment pod, which a launcher pod
/// controls, by its annotations.
pub fn machine(pod: &Pod) -> Option<(&str, &str)> {
    if let Some(owner) = owner(pod) {
        return Some((&owner.uid, &owner.name));
    }
    let annotations = pod.metadata.annotations.as_ref().filter(|_| observe::is_attachment(pod))?;
    Some((annotations.get(label::CREATED_BY)?, annotations.get(annotation::DOMAIN)?))
}

/// Whether the pod was made for the machine with this UID, also when its controller reference was lost.
pub fn is_of(pod: &Pod, machine: &str) -> bool {
    match owner(pod) {
        Some(owner) => owner.uid == machine,
        None => {
            let labels = pod.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(label::CREATED_BY)).is_some_and(|uid| uid == machine)
        }
    }
}

/// Name of the pod that the machine runs in, or will.
pub fn name_of(vmi: &VirtualMachineInstance) -> String {
    let (name, uid) = (vmi.metadata.name.as_deref(), vmi.metadata.uid.as_deref());
    let first = || pod_name(name.unwrap_or_default(), uid.unwrap_or_default());
    pod_by_migration(vmi).map_or_else(first, ToOwned::to_owned)
}

impl Pods {
    /// The launcher pods of a machine, oldest first.
    pub fn of(&self, machine: &str) -> Vec<Arc<Pod>> {
        self.select(machine, |pod| !observe::is_consumer(pod) && !observe::is_attachment(pod))
    }

    /// The pods of a machine that are to use its claims first, before it has a launcher pod; oldest first.
    pub fn consumers_of(&self, machine: &str) -> Vec<Arc<Pod>> {
        self.select(machine, |pod| observe::is_consumer(pod) && !observe::is_attachment(pod))
    }

    /// The pods that hold the claims of volumes that are plugged into the running machine, or use such claims first; oldest first.
    pub fn attachments_of(&self, machine: &str) -> Vec<Arc<Pod>> {
        self.select(machine, observe::is_attachment)
    }

    /// All pods of a machine, oldest first.
    pub fn all_of(&self, machine: &str) -> Vec<Arc<Pod>> {
        self.select(machine, |_| true)
    }

    fn select(&self, machine: &str, is_meant: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        let all = self.by_machine.read().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(machine).into_iter().flat_map(BTreeMap::values);
        let mut pods: Vec<_> = known.filter(|pod| is_meant(pod)).cloned().collect();
        // The UIDs' order decides between pods of the same second.
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|t| t.0));
        pods
    }

    /// Waits until the first list is complete.
    pub async fn complete(&self) {
        // The sender lives as long as `self`.
        let mut receiver = self.complete.subscribe();
        let _closed = receiver.wait_for(|complete| *complete).await;
    }

    /// Takes a change in and names the machines that it concerns.
    pub fn apply(
        &self,
        event: Event<Pod>,
        expectations: &Expectations,
    ) -> Vec<ObjectRef<VirtualMachineInstance>> {
        match event {
            Event::Apply(pod) => self.insert(self.owned(pod), expectations).into_iter().collect(),
            Event::Delete(pod) => self.remove(&self.owned(pod), expectations).into_iter().collect(),
            Event::Init => {
                self.listed.write().unwrap_or_else(PoisonError::into_inner).clear();
                Vec::new()
            }
            Event::InitApply(pod) => {
                let uid = observe::uid(&pod).to_owned();
                self.listed.write().unwrap_or_else(PoisonError::into_inner).insert(uid);
                self.insert(self.owned(pod), expectations).into_iter().collect()
            }
            Event::InitDone => {
                let listed =
                    std::mem::take(&mut *self.listed.write().unwrap_or_else(PoisonError::into_inner));
                let missing: Vec<_> = {
                    let all = self.by_machine.read().unwrap_or_else(PoisonError::into_inner);
                    all.values()
                        .flat_map(BTreeMap::values)
                        .filter(|p| !listed.contains(observe::uid(p)))
                        .cloned()
                        .collect()
                };
                self.complete.send_replace(true);
                missing.iter().filter_map(|pod| self.remove(pod, expectations)).collect()
            }
        }
    }

    /// The pod with the controller reference that it was last seen with, if it has none now.
    fn owned(&self, mut pod: Pod) -> Pod {
        if machine(&pod).is_none() {
            let all = self.by_machine.read().unwrap_or_else(PoisonError::into_inner);
            let known = all.values().find_map(|pods| pods.get(observe::uid(&pod)));
            if let Some(lost) = known.and_then(|known| owner(known)).cloned() {
                pod.metadata.owner_references.get_or_insert_default().push(lost);
            }
        }
        pod
    }

    fn insert(&self, pod: Pod, expectations: &Expectations) -> Option<ObjectRef<VirtualMachineInstance>> {
        let (machine, name) = machine(&pod)?;
        expectations.seen(machine, observe::uid(&pod), observe::is_terminating(&pod));
        let (machine, reference) = (machine.to_owned(), machine_of(&pod, name));
        let mut all = self.by_machine.write().unwrap_or_else(PoisonError::into_inner);
        all.entry(machine).or_default().insert(observe::uid(&pod).to_owned(), Arc::new(pod));
        Some(reference)
    }

    fn remove(&self, pod: &Pod, expectations: &Expectations) -> Option<ObjectRef<VirtualMachineInstance>> {
        let (machine, name) = machine(pod)?;
        expectations.gone(machine, observe::uid(pod));
        let mut all = self.by_machine.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(pods) = all.get_mut(machine) {
            pods.remove(observe::uid(pod));
            if pods.is_empty() {
                all.remove(machine);
            }
        }
        Some(machine_of(pod, name))
    }
}

fn machine_of(pod: &Pod, name: &str) -> ObjectRef<VirtualMachineInstance> {
    ObjectRef::new(name).within(pod.metadata.namespace.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    fn pod(uid: &str, machine: &str, second: u32) -> Pod {
        serde_json::from_value(json!({"metadata": {
            "name": format!("pod-{uid}"), "namespace": "shop", "uid": uid,
            "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": format!("vmi-{machine}"), "uid": machine, "controller": true}],
        }}))
        .unwrap()
    }

    fn uids(pods: &Pods, machine: &str) -> Vec<String> {
        pods.of(machine).iter().map(|p| observe::uid(p).to_owned()).collect()
    }

    #[test]
    fn changes_name_the_machine_and_pods_come_oldest_first() {
        let (pods, notes) = (Pods::default(), Expectations::default());
        let named = pods.apply(Event::Apply(pod("b", "m", 1)), &notes);
        assert_eq!(named, [ObjectRef::new("vmi-m").within("shop")]);
        pods.apply(Event::Apply(pod("a", "m", 2)), &notes);
        pods.apply(Event::Apply(pod("c", "n", 0)), &notes);
        assert_eq!(uids(&pods, "m"), ["b", "a"]);
        assert_eq!(pods.apply(Event::Delete(pod("b", "m", 1)), &notes).len(), 1);
        assert_eq!(uids(&pods, "m"), ["a"]);
        let mut stray = pod("d", "m", 0);
        stray.metadata.owner_references.as_mut().unwrap()[0].controller = None;
        assert!(pods.apply(Event::Apply(stray), &notes).is_empty());
        assert_eq!(uids(&pods, "m"), ["a"]);
    }

    #[test]
    fn a_pod_that_lost_its_controller_reference_is_still_its_machines() {
        let orphan = || {
            let mut orphan = pod("a", "m", 0);
            orphan.metadata.owner_references = None;
            orphan
        };
        let named = [ObjectRef::new("vmi-m").within("shop")];
        for events in [
            vec![Event::Delete(orphan())],
            vec![Event::Init, Event::InitDone],
            vec![Event::Init, Event::InitApply(orphan()), Event::InitDone, Event::Delete(orphan())],
        ] {
            let (pods, notes) = (Pods::default(), Expectations::default());
            pods.apply(Event::Apply(pod("a", "m", 0)), &notes);
            assert_eq!(pods.apply(Event::Apply(orphan()), &notes), named, "its change is told");
            assert_eq!(uids(&pods, "m"), ["a"]);
            let told: Vec<_> = events.into_iter().flat_map(|event| pods.apply(event, &notes)).collect();
            assert_eq!(told.last(), named.last());
            assert_eq!(uids(&pods, "m"), [""; 0], "its end is seen");
        }
    }

    #[test]
    fn a_pod_is_known_as_the_machines_by_its_controller_else_by_its_label() {
        let mut labelled = pod("a", "m", 0);
        labelled.metadata.labels = Some([(label::CREATED_BY.to_owned(), "n".to_owned())].into());
        assert!(is_of(&labelled, "m") && !is_of(&labelled, "n"));
        labelled.metadata.owner_references = None;
        assert!(!is_of(&labelled, "m") && is_of(&labelled, "n"));
        labelled.metadata.labels = None;
        assert!(!is_of(&labelled, "n") && !is_of(&labelled, ""));
    }

    #[test]
    fn what_a_new_list_lacks_is_gone_and_its_machine_is_named() {
        let (pods, notes) = (Pods::default(), Expectations::default());
        pods.apply(Event::Init, &notes);
        pods.apply(Event::InitApply(pod("a", "m", 0)), &notes);
        pods.apply(Event::InitApply(pod("b", "n", 0)), &notes);
        assert!(!*pods.complete.borrow());
        assert!(pods.apply(Event::InitDone, &notes).is_empty());
        assert!(*pods.complete.borrow());
        notes.expect_deletion("m", "a", Instant::now());
        pods.apply(Event::Init, &notes);
        pods.apply(Event::InitApply(pod("b", "n", 0)), &notes);
        assert_eq!(uids(&pods, "m"), ["a"], "until the list is complete");
        assert_eq!(pods.apply(Event::InitDone, &notes), [ObjectRef::new("vmi-m").within("shop")]);
        assert_eq!((uids(&pods, "m").len(), uids(&pods, "n").len()), (0, 1));
        assert_eq!(notes.wait("m", Instant::now()), None);
    }
}
