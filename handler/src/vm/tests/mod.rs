use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::v1::VirtualMachineInstanceConditionType as Type;
use podvirt_proto::domain::{AccessCredentials, Disk, Interface, KernelBoot, Status, reason};

use super::*;

mod conditions;
mod interfaces;
mod pod_end;
mod volumes;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("in range")
}

fn vmi(phase: Phase) -> v1::VirtualMachineInstance {
    let mut vmi = v1::VirtualMachineInstance::default();
    vmi.status.phase = Some(phase);
    vmi.spec.termination_grace_period_seconds = Some(30);
    vmi
}

fn domain(status: Status, reason: &str) -> Domain {
    Domain { status, reason: reason.into(), ..Domain::default() }
}

/// A pass at second 100.
struct Pass {
    vmi: v1::VirtualMachineInstance,
    launcher: Launcher,
    domain: Option<Domain>,
    missing_since: Option<Timestamp>,
    ended_since: Option<Timestamp>,
    exit: Exit,
    memory: Memory,
    now: Timestamp,
}

impl Pass {
    fn of(phase: Phase) -> Self {
        Self {
            vmi: vmi(phase),
            launcher: Launcher::Ready,
            domain: None,
            missing_since: None,
            ended_since: None,
            exit: Exit::Unknown,
            memory: Memory::default(),
            now: at(100),
        }
    }

    fn with(phase: Phase, status: Status, reason: &str) -> Self {
        Self { domain: Some(domain(status, reason)), ..Self::of(phase) }
    }

    fn decide(&self) -> Decision {
        decide(&View {
            vmi: &self.vmi,
            launcher: self.launcher,
            domain: self.domain.as_ref(),
            missing_since: self.missing_since,
            ended_since: self.ended_since,
            exit: &self.exit,
            memory: &self.memory,
            now: self.now,
        })
    }

    fn phase(&self) -> Phase {
        self.decide().status.phase.expect("a phase")
    }
}

#[test]
fn states_of_the_machine_map_to_phases_as_upstreams_do() {
    for (status, why, expected) in [
        (Status::Running, reason::BOOTED, Phase::Running),
        (Status::Running, "a word of tomorrow", Phase::Running),
        (Status::Blocked, "", Phase::Running),
        (Status::PMSuspended, "", Phase::Running),
        (Status::Paused, reason::USER, Phase::Running),
        (Status::Paused, reason::IO_ERROR, Phase::Running),
        (Status::Paused, "PostcopyFailed", Phase::Failed),
        (Status::Shutdown, "", Phase::Running),
        (Status::Shutoff, reason::SHUTDOWN, Phase::Succeeded),
        (Status::Shutoff, reason::SAVED, Phase::Succeeded),
        (Status::Shutoff, "FromSnapshot", Phase::Succeeded),
        (Status::Shutoff, reason::CRASHED, Phase::Failed),
        (Status::Shutoff, reason::PANICKED, Phase::Failed),
        (Status::Shutoff, reason::FAILED, Phase::Failed),
        (Status::Crashed, reason::CRASHED, Phase::Failed),
        (Status::Crashed, reason::PANICKED, Phase::Failed),
        (Status::Crashed, "", Phase::Failed),
        (Status::Shutoff, reason::DESTROYED, Phase::Failed),
        (Status::Shutoff, reason::MIGRATED, Phase::Running),
    ] {
        assert_eq!(Pass::with(Phase::Running, status, why).phase(), expected, "{status:?} {why}");
    }
}

#[test]
fn a_destroyed_machine_failed_only_if_its_guest_was_asked() {
    let mut pass = Pass::with(Phase::Running, Status::Shutoff, reason::DESTROYED);
    pass.vmi.spec.termination_grace_period_seconds = Some(0);
    assert_eq!(pass.phase(), Phase::Succeeded);

    let mut pass = Pass::with(Phase::Running, Status::Shutoff, reason::DESTROYED);
    let acpi = Some(v1::FeatureState { enabled: Some(false) });
    pass.vmi.spec.domain.features = Some(v1::Features { acpi, ..Default::default() });
    assert_eq!(pass.phase(), Phase::Succeeded);

    let decision = Pass::with(Phase::Running, Status::Shutoff, reason::DESTROYED).decide();
    assert_eq!(decision.status.reason.as_deref(), Some("GracePeriodExpired"));
    assert_eq!((decision.events[0].reason, decision.events[0].weight), ("Stopped", Weight::Warning));
}

