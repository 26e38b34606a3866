//! The VMI's status from what was seen.
//!
//! Only what this process owns is written: the phase from `Scheduled` on, its time stamps, the reason of an end,
//! the machine's and the guest's facts, and three conditions. `Synchronized` is there only while something is
//! wrong, as KubeVirt has it, and stays with a machine that failed: a client that waits for a healthy machine waits for
//! `Ready`.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::names::{condition, event};
use podvirt_api::quantity::binary_text;
use podvirt_api::v1::{
    self, VirtualMachineInstanceConditionType as Type, VirtualMachineInstancePhase as Phase, VolumePhase,
};
use podvirt_api::{memory_dump, storage};
use podvirt_proto::domain::{AccessCredentials, Domain, GuestOsInfo, Interface, Status, reason};
use podvirt_proto::migration::Mode;

use super::{Event, Launcher, SILENCE, View, WAIT_TOLD, Weight, backup, elapsed, from_ms, phase};

/// The status, and the events that its change means.
pub(super) fn write(view: &View<'_>) -> (v1::VirtualMachineInstanceStatus, Vec<Event>) {
    let old = view.vmi.status.phase.clone().unwrap_or_default();
    let mut status = view.vmi.status.clone();
    let mut events = Vec::new();
    let mut failure = None;
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
            if new == Phase::Failed {
                // The event of its end says the same.
                let says = ("False", ending.reason, Cow::Owned(ending.message.clone()));
                failure = Some(Trouble { says, event: false });
            }
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
            let of_pod = view.vmi.spec.networks.iter().find(|network| network.pod.is_some());
            facts(&mut status, domain, of_pod.map(|network| network.name.as_str()));
            if domain.status.is_active() {
                let names: Vec<String> =
                    storage::volumes(view.vmi).map(|volume| volume.name.clone()).collect();
                events
                    .extend(status.volume_status.iter_mut().filter_map(|told| plugged(told, &names, domain)));
                backup::follow(view.vmi, &mut status, domain);
            }
        }
        let live = !matches!(new, Phase::Succeeded | Phase::Failed);
        set(&mut status, Type::Paused, paused(view).filter(|_| live), view.now);
        events.extend(io_error_event(&view.vmi.status.conditions, &status.conditions));
        set(&mut status, Type::AgentConnected, agent(view).filter(|_| live), view.now);
        if let Some(domain) = view.domain {
            let told = domain.access_credentials.as_ref().filter(|_| live);
            events.extend(told.and_then(|told| credentials_event(view, told)));
            set(&mut status, Type::AccessCredentialsSynchronized, told.map(credentials), view.now);
        }
        let trouble = if live { trouble(view, &new) } else { failure };
        if !(new == Phase::Scheduled && is_of_containers(view)) {
            if let Some(Trouble { says: (_, reason, message), event: true }) = &trouble
                && !is_told(view, message)
            {
                let silent = *reason == event::LAUNCHER_SILENT;
                let reason = if silent { event::LAUNCHER_SILENT } else { event::SYNC_FAILED };
                let message = message.clone().into_owned();
                events.push(Event { weight: Weight::Warning, reason, message });
            }
            set(&mut status, Type::Synchronized, trouble.map(|trouble| trouble.says), view.now);
        }
    }
    (status, events)
}

