//! What other controllers see of VirtualMachines: the cache that the controller of VirtualMachines fills, and word of every
//! change. One watch serves them all.

use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use podvirt_api::v1::VirtualMachine;
use tokio::sync::broadcast;

/// Changes that may wait to be read.
const CHANGES: usize = 1024;

/// What has changed: a VirtualMachine, or any number of them after a new list.
pub type Changed = Option<ObjectRef<VirtualMachine>>;

/// VirtualMachines as the cache has them. Clones see the same.
#[derive(Clone, Debug)]
pub struct Machines {
    store: Store<VirtualMachine>,
    changes: broadcast::Sender<Changed>,
}

impl Machines {
    /// An empty cache, and what fills it.
    pub fn new() -> (Machines, Writer<VirtualMachine>) {
        let (store, writer) = reflector::store();
        (Machines { store, changes: broadcast::Sender::new(CHANGES) }, writer)
    }

    /// The cache.
    pub fn store(&self) -> &Store<VirtualMachine> {
        &self.store
    }

    /// What changes from now on. A listener that falls behind has to take it for a change of all.
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// Tells the listeners of a change that the cache has taken over.
    pub(super) fn taken(&self, event: &Event<VirtualMachine>) {
        let changed = match event {
            Event::Apply(vm) | Event::Delete(vm) => Some(ObjectRef::from_obj(vm)),
            Event::InitDone => None,
            Event::Init | Event::InitApply(_) => return,
        };
        // It fails when no controller listens, which loses nothing: a controller that begins to listen reads the cache.
        let _unheard = self.changes.send(changed);
    }
}
