//! What other controllers see of VirtualMachines: the cache that the controller of VirtualMachines fills, and word of every
//! change. One watch serves them all.
//!
//! Claims and DataVolumes change by the thousand when many machines start. Each change visits the machines that name it: the cache has an
//! index by the names of the machines' claims.

use std::sync::Arc;

use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use podvirt_api::v1::VirtualMachine;
use podvirt_api::{snapshot, storage};
use tokio::sync::broadcast;

use crate::data::look::name_of;
use crate::index::Index;
use crate::kept::Kind;

/// Changes that may wait to be read.
const CHANGES: usize = 1024;

/// What has changed: a VirtualMachine, or any number of them after a new list.
pub type Changed = Option<ObjectRef<VirtualMachine>>;

/// What a queue of machines holds.
pub(super) type Reference = Result<ObjectRef<VirtualMachine>, watcher::Error>;

/// VirtualMachines as the cache has them. Clones see the same.
#[derive(Clone, Debug)]
pub struct Machines {
    store: Store<VirtualMachine>,
    changes: broadcast::Sender<Changed>,
    /// By the names of their claims.
    index: Arc<Index<VirtualMachine>>,
}

/// Names of the claims of a machine's volumes and templates. The claim of a DataVolume has the DataVolume's name.
fn claim_names(vm: &VirtualMachine) -> Vec<String> {
    let spec = vm.spec.template.as_ref().and_then(|template| template.spec.as_ref());
    let volumes = spec.into_iter().flat_map(|spec| &spec.volumes);
    let claims = volumes.flat_map(|volume| {
        [storage::claim(volume).map(|claim| claim.name), snapshot::claim(volume)].into_iter().flatten()
    });
    let templates = vm.spec.data_volume_templates.iter().map(name_of);
    claims.chain(templates).map(ToOwned::to_owned).collect()
}

impl Machines {
    /// An empty cache, and what fills it.
    pub fn new() -> (Machines, Writer<VirtualMachine>) {
        let (store, writer) = reflector::store();
        let index = Arc::new(Index::new(claim_names));
        (Machines { store, changes: broadcast::Sender::new(CHANGES), index }, writer)
    }

    /// The cache.
    pub fn store(&self) -> &Store<VirtualMachine> {
        &self.store
    }

    /// What changes from now on. A listener that falls behind has to take it for a change of all.
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// References to the machines that `is` tells, of those that name the claim, or the DataVolume, that has changed; of all where it is not
    /// said which.
    pub(super) fn naming<C: Kind>(
        &self,
        changed: Option<&ObjectRef<C>>,
        is: impl Fn(&VirtualMachine) -> bool,
    ) -> Vec<Reference> {
        let machines: Vec<Arc<VirtualMachine>> = match changed {
            Some(changed) => {
                let namespace = changed.namespace.as_deref().unwrap_or_default();
                let names = self.index.names(namespace, &changed.name).into_iter();
                names.filter_map(|name| self.store.get(&ObjectRef::new(&name).within(namespace))).collect()
            }
            // Any may have changed.
            None => self.store.state(),
        };
        machines.iter().filter(|vm| is(vm)).map(|vm| Ok(ObjectRef::from_obj(&**vm))).collect()
    }

    /// Tells the listeners of a change that the cache has taken over.
    pub(super) fn taken(&self, event: &Event<VirtualMachine>) {
        self.index.apply(event, &self.store);
        let changed = match event {
            Event::Apply(vm) | Event::Delete(vm) => Some(ObjectRef::from_obj(vm)),
            Event::InitDone => None,
            Event::Init | Event::InitApply(_) => return,
        };
        // It fails when no controller listens, which loses nothing: a controller that begins to listen reads the cache.
        let _unheard = self.changes.send(changed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_change_of_a_claim_visits_the_machines_that_name_it_and_no_others() {
        let machine = |number: usize, volume: Value| -> VirtualMachine {
            serde_json::from_value(json!({
                "metadata": {"name": format!("vm-{number}"), "namespace": "shop"},
                "spec": {
                    "dataVolumeTemplates": [{"metadata": {"name": format!("root-{number}")}, "spec": {}}],
                    "template": {"spec": {"domain": {"devices": {}}, "volumes": [volume]}},
                },
            }))
            .unwrap()
        };
        let on = |claim: &str| json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
        let (machines, mut writer) = Machines::new();
        let all = (0..1_000).map(|number| machine(number, on(&format!("data-{}", number / 2))));
        let list = all.map(Event::InitApply);
        let mut apply = |event: Event<VirtualMachine>| {
            writer.apply_watcher_event(&event);
            machines.taken(&event);
        };
        [Event::Init].into_iter().chain(list).chain([Event::InitDone]).for_each(&mut apply);
        let visits = |claim: Option<&str>| {
            let changed = claim.map(|name| ObjectRef::<PersistentVolumeClaim>::new(name).within("shop"));
            let visits = Cell::new(0);
            let found = machines.naming(changed.as_ref(), |_| {
                visits.set(visits.get() + 1);
                true
            });
            (visits.get(), found.len())
        };
        assert_eq!(visits(Some("data-7")), (2, 2), "by their volumes");
        assert_eq!(visits(Some("root-7")), (1, 1), "by its template");
        assert_eq!(visits(Some("other")), (0, 0));
        assert_eq!(visits(None), (1_000, 1_000), "any may have changed");
        apply(Event::Apply(machine(14, json!({"name": "data", "memoryDump": {"claimName": "dump"}}))));
        apply(Event::Delete(machine(15, on("data-7"))));
        assert_eq!((visits(Some("data-7")), visits(Some("dump"))), ((0, 0), (1, 1)));
    }
}