#[test]
fn without_a_machine_the_launcher_decides() {
    let gone = Launcher::Gone(at(95));
    let long_gone = Launcher::Gone(at(0));
    let code = |code| Exit::Code(code, "Error".into());
    for (phase, launcher, exit, expected) in [
        (Phase::Scheduled, Launcher::Ready, Exit::Unknown, Phase::Scheduled),
        (Phase::Scheduled, Launcher::Absent(at(99)), Exit::Unknown, Phase::Scheduled),
        (Phase::Scheduled, Launcher::Absent(at(-81)), Exit::Unknown, Phase::Failed),
        (Phase::Scheduled, Launcher::Silent(at(0)), Exit::Unknown, Phase::Scheduled),
        (Phase::Scheduled, gone, Exit::Unknown, Phase::Scheduled),
        (Phase::Scheduled, long_gone, Exit::Unknown, Phase::Failed),
        (Phase::Scheduled, gone, code(1), Phase::Failed),
        (Phase::Running, Launcher::Silent(at(0)), Exit::Unknown, Phase::Running),
        (Phase::Running, gone, Exit::Unknown, Phase::Running),
        (Phase::Running, long_gone, Exit::Unknown, Phase::Failed),
        (Phase::Running, gone, code(0), Phase::Succeeded),
        (Phase::Running, gone, code(137), Phase::Failed),
        (Phase::Running, gone, Exit::NoPod, Phase::Failed),
        // The guest powered off because its pod was told to end, and no reason for that is told.
        (Phase::Running, gone, code(7), Phase::Succeeded),
        // The pod's other containers have not ended, and its reason is told with the last one's end.
        (Phase::Running, gone, Exit::Ending(137, "Error".into()), Phase::Running),
        (Phase::Running, gone, Exit::Ending(0, "Completed".into()), Phase::Running),
        (Phase::Running, long_gone, Exit::Ending(137, "Error".into()), Phase::Failed),
        (Phase::Running, long_gone, Exit::Ending(0, "Completed".into()), Phase::Succeeded),
        (Phase::Running, gone, Exit::Untold, Phase::Running),
        (Phase::Running, long_gone, Exit::Untold, Phase::Failed),
        // Not ours yet, or over.
        (Phase::Scheduling, Launcher::Ready, Exit::Unknown, Phase::Scheduling),
        (Phase::Pending, gone, Exit::NoPod, Phase::Pending),
        (Phase::Succeeded, gone, code(1), Phase::Succeeded),
        (Phase::Failed, Launcher::Ready, Exit::Unknown, Phase::Failed),
    ] {
        let pass = Pass { launcher, exit: exit.clone(), ..Pass::of(phase.clone()) };
        assert_eq!(pass.phase(), expected, "{phase:?} {launcher:?} {exit:?}");
    }
}

#[test]
fn the_status_tells_of_memory_disks_and_what_is_booted_directly() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    let mib = |text: &str| Some(Quantity(text.to_owned()));
    pass.vmi.status.memory = Some(v1::MemoryStatus {
        guest_at_boot: mib("128M"),
        guest_current: mib("128M"),
        ..Default::default()
    });
    let volume = |name: &str| v1::VolumeStatus { name: name.into(), ..Default::default() };
    pass.vmi.status.volume_status = vec![volume("root"), volume("seed"), volume("unused")];
    let disk = |name: &str, target: &str, made_bytes| Disk {
        name: name.into(),
        target: target.into(),
        made_bytes,
        ..Disk::default()
    };
    let domain = pass.domain.as_mut().unwrap();
    domain.memory_kib = Some(125_000);
    domain.disks =
        vec![disk("root", "vda", None), disk("seed", "vdb", Some(1 << 20)), disk("other", "vdc", Some(1))];
    domain.kernel_boot = Some(KernelBoot { kernel: Some(7), initrd: None });
    let status = pass.decide().status;
    let memory = status.memory.clone().unwrap();
    assert_eq!((memory.guest_at_boot, memory.guest_current), (mib("128M"), mib("125000Ki")));
    let told: Vec<_> =
        status.volume_status.iter().map(|v| (v.name.as_str(), v.target.as_str(), v.size)).collect();
    assert_eq!(told, [("root", "vda", None), ("seed", "vdb", Some(1 << 20)), ("unused", "", None)]);
    let boot = status.kernel_boot_status.clone().unwrap();
    assert_eq!((boot.kernel_info.unwrap().checksum, boot.initrd_info), (Some(7), None));

    // A report without a machine's shape takes nothing back.
    pass.vmi.status = status.clone();
    pass.domain =
        Some(Domain { status: Status::Running, reason: reason::BOOTED.into(), ..Domain::default() });
    assert_eq!(pass.decide().status, status);
}