/// What the machine's report tells. `first`: the interface on the pod's own network, by name; it comes first, since the
/// first one's address is what lists of machines show.
fn facts(status: &mut v1::VirtualMachineInstanceStatus, domain: &Domain, first: Option<&str>) {
    if let Some(machine) = &domain.machine {
        status.machine = Some(v1::Machine { r#type: Some(machine.clone()) });
    }
    if let Some(kib) = domain.memory_kib {
        status.memory.get_or_insert_default().guest_current =
            Some(Quantity(binary_text(kib.saturating_mul(1024))));
    }
    if let Some(boot) = &domain.kernel_boot {
        status.kernel_boot_status = Some(v1::KernelBootStatus {
            kernel_info: boot.kernel.map(|checksum| v1::KernelInfo { checksum: Some(checksum) }),
            initrd_info: boot.initrd.map(|checksum| v1::InitrdInfo { checksum: Some(checksum) }),
        });
    }
    // Which volumes there are is virt-controller's to say. Nothing is known of the disks before the machine is there.
    for volume in status.volume_status.iter_mut().filter(|_| !domain.disks.is_empty()) {
        let disk = domain.disks.iter().find(|disk| disk.name == volume.name);
        volume.target = disk.map(|disk| disk.target.clone()).unwrap_or_default();
        if let Some(bytes) = disk.and_then(|disk| disk.made_bytes) {
            volume.size = i64::try_from(bytes).ok();
        }
    }
    if !domain.interfaces.is_empty() || domain.status.is_active() {
        let known = std::mem::take(&mut status.interfaces);
        status.interfaces = domain.interfaces.iter().map(|i| interface(i, &known)).collect();
        // The guest has no device for it, and the pod is attached to its network: it is about to be plugged, or was
        // unplugged. virt-controller takes it away when the pod has left the network.
        let told = |name: &Option<String>| domain.interfaces.iter().any(|i| name.as_ref() == Some(&i.name));
        let of_pod = known.into_iter().filter(|k| k.name.is_some() && !told(&k.name)).filter_map(|k| {
            let sources = k.info_source.as_deref().unwrap_or_default().split(", ");
            let multus = sources.into_iter().any(|source| source == MULTUS).then(|| MULTUS.to_owned())?;
            Some(v1::VirtualMachineInstanceNetworkInterface {
                name: k.name,
                pod_interface_name: k.pod_interface_name,
                mac: k.mac,
                info_source: Some(multus),
                ..Default::default()
            })
        });
        status.interfaces.extend(of_pod);
        status.interfaces.sort_by_key(|told| told.name.is_none() || told.name.as_deref() != first);
    }
    if let Some(info) = &domain.guest_os_info {
        status.guest_os_info = Some(guest_os(info));
    }
    status.fs_freeze_status = domain.filesystems_frozen.then(|| "frozen".to_owned());
}

/// What the machine's report means to a volume that a dump of its memory is written to.
fn dumped(told: &mut v1::VolumeStatus, names: &[String], domain: &Domain) -> Option<Event> {
    let is_held = domain.volumes.contains(&told.name);
    let is_wanted = names.contains(&told.name);
    let has_file = memory_dump::has_file(told.phase.as_ref());
    let file = memory_dump::file(told).unwrap_or_default();
    let report = domain.memory_dump.as_ref().filter(|report| report.file == file);
    let name = &told.name;
    let (weight, phase, reason, message) = match (is_wanted, report) {
        (true, Some(report)) => {
            let time = |ms: u64| {
                let time = Timestamp::from_millisecond(i64::try_from(ms).unwrap_or_default());
                time.ok().map(|time| Some(seconds(time)))
            };
            let (weight, phase, reason, message) = match report.ended_at_ms {
                None => (
                    Weight::Normal,
                    VolumePhase::MemoryDumpInProgress,
                    event::VOLUME_MOUNTED,
                    format!("Memory dump Volume {name} is attached, getting memory dump"),
                ),
                Some(_) if report.failure.is_empty() => (
                    Weight::Normal,
                    VolumePhase::MemoryDumpCompleted,
                    event::VOLUME_READY,
                    format!("Memory dump to Volume {name} has completed successfully"),
                ),
                Some(_) => (
                    Weight::Warning,
                    VolumePhase::MemoryDumpFailed,
                    event::MEMORY_DUMP_ERROR,
                    format!("Memory dump to pvc {name} failed: {}", report.failure),
                ),
            };
            let dump = told.memory_dump_volume.get_or_insert_default();
            dump.start_timestamp = time(report.started_at_ms);
            dump.end_timestamp = report.ended_at_ms.and_then(time);
            (weight, phase, reason, message)
        }
        (false, _) if has_file && !is_held => (
            Weight::Normal,
            VolumePhase::UnMountedFromPod,
            event::VOLUME_UNMOUNTED,
            format!("the machine's launcher has closed the file of the memory dump of volume {name}"),
        ),
        _ => return None,
    };
    if told.phase.as_ref() == Some(&phase) {
        return None;
    }
    told.phase = Some(phase);
    (told.reason, told.message) = (Some(reason.to_owned()), Some(message.clone()));
    Some(Event { weight, reason, message })
}

/// What the machine's report means to a volume that is plugged, or was. `names`: the volumes of the specification.
fn plugged(told: &mut v1::VolumeStatus, names: &[String], domain: &Domain) -> Option<Event> {
    told.hotplug_volume.as_ref()?;
    if told.memory_dump_volume.is_some() {
        return dumped(told, names, domain);
    }
    let is_held = domain.volumes.contains(&told.name);
    let is_plugged = domain.disks.iter().any(|disk| disk.name == told.name);
    let name = &told.name;
    let (phase, reason, message) = match (names.contains(name), &told.phase) {
        (true, phase) if is_plugged && *phase != Some(VolumePhase::Ready) => (
            VolumePhase::Ready,
            event::VOLUME_READY,
            format!("Successfully attach hotplugged volume {name} to VM"),
        ),
        (true, Some(VolumePhase::AttachedToNode)) if is_held => (
            VolumePhase::MountedToPod,
            event::VOLUME_MOUNTED,
            format!("the disk of volume {name} is with the machine's launcher"),
        ),
        (false, Some(VolumePhase::Ready | VolumePhase::MountedToPod)) if !is_held && !is_plugged => (
            VolumePhase::UnMountedFromPod,
            event::VOLUME_UNMOUNTED,
            format!("the machine's launcher has closed the disk of volume {name}"),
        ),
        _ => return None,
    };
    told.phase = Some(phase);
    (told.reason, told.message) = (Some(reason.to_owned()), Some(message.clone()));
    Some(Event { weight: Weight::Normal, reason, message })
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

/// The source of what virt-controller has from Multus.
pub(super) const MULTUS: &str = "multus-status";

/// Where it is known from; what the controller had from Multus stays.
fn info_source(from: &Interface, known: Option<&v1::VirtualMachineInstanceNetworkInterface>) -> String {
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
type Says<'a> = (&'static str, &'static str, Cow<'a, str>);

fn paused<'a>(view: &View<'a>) -> Option<Says<'a>> {
    let domain = view.domain.filter(|domain| domain.status == Status::Paused)?;
    let by_monitor =
        ("True", condition::reason::PAUSED_BY_MIGRATION_MONITOR, Cow::from("paused for a live migration"));
    let moving = domain.migration.as_ref().filter(|migration| migration.is_running());
    if moving.is_some_and(|migration| migration.mode == Mode::Paused) {
        return Some(by_monitor);
    }
    if moving.is_some() && domain.reason == reason::MIGRATION {
        // The switch-over: no user could do anything about it.
        return None;
    }
    Some(match domain.reason.as_str() {
        reason::IO_ERROR => {
            ("True", condition::reason::PAUSED_IO_ERROR, failed_disks(view.vmi, domain).into())
        }
        reason::MIGRATION => by_monitor,
        // It goes on by itself once its memory is written.
        reason::DUMP => return None,
        reason::STARTING_UP => ("True", "StartingUp", "the machine is being started".into()),
        _ => ("True", condition::reason::PAUSED_BY_USER, "paused by a user".into()),
    })
}

/// Disks that have stopped a machine and are named at most: a launcher may tell of any number.
const MAX_NAMED_DISKS: usize = 8;

/// Which disks have stopped the machine, and what follows.
fn failed_disks(vmi: &v1::VirtualMachineInstance, domain: &Domain) -> String {
    let failed = domain.disks.iter().filter(|disk| !disk.error.is_empty()).take(MAX_NAMED_DISKS);
    let failed = failed.map(|disk| {
        let volume = storage::volumes(vmi).find(|volume| volume.name == disk.name);
        let claim = volume.as_deref().and_then(storage::claim).map(|claim| claim.name.to_owned());
        let claim = claim.map(|claim| format!(" (PersistentVolumeClaim {claim})")).unwrap_or_default();
        format!("disk {}{claim}: {}", disk.name, disk.error)
    });
    let mut failed: Vec<String> = failed.collect();
    if failed.is_empty() {
        failed.push("a disk failed or is full".to_owned());
    }
    format!(
        "{}; the guest stands still, and is let run again by itself once that is mended",
        failed.join(", ")
    )
}

/// The event of a machine that a disk has stopped just now.
fn io_error_event(
    old: &[v1::VirtualMachineInstanceCondition],
    new: &[v1::VirtualMachineInstanceCondition],
) -> Option<Event> {
    let stopped = |all: &[v1::VirtualMachineInstanceCondition]| {
        let reason = Some(condition::reason::PAUSED_IO_ERROR);
        all.iter().find(|c| c.r#type == Type::Paused && c.reason.as_deref() == reason).cloned()
    };
    let message = stopped(new).filter(|_| stopped(old).is_none())?.message.unwrap_or_default();
    Some(Event { weight: Weight::Warning, reason: condition::reason::PAUSED_IO_ERROR, message })
}

fn agent<'a>(view: &View<'a>) -> Option<Says<'a>> {
    view.domain.filter(|domain| domain.status.is_active() && domain.agent_connected)?;
    Some(("True", "", "".into()))
}

