//! What other controllers see of machines and their pods: the caches that the controller of machines fills, and word
//! of every change. One watch of each kind serves them all.

use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef, Store};
use podvirt_api::v1::VirtualMachineInstance;
use tokio::sync::broadcast::{self, error::RecvError};

use super::pods::Pods;

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
}

impl View {
    /// An empty view, and what fills its machines.
    pub fn new() -> (View, Writer<VirtualMachineInstance>) {
        let (machines, writer) = reflector::store();
        (View { machines, pods: Arc::default(), changes: broadcast::Sender::new(CHANGES) }, writer)
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
        for event in [kube::runtime::watcher::Event::Init, kube::runtime::watcher::Event::InitDone] {
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

    /// Tells the listeners of a change.
    pub(crate) fn changed(&self, change: Change) {
        // Without a listener no task needs to know.
        let _no_listener = self.changes.send(change);
    }
}