#[test]
fn a_machine_may_be_missing_for_a_moment() {
    let mut pass = Pass::with(Phase::Running, Status::NoState, "");
    pass.missing_since = Some(at(90));
    let decision = pass.decide();
    assert_eq!((decision.status.phase, decision.again), (Some(Phase::Running), Some(Duration::from_secs(1))));
    assert_eq!(decision.action, None, "and is not started again");
    pass.now = at(105);
    assert_eq!(pass.decide().status.reason.as_deref(), Some("MachineVanished"));
}

#[test]
fn the_report_of_an_end_outlives_the_launcher() {
    let mut pass = Pass::with(Phase::Running, Status::Shutoff, reason::SHUTDOWN);
    pass.launcher = Launcher::Gone(at(0));
    pass.exit = Exit::Code(137, "Error".into());
    assert_eq!(pass.phase(), Phase::Succeeded);
}

#[test]
fn a_scheduled_vmi_is_given_to_its_launcher_until_it_takes_it() {
    let mut pass = Pass::of(Phase::Scheduled);
    let hash = spec_hash(&pass.vmi);
    assert_eq!(pass.decide().action, Some(Action::Sync(hash)));

    pass.memory.syncing = true;
    assert_eq!(pass.decide().action, None, "not twice at a time");
    pass.memory.syncing = false;

    pass.memory.sync_error = "no such disk".into();
    pass.memory.sync_failures = Some((2, at(99)));
    let decision = pass.decide();
    assert_eq!((decision.action, decision.again), (None, Some(Duration::from_secs(1))));
    let condition = &decision.status.conditions[0];
    assert_eq!((&condition.r#type, condition.status.as_str()), (&Type::Synchronized, "False"));
    assert_eq!(condition.message.as_deref(), Some("no such disk"));
    assert_eq!(decision.events[0].reason, "SyncFailed");

    // The same failure again says nothing new, and leaves the times alone.
    pass.vmi.status = decision.status.clone();
    pass.now = at(130);
    let again = pass.decide();
    assert_eq!((again.action, &again.status), (Some(Action::Sync(hash)), &decision.status));
    assert!(again.events.is_empty());
    pass.memory.sync_failures = Some((1000, at(129)));
    assert_eq!(pass.decide().again, Some(Duration::from_secs(29)));

    pass.memory = Memory { synced: Some(hash), ..Memory::default() };
    let taken = pass.decide();
    assert_eq!((taken.action, taken.status.conditions.len()), (None, 0));
}

#[test]
fn a_machine_that_has_ended_is_never_started_again() {
    for status in [Status::Shutoff, Status::Crashed] {
        let pass = Pass::with(Phase::Scheduled, status, reason::SHUTDOWN);
        assert_eq!(pass.decide().action, None);
    }
}

#[test]
fn a_running_machine_is_synced_only_when_its_vmi_was_seen_to_change() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    assert_eq!(pass.decide().action, None, "after a restart");
    let hash = spec_hash(&pass.vmi);
    pass.memory.synced = Some(hash);
    assert_eq!(pass.decide().action, None);
    pass.vmi.spec.termination_grace_period_seconds = Some(5);
    assert_eq!(pass.decide().action, Some(Action::Sync(spec_hash(&pass.vmi))));
    pass.vmi.status.reason = Some("changed".into());
    assert_ne!(hash, spec_hash(&pass.vmi));
}

#[test]
fn a_launcher_hears_of_paused_probes_of_the_agent() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    pass.memory.synced = Some(spec_hash(&pass.vmi));
    let annotations = BTreeMap::from([(annotation::PAUSE_AGENT_PROBES.to_owned(), "true".to_owned())]);
    pass.vmi.metadata.annotations = Some(annotations);
    let hash = spec_hash(&pass.vmi);
    assert_eq!(pass.decide().action, Some(Action::Sync(hash)));
    pass.memory.synced = Some(hash);
    pass.vmi.metadata.annotations = None;
    assert_eq!(pass.decide().action, Some(Action::Sync(spec_hash(&pass.vmi))));

    pass.memory.synced = None;
    assert_eq!(pass.decide().action, None, "no probe asks the agent");
    let ping = v1::Probe { guest_agent_ping: Some(v1::GuestAgentPing::default()), ..v1::Probe::default() };
    pass.vmi.spec.liveness_probe = Some(ping);
    let sync = Some(Action::Sync(spec_hash(&pass.vmi)));
    assert_eq!(pass.decide().action, sync, "the annotation may have gone while no handler ran");
}

