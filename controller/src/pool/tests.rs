//! What is decided on pools and told of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podvirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachinePool as Pool};
use serde_json::{Value, json};

use super::controller::concerned;
use super::revision::Revisions;
use super::status::status;
use super::*;
use crate::attempt::Outcome;
use crate::replicaset::BURST;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

/// A pool of three, at generation 2.
pub(super) fn pool(more: &Value) -> Pool {
    let mut pool = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "p1", "resourceVersion": "5", "generation": 2},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "virtualMachineTemplate": {
            "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}},
            "spec": {"runStrategy": "Always", "template": {
                "metadata": {"labels": {"tier": "front"}}, "spec": {"domain": {"devices": {}}}}}}},
    });
    json_patch::merge(&mut pool, more);
    serde_json::from_value(pool).unwrap()
}

/// A VM of the pool, ready, of the revision `web-2`.
pub(super) fn vm(index: usize, more: &Value) -> VirtualMachine {
    let mut vm = json!({
        "metadata": {"name": format!("web-{index}"), "namespace": "shop", "uid": format!("v{index}"), "resourceVersion": "9",
            "labels": {"app": "web", "kubevirt.io/vm-pool-revision-name": "web-2"},
            "creationTimestamp": format!("2026-03-01T11:0{}:00Z", 9 - index),
            "ownerReferences": [{"apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
                "name": "web", "uid": "p1", "controller": true}]},
        "spec": {"runStrategy": "Always", "template": {
            "metadata": {"labels": {"tier": "front"}}, "spec": {"domain": {"devices": {}}}}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    json_patch::merge(&mut vm, more);
    serde_json::from_value(vm).unwrap()
}

/// The instance of a VM, which runs, of this revision.
pub(super) fn vmi(index: usize, revision: &str, more: &Value) -> VirtualMachineInstance {
    let mut vmi = json!({
        "metadata": {"name": format!("web-{index}"), "namespace": "shop", "uid": format!("i{index}"),
            "labels": {"kubevirt.io/vm-pool-revision-name": revision},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "name": format!("web-{index}"), "uid": format!("v{index}"), "controller": true}]},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    json_patch::merge(&mut vmi, more);
    serde_json::from_value(vmi).unwrap()
}

/// Names of revisions, and the pools whose specification each is.
fn revisions(of: &[(&str, &Pool)]) -> Revisions {
    of.iter().map(|(name, pool)| ((*name).to_owned(), Arc::new(pool.spec.clone()))).collect()
}

struct World {
    pool: Pool,
    vms: Vec<VirtualMachine>,
    vmis: Vec<VirtualMachineInstance>,
    revisions: Revisions,
    waits: bool,
}

impl World {
    /// A pool with three VMs of its own, which are up to date and serve.
    fn new(more: &Value) -> Self {
        let pool = pool(more);
        let revisions = revisions(&[("web-2", &pool)]);
        World {
            pool,
            vms: (0..3).map(|index| vm(index, &json!({}))).collect(),
            vmis: (0..3).map(|index| vmi(index, "web-2", &json!({}))).collect(),
            revisions,
            waits: false,
        }
    }

    fn decide(&self) -> Plan {
        let machines: Vec<_> = self.vms.iter().cloned().map(Arc::new).collect();
        let instances =
            self.vmis.iter().map(|vmi| (vmi.metadata.name.clone().unwrap(), Arc::new(vmi.clone())));
        let instances: HashMap<_, _> = instances.collect();
        let seen = Observed {
            pool: &self.pool,
            machines: &machines,
            instances: &instances,
            revisions: &self.revisions,
            waits: self.waits,
        };
        decide(&seen, now())
    }

    fn words(&self) -> Vec<String> {
        words(&self.decide())
    }
}

/// A word for each action, for tables.
fn words(plan: &Plan) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Release { vm, .. } => format!("release {}", vm.name),
        Action::Remember => "remember".into(),
        Action::Create(vm) => format!("create {}", vm.metadata.name.as_deref().unwrap()),
        Action::Delete(vm) => format!("delete {}", vm.name),
        Action::Update(vm, _) => format!("update {}", vm.name),
        Action::Restart(vmi) => format!("restart {}", vmi.uid),
        Action::Label(vmi, revision) => format!("label {} {revision}", vmi.uid),
        Action::Forget(name) => format!("forget {name}"),
    };
    plan.actions.iter().map(word).collect()
}

fn gone() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-03-01T11:59:00Z"}})
}

