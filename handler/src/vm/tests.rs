use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podvirt_api::v1::VirtualMachineInstanceConditionType as Type;
use podvirt_proto::domain::{Interface, Status, reason};

use super::*;

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
fn conditions_come_and_go_with_what_they_tell() {
    let mut pass = Pass::with(Phase::Running, Status::Paused, reason::USER);
    pass.domain.as_mut().expect("a report").agent_connected = true;
    let ready = v1::VirtualMachineInstanceCondition { r#type: Type::Ready, ..Default::default() };
    pass.vmi.status.conditions.push(ready.clone());
    let decision = pass.decide();
    let types: Vec<_> = decision.status.conditions.iter().map(|c| c.r#type.clone()).collect();
    assert_eq!(types, [Type::Ready, Type::Paused, Type::AgentConnected]);
    assert_eq!(decision.status.conditions[1].reason.as_deref(), Some("PausedByUser"));

    pass.vmi.status = decision.status;
    pass.domain = Some(domain(Status::Running, reason::UNPAUSED));
    assert_eq!(
        pass.decide().status.conditions,
        std::slice::from_ref(&ready),
        "the controller's condition stays"
    );

    pass.domain = Some(domain(Status::Shutoff, reason::SHUTDOWN));
    assert_eq!(pass.decide().status.conditions, [ready]);
}

#[test]
fn a_condition_that_says_something_else_keeps_the_time_it_turned() {
    let mut pass = Pass::with(Phase::Running, Status::Paused, reason::USER);
    pass.vmi.status = pass.decide().status;
    pass.domain = Some(domain(Status::Paused, reason::IO_ERROR));
    pass.now = at(200);
    let condition = pass.decide().status.conditions.remove(0);
    assert_eq!(condition.reason.as_deref(), Some("PausedIOError"));
    assert_eq!(condition.last_transition_time, Some(Some(Time(at(100)))));
    assert_eq!(condition.last_probe_time, Some(Some(Time(at(200)))));
}

#[test]
fn silence_is_told_after_a_while_and_is_no_death() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    pass.launcher = Launcher::Silent(at(90));
    assert!(pass.decide().status.conditions.is_empty());
    pass.now = at(90) + SignedDuration::try_from(SILENCE).expect("short");
    let decision = pass.decide();
    assert_eq!(decision.status.conditions[0].reason.as_deref(), Some("LauncherSilent"));
    assert_eq!(decision.events[0].reason, "LauncherSilent");
    assert_eq!((decision.status.phase.clone(), decision.action), (Some(Phase::Running), None));
    pass.vmi.status = decision.status;
    assert_eq!(pass.decide().events, [], "it is told once");
}

#[test]
fn a_silent_launcher_is_looked_at_less_and_less_often() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    let mut looks = Vec::new();
    for silent in [0, 5, 15, 40, 3600] {
        pass.launcher = Launcher::Silent(at(100 - silent));
        looks.push(pass.decide().again.expect("it is looked at again").as_secs());
    }
    assert_eq!(looks, [2, 5, 15, 20, 20]);
}

#[test]
fn what_the_launcher_waits_for_is_told() {
    let mut pass = Pass::of(Phase::Scheduled);
    let waiting_for = "the container disk of volume a".to_owned();
    pass.domain = Some(Domain { waiting_for: waiting_for.clone(), ..Domain::default() });
    let decision = pass.decide();
    assert_eq!(decision.status.phase, Some(Phase::Scheduled));
    assert_eq!(decision.status.conditions[0].message, Some(waiting_for));
}

