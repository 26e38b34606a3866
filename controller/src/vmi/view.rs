//! What other controllers see of machines and their pods: the caches that the controller of machines fills, and word
//! of every change. One watch of each kind serves them all.
//!
//! Claims and DataVolumes change by the thousand when many machines start. Each change visits the machines that have the claim: the cache
//! has an index by the names of the machines' claims.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use podvirt_api::v1::VirtualMachineInstance;
use tokio::sync::broadcast::{self, error::RecvError};

use super::claims::{index_texts, lookup_texts};
use super::pods::Pods;
use crate::index::Index;

/// Changes that may wait to be read.
const CHANGES: usize = 1024;

/// What has changed.
#[derive(Clone, Debug)]
pub enum Change {
    /// This machine.
    Machine(ObjectRef<VirtualMachineInstance>),
    /// The pods of this machine.
    Pods(ObjectRef<VirtualMachineInstance>),
    /// All machines were listed anew: what the list lacks is gone.
    All,
}

/// Machines and their pods as the caches have them. Clones see the same.
#[derive(Clone, Debug)]
pub struct View {
    machines: Store<VirtualMachineInstance>,
    pods: Arc<Pods>,
    changes: broadcast::Sender<Change>,
    /// By their claims.
    index: Arc<Index<VirtualMachineInstance>>,
}

impl View {
    /// An empty view, and what fills its machines.
    pub fn new() -> (View, Writer<VirtualMachineInstance>) {
        let (machines, writer) = reflector::store();
        let (changes, index) = (broadcast::Sender::new(CHANGES), Arc::new(Index::new(index_texts)));
        (View { machines, pods: Arc::default(), changes, index }, writer)
    }

    /// Waits until both caches are filled.
    pub async fn complete(&self) {
        self.pods.complete().await;
        // A writer that is gone ends the process.
        let _gone = self.machines.wait_until_ready().await;
    }

    /// The machine of this name.
    pub fn machine(&self, namespace: &str, name: &str) -> Option<Arc<VirtualMachineInstance>> {
        self.machines.get(&ObjectRef::new(name).within(namespace))
    }

    /// All machines.
    pub fn machines(&self) -> Vec<Arc<VirtualMachineInstance>> {
        self.machines.state()
    }

    /// The machines that `is` tells, of those that may have the claim of this namespace and name; of all where none is given.
    pub(super) fn machines_with(
        &self,
        claim: Option<(&str, &str)>,
        is: impl Fn(&VirtualMachineInstance) -> bool,
    ) -> Vec<Arc<VirtualMachineInstance>> {
        let mut machines = match claim {
            Some((namespace, claim)) => {
                let texts = lookup_texts(claim).into_iter();
                let names: BTreeSet<String> =
                    texts.flat_map(|text| self.index.names(namespace, text)).collect();
                names.iter().filter_map(|name| self.machine(namespace, name)).collect()
            }
            None => self.machines(),
        };
        machines.retain(|machine| is(machine));
        machines
    }

    /// The pods of the machine with this UID, oldest first.
    pub fn pods_of(&self, machine: &str) -> Vec<Arc<Pod>> {
        self.pods.of(machine)
    }

    /// What changes from now on. A listener that falls behind has to take it for [`Change::All`].
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// What `concerned` finds for each machine that changes, until there will be no more; of all, where it is not said which.
    pub fn heard<T: Send + 'static, F>(&self, concerned: F) -> impl Stream<Item = T> + Send + use<T, F>
    where
        F: Fn(Option<&ObjectRef<VirtualMachineInstance>>) -> Vec<T> + Send + 'static,
    {
        stream::unfold((self.changes(), concerned), |(mut changes, concerned)| async move {
            let found = match changes.recv().await {
                Ok(Change::Machine(vmi)) => concerned(Some(&vmi)),
                Ok(Change::Pods(_)) => Vec::new(),
                Ok(Change::All) | Err(RecvError::Lagged(_)) => concerned(None),
                Err(RecvError::Closed) => return None,
            };
            Some((stream::iter(found), (changes, concerned)))
        })
        .flatten()
    }

    /// Completes the cache of pods as it is.
    #[cfg(test)]
    pub(crate) fn fill_pods(&self) {
        let notes = crate::expectations::Expectations::default();
        for event in [Event::Init, Event::InitDone] {
            self.pods.apply(event, &notes);
        }
    }

    /// The cache of machines.
    pub fn store(&self) -> &Store<VirtualMachineInstance> {
        &self.machines
    }

    pub(crate) fn pods(&self) -> &Arc<Pods> {
        &self.pods
    }

    /// Takes in what the cache of machines has taken in, and tells the listeners.
    pub(super) fn taken(&self, event: &Event<VirtualMachineInstance>) {
        self.index.apply(event, &self.machines);
        match event {
            Event::Apply(vmi) | Event::Delete(vmi) => self.changed(Change::Machine(ObjectRef::from_obj(vmi))),
            Event::InitDone => self.changed(Change::All),
            Event::Init | Event::InitApply(_) => {}
        }
    }

    /// Tells the listeners of a change.
    pub(crate) fn changed(&self, change: Change) {
        // Without a listener no task needs to know.
        let _no_listener = self.changes.send(change);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_change_of_a_claim_visits_the_machines_that_have_it_and_no_others() {
        let machine = |name: &str, spec: Value| -> VirtualMachineInstance {
            let mut vmi =
                json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"domain": {"devices": {}}}});
            json_patch::merge(&mut vmi["spec"], &spec);
            serde_json::from_value(vmi).unwrap()
        };
        let data = |name: &str| json!({"volumes": [{"name": "data", "dataVolume": {"name": name}}]});
        let tpm = || json!({"domain": {"devices": {"tpm": {"persistent": true}}}});
        let (view, mut writer) = View::new();
        let mut apply = |event: Event<VirtualMachineInstance>| {
            writer.apply_watcher_event(&event);
            view.taken(&event);
        };
        apply(Event::Init);
        for number in 0..1_000 {
            apply(Event::InitApply(machine(&format!("vm-{number}"), data(&format!("data-{number}")))));
            apply(Event::InitApply(machine(&format!("tpm-{number}"), tpm())));
        }
        apply(Event::InitDone);
        let visits = |claim: Option<&str>| {
            let visits = Cell::new(0);
            let found = view.machines_with(claim.map(|name| ("shop", name)), |_| {
                visits.set(visits.get() + 1);
                true
            });
            (visits.get(), found.len())
        };
        assert_eq!(visits(Some("data-7")), (1, 1));
        assert_eq!(visits(Some("other")), (0, 0));
        // "tpm-7" and "tpm-77" may have it, by their names.
        assert_eq!(visits(Some("persistent-state-for-tpm-77-bcdfg")), (2, 2));
        assert_eq!(visits(Some("restore-u-persistent-state-for-tpm-9")), (1, 1));
        assert_eq!(visits(None), (2_000, 2_000), "any may have changed");
        let volumes = json!({"utilityVolumes": [{"name": "copies", "claimName": "to"}]});
        apply(Event::Apply(machine("vm-7", volumes)));
        assert_eq!((visits(Some("data-7")), visits(Some("to"))), ((0, 0), (1, 1)));
    }
}
