//! One pass over one VMI: look, decide, write, act.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use podvirt_api::names::{event, pod};
use podvirt_api::v1::{VirtualMachineInstance, VirtualMachineInstancePhase as Phase};
use podvirt_daemon::patch;
use podvirt_proto::domain::Domain;
use tokio::sync::Semaphore;

use super::machine::{Machine, Place, vmi_of_record};
use super::own::Own;
use super::{Node, VmiEvent, migrate, pods};
use crate::launcher::client::{Error, Order};
use crate::migration::{self, Step};
use crate::queue::Outcome;
use crate::vm::{self, Action, Decision, Event, Exit, Launcher, View, Weight};

/// Time until a conflict's cause has come in by the watch.
const STALE: Duration = Duration::from_secs(1);
/// Time between two writes of a status that says nothing but the machine's facts, which a launcher can change as
/// often as it likes.
const FACTS: Duration = Duration::from_secs(2);
/// Time between two looks at a launcher whose VMI is gone.
const GHOST: Duration = Duration::from_secs(2);

/// Longest time that the API server may take. One that hangs must not hold a place among the calls for ever.
pub(super) const API: Duration = Duration::from_secs(30);
/// Calls of passes to the API server at a time, as many as upstream has threads: a node with hundreds of machines
/// asks for no more at once when it starts.
const API_CALLS: usize = 10;
/// Places of those calls. They are the process's, as the API server's limits are.
static PLACES: Semaphore = Semaphore::const_new(API_CALLS);