#[test]
fn a_wait_that_lasts_is_told_by_one_event() {
    let ms = |at: Timestamp| u64::try_from(at.as_millisecond()).expect("since 1970");
    let mut pass = Pass::of(Phase::Scheduled);
    pass.memory.syncing = true;
    pass.domain = Some(Domain {
        waiting_for: "the image disk:1 of the volume root".into(),
        waiting_since_ms: Some(ms(at(100))),
        ..Domain::default()
    });
    for wait in [
        "the image disk:1 of the volume root",
        "the launcher's socket, which appears once its libvirt answers",
    ] {
        pass.now = at(104);
        let decision = pass.decide();
        assert_eq!(decision.status.conditions[0].message.as_deref(), Some(wait));
        assert!(decision.events.is_empty(), "it may come at any moment");
        let expected = if pass.domain.is_some() { 11 } else { 5 };
        assert_eq!(decision.again, Some(Duration::from_secs(expected)), "it is looked at again in time");

        pass.vmi.status = decision.status;
        pass.now = at(115);
        let decision = pass.decide();
        let told = format!("not there after 15 s: {wait}");
        let condition = &decision.status.conditions[0];
        assert_eq!((condition.reason.as_deref(), condition.message.as_ref()), (Some("Waiting"), Some(&told)));
        let [event] = decision.events.as_slice() else { panic!("{:?}", decision.events) };
        assert_eq!((event.weight, event.reason, &event.message), (Weight::Warning, "SyncFailed", &told));

        pass.vmi.status = decision.status;
        pass.now = at(200);
        assert!(pass.decide().events.is_empty(), "once");
        // The other wait: no launcher yet.
        pass.vmi.status.conditions.clear();
        (pass.domain, pass.launcher) = (None, Launcher::Absent(at(100)));
    }
}

#[test]
fn what_is_said_of_the_pods_containers_stands_until_the_guest_runs() {
    let mut pass = Pass::of(Phase::Scheduled);
    let theirs = v1::VirtualMachineInstanceCondition {
        r#type: Type::Synchronized,
        status: "False".into(),
        reason: Some("CrashLoopBackOff".into()),
        message: Some("container netd ended with code 1: guest.dns[0]".into()),
        ..Default::default()
    };
    pass.vmi.status.conditions.push(theirs.clone());
    let waiting_since_ms = Some(0);
    pass.domain =
        Some(Domain { waiting_for: "netd's socket n0.sock".into(), waiting_since_ms, ..Domain::default() });
    let decision = pass.decide();
    assert_eq!((decision.status.conditions, decision.events), (vec![theirs], vec![]));
    pass.domain = Some(domain(Status::Running, reason::BOOTED));
    assert!(pass.decide().status.conditions.is_empty());
}