/// A change of the template of instances.
fn with_memory(memory: &str) -> Value {
    let spec = json!({"domain": {"memory": {"guest": memory}}});
    json!({"spec": {"virtualMachineTemplate": {"spec": {"template": {"spec": spec}}}}})
}

#[test]
fn a_pool_that_is_as_it_should_be_does_nothing() {
    let world = World::new(&json!({}));
    let plan = world.decide();
    assert_eq!((words(&plan), plan.stage), (vec![], Stage::Rest));
    assert_eq!((plan.replicas, plan.ready, plan.selector.as_str()), (3, 3, "app=web"));
}

#[test]
fn missing_vms_get_the_lowest_numbers_that_are_free() {
    let mut world = World::new(&json!({"spec": {"replicas": 5}}));
    world.vms.remove(1);
    // Another one's VM has the name of the next.
    world.vms.push(vm(3, &json!({"metadata": {"ownerReferences": null, "uid": "x"}})));
    assert_eq!(world.words(), ["create web-1", "create web-4", "create web-5"]);
    world.revisions.clear();
    assert_eq!(world.words()[..2], ["remember", "create web-1"], "the revision comes first");
    world.pool = pool(&json!({"spec": {"replicas": 1000}}));
    assert_eq!(world.words().len(), BURST + 1);
    assert_eq!(world.decide().stage, Stage::ScaleOut);
}

#[test]
fn a_vm_on_its_way_out_counts_until_it_is_gone() {
    let mut world = World::new(&json!({}));
    world.vms[1] = vm(1, &gone());
    assert_eq!(world.words(), [""; 0]);
    world.pool = pool(&json!({"spec": {"replicas": 2}}));
    assert_eq!(world.words(), [""; 0], "it is the one that is too many");
    world.vms.remove(1);
    world.pool = pool(&json!({}));
    assert_eq!(world.words(), ["create web-1"]);
}

#[test]
fn excess_vms_are_deleted_in_the_order_of_the_policy() {
    for (policy, expected) in [
        ("AscendingOrder", ["delete web-0", "delete web-1"]),
        ("DescendingOrder", ["delete web-2", "delete web-1"]),
        ("Newest", ["delete web-0", "delete web-1"]),
        ("Oldest", ["delete web-2", "delete web-1"]),
    ] {
        let policy = json!({"proactive": {"selectionPolicy": {"sortPolicy": policy}}});
        let world = World::new(&json!({"spec": {"replicas": 1, "scaleInStrategy": policy}}));
        assert_eq!(world.words(), expected, "{policy}");
        assert_eq!(world.decide().stage, Stage::ScaleIn);
    }
    assert_eq!(World::new(&json!({"spec": {"replicas": 1}})).words().len(), 2, "by chance");
}

#[test]
fn selectors_say_which_vms_may_go() {
    let selectors = json!({"labelSelector": {"matchLabels": {"tier": "old"}},
        "nodeSelectorRequirementMatcher": [{"key": "disk", "operator": "In", "values": ["slow"]}]});
    let strategy =
        json!({"proactive": {"selectionPolicy": {"sortPolicy": "AscendingOrder", "selectors": selectors}}});
    let mut world = World::new(&json!({"spec": {"replicas": 1, "scaleInStrategy": strategy}}));
    let old = json!({"metadata": {"labels": {"tier": "old"}}, "spec": {"nodeSelector": {"disk": "slow"}}});
    world.vms[2] = vm(2, &json!({"spec": {"template": old}}));
    let plan = world.decide();
    assert_eq!(words(&plan), ["delete web-2"]);
    assert!(plan.obstacle.as_ref().is_some_and(|why| why.starts_with("2 VMs are to go")), "{plan:?}");
    let (told, notes) = status(&world.pool, &plan, Outcome::Done, now());
    assert_eq!(told.conditions[0].reason.as_deref(), Some("FailedScaleIn"));
    assert_eq!((notes.len(), notes[0].reason, notes[0].warning), (1, "FailedScaleIn", true));
}

