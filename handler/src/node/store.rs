//! This node's VMIs as last seen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podvirt_api::v1::VirtualMachineInstance;

type Content = HashMap<String, Arc<VirtualMachineInstance>>;

/// VMIs by UID, and the pods of their launchers here. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Store(Arc<Mutex<Content>>, Arc<Mutex<HashMap<String, String>>>);

impl Store {
    /// Takes a VMI unless a newer version of it is there: our own write's answer and the watch overtake each
    /// other. Returns its UID; `None` for an object without one, which is none of the API server's.
    pub fn put(&self, vmi: VirtualMachineInstance) -> Option<String> {
        let uid = vmi.metadata.uid.clone()?;
        let mut vmis = self.lock();
        if vmis.get(&uid).is_some_and(|known| version(known) > version(&vmi)) {
            return Some(uid);
        }
        vmis.insert(uid.clone(), Arc::new(vmi));
        Some(uid)
    }

    /// Takes a newer version of a VMI that is known. Our own write's answer may come after the watch has told that
    /// the VMI is gone, and must not bring it back.
    pub fn update(&self, vmi: VirtualMachineInstance) {
        let Some(uid) = &vmi.metadata.uid else { return };
        if let Some(known) = self.lock().get_mut(uid)
            && version(known) <= version(&vmi)
        {
            *known = Arc::new(vmi);
        }
    }

    /// Forgets a VMI.
    pub fn remove(&self, uid: &str) {
        self.lock().remove(uid);
        self.pods().remove(uid);
    }

    /// Notes the UID of the pod in which the launcher of a VMI was found.
    pub(crate) fn put_pod(&self, vmi: &VirtualMachineInstance, pod_uid: &str) {
        let uid = vmi.metadata.uid.clone().unwrap_or_default();
        if self.lock().contains_key(&uid) {
            self.pods().insert(uid, pod_uid.to_owned());
        }
    }

    /// UID of the pod in which the launcher of a VMI was found.
    pub fn pod(&self, uid: &str) -> Option<String> {
        self.pods().get(uid).cloned()
    }

    /// Forgets all that `keep` does not want and returns their UIDs.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) -> Vec<String> {
        let mut vmis = self.lock();
        let gone: Vec<_> = vmis.keys().filter(|uid| !keep(uid)).cloned().collect();
        vmis.retain(|uid, _| keep(uid));
        self.pods().retain(|uid, _| keep(uid));
        gone
    }

    /// A VMI by its UID.
    pub fn get(&self, uid: &str) -> Option<Arc<VirtualMachineInstance>> {
        self.lock().get(uid).cloned()
    }

    /// A VMI by its name.
    pub fn find(&self, namespace: &str, name: &str) -> Option<Arc<VirtualMachineInstance>> {
        let named = |vmi: &&Arc<VirtualMachineInstance>| {
            let metadata = &vmi.metadata;
            metadata.name.as_deref() == Some(name) && metadata.namespace.as_deref() == Some(namespace)
        };
        self.lock().values().find(named).cloned()
    }

    /// All VMIs.
    pub fn all(&self) -> Vec<Arc<VirtualMachineInstance>> {
        self.lock().values().cloned().collect()
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version as a number, which the API server's are; another form is older than all.
fn version(vmi: &VirtualMachineInstance) -> Option<u64> {
    vmi.metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi(uid: &str, version: &str) -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::default();
        vmi.metadata.uid = Some(uid.into());
        vmi.metadata.name = Some(format!("name-{uid}"));
        vmi.metadata.namespace = Some("n".into());
        vmi.metadata.resource_version = Some(version.into());
        vmi
    }

    #[test]
    fn an_older_version_does_not_come_back() {
        let store = Store::default();
        let version = |store: &Store| store.get("a").unwrap().metadata.resource_version.clone().unwrap();
        store.put(vmi("a", "99"));
        store.put(vmi("a", "100"));
        assert_eq!(version(&store), "100");
        store.put(vmi("a", "99"));
        assert_eq!(version(&store), "100");
    }

    #[test]
    fn an_answer_that_comes_late_brings_no_vmi_back() {
        let store = Store::default();
        store.update(vmi("a", "1"));
        assert!(store.get("a").is_none());
        store.put(vmi("a", "5"));
        let version = |store: &Store| store.get("a").unwrap().metadata.resource_version.clone().unwrap();
        store.update(vmi("a", "4"));
        assert_eq!(version(&store), "5");
        store.update(vmi("a", "6"));
        assert_eq!(version(&store), "6");
    }

    #[test]
    fn what_a_list_lacks_is_told() {
        let store = Store::default();
        store.put(vmi("a", "1"));
        store.put(vmi("b", "1"));
        assert_eq!(store.retain(|uid| uid == "a"), ["b"]);
        assert!(store.get("b").is_none());
        assert!(store.find("n", "name-a").is_some() && store.find("m", "name-a").is_none());
        assert_eq!(store.put(VirtualMachineInstance::default()), None);
    }

    #[test]
    fn a_vmi_that_is_forgotten_has_no_pod_any_more() {
        let store = Store::default();
        let put = |uid: &str| {
            store.put(vmi(uid, "1"));
            store.put_pod(&vmi(uid, "1"), &format!("pod-{uid}"));
        };
        for uid in ["a", "b", "c"] {
            put(uid);
            assert_eq!(store.pod(uid), Some(format!("pod-{uid}")));
        }
        store.remove("a");
        assert_eq!(store.pod("a"), None);
        assert_eq!(store.retain(|uid| uid == "c"), ["b"]);
        assert!(store.get("a").is_none() && store.get("b").is_none());
        // Also where it comes back: its launcher may be in another pod then.
        for uid in ["a", "b"] {
            assert_eq!(store.pod(uid), None);
            store.put_pod(&vmi(uid, "1"), "late");
            assert_eq!(store.pod(uid), None, "a pass that ends late brings it back");
            store.put(vmi(uid, "1"));
            assert_eq!(store.pod(uid), None);
        }
        assert_eq!(store.pod("c"), Some("pod-c".into()), "the others keep theirs");
    }
}