#[test]
fn a_link_that_changed_while_no_handler_looked_is_seen() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    let interface =
        v1::Interface { name: "a".into(), state: Some("down".into()), ..v1::Interface::default() };
    pass.vmi.spec.domain.devices.interfaces = vec![interface];
    let tell = |pass: &mut Pass, name: &str, link_state: &str| {
        let (name, link_state) = (name.to_owned(), link_state.to_owned());
        let told = podvirt_proto::domain::Interface { name, link_state, ..Default::default() };
        pass.domain.as_mut().unwrap().interfaces = vec![told];
        pass.decide().action
    };
    let sync = Some(Action::Sync(spec_hash(&pass.vmi)));
    assert_eq!(tell(&mut pass, "a", "up"), sync);
    for (name, link) in [("a", "down"), ("a", ""), ("", "up"), ("b", "up")] {
        assert_eq!(tell(&mut pass, name, link), None, "{name} {link}");
    }
    pass.vmi.spec.domain.devices.interfaces[0].state = None;
    assert_eq!(tell(&mut pass, "a", "up"), None);
    let sync = Some(Action::Sync(spec_hash(&pass.vmi)));
    assert_eq!(tell(&mut pass, "a", "down"), sync);
}

#[test]
fn a_machine_is_born_once() {
    let pass = Pass::with(Phase::Scheduled, Status::Running, reason::BOOTED);
    let decision = pass.decide();
    assert_eq!(decision.status.phase, Some(Phase::Running));
    assert_eq!(decision.events.iter().map(|e| e.reason).collect::<Vec<_>>(), ["Started"]);
    let stamp = &decision.status.phase_transition_timestamps[0];
    assert_eq!(stamp.phase, Some(Phase::Running));
    assert_eq!(stamp.phase_transition_timestamp, Some(Some(Time(at(100)))));
    let mut next = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    next.vmi.status = decision.status.clone();
    let next = next.decide();
    assert_eq!(next.status, decision.status);
    assert!(next.events.is_empty());
}

fn deleted() -> Pass {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    pass.vmi.metadata.deletion_timestamp = Some(Time(at(98)));
    pass
}

#[test]
fn a_deleted_vmi_is_asked_then_asked_again_then_killed() {
    let mut pass = deleted();
    let decision = pass.decide();
    assert_eq!(decision.action, Some(Action::Shutdown));
    assert_eq!(decision.events[0].reason, "ShuttingDown");

    pass.memory.asked_first = Some(at(100));
    pass.memory.asked_last = Some(at(100));
    pass.now = at(102);
    let decision = pass.decide();
    assert_eq!((decision.action, decision.again), (None, Some(Duration::from_secs(3))));

    pass.now = at(105);
    let decision = pass.decide();
    assert_eq!(decision.action, Some(Action::Shutdown));
    assert!(decision.events.is_empty(), "one event for all requests");

    pass.memory.asked_last = Some(at(127));
    pass.now = at(127);
    assert_eq!(pass.decide().again, Some(Duration::from_secs(1)), "wakes for the deadline");

    pass.now = at(128);
    let decision = pass.decide();
    assert_eq!((decision.action, decision.events[0].reason), (Some(Action::Kill), "Deleted"));

    pass.memory.killed = Some(at(128));
    pass.now = at(129);
    assert_eq!(pass.decide().action, None);
    pass.now = at(133);
    let decision = pass.decide();
    assert_eq!((decision.action, decision.events.len()), (Some(Action::Kill), 0));
}

