//! What is to be done about one virtual machine, and what its VMI is to say: a pure function of what was seen.
//!
//! ```text
//!            launcher's socket          guest runs            machine ended
//!  Scheduled ───────────────> (Sync) ──────────────> Running ───────────────> Succeeded | Failed
//!      │ no socket in 3 min                             │
//!      └──> Failed                                      └ launcher gone without a word ──> by its exit code
//! ```
//!
//! The controller writes the phases up to `Scheduled`; from there on they are written here. A pass looks at the
//! VMI, at the launcher, at the launcher's report of its machine, and decides: at most one [`Action`], the VMI's
//! new status, events for its user, and when to look again if nothing happens. The loop around it carries the
//! decision out and starts another pass: nothing is remembered that could not be seen again, except what
//! [`Memory`] holds, and losing that costs a repeated request to a launcher that is idempotent.
//!
//! *Start.* As soon as the launcher answers and has no machine, it gets the VMI; where volumes are hotpluggable, once attachment
//! pods have them all, so that the machine starts with their disks and can boot from one. A machine that has ended is
//! never started again: the phase is final then, and the launcher, which runs one machine in its life, refuses.
//! The launcher's answer takes as long as the start; other passes go on meanwhile, so that a VMI that is deleted
//! while it waits for a disk is not kept waiting. A launcher that refused gets the VMI again, see [`SYNC_RETRIES`].
//!
//! *Why it does not start.* What the launcher waits for, and why it refused, stands in the condition `Synchronized` at
//! once. An event follows for each refusal with another reason, and for a wait of [`WAIT_TOLD`]. Why a container of the
//! pod does not start virt-controller sees and says; a condition of its is left alone.
//!
//! *Shutdown.* A VMI that is being deleted, or whose pod was told to end, is asked to power off, again every
//! [`ASK_AGAIN`] (a guest that has not booted yet misses the first request). When the grace period has passed,
//! the machine is killed; a handler that comes too late still asks first and leaves [`LATE_GRACE`].
//!
//! *An end with the pod.* A launcher that was told to end says so in its last report. The pod's status tells why, but not
//! before all of its containers have ended: the kubelet writes its reason (an eviction) with the final phase. So the VMI
//! stays in its phase until the pod is final, deleted or gone, for at most [`POD_END_WAIT`]. It is not waited for a pod
//! that is being deleted: a client wanted that, and virt-controller takes a VMI whose pod is gone for failed. A VMI that is
//! being deleted needs no reason either.
//!
//! *A machine without its owner.* A final phase with a live machine (the controller gave the VMI up while this
//! node was away): the machine is killed. A VMI that is gone: see [`crate::record`].

mod backup;
mod phase;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use podvirt_api::memory_dump;
use podvirt_api::names::{annotation, event};
use podvirt_api::storage;
use podvirt_api::v1::{self, VirtualMachineInstancePhase as Phase};
use podvirt_proto::domain::Domain;

pub use phase::{Ending, may_be_evicted};

/// How long a launcher may take from `Scheduled` to its socket: its container runs by then, so that this is the
/// time libvirtd takes on a node that is out of breath.
pub const SOCKET_WAIT: Duration = Duration::from_secs(180);
/// Time between two requests to power off.
pub const ASK_AGAIN: Duration = Duration::from_secs(5);
/// What a guest has at least between the first request and the kill, unless its grace period is zero.
pub const LATE_GRACE: Duration = Duration::from_secs(5);
/// How long a launcher may be silent before the VMI says so.
pub const SILENCE: Duration = Duration::from_secs(15);
/// Times between two looks at a launcher that does not answer: the first, and the longest.
const SILENT_LOOKS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(20));
/// How long something may be waited for before the machine runs, until an event says what it is.
pub const WAIT_TOLD: Duration = Duration::from_secs(15);
/// How long a launcher may tell of no machine while its VMI runs: between the machine's end and the report of it
/// lies the launcher's own tidying up.
pub const MISSING: Duration = Duration::from_secs(15);
/// Time for the kubelet to tell how a launcher ended that did not tell itself.
pub const EXIT_WAIT: Duration = Duration::from_secs(20);
/// How long the end of a pod is waited for, after that of its machine. The launcher ends once its last report is taken, and
/// the kubelet ends what does not. Only a kubelet that does not run tells nothing of it, and the machine's own word counts
/// then. It is less than what virt-controller leaves to this process before it judges by the pod alone (60 s).
pub const POD_END_WAIT: Duration = Duration::from_secs(30);
/// Time between two looks at that pod.
const POD_END_LOOK: Duration = Duration::from_secs(1);
/// Times after which a launcher that refused its VMI gets it again: what it lacked may have come.
pub const SYNC_RETRIES: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(15),
    Duration::from_secs(30),
];
/// The state of a link, where a manifest does not name one.
const UP: &str = "up";
/// A pass without a trigger: what a lost event costs at most.
pub const RESYNC: Duration = Duration::from_secs(300);