fn credentials(told: &AccessCredentials) -> Says<'_> {
    (if told.synchronized { "True" } else { "False" }, "", Cow::from(&told.message))
}

/// The event of credentials about which the condition says something else.
fn credentials_event(view: &View<'_>, told: &AccessCredentials) -> Option<Event> {
    let (state, _, message) = credentials(told);
    let conditions = &view.vmi.status.conditions;
    let known = conditions.iter().find(|c| c.r#type == Type::AccessCredentialsSynchronized);
    let is_told =
        known.is_some_and(|c| c.status == state && c.message.as_deref().unwrap_or_default() == message);
    (!is_told).then(|| match told.synchronized {
        true => Event {
            weight: Weight::Normal,
            reason: event::CREDENTIALS_SYNCED,
            message: "the guest's agent has set the credentials of the guest's users".into(),
        },
        false => Event {
            weight: Weight::Warning,
            reason: event::CREDENTIALS_SYNC_FAILED,
            message: told.message.clone(),
        },
    })
}

/// What keeps the machine from being what the VMI says.
struct Trouble<'a> {
    says: Says<'a>,
    /// Whether an event tells it, too.
    event: bool,
}

fn trouble<'a>(view: &View<'a>, phase: &Phase) -> Option<Trouble<'a>> {
    if let Some(message) = sync_failed(view) {
        let says = ("False", condition::reason::SYNCHRONIZING_FAILED, message.into());
        return Some(Trouble { says, event: true });
    }
    if let Launcher::Silent(since) = view.launcher
        && elapsed(since, view.now) >= SILENCE
    {
        let says = ("False", event::LAUNCHER_SILENT, "the launcher does not answer".into());
        return Some(Trouble { says, event: true });
    }
    let (what, since) = waits(view, phase)?;
    let lasts = since.is_some_and(|since| elapsed(since, view.now) >= WAIT_TOLD);
    let message =
        if lasts { format!("not there after {} s: {what}", WAIT_TOLD.as_secs()).into() } else { what };
    Some(Trouble { says: ("False", condition::reason::WAITING, message), event: lasts })
}