#[test]
fn a_pool_that_leaves_scale_in_to_its_user_deletes_nothing() {
    for strategy in [json!({"unmanaged": {}}), json!({"opportunistic": {}})] {
        let world = World::new(&json!({"spec": {"replicas": 1, "scaleInStrategy": strategy}}));
        assert_eq!(world.words(), [""; 0]);
    }
}

#[test]
fn a_pool_that_rests_releases_and_does_nothing_else() {
    let relabelled = || vm(0, &json!({"metadata": {"labels": {"app": "db"}}}));
    let orphan = || vm(1, &json!({"metadata": {"ownerReferences": null}}));
    let mut paused = World::new(&json!({"spec": {"paused": true}}));
    paused.vms = vec![relabelled(), orphan()];
    assert_eq!(paused.words(), ["release web-0"], "a pool adopts nothing");
    let mut deleted = World::new(&gone());
    deleted.vms = vec![relabelled(), orphan()];
    assert_eq!(deleted.words(), [""; 0]);
    let mut waiting = World::new(&json!({}));
    (waiting.vms, waiting.waits) = (vec![], true);
    assert_eq!(waiting.words(), [""; 0]);
}

#[test]
fn a_vm_is_made_with_its_number_and_its_revision() {
    let volumes = json!([
        {"name": "c", "configMap": {"name": "conf"}}, {"name": "s", "secret": {"secretName": "key"}},
        {"name": "n", "cloudInitNoCloud": {"secretRef": {"name": "user"}, "networkDataSecretRef": {"name": "net"}}},
        {"name": "d", "containerDisk": {"image": "i"}},
    ]);
    let template = json!({"spec": {"template": {"spec": {"volumes": volumes}}}});
    for (appends, conf, key) in [(false, "conf", "key"), (true, "conf-3", "key-3")] {
        let names = json!({"appendIndexToConfigMapRefs": appends, "appendIndexToSecretRefs": appends});
        let mut world = World::new(
            &json!({"spec": {"replicas": 4, "nameGeneration": names, "virtualMachineTemplate": template}}),
        );
        // Not outdated: they were made so.
        world.revisions = revisions(&[("web-2", &world.pool)]);
        let plan = world.decide();
        let Action::Create(made) = &plan.actions[0] else { panic!("{plan:?}") };
        let made = serde_json::to_value(made).unwrap();
        assert_eq!(made["metadata"]["name"], "web-3");
        let labels = json!({"app": "web", "kubevirt.io/vm-pool-revision-name": "web-2"});
        assert_eq!(made["metadata"]["labels"], labels);
        assert_eq!(made["metadata"]["annotations"], json!({"a": "b"}));
        let owner = &made["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["apiVersion"]), (&json!("p1"), &json!("pool.kubevirt.io/v1beta1")));
        let template = &made["spec"]["template"];
        let labels = json!({"tier": "front", "kubevirt.io/vm-pool-revision-name": "web-2"});
        assert_eq!(template["metadata"]["labels"], labels);
        let volumes = &template["spec"]["volumes"];
        assert_eq!(
            (&volumes[0]["configMap"]["name"], &volumes[1]["secret"]["secretName"]),
            (&json!(conf), &json!(key))
        );
        let cloud_init = &volumes[2]["cloudInitNoCloud"];
        assert_eq!(cloud_init["secretRef"]["name"].as_str().unwrap().ends_with("-3"), appends);
        assert_eq!(cloud_init["networkDataSecretRef"]["name"].as_str().unwrap().ends_with("-3"), appends);
    }
}

#[test]
fn each_vm_has_data_volumes_of_its_own() {
    let template = json!({"spec": {
        "dataVolumeTemplates": [{"metadata": {"name": "root"}, "spec": {}}],
        "template": {"spec": {"volumes": [
            {"name": "a", "dataVolume": {"name": "root"}}, {"name": "b", "persistentVolumeClaim": {"claimName": "root"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "shared"}},
        ]}},
    }});
    let mut world = World::new(&json!({"spec": {"replicas": 4, "virtualMachineTemplate": template}}));
    world.revisions = revisions(&[("web-2", &world.pool)]);
    let plan = world.decide();
    let Action::Create(made) = &plan.actions[0] else { panic!("{plan:?}") };
    let spec = serde_json::to_value(&made.spec).unwrap();
    assert_eq!(spec["dataVolumeTemplates"][0]["metadata"]["name"], "root-3");
    let volumes = &spec["template"]["spec"]["volumes"];
    assert_eq!(volumes[0]["dataVolume"]["name"], "root-3");
    assert_eq!(volumes[1]["persistentVolumeClaim"]["claimName"], "root-3");
    assert_eq!(volumes[2]["persistentVolumeClaim"]["claimName"], "shared");
}

/// A world whose template changed after its three VMs and their instances were made.
fn changed(more: &Value) -> World {
    let mut world = World::new(&with_memory("1Gi"));
    let old = world.pool.clone();
    json_patch_into(&mut world.pool, &with_memory("2Gi"));
    json_patch_into(&mut world.pool, more);
    world.pool.metadata.generation = Some(3);
    world.revisions = revisions(&[("web-2", &old)]);
    world
}

fn json_patch_into(pool: &mut Pool, more: &Value) {
    let mut value = serde_json::to_value(&*pool).unwrap();
    json_patch::merge(&mut value, more);
    *pool = serde_json::from_value(value).unwrap();
}

/// The world once its VMs are updated.
fn updated(more: &Value) -> World {
    let mut world = changed(more);
    world.revisions.insert("web-3".into(), Arc::new(world.pool.spec.clone()));
    let newer = json!({"metadata": {"labels": {"kubevirt.io/vm-pool-revision-name": "web-3"}}});
    world.vms = (0..3).map(|index| vm(index, &newer)).collect();
    world
}

#[test]
fn a_changed_template_is_written_into_all_vms_at_once() {
    let world = changed(&json!({}));
    let plan = world.decide();
    assert_eq!(words(&plan), ["remember", "update web-0", "update web-1", "update web-2"]);
    let Action::Update(target, vm) = &plan.actions[1] else { panic!("{plan:?}") };
    assert_eq!((target.uid.as_str(), target.version.as_deref()), ("v0", Some("9")));
    let vm = serde_json::to_value(vm).unwrap();
    assert_eq!(vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "2Gi");
    assert_eq!(vm["metadata"]["labels"]["kubevirt.io/vm-pool-revision-name"], "web-3");
    let unmanaged = json!({"spec": {"updateStrategy": {"unmanaged": {}}}});
    assert_eq!(changed(&unmanaged).words(), [""; 0]);
    let opportunistic = json!({"spec": {"updateStrategy": {"opportunistic": {}}}});
    assert_eq!(changed(&opportunistic).words().len(), 4);
    let selectors = json!({"labelSelector": {"matchLabels": {"tier": "other"}}});
    let none =
        json!({"spec": {"updateStrategy": {"proactive": {"selectionPolicy": {"selectors": selectors}}}}});
    assert_eq!(changed(&none).words(), [""; 0]);
}

#[test]
fn an_update_keeps_what_the_guest_knows_its_machine_by() {
    let mut world = changed(&json!({}));
    let domain = json!({"firmware": {"uuid": "u", "serial": "s"}, "machine": {"type": "q35-old"}});
    world.vms[0] = vm(0, &json!({"spec": {"template": {"spec": {"domain": domain}}}}));
    let plan = world.decide();
    let Action::Update(_, vm) = &plan.actions[1] else { panic!("{plan:?}") };
    let vm = serde_json::to_value(vm).unwrap();
    let domain = &vm["spec"]["template"]["spec"]["domain"];
    assert_eq!((&domain["firmware"]["uuid"], &domain["firmware"]["serial"]), (&json!("u"), &json!("s")));
    assert_eq!(domain["machine"]["type"], "q35-old");
}

#[test]
fn instances_are_restarted_as_far_as_others_may_be_away() {
    for (max, expected) in
        [(Value::Null, 3), (json!(1), 1), (json!("67%"), 2), (json!("10%"), 1), (json!("100%"), 3)]
    {
        let world = updated(&json!({"spec": {"maxUnavailable": max}}));
        assert_eq!(world.words().len(), expected, "{max}");
        assert!(world.words().iter().all(|word| word.starts_with("restart")));
    }
    let one = json!({"spec": {"maxUnavailable": 1,
        "updateStrategy": {"proactive": {"selectionPolicy": {"sortPolicy": "DescendingOrder"}}}}});
    let mut world = updated(&one);
    assert_eq!(world.words(), ["restart i2"]);
    world.vmis[2] = vmi(2, "web-2", &gone());
    assert_eq!(world.words(), [""; 0], "one is away");
    // It came back up to date.
    world.vmis[2] = vmi(2, "web-3", &json!({}));
    assert_eq!(world.words(), ["restart i1"]);
    // One that has no clients is restarted beside the count.
    let unready = json!({"metadata": {"labels": {"kubevirt.io/vm-pool-revision-name": "web-3"}},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    world.vms[0] = vm(0, &unready);
    world.vmis[0] = vmi(0, "web-2", &json!({"status": {"phase": "Scheduling"}}));
    assert_eq!(world.words(), ["restart i0"]);
    let opportunistic = json!({"spec": {"updateStrategy": {"opportunistic": {}}}});
    assert_eq!(updated(&opportunistic).words(), [""; 0], "both revisions are named");
}

#[test]
fn an_instance_with_the_same_template_gets_the_newer_label() {
    let mut world = World::new(&json!({}));
    let old = world.pool.clone();
    json_patch_into(
        &mut world.pool,
        &json!({"spec": {"virtualMachineTemplate": {"spec": {"runStrategy": "Manual"}}}}),
    );
    world.revisions = revisions(&[("web-2", &old), ("web-3", &world.pool)]);
    let newer = json!({"metadata": {"labels": {"kubevirt.io/vm-pool-revision-name": "web-3"}}});
    world.vms = (0..3).map(|index| vm(index, &newer)).collect();
    assert_eq!(world.words(), ["label i0 web-3", "label i1 web-3", "label i2 web-3"]);
    // One that does not say what it was made from is made anew.
    world.vmis = vec![vmi(0, "web-3", &json!({})), vmi(1, "web-3", &json!({"metadata": {"labels": null}}))];
    assert_eq!(world.words(), ["restart i1"]);
}

#[test]
fn revisions_go_that_nothing_names() {
    let mut world = updated(&json!({}));
    world.vmis = (0..3).map(|index| vmi(index, "web-3", &json!({}))).collect();
    let plan = world.decide();
    assert_eq!((words(&plan), plan.stage), (vec!["forget web-2".to_owned()], Stage::Prune));
    // Scaled alone, a pool has a newer generation, and its VMs are up to date.
    let mut world = World::new(&json!({}));
    world.pool.metadata.generation = Some(7);
    assert_eq!(world.words(), [""; 0]);
}

#[test]
fn a_vm_that_does_not_come_up_is_replaced_where_the_pool_wants_it() {
    let failing = |status: Value| vm(1, &json!({ "status": status }));
    let since = |minutes: i64| {
        let at = now() - jiff::SignedDuration::from_mins(minutes);
        json!([{"type": "Ready", "status": "False", "lastTransitionTime": at.to_string()}])
    };
    let start = |count: i64| json!({"startFailure": {"consecutiveFailCount": count}});
    let pulls = |minutes| json!({"printableStatus": "ErrImagePull", "conditions": since(minutes)});
    for (healing, status, healed, left) in [
        (json!({}), start(2), false, None),
        (json!({}), start(3), true, None),
        (json!({"startUpFailureThreshold": 1}), start(1), true, None),
        (json!({}), pulls(4), false, Some(60)),
        (json!({}), pulls(5), true, None),
        (json!({"minFailingToStartDuration": "1m30s"}), pulls(1), false, Some(30)),
        (json!({"minFailingToStartDuration": "1m30s"}), pulls(2), true, None),
        (json!({}), json!({"printableStatus": "Stopped", "conditions": since(60)}), false, None),
        (Value::Null, start(9), false, None),
    ] {
        let mut world = World::new(&json!({"spec": {"autohealing": healing}}));
        world.vms[1] = failing(status.clone());
        let plan = world.decide();
        let expected: &[&str] = if healed { &["delete web-1"] } else { &[] };
        assert_eq!(words(&plan), expected, "{healing} {status}");
        assert_eq!(plan.look_again, left.map(Duration::from_secs), "{healing} {status}");
    }
}

#[test]
fn a_pool_of_the_older_version_is_the_same_pool() {
    let plans = ["v1beta1", "v1alpha1"].map(|version| {
        let version = format!("pool.kubevirt.io/{version}");
        let mut world = World::new(&json!({"apiVersion": version, "spec": {"replicas": 4}}));
        // A VM that was made when the pool was written so.
        let owner = json!([{"apiVersion": version, "kind": "VirtualMachinePool", "name": "web", "uid": "p1", "controller": true}]);
        world.vms[1] = vm(1, &json!({"metadata": {"ownerReferences": owner}}));
        world.decide()
    });
    assert_eq!(words(&plans[1]), words(&plans[0]));
    for plan in &plans {
        let Action::Create(made) = &plan.actions[0] else { panic!("{plan:?}") };
        let owner = &made.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(owner.api_version, "pool.kubevirt.io/v1beta1", "the version that is stored");
    }
}

#[test]
fn failures_and_pauses_are_told_once() {
    let mut pool = pool(&json!({"spec": {"paused": true}}));
    let plan = Plan { stage: Stage::ScaleOut, ..Plan::default() };
    let failed = || Outcome::Failed { reason: Stage::ScaleOut.failure(), message: "quota".into() };
    let pass = |pool: &mut Pool, outcome: Outcome| {
        let (told, notes) = status(pool, &plan, outcome, now());
        pool.status = told;
        let kinds = pool.status.conditions.iter().map(|one| one.r#type.as_str().to_owned());
        (kinds.collect::<Vec<_>>(), notes.iter().map(|note| note.reason).collect::<Vec<_>>())
    };
    let both = vec!["ReplicaFailure".to_owned(), "ReplicaPaused".to_owned()];
    assert_eq!(pass(&mut pool, failed()), (both.clone(), vec!["FailedScaleOut", "SuccessfulPaused"]));
    assert_eq!(pass(&mut pool, failed()), (both.clone(), vec![]));
    assert_eq!(pass(&mut pool, Outcome::Waited), (both, vec![]));
    pool.spec.paused = None;
    assert_eq!(pass(&mut pool, Outcome::Done), (vec![], vec!["SuccessfulResume"]));
}

#[test]
fn a_change_of_a_vm_wakes_the_pool_that_controls_it() {
    let pools = [pool(&json!({})), pool(&json!({"metadata": {"name": "db", "uid": "p2"}}))].map(Arc::new);
    let woken = |vm: Option<&VirtualMachine>| concerned(&pools, "shop", vm).len();
    assert_eq!(woken(Some(&vm(0, &json!({})))), 1);
    assert_eq!(woken(Some(&vm(0, &json!({"metadata": {"ownerReferences": null}})))), 0);
    assert_eq!(woken(None), 2, "whose it was is not known");
    assert!(concerned(&pools, "else", None).is_empty());
}

#[test]
fn a_pool_of_the_longest_name_has_machines_and_revisions_that_kubernetes_takes() {
    for length in [3, 60, 72, 242, 253] {
        let template = json!({"spec": {"virtualMachineTemplate": {"spec": {"dataVolumeTemplates": [
            {"metadata": {"name": "d".repeat(length)}, "spec": {}}]}}}});
        let mut pool = pool(&template);
        pool.metadata.name = Some("p".repeat(length));
        let names = machine::new_names(&pool, 12, &Default::default());
        for (index, name) in names.iter().enumerate() {
            let vm = machine::render(&pool, name);
            assert!(name.len() <= 253 && choose::index_of(&vm) == index, "{name}");
            let revision = &vm.metadata.labels.as_ref().unwrap()["kubevirt.io/vm-pool-revision-name"];
            assert!(*revision == revision::name(&pool) && revision.len() <= 63, "{revision}");
            let data = vm.spec.data_volume_templates[0].metadata.as_ref().unwrap().name.as_ref().unwrap();
            assert!(data.len() <= 253 && data.ends_with(&format!("-{index}")), "{data}");
        }
    }
}
