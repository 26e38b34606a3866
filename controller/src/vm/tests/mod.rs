//! What is decided on machines in each state, and whole lives in virtual time.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use podvirt_api::names;
use podvirt_api::v1::{
    StartStrategy, VirtualMachine, VirtualMachineCondition, VirtualMachineConditionType,
    VirtualMachineInstance, VirtualMachineInstancePhase as Phase,
    VirtualMachineInstancePhaseTransitionTimestamp, VirtualMachineRunStrategy,
};
use serde_json::{Value, json};

mod data;
mod life;
mod status;

use life::Life;

use super::instance::{TEMPLATE_DIGEST, render, template_digest};
use super::*;

const UID: &str = "11111111-0000-4000-8000-000000000000";

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn merge(into: &mut Value, with: &Value) {
    match (into, with) {
        (Value::Object(into), Value::Object(with)) => {
            for (key, value) in with {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, with) => *into = with.clone(),
    }
}

/// A machine that is set up, with `strategy`, as its status says; `more` is merged into it.
fn machine(strategy: &str, more: Value) -> VirtualMachine {
    let mut vm = json!({
        "metadata": {
            "name": "vm", "namespace": "ns", "uid": UID, "resourceVersion": "5", "generation": 3,
            "finalizers": [names::VM_FINALIZER],
        },
        "spec": {
            "runStrategy": strategy,
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}},
                "spec": {"domain": {"devices": {"interfaces": [{"name": "default"}]}}},
            },
        },
        "status": {"runStrategy": strategy},
    });
    merge(&mut vm, &more);
    serde_json::from_value(vm).unwrap()
}

/// The machine's own instance, in `phase`.
fn instance(vm: &VirtualMachine, phase: &str, more: Value) -> VirtualMachineInstance {
    let mut vmi = serde_json::to_value(render(vm, false)).unwrap();
    merge(&mut vmi, &json!({"metadata": {"uid": "u1"}, "status": {"phase": phase}}));
    merge(&mut vmi, &more);
    serde_json::from_value(vmi).unwrap()
}

fn judged(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Plan {
    decide(vm, Instance::of(vm, vmi), now())
}

/// A word for an action, for tables.
fn word(action: Option<&Action>) -> &'static str {
    match action {
        None => "-",
        Some(Action::AddFinalizer) => "add finalizer",
        Some(Action::RemoveFinalizer) => "remove finalizer",
        Some(Action::Adopt { .. }) => "adopt",
        Some(Action::MakeDataVolumes(_)) => "make data volumes",
        Some(Action::Start(_)) => "start",
        Some(Action::Stop { .. }) => "stop",
        Some(Action::BecomeAlways) => "become always",
        Some(Action::NoteGeneration { .. }) => "note generation",
        Some(Action::SetLinks { .. }) => "set links",
        Some(Action::SetInterfaces { .. }) => "set interfaces",
        Some(Action::SetInstance { .. }) => "set instance",
        Some(Action::SetTemplate { .. }) => "set template",
        Some(Action::ClearTemplate(_)) => "clear template",
    }
}

fn start_request() -> Value {
    json!({"status": {"stateChangeRequests": [{"action": "Start"}]}})
}

fn stop_request(uid: &str) -> Value {
    json!({"status": {"stateChangeRequests": [{"action": "Stop", "uid": uid}]}})
}

fn restart_request(uid: &str) -> Value {
    json!({"status": {"stateChangeRequests": [{"action": "Stop", "uid": uid}, {"action": "Start"}]}})
}

fn of<'a>(plan: &'a Plan, kind: &VirtualMachineConditionType) -> Option<&'a VirtualMachineCondition> {
    plan.status.conditions.iter().find(|condition| condition.r#type == *kind)
}