/// A call to the API server, in its turn and within its time.
pub(super) async fn within<T, E>(call: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
where
    anyhow::Error: From<E>,
{
    let _place = PLACES.acquire().await?;
    let answer = tokio::time::timeout(API, call).await;
    Ok(answer.map_err(|_| anyhow::anyhow!("the API server did not answer within {} s", API.as_secs()))??)
}

/// Looks at the VMI with this UID and at its launcher, and does what is to be done.
pub(super) async fn pass(node: &Node, uid: &str, mut machine: Machine) -> (Machine, Outcome) {
    let outcome = match node.store.get(uid) {
        // Boxed: one a machine may lie about while it waits, most of them for one line of it.
        Some(vmi) => Box::pin(of_vmi(node, &vmi, &mut machine)).await,
        None => of_ghost(node, &mut machine).await,
    };
    let outcome = outcome.unwrap_or_else(|error| {
        tracing::warn!(error = format!("{error:#}"), "the pass failed; trying again");
        Outcome::Failed
    });
    (machine, outcome)
}

async fn of_vmi(
    node: &Node,
    vmi: &Arc<VirtualMachineInstance>,
    machine: &mut Machine,
) -> anyhow::Result<Outcome> {
    let phase = vmi.status.phase.clone().unwrap_or_default();
    let over = matches!(phase, Phase::Succeeded | Phase::Failed);
    if !over && !matches!(phase, Phase::Scheduled | Phase::Running) {
        return Ok(Outcome::Settled);
    }
    if migration::is_awaited(vmi, &node.name) {
        return of_awaited(node, vmi, machine).await;
    }
    if vmi.status.node_name.as_deref().is_some_and(|on| on != node.name) {
        // The label goes as well, in a moment.
        return Ok(Outcome::Again(STALE));
    }
    match machine.find_pod(node, vmi).await? {
        Place::Pod => node.store.put_pod(vmi, machine.pod_uid()),
        Place::Gone => {}
        Place::Nowhere => {
            if !over {
                tracing::warn!("the VMI is on this node but none of its active pods is");
            }
            return Ok(Outcome::Settled);
        }
    }
    if over && !machine.met() {
        return Ok(Outcome::Settled);
    }
    let (launcher, domain) = machine.look(node, vmi, Timestamp::now()).await?;
    match machine.synced(Timestamp::now()) {
        Some(Ok(first)) => {
            node.metrics.synced(true);
            if first && phase == Phase::Scheduled {
                let message = "the machine was defined and started".into();
                tell(node, vmi, Event { weight: Weight::Normal, reason: event::CREATED, message });
            }
        }
        Some(Err(error)) => {
            node.metrics.synced(false);
            tracing::warn!(error = &error as &dyn std::error::Error, "the launcher did not take the VMI");
        }
        None => {}
    }
    if over && matches!(launcher, Launcher::Gone(_) | Launcher::Absent(_)) {
        machine.release();
        return Ok(Outcome::Settled);
    }
    match decide(node, vmi, machine, launcher, domain.as_ref()).await {
        Ok(Decided { action: Some(action), again, .. }) => act(node, vmi, machine, action, again).await,
        Ok(Decided { step: Some(step), again, .. }) => move_on(node, vmi, machine, step, again).await,
        Ok(Decided { again, .. }) => Ok(again.map_or(Outcome::Settled, Outcome::Again)),
        Err(error) if error.downcast_ref().is_some_and(patch::Error::is_stale) => Ok(Outcome::Again(STALE)),
        Err(error) => Err(error),
    }
}

/// A machine that comes from another node.
async fn of_awaited(
    node: &Node,
    vmi: &Arc<VirtualMachineInstance>,
    machine: &mut Machine,
) -> anyhow::Result<Outcome> {
    if migrate::target_pod(node, vmi, machine).await?.is_none() {
        return Ok(Outcome::Again(STALE));
    }
    let (launcher, domain) = machine.look(node, vmi, Timestamp::now()).await?;
    // It is yet to come: that it is missing counts from when it is this node's.
    machine.missing_since = None;
    let mut new = VirtualMachineInstance::clone(vmi);
    let now = Timestamp::now();
    let decision = migrate::decide(node, machine, vmi, &mut new, launcher, domain.as_ref(), now);
    tracing::debug!(?launcher, step = ?decision.step, "decided for one that comes");
    match write(node, vmi, &new).await {
        Ok(_) => {}
        Err(error) if error.downcast_ref().is_some_and(patch::Error::is_stale) => {
            return Ok(Outcome::Again(STALE));
        }
        Err(error) => return Err(error),
    }
    for event in decision.events {
        tell(node, vmi, event);
    }
    match decision.step {
        Some(step) => move_on(node, vmi, machine, step, decision.again).await,
        None => Ok(decision.again.map_or(Outcome::Settled, Outcome::Again)),
    }
}

/// Carries a migration's step out and looks again at once, or after `again`.
async fn move_on(
    node: &Node,
    vmi: &Arc<VirtualMachineInstance>,
    machine: &mut Machine,
    step: Step,
    again: Option<Duration>,
) -> anyhow::Result<Outcome> {
    let waits = step == Step::Prepare;
    migrate::carry_out(node, vmi, machine, step).await?;
    Ok(match again {
        _ if waits => Outcome::Settled,
        again => Outcome::Again(again.unwrap_or_default()),
    })
}

/// Writes what differs; whether anything did.
async fn write(
    node: &Node,
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
) -> anyhow::Result<bool> {
    let namespace = old.metadata.namespace.as_deref().unwrap_or_default();
    let api = Api::namespaced(node.client.clone(), namespace);
    let Some(written) = within(patch::status(&api, old, new)).await? else { return Ok(false) };
    node.store.update(written);
    Ok(true)
}

/// What is to be done once the status is written.
struct Decided {
    action: Option<Action>,
    step: Option<Step>,
    again: Option<Duration>,
}

/// Decides, writes the status and tells the user; returns what is to be done then.
async fn decide(
    node: &Node,
    vmi: &Arc<VirtualMachineInstance>,
    machine: &mut Machine,
    launcher: Launcher,
    domain: Option<&Domain>,
) -> anyhow::Result<Decided> {
    if !machine.exit.is_told() && domain.is_some_and(|domain| vm::may_be_evicted(vmi, domain)) {
        machine.exit = look_up_exit(node, vmi, machine).await?;
    }
    let now = Timestamp::now();
    if domain.is_some_and(|domain| domain.status.is_final()) {
        machine.ended_since.get_or_insert(now);
    }
    let (exit, memory) = (&machine.exit, &machine.memory);
    let (missing_since, ended_since) = (machine.missing_since, machine.ended_since);
    let Decision { action, status, mut events, mut again } =
        vm::decide(&View { vmi, launcher, domain, missing_since, ended_since, exit, memory, now });
    let mut new = VirtualMachineInstance::clone(vmi);
    new.status = status;
    let moves = migrate::decide(node, machine, vmi, &mut new, launcher, domain, now);
    events.extend(moves.events);
    let step = moves.step;
    // After a step comes the next one; and of an action and a step the step is the next pass's.
    let next = moves.again.or_else(|| step.is_some().then_some(Duration::ZERO));
    again = again.into_iter().chain(next).min();
    tracing::debug!(?launcher, ?action, ?step, phase = ?new.status.phase, "decided");
    let facts_only = events.is_empty()
        && new.metadata == vmi.metadata
        && new.status.phase == vmi.status.phase
        && new.status.migration_state == vmi.status.migration_state
        && vmi.metadata.deletion_timestamp.is_none();
    if facts_only
        && new.status != vmi.status
        && let Some(left) = too_soon(machine.written, now)
    {
        return Ok(Decided { action, step, again: Some(again.map_or(left, |again| again.min(left))) });
    }
    if write(node, vmi, &new).await? {
        if new.status.phase != vmi.status.phase {
            tracing::info!(from = ?vmi.status.phase, to = ?new.status.phase, "phase");
            let late = ended_since.is_some_and(|since| vm::elapsed(since, now) >= vm::POD_END_WAIT);
            if late && !machine.exit.is_told() && domain.is_some_and(|domain| domain.ended_with_pod) {
                let seconds = vm::POD_END_WAIT.as_secs();
                tracing::warn!(seconds, "the pod's end is not told; the machine's own word counts");
            }
        }
        machine.written = Some(now);
    }
    for event in events {
        tell(node, vmi, event);
    }
    Ok(Decided { action, step, again })
}

/// How long facts have to wait that were written at `last`.
fn too_soon(last: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    // A clock that went back is no reason to wait.
    let since = Duration::try_from(now.duration_since(last?)).ok()?;
    FACTS.checked_sub(since).filter(|left| !left.is_zero())
}

/// Carries an action out and remembers it.
async fn act(
    node: &Node,
    vmi: &Arc<VirtualMachineInstance>,
    machine: &mut Machine,
    action: Action,
    again: Option<Duration>,
) -> anyhow::Result<Outcome> {
    let again = again.map_or(Outcome::Settled, Outcome::Again);
    if action == Action::LookUpExit {
        machine.exit = look_up_exit(node, vmi, machine).await?;
        return Ok(if machine.exit.is_told() { Outcome::Again(Duration::ZERO) } else { again });
    }
    let Some(client) = machine.client().cloned() else { return Ok(again) };
    match action {
        Action::Sync(hash) => {
            machine.sync(node, vmi, client, hash);
            Ok(again)
        }
        Action::Shutdown => {
            let now = Timestamp::now();
            machine.memory.asked_first.get_or_insert(now);
            machine.memory.asked_last = Some(now);
            order(client.order(Order::Shutdown, vmi).await, "the guest cannot be asked to power off");
            Ok(again)
        }
        Action::Kill => {
            machine.memory.killed = Some(Timestamp::now());
            order(client.order(Order::Kill, vmi).await, "the machine cannot be ended");
            Ok(again)
        }
        Action::LookUpExit => Ok(again),
    }
}

fn order(result: Result<(), Error>, what: &'static str) {
    if let Err(error) = result {
        // The deadlines are ours: the next pass orders more, or sees that it was done.
        tracing::warn!(error = &error as &dyn std::error::Error, what);
    }
}

/// A launcher that was met and whose VMI the watch does not show any more.
async fn of_ghost(node: &Node, machine: &mut Machine) -> anyhow::Result<Outcome> {
    let Some(record) = machine.record.clone() else { return Ok(Outcome::Forget) };
    let (namespace, name) = record.name();
    let api: Api<Own> = Api::namespaced(node.client.clone(), &namespace);
    let known = within(api.get_opt(&name)).await?.map(|Own(vmi)| vmi);
    let known = known.filter(|vmi| vmi.metadata.uid.as_deref() == Some(record.uid().as_str()));
    let left = known.as_ref().is_some_and(|vmi| migration::is_elsewhere(vmi, &node.name));
    if known.is_some() && !left {
        tracing::warn!(
            namespace,
            name,
            "the VMI has lost the label with its node; its machine is left alone"
        );
        return Ok(Outcome::Again(vm::RESYNC));
    }
    let vmi = vmi_of_record(&record);
    node.metrics.moving(&vmi, None);
    let (launcher, domain) = machine.look(node, &vmi, Timestamp::now()).await?;
    match launcher {
        Launcher::Gone(_) | Launcher::Absent(_) => {
            machine.release();
            record.remove()?;
            tracing::info!(left, "the last of a machine whose VMI is gone from here");
            Ok(Outcome::Forget)
        }
        Launcher::Ready if domain.is_some_and(|domain| domain.status.is_active()) => {
            // One that has left is another node's by its VMI's own word: this is what a broken switch-over left here.
            tracing::warn!(left, "the VMI is gone from here: its machine is ended");
            if let Some(client) = machine.client() {
                order(client.order(Order::Kill, &vmi).await, "the machine cannot be ended");
            }
            Ok(Outcome::Again(GHOST))
        }
        // The launcher ends with its pod.
        Launcher::Ready => Ok(Outcome::Again(GHOST)),
        Launcher::Silent(since) => Ok(Outcome::Again(vm::next_look(since, Timestamp::now()))),
    }
}

/// Asks the API server how the launcher's container ended.
async fn look_up_exit(
    node: &Node,
    vmi: &VirtualMachineInstance,
    machine: &mut Machine,
) -> anyhow::Result<Exit> {
    if machine.find_pod(node, vmi).await? != Place::Pod {
        return Ok(Exit::NoPod);
    }
    let launcher = pods::get(node, vmi, &pods::name_of(vmi)).await?;
    let launcher = launcher.filter(|pod| pod.metadata.uid.as_deref() == Some(machine.pod_uid()));
    Ok(launcher.as_ref().map_or(Exit::NoPod, exit_of))
}

/// How the launcher's container ended, from its pod.
pub(super) fn exit_of(launcher: &Pod) -> Exit {
    let status = launcher.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let terminated = containers
        .filter(|container| container.name == pod::COMPUTE)
        .find_map(|container| container.state.as_ref()?.terminated.as_ref());
    // Also of a guest that went down in time: neither it nor its user wanted that.
    if let Some(why) = pod::eviction(launcher) {
        return Exit::Evicted(why.to_owned());
    }
    let over = matches!(status.and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"))
        || launcher.metadata.deletion_timestamp.is_some();
    let Some(end) = terminated else { return if over { Exit::Untold } else { Exit::Unknown } };
    let word = end.reason.clone().unwrap_or_else(|| "no reason given".into());
    if over { Exit::Code(end.exit_code, word) } else { Exit::Ending(end.exit_code, word) }
}

fn tell(node: &Node, vmi: &Arc<VirtualMachineInstance>, event: Event) {
    if let Err(error) = node.event_queue.try_send(VmiEvent { vmi: Arc::clone(vmi), event }) {
        // Events are a courtesy; the status says it, too.
        tracing::warn!(%error, "an event is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_is_told_in_the_kubelets_words_as_soon_as_it_says_it() {
        let status = |status: serde_json::Value| {
            exit_of(&serde_json::from_value(serde_json::json!({"status": status})).unwrap())
        };
        let why = "Usage of EmptyDir volume \"ephemeral-disks\" exceeds the limit \"1Gi\". ";
        let condition = serde_json::json!([{
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": why,
        }]);
        let ended = |code: i32| {
            serde_json::json!([{
                "name": "compute", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code, "reason": "Error"}},
            }])
        };
        let evicted = Exit::Evicted(why.trim().to_owned());
        assert_eq!(status(serde_json::json!({"conditions": condition})), evicted);
        let killed = serde_json::json!({"conditions": condition, "containerStatuses": ended(137)});
        assert_eq!(status(killed), evicted);
        let over = serde_json::json!({"phase": "Failed", "reason": "Evicted", "message": why});
        assert_eq!(status(over), evicted);
        let in_time = serde_json::json!({"conditions": condition, "containerStatuses": ended(0)});
        assert_eq!(status(in_time), evicted);
        let crashed = serde_json::json!({"phase": "Failed", "containerStatuses": ended(137)});
        assert_eq!(status(crashed), Exit::Code(137, "Error".into()));
    }

    #[test]
    fn an_exit_code_is_the_last_word_only_of_a_pod_that_ended_or_is_deleted() {
        let ended = serde_json::json!([{
            "name": "compute", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 7, "reason": "Error"}},
        }]);
        let code = || (7, "Error".to_owned());
        for (phase, deleted, running, terminated) in [
            ("Running", false, Exit::Unknown, Exit::Ending(code().0, code().1)),
            ("Running", true, Exit::Untold, Exit::Code(code().0, code().1)),
            ("Failed", false, Exit::Untold, Exit::Code(code().0, code().1)),
            ("Succeeded", false, Exit::Untold, Exit::Code(code().0, code().1)),
        ] {
            for (containers, expected) in [(serde_json::Value::Null, running), (ended.clone(), terminated)] {
                let mut pod = serde_json::json!({
                    "metadata": {}, "status": {"phase": phase, "containerStatuses": containers},
                });
                if deleted {
                    pod["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z".into();
                }
                assert_eq!(exit_of(&serde_json::from_value(pod).unwrap()), expected, "{phase} {deleted}");
            }
        }
    }

    #[test]
    fn facts_are_written_at_most_every_two_seconds() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        assert_eq!(too_soon(None, at(0)), None);
        assert_eq!(too_soon(Some(at(0)), at(500)), Some(Duration::from_millis(1500)));
        assert_eq!(too_soon(Some(at(0)), at(2000)), None);
        assert_eq!(too_soon(Some(at(5000)), at(0)), None);
    }
}