#[test]
fn a_machine_that_failed_says_why_for_as_long_as_it_is_there() {
    let mut pass = Pass::with(Phase::Scheduled, Status::Shutoff, reason::FAILED);
    pass.domain.as_mut().expect("a report").message = "no machine after 240 s: no such disk".into();
    let decision = pass.decide();
    assert_eq!(decision.status.phase, Some(Phase::Failed));
    let condition = &decision.status.conditions[0];
    assert_eq!((&condition.r#type, condition.status.as_str()), (&Type::Synchronized, "False"));
    assert_eq!(condition.reason.as_deref(), Some("StartFailed"));
    assert!(condition.message.as_ref().is_some_and(|m| m.contains("no such disk")), "{condition:?}");
    let [event] = decision.events.as_slice() else { panic!("{:?}", decision.events) };
    assert_eq!(event.reason, "Stopped");

    let mut pass = Pass::of(Phase::Running);
    pass.launcher = Launcher::Gone(at(99));
    pass.exit = Exit::Evicted("Usage of EmptyDir volume exceeds the limit".into());
    let decision = pass.decide();
    assert_eq!(decision.status.reason.as_deref(), Some("Evicted"));
    assert!(decision.events[0].message.contains("Usage of EmptyDir volume"), "{:?}", decision.events);
}

#[test]
fn a_guest_that_goes_down_because_its_pod_is_evicted_has_failed() {
    for (ended, reason) in
        [(reason::SHUTDOWN, "Evicted"), (reason::DESTROYED, "Evicted"), (reason::PANICKED, "GuestPanicked")]
    {
        let mut pass = Pass::with(Phase::Running, Status::Shutoff, ended);
        pass.exit = Exit::Evicted("Usage of EmptyDir volume exceeds the limit".into());
        let status = pass.decide().status;
        assert_eq!((status.phase, status.reason.as_deref()), (Some(Phase::Failed), Some(reason)), "{ended}");
    }
    // Its pod is not asked for where a user ends it, and not while it runs.
    let mut pass = Pass::with(Phase::Running, Status::Shutoff, reason::SHUTDOWN);
    let may_be = |pass: &Pass| may_be_evicted(&pass.vmi, pass.domain.as_ref().expect("a report"));
    assert!(may_be(&pass));
    pass.vmi.metadata.deletion_timestamp = Some(Time(at(1)));
    assert!(!may_be(&pass));
    assert!(!may_be(&Pass::with(Phase::Running, Status::Running, reason::BOOTED)));
}

/// A pass over a machine that ended with its pod 10 s ago, in a grace period that the guest kept or did not keep.
fn with_pod(ended: &str) -> Pass {
    let mut pass = Pass::with(Phase::Running, Status::Shutoff, ended);
    pass.domain.as_mut().expect("a report").ended_with_pod = true;
    pass.ended_since = Some(at(90));
    pass
}

#[test]
fn a_machine_that_ended_with_its_pod_waits_for_why_the_pod_ends() {
    let code = || Exit::Code(7, "Error".into());
    let ending = || Exit::Ending(7, "Error".into());
    for (ended, as_told) in [(reason::SHUTDOWN, Phase::Succeeded), (reason::DESTROYED, Phase::Failed)] {
        for launcher in [Launcher::Ready, Launcher::Silent(at(99)), Launcher::Gone(at(95))] {
            let mut pass = Pass { launcher, ..with_pod(ended) };
            for exit in [Exit::Unknown, ending()] {
                pass.exit = exit;
                let decision = pass.decide();
                let next = (decision.status.phase.clone(), decision.action, decision.again);
                assert_eq!(next, (Some(Phase::Running), None, Some(Duration::from_secs(1))), "{launcher:?}");
                let told = decision.status.conditions[0].clone();
                assert_eq!(told.reason.as_deref(), Some("Waiting"));
                assert!(told.message.is_some_and(|m| m.contains("end of the launcher's pod")));
                assert!(decision.events.is_empty(), "it is a matter of seconds: {:?}", decision.events);
            }
            // What the kubelet tells then, or that it tells nothing.
            for (exit, phase, word) in [
                (Exit::Evicted("the limit".into()), Phase::Failed, "Evicted"),
                (code(), as_told.clone(), ""),
                (Exit::Untold, as_told.clone(), ""),
                (Exit::NoPod, as_told.clone(), ""),
            ] {
                pass.exit = exit;
                let status = pass.decide().status;
                let reason = status.reason.unwrap_or_default();
                assert_eq!(status.phase, Some(phase), "{ended} {launcher:?} {:?}", pass.exit);
                assert_eq!(reason == "Evicted", word == "Evicted", "{reason}");
                assert!(status.conditions.iter().all(|c| c.reason.as_deref() != Some("Waiting")));
            }
        }
    }
}

#[test]
fn the_wait_for_the_pods_end_is_told_and_has_an_end() {
    let mut pass = with_pod(reason::SHUTDOWN);
    pass.vmi.status = pass.decide().status;
    pass.now = at(105);
    let decision = pass.decide();
    assert_eq!(decision.status.phase, Some(Phase::Running));
    let [event] = decision.events.as_slice() else { panic!("{:?}", decision.events) };
    assert!(event.message.contains("not there after 15 s: the end of the launcher's pod"), "{event:?}");
    pass.vmi.status = decision.status;
    pass.now = at(119);
    assert_eq!(pass.phase(), Phase::Running);
    // A kubelet that does not run tells nothing.
    pass.now = at(120);
    let decision = pass.decide();
    assert_eq!((decision.status.phase, decision.status.reason), (Some(Phase::Succeeded), None));
    assert!(decision.status.conditions.is_empty(), "{:?}", decision.status.conditions);
}

#[test]
fn only_an_end_with_the_pod_waits() {
    let mut pass = with_pod(reason::SHUTDOWN);
    pass.vmi.metadata.deletion_timestamp = Some(Time(at(1)));
    assert_eq!(pass.phase(), Phase::Succeeded, "a VMI that is being deleted");
    let mut pass = with_pod(reason::SHUTDOWN);
    pass.domain.as_mut().expect("a report").ended_with_pod = false;
    assert_eq!(pass.phase(), Phase::Succeeded, "a machine that ended by itself, or whose launcher is older");
    assert_eq!(with_pod(reason::PANICKED).phase(), Phase::Failed);
    assert_eq!(with_pod(reason::MIGRATED).decide().status.conditions.len(), 0, "it runs elsewhere");
    let mut pass = with_pod(reason::SHUTDOWN);
    pass.vmi.status.phase = Some(Phase::Scheduled);
    assert_eq!((pass.phase(), pass.decide().action), (Phase::Scheduled, None), "nor is it started again");
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
