//! Live migration, as the nodes of source and target see it.
//!
//! ```text
//!   controller              target's handler                      source's handler
//!   target pod, label ────> SyncMigrationTarget
//!                           listens (TLS), address and ports ───> UNIX sockets in the pod
//!                                                                 startTimestamp, MigrateVirtualMachine
//!                                   <═════ libvirt, memory, disks ═════
//!                                   <───── the launchers' word: it runs here, and nowhere else
//!                           it runs here: addresses speak,
//!                           targetNodeDomainReadyTimestamp ─────> nodeName, label, completed, endTimestamp
//!   Succeeded <──────────── FinalizeVirtualMachineMigration       launcher ends
//! ```
//!
//! [`source`] and [`target`] decide, as pure functions of the VMI, of the launcher's report and of a [`Session`],
//! which holds what this process has open and what it tried. Nothing of a session is stored. A handler that starts
//! anew while memory is copied finds the connections gone with its predecessor: the copying fails, and the source's
//! machine goes on. One that starts anew at any other moment does again what it finds undone.
//!
//! Which handler may write what is fixed ([`source`], [`target`]), and every write is refused when the VMI has changed
//! since it was read. The launchers see to it that the machine runs at one end only: one that has come stands still
//! until the source's launcher has ended its own and given its word ([`podvirt_proto::migration::word`]). When that is
//! lost on its way, which is the case when the source says that the machine has left and the target does not say that
//! it has come ([`UNHEARD`]), the source's handler hands over, and the target's finalizes, by which it gives the word.
//! Between launchers that know of no word both sides may have the machine when the network is cut in the very moment of
//! the switch-over: if the source's handler wrote first that it failed, the target's ends what came; if the target's
//! wrote first that the machine is there, the source's hands over and its own is ended.

pub mod network;
pub mod proxy;
pub mod source;
pub mod target;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::names::label;
use podvirt_api::v1::{self, VirtualMachineInstanceMigrationState as State};
use podvirt_daemon::pki::Identity;
use podvirt_proto::domain::Domain;
use podvirt_proto::migration::{Migration, Mode, Options};

use crate::vm::{Event, Launcher, Weight, elapsed};
use network::{Network, Silent};

/// How long a machine may run at the target before the target's handler writes what the source's should.
pub const TAKE_OVER: Duration = Duration::from_secs(30);
/// How often it is tried to make addresses speak before the migration goes on without: the machine is here, and must not
/// stay between two nodes.
pub const ACTIVATIONS: u32 = 5;
/// How long repair is offered after a migration: as long as a backend asks for it. Connections that were frozen, and that a
/// handler which died then has left so, are to go on with the next one.
pub const AFTERWARDS: Duration = Duration::from_secs(60);
/// How long a handler that finds the machine here, and did not carry it, waits for the source's word: what carried it died
/// at the switch-over, and if it died too early the source goes on with the machine and says so within moments.
pub const VERDICT: Duration = Duration::from_secs(5);
/// How long a machine that has left may be unheard of at the target before the source's handler hands over.
pub const UNHEARD: Duration = Duration::from_secs(2);
/// How long a launcher that left a migration without a word is taken for one whose machine has moved: longer than
/// the target's handler needs to tell.
pub const LEFT: Duration = Duration::from_secs(120);
/// Between two looks at what is to come soon.
const SOON: Duration = Duration::from_secs(1);
/// The same for what comes by an event.
const LATER: Duration = Duration::from_secs(10);

/// Events for users.
pub mod event {
    /// A migration came to nothing.
    pub const FAILED: &str = "MigrationFailed";
    /// The machine runs on another node now.
    pub const MIGRATED: &str = "Migrated";
}

/// What every migration of this node needs.
#[derive(Clone, Debug)]
pub struct Means {
    /// Address of this process for the other nodes; empty: not known, and no migration comes here.
    pub address: String,
    /// What this node shows the others, once it is there.
    pub identity: Arc<OnceLock<Identity>>,
    /// Repair of connections and activation of addresses.
    pub network: Arc<dyn Network>,
}

impl Means {
    /// Means without a certificate and without a network to care for.
    pub fn new(address: String) -> Self {
        Self { address, identity: Arc::default(), network: Arc::new(Silent) }
    }
}

