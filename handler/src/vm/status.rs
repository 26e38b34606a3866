//! The VMI's status from what was seen.
//!
//! Only what this process owns is written: the phase from `Scheduled` on, its time stamps, the reason of an end,
//! the machine's and the guest's facts, and three conditions. `Synchronized` is there only while something is
//! wrong, as KubeVirt has it: who waits for a healthy machine waits for `Ready`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::names::{condition, event};
use podvirt_api::v1::{
    self, VirtualMachineInstanceConditionType as Type, VirtualMachineInstancePhase as Phase,
};
use podvirt_proto::domain::{Domain, GuestOsInfo, Interface, Status, reason};
use podvirt_proto::migration::Mode;

use super::{Event, Launcher, SILENCE, View, Weight, elapsed, phase};

/// The status, and the events that its change means.
pub(super) fn write(view: &View<'_>) -> (v1::VirtualMachineInstanceStatus, Vec<Event>) {
    let old = view.vmi.status.phase.clone().unwrap_or_default();
    let mut status = view.vmi.status.clone();
    let mut events = Vec::new();
    let (new, ending) = match phase::next(view) {
        Ok(phase) => (phase, None),
        Err(ending) => (ending.phase.clone(), Some(ending)),
    };
    if new != old {
        if new == Phase::Running {
            let message = "the machine was started".into();
            events.push(Event { weight: Weight::Normal, reason: event::STARTED, message });
        }
        if let Some(ending) = ending {
            let weight = if new == Phase::Failed { Weight::Warning } else { Weight::Normal };
            status.reason = Some(ending.reason.to_owned()).filter(|word| !word.is_empty());
            events.push(Event { weight, reason: event::STOPPED, message: ending.message });
        }
        status.phase_transition_timestamps.push(v1::VirtualMachineInstancePhaseTransitionTimestamp {
            phase: Some(new.clone()),
            phase_transition_timestamp: Some(Some(seconds(view.now))),
        });
        status.phase = Some(new.clone());
    }
    if matches!(old, Phase::Scheduled | Phase::Running) {
        if let Some(domain) = view.domain {
            facts(&mut status, domain);
        }
        let live = !matches!(new, Phase::Succeeded | Phase::Failed);
        set(&mut status, Type::Paused, paused(view).filter(|_| live), view.now);
        set(&mut status, Type::AgentConnected, agent(view).filter(|_| live), view.now);
        let trouble = trouble(view, &new).filter(|_| live);
        let told = match trouble {
            _ if sync_failed(view).is_some() => {
                sync_failed(view).map(|message| (event::SYNC_FAILED, message))
            }
            Some((_, reason, message)) if reason == event::LAUNCHER_SILENT => {
                Some((event::LAUNCHER_SILENT, message))
            }
            _ => None,
        };
        let known = view.vmi.status.conditions.iter();
        let mut known = known.filter(|c| c.r#type == Type::Synchronized);
        if let Some((reason, message)) = told
            && !known.any(|c| c.message.as_deref() == Some(message))
        {
            events.push(Event { weight: Weight::Warning, reason, message: message.to_owned() });
        }
        set(&mut status, Type::Synchronized, trouble, view.now);
    }
    (status, events)
}

fn facts(status: &mut v1::VirtualMachineInstanceStatus, domain: &Domain) {
    if let Some(machine) = &domain.machine {
        status.machine = Some(v1::Machine { r#type: Some(machine.clone()) });
    }
    if !domain.interfaces.is_empty() {
        let known = std::mem::take(&mut status.interfaces);
        status.interfaces = domain.interfaces.iter().map(|i| interface(i, &known)).collect();
    }
    if let Some(info) = &domain.guest_os_info {
        status.guest_os_info = Some(guest_os(info));
    }
    status.fs_freeze_status = domain.filesystems_frozen.then(|| "frozen".to_owned());
}

fn interface(
    from: &Interface,
    known: &[v1::VirtualMachineInstanceNetworkInterface],
) -> v1::VirtualMachineInstanceNetworkInterface {
    // The name in the pod is the controller's to find where the launcher does not tell it.
    let known = known.iter().find(|k| !from.name.is_empty() && k.name.as_deref() == Some(&from.name));
    v1::VirtualMachineInstanceNetworkInterface {
        ip_address: text(&from.ip).or_else(|| from.ips.first().cloned()),
        mac: text(&from.mac),
        name: text(&from.name),
        ip_addresses: from.ips.clone(),
        pod_interface_name: text(&from.pod_interface_name)
            .or_else(|| known.and_then(|k| k.pod_interface_name.clone())),
        interface_name: text(&from.interface_name),
        info_source: text(&info_source(from, known)),
        queue_count: (from.queue_count != 0).then_some(from.queue_count),
        link_state: text(&from.link_state),
    }
}

/// Where it is known from; what the controller had from Multus stays.
fn info_source(from: &Interface, known: Option<&v1::VirtualMachineInstanceNetworkInterface>) -> String {
    const MULTUS: &str = "multus-status";
    let before = known.and_then(|known| known.info_source.as_deref()).unwrap_or_default();
    let of_multus = before.split(", ").any(|source| source == MULTUS);
    let sources = [from.info_source.as_str(), if of_multus { MULTUS } else { "" }];
    sources.into_iter().filter(|source| !source.is_empty()).collect::<Vec<_>>().join(", ")
}

fn guest_os(from: &GuestOsInfo) -> v1::VirtualMachineInstanceGuestOsInfo {
    v1::VirtualMachineInstanceGuestOsInfo {
        name: text(&from.name),
        kernel_release: text(&from.kernel_release),
        version: text(&from.version),
        pretty_name: text(&from.pretty_name),
        version_id: text(&from.version_id),
        kernel_version: text(&from.kernel_version),
        machine: text(&from.machine),
        id: text(&from.id),
    }
}

fn text(from: &str) -> Option<String> {
    (!from.is_empty()).then(|| from.to_owned())
}

/// Status, reason and message of a condition.
type Says<'a> = (&'static str, &'static str, &'a str);

fn paused<'a>(view: &View<'a>) -> Option<Says<'a>> {
    let domain = view.domain.filter(|domain| domain.status == Status::Paused)?;
    let by_monitor = ("True", condition::reason::PAUSED_BY_MIGRATION_MONITOR, "paused for a live migration");
    let moving = domain.migration.as_ref().filter(|migration| migration.is_running());
    if moving.is_some_and(|migration| migration.mode == Mode::Paused) {
        return Some(by_monitor);
    }
    if moving.is_some() && domain.reason == reason::MIGRATION {
        // The switch-over: nobody could do anything about it.
        return None;
    }
    Some(match domain.reason.as_str() {
        reason::IO_ERROR => ("True", condition::reason::PAUSED_IO_ERROR, "a disk failed; the guest waits"),
        reason::MIGRATION => by_monitor,
        reason::STARTING_UP => ("True", "StartingUp", "the machine is being started"),
        _ => ("True", condition::reason::PAUSED_BY_USER, "paused by a user"),
    })
}