/// The launcher as it was found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Launcher {
    /// Its socket is not there yet, and this is waited for since then.
    Absent(Timestamp),
    /// It answers.
    Ready,
    /// It accepts connections but does not answer, since then.
    Silent(Timestamp),
    /// The launcher listens no longer, since then.
    Gone(Timestamp),
}

/// How the launcher's container ended, as the kubelet tells.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Exit {
    /// Not looked up, or not told yet.
    #[default]
    Unknown,
    /// The pod is not there any more.
    NoPod,
    /// The kubelet has evicted the pod, for this reason.
    Evicted(String),
    /// Exit code and the kubelet's word for it, such as `OOMKilled`.
    Code(i32, String),
    /// The same in a pod that has not ended as a whole: an eviction is told with the pod's end.
    Ending(i32, String),
    /// The pod is being deleted, or has ended, and nothing is told of the container.
    Untold,
}

impl Exit {
    /// Whether there is no more to be told.
    pub const fn is_told(&self) -> bool {
        matches!(self, Self::NoPod | Self::Evicted(_) | Self::Code(..))
    }
}

/// What earlier passes did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// [`spec_hash`] of what the launcher was last given with success.
    pub synced: Option<u64>,
    /// Whether the launcher is at it now: it answers once the machine runs.
    pub syncing: bool,
    /// Why it refused the VMI the last time; empty after a success.
    pub sync_error: String,
    /// How often in a row it refused, and when the last time.
    pub sync_failures: Option<(u32, Timestamp)>,
    /// When the guest was first asked to power off.
    pub asked_first: Option<Timestamp>,
    /// When it was asked the last time.
    pub asked_last: Option<Timestamp>,
    /// When the machine was killed the last time.
    pub killed: Option<Timestamp>,
}

/// Everything a decision depends on.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The VMI.
    pub vmi: &'a v1::VirtualMachineInstance,
    /// Its launcher.
    pub launcher: Launcher,
    /// The launcher's report. An active state only from a launcher that lives; the report of an end stays.
    pub domain: Option<&'a Domain>,
    /// Since when a launcher that answers has told of no machine, neither a live one nor one that ended.
    pub missing_since: Option<Timestamp>,
    /// Since when the machine is known to have ended.
    pub ended_since: Option<Timestamp>,
    /// How the launcher ended.
    pub exit: &'a Exit,
    /// What earlier passes did.
    pub memory: &'a Memory,
    /// The time.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Give the launcher the VMI, with this hash.
    Sync(u64),
    /// Ask the guest to power off.
    Shutdown,
    /// End the machine.
    Kill,
    /// Ask the API server how the launcher ended.
    LookUpExit,
}

/// Weight of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Weight {
    /// As it should be.
    Normal,
    /// An operator should look.
    Warning,
}

/// An event for the VMI's user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// How bad it is.
    pub weight: Weight,
    /// A word for programs.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

/// The outcome of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What to do, after the status is written.
    pub action: Option<Action>,
    /// The VMI's status.
    pub status: v1::VirtualMachineInstanceStatus,
    /// What to tell the user, once the status is written.
    pub events: Vec<Event>,
    /// When to look again if nothing happens.
    pub again: Option<Duration>,
}

/// Decides.
pub fn decide(view: &View<'_>) -> Decision {
    let (status, mut events) = status::write(view);
    let phase = status.phase.clone().unwrap_or_default();
    let (action, mut again) = act(view, &phase);
    again = again.into_iter().chain(status::wait_left(view, &phase)).min();
    events.extend(action.and_then(|action| announce(view, action)));
    if matches!(phase, Phase::Succeeded | Phase::Failed) && action.is_none() {
        again = None;
    }
    Decision { action, status, events, again }
}