/// What this process did for a migration, and what is open.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Session {
    /// The migration's UID. What follows is about it.
    pub uid: String,
    /// Whether repair is armed.
    pub armed: bool,
    /// Where the open proxies lead: address and TCP ports by logical ones, of the source's; TCP ports of the target's.
    pub open: Option<Open>,
    /// Why opening them failed the last time.
    pub trouble: String,
    /// Source: the launcher was asked to begin, and has not said since that it moves nothing. Its report may be older.
    pub asked: bool,
    /// Source: why the launcher refused to begin.
    pub refused: String,
    /// Source: when the launcher was asked to abort the last time.
    pub cancelled: Option<Timestamp>,
    /// No proxy is open, and nothing of one is left in the pod.
    pub swept: bool,
    /// Target: the launcher is at SyncMigrationTarget.
    pub preparing: bool,
    /// Target: it is ready for the machine.
    pub prepared: bool,
    /// Target: how often in a row it refused, when the last time, and why.
    pub unprepared: Option<(u32, Timestamp, String)>,
    /// Target: when the machine was found here by a process that has no proxies open, and carried nothing therefore.
    pub found: Option<Timestamp>,
    /// Target: addresses were made to speak.
    pub activated: bool,
    /// Target: how often that failed.
    pub silent: u32,
    /// Target: the launcher finished its part, or was asked to leave, at this time.
    pub settled: Option<Timestamp>,
    /// Target: nothing is left to do.
    pub finalized: bool,
}

/// Open proxies.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Open {
    /// The target's address; this node's own at the target.
    pub address: String,
    /// Logical port by TCP port, in the API's form.
    pub ports: std::collections::BTreeMap<String, i64>,
}

/// What is to be done for a migration; one thing a pass.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// Arm repair in the pod.
    Arm,
    /// Target: have the launcher prepare.
    Prepare,
    /// Open the proxies; at the source, to there.
    Open(Option<Open>),
    /// Source: have the launcher begin.
    Begin(Options),
    /// Source: have the launcher abort.
    Cancel,
    /// Target: make the addresses speak.
    Activate,
    /// Target: have the launcher finish its part.
    Finalize,
    /// Target: tell the launcher that nothing will come.
    Leave,
    /// Target: end a machine that is not to be here.
    Kill,
    /// Close the proxies, and remove what another process had open.
    Shut,
    /// The same, and end repair.
    Close,
}

/// Everything a decision depends on.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The VMI as it was read.
    pub vmi: &'a v1::VirtualMachineInstance,
    /// This node.
    pub node: &'a str,
    /// The launcher on this node.
    pub launcher: Launcher,
    /// Its report.
    pub domain: Option<&'a Domain>,
    /// What was done.
    pub session: &'a Session,
    /// The time.
    pub now: Timestamp,
}

/// What a migration adds to a pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What is to be done, after the VMI is written.
    pub step: Option<Step>,
    /// What to tell the user, once it is written.
    pub events: Vec<Event>,
    /// When to look again if nothing happens.
    pub again: Option<Duration>,
}

impl Decision {
    fn step(step: Step) -> Self {
        Self { step: Some(step), ..Self::default() }
    }

    fn again(again: Duration) -> Self {
        Self { again: Some(again), ..Self::default() }
    }

    fn event(mut self, weight: Weight, reason: &'static str, message: impl Into<String>) -> Self {
        self.events.push(Event { weight, reason, message: message.into() });
        self
    }
}

/// Decides for whichever end this node is, and writes into `new`, which is the VMI as the pass is about to write it.
pub fn decide(view: &View<'_>, new: &mut v1::VirtualMachineInstance) -> Decision {
    let Some(state) = &view.vmi.status.migration_state else { return close(view) };
    if is_target(view.vmi, view.node) {
        target::decide(view, state, new)
    } else if state.source_node.as_deref() == Some(view.node) {
        source::decide(view, state, new)
    } else if state.target_node.as_deref() == Some(view.node) && state.failed != Some(true) {
        wind_up(view, state)
    } else {
        close(view)
    }
}

impl Session {
    /// Takes note of what is seen at `now`, before [`decide`].
    pub fn note(
        &mut self,
        vmi: &v1::VirtualMachineInstance,
        node: &str,
        domain: Option<&Domain>,
        now: Timestamp,
    ) {
        let here = is_target(vmi, node) && domain.is_some_and(|domain| domain.status.is_active());
        if here && self.open.is_none() && !self.swept {
            self.found.get_or_insert(now);
        }
    }
}

/// Whether a machine comes, or has just come, to `node`.
pub fn is_target(vmi: &v1::VirtualMachineInstance, node: &str) -> bool {
    let labelled = vmi.metadata.labels.as_ref().and_then(|l| l.get(label::MIGRATION_TARGET_NODE_NAME));
    let state = vmi.status.migration_state.as_ref();
    labelled.is_some_and(|on| on == node) && state.and_then(|s| s.target_node.as_deref()) == Some(node)
}

/// Whether a machine comes to `node` that is another node's still.
pub fn is_awaited(vmi: &v1::VirtualMachineInstance, node: &str) -> bool {
    is_target(vmi, node) && vmi.status.node_name.as_deref() != Some(node)
}

