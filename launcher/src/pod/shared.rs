//! What the parts of a pod's launcher know of each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use podvirt_api::VirtualMachineInstance;
use podvirt_api::vmi::AccessCredential;
use podvirt_proto::cmd::v1::SmBios;
use podvirt_proto::domain::{
    Backup, Domain, GuestOsInfo, Interface, K8sEvent, KernelBoot, MemoryDump, Status,
};
use podvirt_proto::migration::Migration;
use tokio::sync::{Notify, mpsc, watch};

use super::backup::Pull;
use super::flow_limit::FlowLimit;
use super::freeze::Freezes;
use super::held::Held;
use super::link::Netds;
use super::migration::moved::Moved;
use super::services::Services;
use crate::hooks::Hooks;
use crate::hypervisor::{Hypervisor, HypervisorError};
use crate::life::machine::Word;
use crate::life::runner::{View, Wish};

/// How many events for users may wait for the handler; the oldest gives way.
const MAX_EVENTS: usize = 32;

/// The VMI that this launcher is for.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

/// The last state of a machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Final {
    pub(super) status: Status,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether it ended with its pod.
    pub(super) with_pod: bool,
}

/// What the launcher itself knows, beside what the hypervisor tells. Times are since 1970.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Whether the launcher was told to end.
    pub(super) stop_requested: bool,
    /// Whether the handler has told that the VMI is being deleted.
    pub(super) deleted: bool,
    /// When it kills the machine.
    pub(super) kill_at: Option<Duration>,
    /// When the machine was started.
    pub(super) started_at: Option<Duration>,
    /// What is waited for before there is a machine.
    pub(super) waiting_for: String,
    /// Since when.
    pub(super) waiting_since: Option<Duration>,
    /// What went wrong last.
    pub(super) message: String,
    /// What QEMU has written before it ended by itself.
    pub(super) emulator_output: Option<String>,
    /// Whether the guest's file systems are frozen.
    pub(super) frozen: bool,
    /// What became of the last attempt to have the guest's agent set the machine's credentials; none: there was no attempt.
    pub(super) credentials: Option<Result<(), String>>,
    /// The machine's interfaces by its manifest; there are some once it is prepared.
    pub(super) interfaces: Vec<ManifestInterface>,
    /// Bytes of the disk images that were made of a volume's files, by volume.
    pub(super) made: BTreeMap<String, u64>,
    /// Volumes whose disks were handed over to be plugged.
    pub(super) volumes: BTreeSet<String>,
    /// The last dump of the guest's memory.
    pub(super) dump: Option<MemoryDump>,
    /// The last backup of the machine's disks.
    pub(super) backup: Option<Backup>,
    /// What is booted directly, once it was read.
    pub(super) kernel_boot: Option<KernelBoot>,
    /// The migration away from here that runs, or was the last one.
    pub(super) migration: Option<Migration>,
    /// Whether the machine was let run after a failure of a disk, and may be stopped again in a moment.
    pub(super) on_trial: bool,
    /// Whether the machine comes from another node, and all is ready for it.
    pub(super) awaited: bool,
    /// Whether the machine's user has paused the probes of the guest's agent.
    pub(super) agent_probes_paused: bool,
    /// How it ended.
    pub(super) ended: Option<Final>,
}

impl Facts {
    /// Notes what is waited for, from `now` on unless it is the same as before.
    pub(super) fn wait_for(&mut self, what: &str, now: Duration) {
        if self.waiting_for != what {
            what.clone_into(&mut self.waiting_for);
            self.waiting_since = Some(now);
        }
    }

    /// Notes what is known of that which is waited for.
    pub(super) fn explain(&mut self, what: String) {
        self.waiting_for = what;
    }

    /// Notes that nothing is waited for.
    pub(super) fn wait_is_over(&mut self) {
        self.waiting_for.clear();
        self.waiting_since = None;
    }
}

/// A machine that is wanted.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) vmi: Box<VirtualMachineInstance>,
    /// The VMI as virt-handler has sent it.
    pub(super) json: Vec<u8>,
    /// Whether it comes from another node.
    pub(super) incoming: bool,
    /// Seconds between two reports of the guest about its memory; 0: none.
    pub(super) balloon_period: u32,
    /// What its SMBIOS tables say of its maker.
    pub(super) smbios: SmBios,
}

