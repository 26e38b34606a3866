//! Conditions, and what is told by events.

use super::*;

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
fn what_became_of_credentials_is_a_condition_and_an_event_when_it_changes() {
    let mut pass = Pass::with(Phase::Running, Status::Running, reason::BOOTED);
    let mut says = |synchronized: bool, message: &str| {
        let told = AccessCredentials { synchronized, message: message.into() };
        pass.domain.as_mut().expect("a report").access_credentials = Some(told);
        let decision = pass.decide();
        let condition =
            decision.status.conditions.iter().find(|c| c.r#type == Type::AccessCredentialsSynchronized);
        let state = condition.map(|c| c.status.clone()).expect("a condition");
        let events: Vec<_> = decision.events.iter().map(|event| event.reason).collect();
        pass.vmi.status = decision.status;
        (state, events)
    };
    assert_eq!(says(false, "no such user"), ("False".into(), vec!["AccessCredentialsSyncFailed"]));
    assert_eq!(says(false, "no such user"), ("False".into(), vec![]));
    assert_eq!(says(false, "no such command"), ("False".into(), vec!["AccessCredentialsSyncFailed"]));
    assert_eq!(says(true, ""), ("True".into(), vec!["AccessCredentialsSyncSuccess"]));
    assert_eq!(says(true, ""), ("True".into(), vec![]));
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
fn a_machine_that_a_disk_has_stopped_names_it_and_its_claim() {
    let mut pass = Pass::with(Phase::Running, Status::Paused, reason::IO_ERROR);
    pass.vmi.spec.volumes = serde_json::from_value(serde_json::json!([
        {"name": "root", "containerDisk": {"image": "i"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "full"}},
    ]))
    .expect("volumes");
    let disk = |name: &str, error: &str| Disk { name: name.into(), error: error.into(), ..Disk::default() };
    pass.domain.as_mut().expect("a report").disks = vec![disk("root", ""), disk("data", "no space is left")];
    let decision = pass.decide();
    let told = decision.status.conditions[0].message.clone().expect("a message");
    assert!(
        told.starts_with("disk data (PersistentVolumeClaim full): no space is left; the guest"),
        "{told}"
    );
    let [event] = decision.events.as_slice() else { panic!("{:?}", decision.events) };
    assert_eq!((event.weight, event.reason, &event.message), (Weight::Warning, "PausedIOError", &told));
    pass.vmi.status = decision.status;
    assert_eq!(pass.decide().events, [], "it is told once");
    // A launcher of an earlier release names none.
    pass.domain.as_mut().expect("a report").disks.clear();
    let told = pass.decide().status.conditions[0].message.clone().expect("a message");
    assert!(told.starts_with("a disk failed or is full; the guest"), "{told}");
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