/// Whether the machine of this VMI is another node's, and does not come here: what `node` has of it is left over from a
/// migration.
pub fn is_elsewhere(vmi: &v1::VirtualMachineInstance, node: &str) -> bool {
    vmi.status.node_name.as_deref().is_some_and(|on| on != node) && !is_target(vmi, node)
}

/// Whether a migration from here has begun and its end was not written.
pub fn is_under_way(vmi: &v1::VirtualMachineInstance) -> bool {
    vmi.status.migration_state.as_ref().is_some_and(|state| !is_over(state) && begun(state).is_some())
}

fn close(view: &View<'_>) -> Decision {
    let idle = view.session.open.is_none() && !view.session.armed;
    if idle { Decision::default() } else { Decision::step(Step::Close) }
}

/// Closes the proxies at once, and repair when no backend asks for it any more.
fn wind_up(view: &View<'_>, state: &State) -> Decision {
    let session = view.session;
    if session.open.is_some() || !session.swept {
        return Decision::step(Step::Shut);
    }
    let ended = time(&state.end_timestamp).and_then(|at| AFTERWARDS.checked_sub(passed(view, at)));
    match ended.filter(|left| !left.is_zero() && view.launcher == Launcher::Ready) {
        Some(left) if session.armed => Decision::again(left),
        Some(_) => Decision::step(Step::Arm),
        None => close(view),
    }
}

/// Whether how it ended is written.
fn is_over(state: &State) -> bool {
    state.completed == Some(true) || state.failed == Some(true) || time(&state.end_timestamp).is_some()
}

fn begun(state: &State) -> Option<Timestamp> {
    time(&state.start_timestamp)
}

fn arrived(state: &State) -> Option<Timestamp> {
    time(&state.target_node_domain_ready_timestamp)
}

#[expect(clippy::ref_option, reason = "a field of the API")]
fn time(field: &Option<Option<Time>>) -> Option<Timestamp> {
    field.as_ref()?.as_ref().map(|time| time.0)
}

/// The API's times have seconds.
#[expect(clippy::option_option, reason = "the API's form")]
fn written(at: Timestamp) -> Option<Option<Time>> {
    Some(Some(Time(Timestamp::from_second(at.as_second()).unwrap_or(at))))
}

fn uid(state: &State) -> &str {
    state.migration_uid.as_deref().unwrap_or_default()
}

/// The launcher's report of this very migration.
fn report<'a>(view: &View<'a>, state: &State) -> Option<&'a Migration> {
    view.domain?.migration.as_ref().filter(|migration| migration.uid == uid(state))
}

/// The state that is written.
fn state_of(new: &mut v1::VirtualMachineInstance) -> &mut State {
    new.status.migration_state.get_or_insert_default()
}

/// The machine is the target's from now on.
fn hand_over(view: &View<'_>, state: &State, new: &mut v1::VirtualMachineInstance) -> Decision {
    let target = state.target_node.clone().unwrap_or_default();
    let ended = state_of(new);
    ended.completed = Some(true);
    ended.end_timestamp = written(view.now);
    if ended.abort_status.is_some() {
        ended.abort_status = Some(v1::MigrationAbortStatus::Failed);
    }
    podvirt_api::storage::arrived(new);
    new.status.node_name = Some(target.clone());
    new.metadata.labels.get_or_insert_default().insert(label::NODE_NAME.into(), target.clone());
    Decision::again(SOON).event(
        Weight::Normal,
        event::MIGRATED,
        format!(
            "the machine has moved from node {} to node {target}",
            state.source_node.as_deref().unwrap_or_default()
        ),
    )
}

/// Writes that the migration failed: the machine runs on at the source. As upstream, a failed migration is not `completed`.
fn fail(view: &View<'_>, new: &mut v1::VirtualMachineInstance, reason: &str) -> Decision {
    let state = state_of(new);
    state.failed = Some(true);
    // virt-controller, if it wanted the migration aborted, may have said why.
    let said = state.failure_reason.take().filter(|said| !said.is_empty());
    state.failure_reason = Some(said.unwrap_or_else(|| reason.to_owned()));
    state.end_timestamp = written(view.now);
    Decision::again(Duration::ZERO).event(
        Weight::Warning,
        event::FAILED,
        format!("the machine stays where it is: {reason}"),
    )
}

fn mode(mode: Mode) -> v1::MigrationMode {
    match mode {
        Mode::Paused => v1::MigrationMode::Paused,
        Mode::PreCopy => v1::MigrationMode::PreCopy,
    }
}

fn passed(view: &View<'_>, since: Timestamp) -> Duration {
    elapsed(since, view.now)
}