#[test]
fn each_strategy_acts_as_the_table_says() {
    // strategy, then without an instance: idle, a start asked; then with one: running, a stop asked, failed,
    // succeeded.
    for (strategy, expected) in [
        ("Always", ["start", "start", "-", "stop", "stop", "stop"]),
        ("RerunOnFailure", ["-", "start", "-", "stop", "stop", "stop"]),
        ("Manual", ["-", "start", "-", "stop", "-", "-"]),
        ("Once", ["-", "start", "-", "stop", "-", "-"]),
        ("Halted", ["-", "become always", "stop", "stop", "stop", "stop"]),
    ] {
        let (idle, asked) = (machine(strategy, json!({})), machine(strategy, start_request()));
        let stopping = machine(strategy, stop_request("u1"));
        let (running, failed, succeeded) = (
            instance(&idle, "Running", json!({})),
            instance(&idle, "Failed", json!({})),
            instance(&idle, "Succeeded", json!({})),
        );
        let plans = [
            judged(&idle, None),
            judged(&asked, None),
            judged(&idle, Some(&running)),
            judged(&stopping, Some(&running)),
            judged(&idle, Some(&failed)),
            judged(&idle, Some(&succeeded)),
        ];
        assert_eq!(plans.each_ref().map(|plan| word(plan.action.as_ref())), expected, "{strategy}");
    }
}

#[test]
fn a_machine_that_changed_its_strategy_is_started_by_once_and_rerun() {
    for strategy in ["Once", "RerunOnFailure"] {
        let vm = machine(strategy, json!({"status": {"runStrategy": "Halted"}}));
        let plan = judged(&vm, None);
        assert_eq!(word(plan.action.as_ref()), "start");
        assert_eq!(
            plan.status.run_strategy,
            Some(VirtualMachineRunStrategy::Halted),
            "not begun before it is there"
        );
        let vmi = instance(&vm, "Pending", json!({}));
        assert_eq!(judged(&vm, Some(&vmi)).status.run_strategy, vm.spec.run_strategy);
    }
}

#[test]
fn the_older_field_running_means_always_and_halted() {
    let vm = |running| {
        let mut vm = machine("Always", json!({"spec": {"running": running}}));
        vm.spec.run_strategy = None;
        vm
    };
    assert_eq!(word(judged(&vm(true), None).action.as_ref()), "start");
    assert_eq!(word(judged(&vm(false), None).action.as_ref()), "-");
}

#[test]
fn a_specification_that_podvirt_does_not_carry_out_is_told_and_leaves_the_instance_alone() {
    let both = machine("Always", json!({"spec": {"running": true}}));
    let receiver = machine("WaitAsReceiver", json!({}));
    let mut bare = machine("Always", json!({}));
    bare.spec.template = None;
    for (vm, part) in [(both, "spec.running"), (receiver, "\"WaitAsReceiver\""), (bare, "spec.template")] {
        let plan = judged(&vm, None);
        assert_eq!(plan.action, None);
        let failure = of(&plan, &VirtualMachineConditionType::Failure).unwrap();
        assert_eq!(failure.reason.as_deref(), Some("InvalidSpec"));
        assert!(failure.message.as_deref().unwrap().contains(part), "{failure:?}");
        assert_eq!(plan.warnings.len(), 1);
        let told = VirtualMachine { status: plan.status, ..vm };
        assert_eq!(judged(&told, None).warnings, [], "told once");
    }
}

#[test]
fn the_finalizer_comes_before_the_first_start_and_goes_after_the_instance() {
    let fresh = machine("Always", json!({"metadata": {"finalizers": []}}));
    assert_eq!(word(judged(&fresh, None).action.as_ref()), "add finalizer");

    let deleted = json!({"metadata": {"deletionTimestamp": "2026-03-01T11:00:00Z"}});
    let vm = machine("Always", deleted.clone());
    let running = instance(&vm, "Running", json!({}));
    let plan = judged(&vm, Some(&running));
    assert_eq!(
        (word(plan.action.as_ref()), plan.status.printable_status),
        ("stop", Some("Terminating".into()))
    );
    let ending = instance(&vm, "Running", deleted.clone());
    assert_eq!(word(judged(&vm, Some(&ending)).action.as_ref()), "-");
    assert_eq!(word(judged(&vm, None).action.as_ref()), "remove finalizer");

    let mut orphaning = vm.clone();
    orphaning.finalizers_mut().push("orphan".into());
    assert_eq!(word(judged(&orphaning, Some(&running)).action.as_ref()), "remove finalizer");
    let mut done = vm;
    done.finalizers_mut().clear();
    assert_eq!(word(judged(&done, None).action.as_ref()), "-");
}

