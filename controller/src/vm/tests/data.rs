//! Machines whose templates name DataVolumes.

use super::*;
use crate::data::Look;
use crate::vm::decide::decide_by;
use crate::vm::moves::Moves;

fn seen(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, look: &Look) -> Plan {
    decide_by(vm, Ok(vm), Instance::of(vm, vmi), look, &Moves::None, now())
}

#[test]
fn data_volumes_are_made_at_once_or_with_the_first_start() {
    let (running, halted) = (machine("Always", json!({})), machine("Halted", json!({})));
    let missing = |immediate| Look { missing: vec![0], ready: false, immediate, ..Look::default() };
    for (vm, immediate, expected) in [
        (&running, true, "make data volumes"),
        (&running, false, "make data volumes"),
        (&halted, true, "make data volumes"),
        (&halted, false, "-"),
    ] {
        let plan = seen(vm, None, &missing(immediate));
        assert_eq!(word(plan.action.as_ref()), expected, "{:?} {immediate}", vm.spec.run_strategy);
    }
    let deleted = machine("Always", json!({"metadata": {"deletionTimestamp": "2026-03-01T11:00:00Z"}}));
    assert_eq!(word(seen(&deleted, None, &missing(true)).action.as_ref()), "remove finalizer");
    let vmi = instance(&running, "Running", json!({}));
    let plan = seen(&running, Some(&vmi), &missing(true));
    assert_eq!(word(plan.action.as_ref()), "make data volumes", "of a template that came later");
}

#[test]
fn a_start_waits_until_they_are_filled_and_is_not_forgotten() {
    let vm = machine("RerunOnFailure", json!({"status": {"runStrategy": "Halted"}}));
    let waits_for = Some("DataVolume root: ImportInProgress".to_owned());
    let filling = Look { ready: false, fills: true, waits_for, ..Look::default() };
    let plan = seen(&vm, None, &filling);
    let ready = VirtualMachineConditionType::from("DataVolumesReady");
    let told = of(&plan, &ready).unwrap();
    assert_eq!(
        (told.status.as_str(), told.message.as_deref()),
        ("False", Some("DataVolume root: ImportInProgress"))
    );
    let later = VirtualMachine { status: plan.status.clone(), ..vm.clone() };
    let again = decide_by(
        &later,
        Ok(&later),
        Instance::None,
        &filling,
        &Moves::None,
        now() + SignedDuration::from_secs(60),
    );
    assert_eq!(again.status, plan.status, "its time stays");
    assert_eq!(of(&seen(&later, None, &Look::default()), &ready), None);
    assert_eq!((word(plan.action.as_ref()), plan.again_after), ("-", None));
    assert_eq!(plan.status.printable_status, Some("Provisioning".into()));
    assert_eq!(plan.status.run_strategy, Some(VirtualMachineRunStrategy::Halted), "not begun");
    let vm = VirtualMachine { status: plan.status, ..vm };
    assert_eq!(word(seen(&vm, None, &Look::default()).action.as_ref()), "start");
    // What runs goes on, whatever becomes of a DataVolume.
    let vmi = instance(&vm, "Running", json!({}));
    let plan = seen(&vm, Some(&vmi), &filling);
    assert_eq!((word(plan.action.as_ref()), plan.status.printable_status), ("-", Some("Running".into())));
}

#[test]
fn what_does_not_go_on_by_itself_is_told_until_it_does() {
    let vm = machine("Always", json!({}));
    let problem = Some(("FailedDataVolumeImport", "DataVolume root has failed".to_owned()));
    let failed = Look { ready: false, fails: true, problem, ..Look::default() };
    let plan = seen(&vm, None, &failed);
    assert_eq!(plan.status.printable_status, Some("DataVolumeError".into()));
    let failure = of(&plan, &VirtualMachineConditionType::Failure).unwrap();
    assert_eq!(failure.message.as_deref(), Some("DataVolume root has failed"));
    assert_eq!(plan.warnings.len(), 1);
    let vm = VirtualMachine { status: plan.status, ..vm };
    assert_eq!(seen(&vm, None, &failed).warnings, [], "told once");
    // What could not be made is told until it is there.
    let missing = Look { missing: vec![0], ready: false, ..Look::default() };
    assert!(of(&seen(&vm, None, &missing), &VirtualMachineConditionType::Failure).is_some());
    let filling = Look { ready: false, fills: true, ..Look::default() };
    assert!(of(&seen(&vm, None, &filling), &VirtualMachineConditionType::Failure).is_none());
}

#[test]
fn an_instance_that_begins_says_what_its_volumes_lack() {
    let vm = machine("Always", json!({}));
    let pending = instance(&vm, "Pending", json!({}));
    let unbound = Look { unbound: true, ..Look::default() };
    for (look, word) in [
        (unbound.clone(), "WaitingForVolumeBinding"),
        (Look { fills: true, ..unbound.clone() }, "Provisioning"),
        (Look { fails: true, fills: true, ..unbound }, "DataVolumeError"),
        (Look::default(), "Starting"),
    ] {
        assert_eq!(seen(&vm, Some(&pending), &look).status.printable_status, Some(word.into()));
    }
}