/// What is waited for before the machine runs, or after it has ended, and since when; an older launcher does not tell the
/// time.
fn waits<'a>(view: &View<'a>, phase: &Phase) -> Option<(Cow<'a, str>, Option<Timestamp>)> {
    if phase::awaits_pod(view) {
        let what = "the end of the launcher's pod, which tells why the machine ended";
        return Some((what.into(), view.ended_since));
    }
    if *phase != Phase::Scheduled {
        return None;
    }
    if let Launcher::Absent(since) = view.launcher {
        return Some(("the launcher's socket, which appears once its libvirt answers".into(), Some(since)));
    }
    if let Some(volume) = super::unattached(view.vmi) {
        let told = view.vmi.status.volume_status.iter().find(|told| told.name == volume);
        let why = told.and_then(|told| told.message.as_deref()).unwrap_or("it has no attachment pod");
        return Some((format!("the disk of volume {volume}: {why}").into(), scheduled_since(view)));
    }
    let domain = view.domain.filter(|domain| !domain.waiting_for.is_empty())?;
    Some((domain.waiting_for.as_str().into(), domain.waiting_since_ms.and_then(from_ms)))
}

/// Since when the machine's pod is ready.
fn scheduled_since(view: &View<'_>) -> Option<Timestamp> {
    let mut times = view.vmi.status.phase_transition_timestamps.iter();
    let since = times.find(|time| time.phase == Some(Phase::Scheduled))?;
    Some(since.phase_transition_timestamp.as_ref()?.as_ref()?.0)
}

/// Time until what is waited for is told by an event.
pub(super) fn wait_left(view: &View<'_>, phase: &Phase) -> Option<Duration> {
    let (_, since) = waits(view, phase)?;
    WAIT_TOLD.checked_sub(elapsed(since?, view.now)).filter(|left| !left.is_zero())
}

/// The condition that says so far what is wrong.
fn synchronized<'a>(view: &View<'a>) -> Option<&'a v1::VirtualMachineInstanceCondition> {
    view.vmi.status.conditions.iter().find(|c| c.r#type == Type::Synchronized)
}

/// Whether the condition has this message, and its event was written with it.
fn is_told(view: &View<'_>, message: &str) -> bool {
    synchronized(view).is_some_and(|c| c.message.as_deref() == Some(message))
}

/// Whether virt-controller has said why a container of the pod does not start.
fn is_of_containers(view: &View<'_>) -> bool {
    let reason = synchronized(view).and_then(|c| c.reason.as_deref());
    reason.is_some_and(|reason| condition::reason::OF_CONTAINERS.contains(&reason))
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
    let (reason, message) = (text(reason), text(&message));
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