#[test]
fn an_instance_that_the_machine_does_not_own_is_left_alone_and_told() {
    let other = json!([{"apiVersion": "pool.kubevirt.io/v1", "kind": "Set", "name": "s", "uid": "2", "controller": true}]);
    let going = json!({"ownerReferences": [], "deletionTimestamp": "2026-03-01T12:00:00Z"});
    for (strategy, status) in [("Always", "Starting"), ("Halted", "Stopped")] {
        let vm = machine(strategy, json!({}));
        for (metadata, told) in [
            (json!({"ownerReferences": other}), "that the Set \"s\" with UID 2 controls"),
            (going.clone(), "that this VirtualMachine does not own is in the way until it is deleted"),
        ] {
            let foreign = instance(&vm, "Running", json!({"metadata": metadata}));
            let plan = judged(&vm, Some(&foreign));
            assert_eq!(plan.action, None);
            assert_eq!(
                (plan.status.created, plan.status.printable_status.as_ref()),
                (None, Some(&status.into()))
            );
            let failure = of(&plan, &VirtualMachineConditionType::Failure).unwrap();
            assert!(failure.message.as_deref().unwrap().contains(told), "{failure:?}");
            let ready = of(&plan, &VirtualMachineConditionType::Ready).unwrap();
            let message = ready.message.as_deref();
            assert_eq!(message, Some("the VMI of this name is not this VirtualMachine's"));
        }
    }
}

#[test]
fn an_instance_without_a_controller_becomes_the_machines_own() {
    let guest = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "3"});
    for (strategy, then) in [("Always", "-"), ("Manual", "-"), ("Halted", "stop")] {
        let vm = machine(strategy, json!({}));
        let orphan = instance(
            &vm,
            "Running",
            json!({"metadata": {"ownerReferences": [guest], "resourceVersion": "9"}}),
        );
        let Some(Action::Adopt { uid, version, owners }) = judged(&vm, Some(&orphan)).action else {
            panic!()
        };
        assert_eq!((uid.as_str(), version.as_deref()), ("u1", Some("9")));
        let uids: Vec<_> = owners.iter().map(|owner| (owner.uid.as_str(), owner.controller)).collect();
        assert_eq!(uids, [("3", None), (UID, Some(true))]);
        let mut own = orphan.clone();
        own.metadata.owner_references = Some(owners);
        let plan = judged(&vm, Some(&own));
        assert_eq!(word(plan.action.as_ref()), then, "{strategy}");
        assert_eq!(of(&plan, &VirtualMachineConditionType::Failure), None);
        // Neither a machine that is being deleted takes one over, nor one that is not set up yet.
        for (more, then) in [
            (json!({"deletionTimestamp": "2026-03-01T12:00:00Z"}), "remove finalizer"),
            (json!({"finalizers": []}), "add finalizer"),
        ] {
            let vm = machine(strategy, json!({"metadata": more}));
            assert_eq!(word(judged(&vm, Some(&orphan)).action.as_ref()), then, "{strategy}");
        }
    }
}

#[test]
fn the_instance_is_made_from_the_template_with_an_identity_that_stays() {
    let vm = machine("Always", json!({}));
    let vmi = render(&vm, false);
    assert_eq!((vmi.name_any(), vmi.namespace()), ("vm".into(), Some("ns".into())));
    assert_eq!(vmi.labels().get("app").map(String::as_str), Some("web"));
    assert_eq!(vmi.annotations().get("a").map(String::as_str), Some("b"));
    assert_eq!(vmi.annotations()["kubevirt.io/vm-generation"], "3");
    let owner = &vmi.owner_references()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("VirtualMachine", "vm", UID));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    assert_eq!(vmi.finalizers(), [names::VMI_FINALIZER]);
    assert_eq!(vmi.spec.start_strategy, None);

    let reborn = machine("Always", json!({"metadata": {"uid": "another"}}));
    assert_eq!(render(&reborn, false).spec, vmi.spec, "identity follows namespace and name");
    let uuid = vmi.spec.domain.firmware.clone().unwrap().uuid.unwrap();
    let mac = vmi.spec.domain.devices.interfaces[0].mac_address.clone().unwrap();
    assert!(uuid.len() == 36 && mac.parse::<podvirt_api::MacAddr>().unwrap().is_usable(), "{uuid} {mac}");
    let other = machine("Always", json!({"metadata": {"name": "other"}}));
    assert_ne!(render(&other, false).spec.domain.firmware.unwrap().uuid, Some(uuid));

    let given = json!({"spec": {"template": {"spec": {"domain": {
        "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223"},
        "devices": {"interfaces": [{"name": "default", "macAddress": "02:00:00:00:00:01"}]},
    }}}}});
    let spec = render(&machine("Always", given), false).spec;
    assert_eq!(spec.domain.firmware.unwrap().uuid.as_deref(), Some("5d307ca9-b3ef-428c-8861-06e72d69f223"));
    assert_eq!(spec.domain.devices.interfaces[0].mac_address.as_deref(), Some("02:00:00:00:00:01"));
}