#[test]
fn no_grace_period_means_no_question() {
    let mut pass = deleted();
    pass.vmi.spec.termination_grace_period_seconds = Some(0);
    assert_eq!(pass.decide().action, Some(Action::Kill));
    pass.vmi.spec.termination_grace_period_seconds = Some(i64::MAX);
    assert_eq!(pass.decide().action, Some(Action::Shutdown));
    pass.memory.asked_first = Some(at(100));
    pass.memory.asked_last = Some(at(100));
    assert_eq!(pass.decide().action, None, "a grace period without end");
}

#[test]
fn a_handler_that_comes_too_late_still_asks() {
    let mut pass = deleted();
    pass.now = at(1000);
    assert_eq!(pass.decide().action, Some(Action::Shutdown));
    pass.memory.asked_first = Some(at(1000));
    pass.memory.asked_last = Some(at(1000));
    pass.now = at(1004);
    assert_eq!(pass.decide().action, None);
    pass.now = at(1005);
    assert_eq!(pass.decide().action, Some(Action::Kill));
}

#[test]
fn a_pod_that_was_told_to_end_is_shut_down_too() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    let report = pass.domain.as_mut().expect("a report");
    report.graceful_shutdown_requested = true;
    report.kill_at_ms = Some(u64::try_from(at(110).as_millisecond()).expect("positive"));
    assert_eq!(pass.decide().action, Some(Action::Shutdown));
    pass.memory.asked_first = Some(at(100));
    pass.memory.asked_last = Some(at(109));
    pass.now = at(109);
    assert_eq!(pass.decide().action, None);
    pass.now = at(110);
    assert_eq!(pass.decide().action, Some(Action::Kill), "before the launcher does");
}

#[test]
fn a_vmi_that_is_deleted_before_it_started_does_not_start() {
    let mut pass = Pass::of(Phase::Scheduled);
    pass.vmi.metadata.deletion_timestamp = Some(Time(at(99)));
    assert_eq!(pass.decide().action, None);
}

#[test]
fn a_live_machine_of_a_vmi_that_was_given_up_is_killed() {
    let mut pass = Pass::with(Phase::Failed, Status::Running, reason::BOOTED);
    assert_eq!(pass.decide().action, Some(Action::Kill));
    pass.domain = Some(domain(Status::Shutoff, reason::DESTROYED));
    let decision = pass.decide();
    assert_eq!((decision.action, decision.again), (None, None));
    assert_eq!(decision.status, pass.vmi.status);
}

#[test]
fn a_gone_launchers_exit_is_looked_up_until_it_is_known() {
    let mut pass = Pass::of(Phase::Running);
    pass.launcher = Launcher::Gone(at(99));
    assert_eq!(pass.decide().action, Some(Action::LookUpExit));
    pass.exit = Exit::Code(1, "Error".into());
    let decision = pass.decide();
    assert_eq!((decision.action, decision.status.reason.as_deref()), (None, Some("LauncherFailed")));
}

#[test]
fn the_guests_facts_are_copied() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    let report = pass.domain.as_mut().expect("a report");
    report.machine = Some("pc-q35-10.0".into());
    report.interfaces = vec![Interface {
        name: "default".into(),
        mac: "02:00:00:00:00:01".into(),
        ips: vec!["10.1.0.7".into(), "fd00::7".into()],
        info_source: "domain".into(),
        queue_count: 1,
        ..Interface::default()
    }];
    pass.vmi.status.interfaces = vec![v1::VirtualMachineInstanceNetworkInterface {
        name: Some("default".into()),
        pod_interface_name: Some("eth0".into()),
        info_source: Some("multus-status".into()),
        ..Default::default()
    }];
    let status = pass.decide().status;
    let interface = &status.interfaces[0];
    assert_eq!(interface.ip_address.as_deref(), Some("10.1.0.7"));
    assert_eq!((interface.ip_addresses.len(), interface.queue_count), (2, Some(1)));
    assert_eq!(interface.pod_interface_name.as_deref(), Some("eth0"), "what another wrote stays");
    assert_eq!(interface.info_source.as_deref(), Some("domain, multus-status"));
    assert_eq!(status.machine.expect("told").r#type.as_deref(), Some("pc-q35-10.0"));
}