/// An interface by the manifest.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ManifestInterface {
    /// Its place in the manifest.
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) mac: String,
    pub(super) queues: i32,
    pub(super) up: bool,
    pub(super) masquerade: bool,
    /// Whether a netd serves it.
    pub(super) by_netd: bool,
    /// Whether it is a device of the node or a plugin's, of whose link and queues nothing is known here.
    pub(super) foreign: bool,
    /// The pod's interface that it stands for.
    pub(super) pod_interface: String,
    /// Whether the machine lacks it: it was unplugged, or is yet to be plugged.
    pub(super) unplugged: bool,
}

/// What the guest's agent tells.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct AgentFacts {
    pub(super) version: Option<String>,
    pub(super) os: Option<GuestOsInfo>,
    pub(super) interfaces: Vec<Interface>,
}

/// Addresses of the pod that lead to the guest, by interface.
pub(super) type Links = BTreeMap<String, Vec<String>>;

/// Everything the parts share.
pub(super) struct Shared {
    pub(super) identity: Identity,
    /// What is wished of the machine's life.
    pub(super) wish: watch::Sender<Wish>,
    /// What the life shows.
    pub(super) view: watch::Sender<View>,
    pub(super) facts: watch::Sender<Facts>,
    /// Whether the guest's agent is connected.
    pub(super) agent_connected: watch::Sender<bool>,
    pub(super) agent: watch::Sender<AgentFacts>,
    /// Volumes that move to other claims, of a machine that is to come.
    pub(super) moved: watch::Sender<Vec<Moved>>,
    /// Credentials of the guest's users by the manifest, once the machine is prepared.
    pub(super) credentials: watch::Sender<Vec<AccessCredential>>,
    pub(super) links: watch::Sender<Links>,
    /// How the netds of the pod are asked.
    pub(super) netds: Netds,
    /// When the machine's user last heard that a netd refuses flows.
    pub(super) flow_limit: FlowLimit,
    /// The present report.
    pub(super) report: watch::Sender<Domain>,
    /// Number of the last report that the handler has taken.
    pub(super) taken: watch::Sender<u64>,
    /// Machines of VMIs that were found valid.
    pub(super) sync: mpsc::Sender<Wanted>,
    /// What became of each attempt to start the machine.
    pub(super) attempts: watch::Sender<Result<(), String>>,
    events: Mutex<VecDeque<K8sEvent>>,
    pub(super) event_added: Notify,
    pub(super) freezes: Freezes,
    /// The present migration is to be aborted.
    pub(super) abort: Notify,
    /// Disks of volumes that are plugged, or about to be.
    pub(super) held: Held,
    /// The backup in pull mode that runs.
    pub(super) pull: Pull,
    /// Held by what changes the running machine.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Held while the hypervisor is asked for statistics.
    pub(super) counting: Arc<tokio::sync::Mutex<()>>,
    /// What is known of the word that a source gives.
    pub(super) word: watch::Sender<Word>,
    /// What answers the guest's questions about its addresses, by interface.
    pub(super) services: watch::Sender<BTreeMap<String, Services>>,
    /// The machine's hook sidecars, once they are there.
    pub(super) hooks: watch::Sender<Arc<Hooks>>,
}

impl Shared {
    pub(super) fn new(identity: Identity, sync: mpsc::Sender<Wanted>) -> Shared {
        let report = Domain {
            name: identity.name.clone(),
            namespace: identity.namespace.clone(),
            uid: identity.uid.clone(),
            ..Domain::default()
        };
        Shared {
            identity,
            wish: watch::Sender::new(Wish::Run),
            view: watch::Sender::new(View::default()),
            facts: watch::Sender::new(Facts::default()),
            agent_connected: watch::Sender::new(false),
            agent: watch::Sender::new(AgentFacts::default()),
            moved: watch::Sender::default(),
            credentials: watch::Sender::default(),
            links: watch::Sender::new(Links::default()),
            netds: Netds::default(),
            flow_limit: FlowLimit::default(),
            report: watch::Sender::new(report),
            taken: watch::Sender::new(0),
            sync,
            attempts: watch::Sender::new(Ok(())),
            events: Mutex::new(VecDeque::new()),
            event_added: Notify::new(),
            freezes: Freezes::default(),
            abort: Notify::new(),
            held: Held::default(),
            pull: Pull::default(),
            changing: tokio::sync::Mutex::default(),
            counting: Arc::default(),
            word: watch::Sender::new(Word::None),
            services: watch::Sender::default(),
            hooks: watch::Sender::default(),
        }
    }