#[test]
fn a_start_can_be_asked_for_with_the_guest_paused() {
    let request =
        json!({"status": {"stateChangeRequests": [{"action": "Start", "data": {"paused": "true"}}]}});
    let Some(Action::Start(vmi)) = judged(&machine("Manual", request), None).action else { panic!() };
    assert_eq!(vmi.spec.start_strategy, Some(StartStrategy::Paused));
}

#[test]
fn requests_go_when_they_are_done_or_for_another_instance() {
    let requests = |vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>| {
        judged(vm, vmi).status.state_change_requests.iter().map(|r| r.action.to_string()).collect::<Vec<_>>()
    };
    let vm = machine("Manual", json!({}));
    let running = instance(&vm, "Running", json!({}));
    let ended = instance(&vm, "Succeeded", json!({}));
    assert_eq!(requests(&machine("Manual", start_request()), None), ["Start"]);
    assert_eq!(requests(&machine("Manual", start_request()), Some(&running)), [""; 0]);
    assert_eq!(requests(&machine("Manual", start_request()), Some(&ended)), ["Start"]);
    assert_eq!(requests(&machine("Manual", stop_request("u1")), Some(&running)), ["Stop"]);
    assert_eq!(requests(&machine("Manual", stop_request("u0")), Some(&running)), [""; 0]);
    assert_eq!(requests(&machine("Manual", stop_request("u1")), None), [""; 0]);
    assert_eq!(requests(&machine("Manual", restart_request("u1")), Some(&running)), ["Stop", "Start"]);
    assert_eq!(requests(&machine("Manual", restart_request("u1")), None), ["Start"]);
    let vm = machine("Manual", start_request());
    assert_eq!(
        word(judged(&vm, Some(&ended)).action.as_ref()),
        "stop",
        "room for the start that was asked for"
    );
}

#[test]
fn starts_that_fail_are_delayed_more_and_more_and_a_run_ends_that() {
    let mut vm = machine("Always", json!({}));
    let mut delays = Vec::new();
    for round in 0..7 {
        let failed = instance(&vm, "Failed", json!({"metadata": {"uid": format!("u{round}")}}));
        let plan = judged(&vm, Some(&failed));
        assert_eq!((word(plan.action.as_ref()), plan.warnings.len()), ("stop", 1));
        assert_eq!(plan.status.printable_status, Some("CrashLoopBackOff".into()));
        vm.status = plan.status;
        let again = judged(&vm, Some(&failed));
        assert_eq!((&again.status, again.warnings.len()), (&vm.status, 0), "counted once");
        let plan = judged(&vm, None);
        assert_eq!(plan.action, None);
        delays.push(plan.again_after.unwrap().as_secs());
    }
    assert_eq!(delays, [10, 40, 90, 160, 250, 300, 300]);

    let later = now() + SignedDuration::from_secs(300);
    let plan = decide(&vm, Instance::None, later);
    assert_eq!((word(plan.action.as_ref()), plan.again_after), ("start", None));
    let pending = instance(&vm, "Pending", json!({"metadata": {"uid": "u9"}}));
    assert_eq!(judged(&vm, Some(&pending)).status.start_failure, vm.status.start_failure);
    let running = instance(&vm, "Running", json!({"metadata": {"uid": "u9"}}));
    assert_eq!(judged(&vm, Some(&running)).status.start_failure, None);
}