fn agent<'a>(view: &View<'a>) -> Option<Says<'a>> {
    view.domain.filter(|domain| domain.status.is_active() && domain.agent_connected)?;
    Some(("True", "", ""))
}

/// What keeps the machine from being what the VMI says.
fn trouble<'a>(view: &View<'a>, phase: &Phase) -> Option<Says<'a>> {
    if let Some(message) = sync_failed(view) {
        return Some(("False", condition::reason::SYNCHRONIZING_FAILED, message));
    }
    if let Launcher::Silent(since) = view.launcher
        && elapsed(since, view.now) >= SILENCE
    {
        return Some(("False", event::LAUNCHER_SILENT, "the launcher does not answer"));
    }
    let waiting =
        view.domain.filter(|_| *phase == Phase::Scheduled).map(|domain| domain.waiting_for.as_str());
    waiting.filter(|what| !what.is_empty()).map(|what| ("False", "Waiting", what))
}

fn sync_failed<'a>(view: &View<'a>) -> Option<&'a str> {
    Some(view.memory.sync_error.as_str()).filter(|error| !error.is_empty())
}

/// Puts a condition, changes it or takes it away. Its times are kept while it says the same.
fn set(status: &mut v1::VirtualMachineInstanceStatus, r#type: Type, says: Option<Says<'_>>, now: Timestamp) {
    let place = status.conditions.iter().position(|c| c.r#type == r#type);
    let Some((state, reason, message)) = says else {
        if let Some(place) = place {
            status.conditions.remove(place);
        }
        return;
    };
    let (reason, message) = (text(reason), text(message));
    let old = place.map(|place| &status.conditions[place]);
    if old.is_some_and(|c| c.status == state && c.reason == reason && c.message == message) {
        return;
    }
    let turned = old.filter(|c| c.status == state).and_then(|c| c.last_transition_time.clone());
    let new = v1::VirtualMachineInstanceCondition {
        r#type,
        status: state.to_owned(),
        last_probe_time: Some(Some(seconds(now))),
        last_transition_time: turned.or_else(|| Some(Some(seconds(now)))),
        reason,
        message,
    };
    match place {
        Some(place) => status.conditions[place] = new,
        None => status.conditions.push(new),
    }
}

/// The API's times have seconds; more would differ from what comes back.
fn seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