    /// Wishes at least this much.
    pub(super) fn wish_for(&self, wish: Wish) {
        self.wish.send_if_modified(|present| {
            let stronger = wish > *present;
            *present = wish.max(*present);
            stronger
        });
    }

    /// Tells the waiting tasks what became of an attempt to start the machine.
    pub(super) fn attempted(&self, result: Result<(), String>) {
        self.attempts.send_modify(|attempt| *attempt = result);
    }

    /// Whether there is a machine, or may be one in a moment.
    pub(super) fn has_machine(&self) -> bool {
        let view = self.view.borrow();
        view.running || view.hypervisor.is_some()
    }

    /// Runs `call` with the machine's hypervisor, where it may block.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Hypervisor) -> Result<T, HypervisorError> + Send + 'static,
    ) -> Result<T, HypervisorError> {
        let hypervisor: Option<Arc<dyn Hypervisor>> = self.view.borrow().hypervisor.clone();
        let Some(hypervisor) = hypervisor else {
            return Err(HypervisorError::NotRunning(self.identity.name.clone()));
        };
        let called = tokio::task::spawn_blocking(move || call(hypervisor.as_ref())).await;
        called.unwrap_or_else(|error| {
            Err(HypervisorError::Refused { action: "ask the hypervisor", message: error.to_string() })
        })
    }

    /// Queues an event for the VMI's user.
    pub(super) fn event(&self, kind: &str, reason: &str, message: impl Into<String>) {
        let event = K8sEvent { kind: kind.into(), reason: reason.into(), message: message.into() };
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.back() == Some(&event) {
            return;
        }
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
        drop(events);
        self.event_added.notify_one();
    }

    /// The oldest event that waits.
    pub(super) fn first_event(&self) -> Option<K8sEvent> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).front().cloned()
    }

    /// Forgets `event`, which was told, if it is still the oldest one.
    pub(super) fn event_told(&self, event: &K8sEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.front() == Some(event) {
            events.pop_front();
        }
    }

    /// Until the handler has taken a report of the machine's end.
    pub(super) async fn told(&self) {
        let mut reports = self.report.subscribe();
        let last = reports.wait_for(|report| report.status.is_final()).await.map(|r| r.generation);
        let Ok(last) = last else { return std::future::pending().await };
        let mut taken = self.taken.subscribe();
        if taken.wait_for(|taken| *taken >= last).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        Shared::new(Identity::default(), mpsc::channel(1).0)
    }

    #[test]
    fn a_wish_is_never_taken_back() {
        let shared = shared();
        shared.wish_for(Wish::Kill);
        shared.wish_for(Wish::ShutDown);
        assert_eq!(*shared.wish.borrow(), Wish::Kill);
    }

    #[test]
    fn the_oldest_event_gives_way_and_a_repeated_one_is_told_once() {
        let shared = shared();
        for n in 0..40 {
            shared.event("Normal", "N", format!("event {n}"));
            shared.event("Normal", "N", format!("event {n}"));
        }
        let first = shared.first_event().unwrap();
        assert_eq!(first.message, "event 8");
        shared.event_told(&first);
        shared.event_told(&first);
        assert_eq!(shared.first_event().unwrap().message, "event 9");
    }

    #[tokio::test]
    async fn the_end_is_told_when_the_last_report_was_taken() {
        let shared = Arc::new(shared());
        let waiting = tokio::spawn({
            let shared = shared.clone();
            async move { shared.told().await }
        });
        shared.report.send_modify(|r| (r.generation, r.status) = (4, Status::Running));
        shared.taken.send_replace(4);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        shared.report.send_modify(|r| (r.generation, r.status) = (5, Status::Shutoff));
        shared.taken.send_replace(5);
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn without_a_machine_calls_say_so() {
        let error = shared().call(|h| h.suspend()).await.unwrap_err();
        assert!(matches!(error, HypervisorError::NotRunning(_)));
    }
}