#[test]
fn a_guest_that_ran_or_was_told_to_end_is_no_failed_start() {
    let vm = machine("Always", json!({}));
    let ran = json!({"status": {"phaseTransitionTimestamps": [{"phase": "Running"}]}});
    let told = json!({"metadata": {"deletionTimestamp": "2026-03-01T11:00:00Z"}});
    for more in [ran, told] {
        let failed = instance(&vm, "Failed", more);
        assert_eq!(judged(&vm, Some(&failed)).status.start_failure, None);
    }
    for strategy in ["Halted", "Manual", "Once"] {
        let failing = json!({"status": {"startFailure": {"consecutiveFailCount": 2}}});
        let plan = judged(&machine(strategy, failing), None);
        assert_eq!(plan.status.start_failure, None, "{strategy} starts nothing by itself");
    }
}

#[test]
fn rerun_on_failure_runs_again_after_a_failure_and_rests_after_a_success_or_a_stop() {
    let mut life = Life::new(machine("RerunOnFailure", json!({"status": {"runStrategy": null}})));
    life.settle().phase(Phase::Running).phase(Phase::Failed);
    assert_eq!(life.made, 2, "a new instance after the failure");
    life.phase(Phase::Running).phase(Phase::Succeeded);
    assert_eq!((life.made, life.vmi.is_some()), (2, false));
    life.request(&start_request()).phase(Phase::Running);
    assert_eq!(life.made, 3);
    life.vmi.as_mut().unwrap().status.reason = Some("ShutDownWithPod".into());
    life.phase(Phase::Succeeded).phase(Phase::Running);
    assert_eq!(life.made, 4, "its pod was evicted, or deleted");
    life.request(&stop_request("u4"));
    assert_eq!((life.made, life.vmi.is_some()), (4, false));
    assert_eq!(life.vm.status.state_change_requests, []);
}

#[test]
fn a_restart_replaces_the_instance_once_whatever_the_strategy() {
    for strategy in ["Always", "Manual", "RerunOnFailure", "Once"] {
        let mut life = Life::new(machine(strategy, json!({})));
        life.request(&start_request()).phase(Phase::Running);
        assert_eq!(life.made, 1, "{strategy}");
        life.request(&restart_request("u1"));
        assert_eq!((life.made, life.vmi.is_some()), (2, true), "{strategy}");
        assert_eq!(life.vm.status.state_change_requests, [], "{strategy}");
    }
}

#[test]
fn once_runs_one_time_and_halted_follows_a_start_request() {
    let mut life = Life::new(machine("Once", json!({"status": {"runStrategy": null}})));
    life.settle().phase(Phase::Running).phase(Phase::Succeeded);
    assert_eq!((life.made, life.vmi.is_some()), (1, true), "what is left of the run can be looked at");

    let mut life = Life::new(machine("Halted", json!({})));
    life.settle();
    assert_eq!(life.made, 0);
    life.request(&start_request()).phase(Phase::Running);
    assert_eq!((life.made, life.vm.spec.run_strategy.clone()), (1, Some(VirtualMachineRunStrategy::Always)));
    life.vm.spec.run_strategy = Some(VirtualMachineRunStrategy::Halted);
    life.settle();
    assert_eq!((life.made, life.vmi.is_some()), (1, false));
}

#[test]
fn always_waits_out_the_back_off_between_failed_starts() {
    let mut life = Life::new(machine("Always", json!({})));
    life.settle().phase(Phase::Failed);
    assert_eq!((life.made, life.vmi.is_some()), (1, false));
    life.now += Duration::from_secs(9);
    assert_eq!(life.settle().made, 1);
    life.now += Duration::from_secs(1);
    assert_eq!(life.settle().made, 2);
}

