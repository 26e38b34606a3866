//! Machines that end with their pods: why the pod ends decides.

use super::*;

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
    let word = decision.status.reason.as_deref();
    assert_eq!((decision.status.phase, word), (Some(Phase::Succeeded), Some("ShutDownWithPod")));
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
fn a_guest_that_shut_down_with_its_pod_is_told_from_one_that_did_by_its_own_will() {
    let word = |pass: &Pass| {
        let status = pass.decide().status;
        assert_eq!(status.phase, Some(Phase::Succeeded));
        status.reason.unwrap_or_default()
    };
    let with_pod = Pass { exit: Exit::NoPod, ..with_pod(reason::SHUTDOWN) };
    assert_eq!(word(&with_pod), "ShutDownWithPod");
    assert_eq!(word(&Pass::with(Phase::Running, Status::Shutoff, reason::SHUTDOWN)), "");
    for (code, expected) in [(7, "ShutDownWithPod"), (0, "")] {
        let mut gone = Pass::with(Phase::Running, Status::Shutoff, reason::SHUTDOWN);
        (gone.domain, gone.launcher, gone.exit) =
            (None, Launcher::Gone(at(95)), Exit::Code(code, "Completed".into()));
        assert_eq!(word(&gone), expected, "{code}");
    }
}