/// Identity of the part of a VMI that the launcher acts on: its specification, and whether probes of its agent are paused. Of
/// its status, which changes while it runs, the networks that its pod is attached to, how large the claims are that it writes,
/// and the volumes whose disks can be plugged.
pub fn spec_hash(vmi: &v1::VirtualMachineInstance) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&vmi.spec).unwrap_or_default().hash(&mut hasher);
    pauses_agent_probes(vmi).hash(&mut hasher);
    // Before it runs it is given with all its networks: that they are told of changes nothing for a machine without any.
    if vmi.status.phase == Some(Phase::Running) {
        let mut attached: Vec<&String> = secondary(vmi).filter(|name| is_attached(vmi, name)).collect();
        attached.sort();
        for name in attached {
            name.hash(&mut hasher);
        }
        for (name, claim) in written_claims(vmi) {
            let size = [&claim.capacity, &claim.requests]
                .map(|sizes| Some(sizes.as_ref()?.get("storage")?.0.clone()));
            (name, size).hash(&mut hasher);
        }
        for name in attached_volumes(vmi) {
            name.hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn act(view: &View<'_>, phase: &Phase) -> (Option<Action>, Option<Duration>) {
    let active = view.domain.is_some_and(|domain| domain.status.is_active());
    match phase {
        Phase::Succeeded | Phase::Failed if active => kill(view),
        // Each pass looks at the pod first.
        Phase::Scheduled | Phase::Running if phase::awaits_pod(view) => (None, Some(POD_END_LOOK)),
        Phase::Scheduled | Phase::Running => match view.launcher {
            Launcher::Ready if active && ending(view) => shut_down(view),
            Launcher::Ready if *phase == Phase::Running && !active => (None, Some(Duration::from_secs(1))),
            Launcher::Ready => give(view, phase),
            Launcher::Absent(_) => (None, Some(Duration::from_secs(5))),
            // The guest may still be asked: silence can be a matter of one call.
            Launcher::Silent(since) => (None, Some(next_look(since, view.now))),
            Launcher::Gone(_) if !view.exit.is_told() => {
                (Some(Action::LookUpExit), Some(Duration::from_secs(1)))
            }
            Launcher::Gone(_) => (None, Some(Duration::from_secs(1))),
        },
        _ => (None, Some(RESYNC)),
    }
}

/// Whether the machine is to end.
fn ending(view: &View<'_>) -> bool {
    view.vmi.metadata.deletion_timestamp.is_some()
        || view.domain.is_some_and(|domain| domain.graceful_shutdown_requested)
}

/// Whether the launcher has to hear of the VMI, and when to look again.
fn give(view: &View<'_>, phase: &Phase) -> (Option<Action>, Option<Duration>) {
    let (memory, hash) = (view.memory, spec_hash(view.vmi));
    let wanted = match phase {
        // Not while it ends: a launcher that was told to end takes no machine. Not twice at a time.
        _ if ending(view) || memory.syncing => false,
        Phase::Scheduled => {
            memory.synced != Some(hash)
                && unattached(view.vmi).is_none()
                && !view.domain.is_some_and(|domain| domain.status.is_final())
        }
        // What a running machine was started with is not known after a restart of ours, nor where it comes to by a
        // migration. It has all of it but for interfaces, their links, the size of claims and paused probes, which may have changed
        // meanwhile.
        Phase::Running => {
            let differs = || {
                links_differ(view)
                    || interfaces_differ(view)
                    || volumes_differ(view)
                    || !written_claims(view.vmi).is_empty()
                    || has_agent_probe(view.vmi)
            };
            memory.synced.map_or_else(differs, |given| given != hash)
        }
        _ => false,
    };
    let Some((failures, last)) = memory.sync_failures.filter(|_| wanted) else {
        return (wanted.then_some(Action::Sync(hash)), Some(RESYNC));
    };
    let place = usize::try_from(failures).unwrap_or(usize::MAX).clamp(1, SYNC_RETRIES.len()) - 1;
    match SYNC_RETRIES[place].checked_sub(elapsed(last, view.now)) {
        Some(left) if !left.is_zero() => (None, Some(left)),
        _ => (Some(Action::Sync(hash)), Some(RESYNC)),
    }
}

/// Whether the machine's user has paused the probes of the guest's agent.
fn pauses_agent_probes(vmi: &v1::VirtualMachineInstance) -> bool {
    let given = vmi.metadata.annotations.as_ref().and_then(|all| all.get(annotation::PAUSE_AGENT_PROBES));
    given.is_some_and(|text| text == "true")
}

/// Whether a probe asks for the answer of the guest's agent.
fn has_agent_probe(vmi: &v1::VirtualMachineInstance) -> bool {
    let probes = [&vmi.spec.liveness_probe, &vmi.spec.readiness_probe];
    probes.into_iter().flatten().any(|probe| probe.guest_agent_ping.is_some())
}

/// What is told of the claims that the machine writes, by volume: they may be expanded while it runs.
fn written_claims(vmi: &v1::VirtualMachineInstance) -> BTreeMap<String, v1::PersistentVolumeClaimInfo> {
    let mut told = storage::told(vmi);
    let written = |volume: &&v1::Volume| storage::claim(volume).is_some_and(|claim| !claim.read_only);
    let names = vmi.spec.volumes.iter().filter(written).map(|volume| &volume.name);
    names.filter_map(|name| told.remove_entry(name)).collect()
}

/// Names of the volumes whose attachment pods are ready: their disks can be brought to the launcher, and plugged.
fn attached_volumes(vmi: &v1::VirtualMachineInstance) -> impl Iterator<Item = &String> {
    let is_ready = |told: &&v1::VolumeStatus| {
        let hotplug = told.hotplug_volume.as_ref();
        hotplug.and_then(|hotplug| hotplug.attach_pod_uid.as_ref()).is_some_and(|uid| !uid.is_empty())
    };
    vmi.status.volume_status.iter().filter(is_ready).map(|told| &told.name)
}

/// The file that the guest's memory is to be written to, once an attachment pod has its claim.
pub fn wanted_dump(vmi: &v1::VirtualMachineInstance) -> Option<&str> {
    let volume = vmi.spec.volumes.iter().find(|volume| volume.memory_dump.is_some())?;
    attached_volumes(vmi).find(|name| **name == volume.name)?;
    let told = vmi.status.volume_status.iter().find(|told| told.name == volume.name)?;
    memory_dump::file(told)
}

/// The first hotpluggable volume whose disk cannot be brought to the launcher yet.
fn unattached(vmi: &v1::VirtualMachineInstance) -> Option<&str> {
    let is_attached = |name: &String| attached_volumes(vmi).any(|attached| attached == name);
    let mut plugged = vmi.spec.volumes.iter().filter(|volume| storage::is_hotpluggable(volume));
    plugged.find(|volume| !is_attached(&volume.name)).map(|volume| volume.name.as_str())
}

/// Whether a volume's disk can be plugged that the machine lacks, or the launcher has the disk of a volume that is gone.
fn volumes_differ(view: &View<'_>) -> bool {
    let (vmi, Some(domain)) = (view.vmi, view.domain) else { return false };
    let wanted = |name: &String| {
        storage::volumes(vmi).any(|volume| volume.name == *name && storage::is_hotpluggable(&volume))
    };
    let dump = wanted_dump(vmi);
    let dumped = || domain.memory_dump.as_ref().map(|dump| dump.file.as_str());
    if dump.is_some() && dump != dumped() {
        return true;
    }
    let is_dump = |name: &String| {
        vmi.spec.volumes.iter().any(|volume| volume.name == *name && volume.memory_dump.is_some())
    };
    // Of a volume that a backup writes to, the launcher has the directory, and the guest nothing.
    let has_directory = |name: &String| storage::is_utility(vmi, name) && domain.volumes.contains(name);
    let has = |name: &String| {
        is_dump(name) || has_directory(name) || domain.disks.iter().any(|disk| disk.name == *name)
    };
    attached_volumes(vmi).any(|name| wanted(name) && !has(name))
        || domain.volumes.iter().any(|name| !wanted(name))
}

/// Whether a link of the machine is another one than its VMI says.
fn links_differ(view: &View<'_>) -> bool {
    let wanted = |name: &str| {
        let mut interfaces = view.vmi.spec.domain.devices.interfaces.iter();
        let interface = interfaces.find(|interface| interface.name == name)?;
        Some(interface.state.as_ref().map_or(UP, |state| state.as_str()) == UP)
    };
    let told = view.domain.iter().flat_map(|domain| &domain.interfaces);
    // One that the guest alone knows of has no name, and an older launcher tells of no link.
    told.filter(|told| !told.link_state.is_empty())
        .any(|told| wanted(&told.name).is_some_and(|wanted| wanted != (told.link_state == UP)))
}

/// Names of the interfaces on networks of Multus beside the pod's own, whose presence may change while the machine runs.
fn secondary(vmi: &v1::VirtualMachineInstance) -> impl Iterator<Item = &String> {
    vmi.spec.networks.iter().filter(|n| n.multus.is_some() && !n.is_primary()).map(|network| &network.name)
}

/// Whether the pod is attached to the network of this interface, by what virt-controller has from Multus.
pub(crate) fn is_attached(vmi: &v1::VirtualMachineInstance, name: &str) -> bool {
    let told = vmi.status.interfaces.iter().find(|told| told.name.as_deref() == Some(name));
    let source = told.and_then(|told| told.info_source.as_deref()).unwrap_or_default();
    source.split(", ").any(|word| word == status::MULTUS)
}

/// Whether the machine lacks an interface whose network the pod is attached to, or has one that is unplugged.
fn interfaces_differ(view: &View<'_>) -> bool {
    let (vmi, Some(domain)) = (view.vmi, view.domain) else { return false };
    let has = |name: &str| domain.interfaces.iter().any(|told| told.name == *name);
    let interfaces = &vmi.spec.domain.devices.interfaces;
    secondary(vmi).filter_map(|name| interfaces.iter().find(|i| i.name == *name)).any(|interface| {
        let name = &interface.name;
        if interface.is_absent() { has(name) } else { !has(name) && is_attached(vmi, name) }
    })
}

fn shut_down(view: &View<'_>) -> (Option<Action>, Option<Duration>) {
    let (memory, now) = (view.memory, view.now);
    let grace = grace_period(view.vmi);
    if grace.is_zero() {
        return kill(view);
    }
    let Some(asked_first) = memory.asked_first else {
        return (Some(Action::Shutdown), Some(ASK_AGAIN));
    };
    let deleted = view.vmi.metadata.deletion_timestamp.as_ref().map(|at| at.0);
    let told = view.domain.and_then(|domain| domain.kill_at_ms).and_then(from_ms);
    // The pod's own grace period is longer than the VMI's by half a minute: this comes before the kubelet.
    let deadline = [deleted.map(|at| at + grace), told]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(asked_first + grace)
        .max(asked_first + grace.min(LATE_GRACE));
    if now >= deadline {
        return kill(view);
    }
    let left = Duration::try_from(deadline.duration_since(now)).unwrap_or_default();
    match memory.asked_last {
        Some(last) if now < last + ASK_AGAIN => {
            let next = Duration::try_from((last + ASK_AGAIN).duration_since(now)).unwrap_or_default();
            (None, Some(next.min(left)))
        }
        _ => (Some(Action::Shutdown), Some(ASK_AGAIN.min(left))),
    }
}

/// Ends the machine, and again if it still lives a while later.
fn kill(view: &View<'_>) -> (Option<Action>, Option<Duration>) {
    match view.memory.killed {
        Some(last) if view.now < last + ASK_AGAIN => (None, Some(Duration::from_secs(1))),
        _ => (Some(Action::Kill), Some(Duration::from_secs(1))),
    }
}

fn announce(view: &View<'_>, action: Action) -> Option<Event> {
    let normal = |reason, message| Some(Event { weight: Weight::Normal, reason, message });
    let grace = grace_period(view.vmi).as_secs();
    match action {
        Action::Shutdown if view.memory.asked_first.is_none() => {
            normal(event::SHUTTING_DOWN, format!("the guest is asked to power off; it has {grace} s"))
        }
        Action::Kill if view.memory.killed.is_none() && grace == 0 => {
            normal(event::DELETED, "the machine is ended without asking the guest".into())
        }
        Action::Kill if view.memory.killed.is_none() => normal(
            event::DELETED,
            format!("the guest did not power off within {grace} s: the machine is ended"),
        ),
        _ => None,
    }
}

/// Time until the next look at a launcher that has been silent since `since`: as long as it has been silent already,
/// within limits. Each look is a call that waits for its deadline.
pub(crate) fn next_look(since: Timestamp, now: Timestamp) -> Duration {
    let (first, longest) = SILENT_LOOKS;
    elapsed(since, now).clamp(first, longest)
}

/// The time a guest has to power off. 30 s is what the API puts where a manifest has nothing.
fn grace_period(vmi: &v1::VirtualMachineInstance) -> Duration {
    let seconds = vmi.spec.termination_grace_period_seconds.unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default().min(MAX_GRACE.as_secs()))
}

/// A grace period above this is taken for this: sums with times stay within range.
const MAX_GRACE: Duration = Duration::from_secs(10 * 365 * 86_400);

fn from_ms(ms: u64) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok()
}

/// Time from `since` to `now`; zero when the clock went back.
pub(crate) fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since).max(SignedDuration::ZERO)).unwrap_or_default()
}