proptest::proptest! {
    /// Whatever happens in whatever order, a few passes later nothing is left to do, and the machine is as its
    /// strategy says. `settle` fails on a second instance, on a stop of another one and on a loop.
    #[test]
    fn every_history_settles_as_the_strategy_says(history in proptest::collection::vec(0_u8..13, 0..40)) {
        let mut life = Life::new(machine("Manual", json!({})));
        for what in history {
            life.happen(what);
            let strategy = Strategy::of(&life.vm).unwrap();
            let waits = super::failure::time_left(&life.vm.status, life.now).is_some();
            match strategy {
                Strategy::Halted => assert!(life.vmi.is_none()),
                Strategy::Always => assert!(waits != life.vmi.as_ref().is_some_and(|vmi| !is_final(vmi))),
                Strategy::RerunOnFailure => assert!(life.vmi.as_ref().is_none_or(|vmi| !is_final(vmi))),
                Strategy::Manual | Strategy::Once => assert!(!waits),
            }
            assert_eq!(life.vm.status.created.unwrap_or(false), life.vmi.is_some());
        }
    }
}

#[test]
fn a_start_that_was_asked_for_before_the_machine_was_halted_does_not_start_it() {
    for before in ["Always", "RerunOnFailure", "Manual", "Once"] {
        let vm = |more: Value| {
            machine("Halted", {
                let mut all = more;
                merge(&mut all, &json!({"status": {"runStrategy": before}}));
                all
            })
        };
        for requests in [start_request(), restart_request("u1")] {
            let plan = judged(&vm(requests), None);
            assert_eq!((plan.action, plan.status.state_change_requests), (None, vec![]), "{before}");
        }
        let restarting = vm(restart_request("u1"));
        let running = instance(&restarting, "Running", json!({}));
        let plan = judged(&restarting, Some(&running));
        assert_eq!(word(plan.action.as_ref()), "stop");
        let after = VirtualMachine { status: plan.status, ..restarting };
        assert_eq!(judged(&after, None).action, None, "{before}");
    }
    let unseen = machine(
        "Halted",
        json!({"status": {"runStrategy": null, "stateChangeRequests": [{"action": "Start"}]}}),
    );
    assert_eq!(word(judged(&unseen, None).action.as_ref()), "become always");
}

#[test]
fn a_finished_run_of_an_older_strategy_makes_room_for_the_first_of_the_new_one() {
    let starts = |plan: &Plan| request::start(&plan.status);
    for strategy in ["Once", "RerunOnFailure"] {
        let vm =
            machine(strategy, json!({"metadata": {"generation": 4}, "status": {"runStrategy": "Manual"}}));
        let of = |generation: &str, phase: &str, more: Value| {
            let mut all = json!({"metadata": {"annotations": {"kubevirt.io/vm-generation": generation}}});
            merge(&mut all, &more);
            instance(&vm, phase, all)
        };
        for phase in ["Succeeded", "Failed"] {
            let ran = json!({"status": {"phaseTransitionTimestamps": [{"phase": "Running"}]}});
            let plan = judged(&vm, Some(&of("3", phase, ran)));
            assert_eq!((word(plan.action.as_ref()), starts(&plan)), ("stop", true), "{strategy} {phase}");
            let after = VirtualMachine { status: plan.status, ..vm.clone() };
            assert_eq!(word(judged(&after, None).action.as_ref()), "start", "{strategy} {phase}");
        }
        let going = json!({"metadata": {"deletionTimestamp": "2026-03-01T11:00:00Z"}});
        let plan = judged(&vm, Some(&of("3", "Running", going)));
        assert_eq!((plan.action.as_ref(), starts(&plan)), (None, true), "{strategy}: once it is gone");
        let plan = judged(&vm, Some(&of("4", "Succeeded", json!({}))));
        assert!(!starts(&plan), "{strategy}: it was the new strategy's own");
        let plan = judged(&vm, Some(&of("3", "Running", json!({}))));
        assert!(!starts(&plan), "{strategy}: it runs, and that is enough");
    }
}

#[test]
fn a_request_that_is_missing_is_a_dropped_one() {
    let status = |requests: Value| machine("Manual", requests).status;
    let (none, start, stop) = (status(json!({})), status(start_request()), status(stop_request("u1")));
    let both = status(restart_request("u1"));
    for (before, after, expected) in [
        (&none, &none, false),
        (&none, &start, false),
        (&both, &both, false),
        (&both, &start, true),
        (&stop, &start, true),
        (&start, &none, true),
        (&stop, &both, false),
    ] {
        assert_eq!(request::drops(before, after), expected, "{before:?} {after:?}");
    }
}
