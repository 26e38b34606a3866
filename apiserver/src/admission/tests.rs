use base64::Engine;
use podvirt_api::v1::{StopOptions, VirtualMachine};
use serde_json::{Value, json};

use super::review::Review;
use super::*;
use crate::lifecycle;

fn hook(path: &str) -> &'static Hook {
    HOOKS.iter().find(|hook| hook.path == path).unwrap()
}

fn vmi_object() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm1", "namespace": "ns"},
        "spec": {"domain": {
            "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]},
            "memory": {"guest": "128Mi"},
        }, "volumes": [{"name": "root", "containerDisk": {"image": "podvirt/disk-tiny:dev"}}]},
    })
}

fn vm_object() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm1", "namespace": "ns"},
        "spec": {"runStrategy": "Manual", "template": {"spec": vmi_object()["spec"]}},
    })
}

fn ask(path: &str, operation: &str, old: Value, new: Value, user: &str) -> Value {
    let review: Review = serde_json::from_value(json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "r-1", "operation": operation, "namespace": "ns", "name": "vm1", "kind": {"kind": new["kind"].as_str().unwrap_or_default()},
            "userInfo": {"username": user, "groups": []}, "object": new, "oldObject": old, "dryRun": false},
    }))
    .unwrap();
    let request = review.into_request().unwrap();
    let Task::Alone(task) = hook(path).task else { panic!("{path} looks at other objects") };
    answer(task, &request, &Cluster::default(), "kubevirt").into_review()
}

fn create(path: &str, object: Value) -> Value {
    ask(path, "CREATE", Value::Null, object, "jane")
}

/// What is stored after a mutating webhook's answer.
fn patched(object: &Value, answer: &Value) -> Value {
    let mut object = object.clone();
    if let Some(patch) = answer["response"]["patch"].as_str() {
        assert_eq!(answer["response"]["patchType"], "JSONPatch");
        let text = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
        json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(&text).unwrap()).unwrap();
    }
    object
}

#[test]
fn a_mutated_object_is_taken_by_its_validator_and_not_mutated_again() {
    for (mutate, validate, object) in [
        ("/virtualmachineinstances-mutate", "/virtualmachineinstances-validate-create", vmi_object()),
        ("/virtualmachines-mutate", "/virtualmachines-validate", vm_object()),
    ] {
        let answer = create(mutate, object.clone());
        assert_eq!(
            (&answer["response"]["uid"], &answer["response"]["allowed"]),
            (&json!("r-1"), &json!(true))
        );
        let stored = patched(&object, &answer);
        assert_ne!(stored, object, "{mutate} sets defaults");
        let verdict = create(validate, stored.clone());
        assert_eq!(verdict["response"], json!({"uid": "r-1", "allowed": true}), "{validate}");
        assert_eq!(create(mutate, stored)["response"]["patch"], Value::Null, "{mutate} is idempotent");
    }
}

#[test]
fn what_the_cluster_says_of_masquerade_is_written_into_a_new_instance() {
    let mut object = vmi_object();
    object["spec"]["networks"] = json!([{"name": "n", "pod": {}}]);
    object["spec"]["domain"]["devices"]["interfaces"] = json!([{"name": "n", "masquerade": {}}]);
    let review: Review = serde_json::from_value(json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "r-1", "operation": "CREATE", "namespace": "ns", "name": "vm1",
            "userInfo": {"username": "jane", "groups": []}, "object": object, "oldObject": null, "dryRun": false},
    }))
    .unwrap();
    let request = review.into_request().unwrap();
    let kubevirt = json!({"metadata": {"annotations": {"podvirt.io/masquerade": "nftables"}}, "spec": {}});
    let cluster = Cluster::of(serde_json::from_value(kubevirt).unwrap());
    let answer = answer(Alone::MutateInstance, &request, &cluster, "kubevirt").into_review();
    let stored = patched(&object, &answer);
    assert_eq!(stored["metadata"]["annotations"]["podvirt.io/masquerade"], "nftables");
}

#[test]
fn a_new_instance_gets_its_finalizer_and_its_size_as_its_only_status() {
    let mut object = vmi_object();
    object["status"] = json!({"phase": "Running"});
    let stored = patched(&object, &create("/virtualmachineinstances-mutate", object.clone()));
    assert_eq!(stored["metadata"]["finalizers"], json!(["foregroundDeleteVirtualMachine"]));
    let size = json!({
        "currentCPUTopology": {"cores": 1, "sockets": 1, "threads": 1},
        "memory": {"guestAtBoot": "128Mi", "guestCurrent": "128Mi", "guestRequested": "128Mi"},
    });
    assert_eq!(stored["status"], size);
    // virt-controller's says which revision of its VirtualMachine it was made from.
    object["status"]["virtualMachineRevisionName"] = json!("revision-start-vm-1-2");
    let made = |user: &str| {
        let answer = ask("/virtualmachineinstances-mutate", "CREATE", Value::Null, object.clone(), user);
        patched(&object, &answer).get("status").cloned()
    };
    assert_eq!(made("jane"), Some(size.clone()));
    let mut with_revision = size;
    with_revision["virtualMachineRevisionName"] = json!("revision-start-vm-1-2");
    assert_eq!(made("system:serviceaccount:kubevirt:kubevirt-controller"), Some(with_revision));
}

#[test]
fn an_unsupported_field_is_refused_with_its_path() {
    for (path, object, prefix) in [
        ("/virtualmachineinstances-validate-create", vmi_object(), ""),
        ("/virtualmachines-validate", vm_object(), "spec.template."),
    ] {
        let mut object = object;
        let spec = if prefix.is_empty() { "/spec" } else { "/spec/template/spec" };
        object.pointer_mut(spec).unwrap()["domain"]["devices"]["gpus"] = json!([{"name": "g"}]);
        let answer = create(path, object);
        let response = &answer["response"];
        assert_eq!(response["allowed"], false);
        let status = &response["status"];
        assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
        let field = format!("{prefix}spec.domain.devices.gpus");
        let causes = status["details"]["causes"].as_array().unwrap();
        let cause =
            causes.iter().find(|cause| cause["field"] == field).unwrap_or_else(|| panic!("{causes:?}"));
        assert_eq!(cause["reason"], "FieldValueNotSupported");
        assert!(cause["message"].as_str().unwrap().contains("not supported by podvirt"), "{cause}");
        assert!(status["message"].as_str().unwrap().contains(&field), "{status}");
    }
}

#[test]
fn backups_and_trackers_want_their_gate() {
    for plural in ["virtualmachinebackups", "virtualmachinebackuptrackers"] {
        let object = json!({"apiVersion": "backup.kubevirt.io/v1alpha1", "kind": "x", "metadata": {"name": "x"}, "spec": {}});
        let response = &create(&format!("/{plural}-validate"), object)["response"];
        assert_eq!(response["allowed"], false);
        let message = response["status"]["message"].as_str().unwrap();
        assert!(message.contains("IncrementalBackup feature gate not enabled"), "{message}");
    }
}

#[test]
fn a_replica_set_is_judged_when_it_is_made_and_when_it_changes() {
    let path = "/virtualmachinereplicaset-validate";
    let set = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": vmi_object()["spec"]}},
    });
    assert_eq!(create(path, set.clone())["response"]["allowed"], true);
    let mut other = set.clone();
    other["spec"]["template"]["metadata"]["labels"] = json!({"app": "db"});
    let status = &create(path, other.clone())["response"]["status"];
    assert_eq!(status["details"]["causes"][0]["field"], "spec.selector");
    assert_eq!(ask(path, "UPDATE", set, other, "jane")["response"]["allowed"], false);
}

#[test]
fn a_pool_is_judged_when_it_is_made_and_when_it_changes() {
    let path = "/virtualmachinepool-validate";
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": vm_object()["spec"]});
    let pool = json!({
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "virtualMachineTemplate": template},
    });
    assert_eq!(create(path, pool.clone())["response"], json!({"uid": "r-1", "allowed": true}));
    let mut other = pool.clone();
    other["spec"]["virtualMachineTemplate"]["spec"]["template"]["spec"]["domain"]["devices"]["gpus"] =
        json!([{"name": "g"}]);
    let status = &create(path, other.clone())["response"]["status"];
    let field = "spec.virtualMachineTemplate.spec.template.spec.domain.devices.gpus";
    assert_eq!(status["details"]["causes"][0]["field"], field);
    // Neither version is judged otherwise, whichever one the API server asks about.
    let older = |pool: &Value| {
        let mut pool = pool.clone();
        pool["apiVersion"] = "pool.kubevirt.io/v1alpha1".into();
        pool
    };
    for object in [&pool, &other] {
        assert_eq!(create(path, older(object)), create(path, object.clone()));
    }
    let update = |old: &Value, new: &Value| ask(path, "UPDATE", old.clone(), new.clone(), "jane");
    assert_eq!(update(&older(&pool), &older(&other)), update(&pool, &other));
    assert_eq!(update(&pool, &other)["response"]["allowed"], false);
}

#[test]
fn a_new_instance_gets_its_presets_before_its_defaults() {
    let preset = |name: &str, cores: u32| -> Effect {
        let spec = json!({"selector": {"matchLabels": {"size": "large"}}, "domain": {"cpu": {"cores": cores}, "devices": {}}});
        let preset = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        Effect::of(&serde_json::from_value(preset).unwrap()).unwrap()
    };
    let mut object = vmi_object();
    object["metadata"]["labels"] = json!({"size": "large"});
    let made = |object: &Value, presets: &[Effect]| {
        let review: Review = serde_json::from_value(json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "r-1", "operation": "CREATE", "namespace": "ns", "name": "vm1", "object": object},
        }))
        .unwrap();
        new_instance(&review.into_request().unwrap(), &Cluster::default(), "kubevirt", presets).into_review()
    };
    let answer = made(&object, &[preset("large", 3)]);
    let stored = patched(&object, &answer);
    assert_eq!(stored["spec"]["domain"]["cpu"]["cores"], 3);
    assert_eq!(stored["spec"]["domain"]["cpu"]["sockets"], 1, "the defaults come behind");
    assert_eq!(stored["metadata"]["annotations"]["virtualmachinepreset.kubevirt.io/large"], "kubevirt.io/v1");
    assert_eq!(answer["response"].get("warnings"), None);
    object["spec"]["domain"]["cpu"] = json!({"cores": 1});
    let warnings = made(&object, &[preset("large", 3)])["response"]["warnings"].clone();
    assert!(warnings[0].as_str().unwrap().contains("spec.domain.cpu"), "{warnings}");
    let refused = made(&object, &[preset("large", 3), preset("larger", 4)]);
    assert_eq!(refused["response"]["status"]["code"], 422);
}

#[test]
fn a_preset_is_judged_and_told_what_has_no_effect() {
    let preset = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstancePreset", "metadata": {"name": "p"},
        "spec": {"selector": {}, "domain": {"cpu": {"cores": 2}, "memory": {"guest": "1Gi"}, "devices": {}}}});
    let answer = create("/vmipreset-validate", preset.clone());
    assert_eq!(answer["response"]["allowed"], true);
    assert!(
        answer["response"]["warnings"][0].as_str().unwrap().starts_with("spec.domain.memory: without effect")
    );
    let mut other = preset.clone();
    other["spec"]["domain"]["devices"]["gpus"] = json!([{"name": "g"}]);
    assert_eq!(ask("/vmipreset-validate", "UPDATE", preset, other, "jane")["response"]["allowed"], false);
}

#[test]
fn instance_types_and_preferences_are_judged_in_namespaces_and_in_the_cluster() {
    for scope in ["", "cluster"] {
        let memory = json!({"guest": "1Gi", "overcommitPercent": 101});
        let object =
            json!({"kind": "VirtualMachineInstancetype", "spec": {"cpu": {"guest": 1}, "memory": memory}});
        let response = &create(&format!("/virtualmachine{scope}instancetypes-validate"), object)["response"];
        assert_eq!(response["allowed"], false);
        let cause = &response["status"]["details"]["causes"][0];
        assert_eq!(cause["field"], "spec.memory.overcommitPercent");
        let object = json!({"kind": "VirtualMachinePreference", "spec": {"cpu": {"preferredCPUTopology": "preferCores"}}});
        let response = &create(&format!("/virtualmachine{scope}preferences-validate"), object)["response"];
        assert_eq!(response["allowed"], true);
        assert!(
            response["warnings"][0].as_str().unwrap().contains("preferCores is deprecated"),
            "{response}"
        );
    }
}

#[test]
fn a_user_cannot_change_a_running_instance_but_a_daemon_can() {
    let path = "/virtualmachineinstances-validate-update";
    let (old, mut new) = (vmi_object(), vmi_object());
    new["spec"]["terminationGracePeriodSeconds"] = json!(0);
    let allowed = |new: &Value, user: &str| {
        ask(path, "UPDATE", old.clone(), new.clone(), user)["response"]["allowed"].as_bool().unwrap()
    };
    assert!(!allowed(&new, "jane"));
    assert!(allowed(&new, "system:serviceaccount:kubevirt:kubevirt-apiserver"));
    assert!(!allowed(&new, "system:serviceaccount:other:kubevirt-apiserver"));
    assert!(allowed(&old, "jane"));
}

#[test]
fn an_object_that_later_rules_would_refuse_can_still_get_labels() {
    let mut old = vm_object();
    old["spec"]["template"]["spec"]["domain"]["devices"]["gpus"] = json!([{"name": "g"}]);
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    let answer = ask("/virtualmachines-validate", "UPDATE", old.clone(), new.clone(), "jane");
    assert_eq!(answer["response"]["allowed"], true);
    new["spec"]["template"]["spec"]["domain"]["devices"]["rng"] = json!({});
    let answer = ask("/virtualmachines-validate", "UPDATE", old, new, "jane");
    assert_eq!(answer["response"]["allowed"], false);
}

#[test]
fn an_object_that_later_rules_would_refuse_can_be_stopped() {
    // As an older release stored it: without today's defaults, with what is refused today.
    let mut old = vm_object();
    old["spec"]["template"]["spec"]["domain"]["devices"]["gpus"] = json!([{"name": "g"}]);
    old["spec"]["runStrategy"] = json!("Always");
    assert_eq!(create("/virtualmachines-validate", old.clone())["response"]["allowed"], false);
    let vm: VirtualMachine = serde_json::from_value(old.clone()).unwrap();
    let stop = lifecycle::stop(&vm, None, &StopOptions::default()).unwrap();
    let lifecycle::Change::Spec(patch) = stop.vm else { panic!("{stop:?}") };
    let mut new = old.clone();
    json_patch::patch(&mut new, &patch).unwrap();
    let user = "system:serviceaccount:kubevirt:kubevirt-apiserver";
    let mutated = ask("/virtualmachines-mutate", "UPDATE", old.clone(), new.clone(), user);
    let stored = patched(&new, &mutated);
    assert_eq!(stored["spec"]["runStrategy"], "Halted");
    assert_ne!(stored["spec"]["template"], old["spec"]["template"], "the webhook sets defaults");
    let verdict = ask("/virtualmachines-validate", "UPDATE", old, stored, user);
    assert_eq!(verdict["response"]["allowed"], true, "{verdict}");
}

#[test]
fn what_is_no_review_is_told() {
    for value in [
        json!({}),
        json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {}}),
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
    ] {
        let review: Review = serde_json::from_value(value).unwrap();
        review.into_request().unwrap_err();
    }
}

#[test]
fn a_migration_is_completed_once_and_then_stands() {
    let object = json!({"metadata": {"name": "m"}, "spec": {"vmiName": "vm1"}});
    let stored = patched(&object, &create("/migration-mutate-create", object.clone()));
    assert_eq!(stored["metadata"]["labels"]["kubevirt.io/vmi-name"], "vm1");
    assert_eq!(stored["metadata"]["finalizers"], json!(["kubevirt.io/migrationJobFinalize"]));
    let change = |new: Value| {
        let answer = ask("/migration-validate-update", "UPDATE", stored.clone(), new, "jane");
        answer["response"]["allowed"].as_bool().unwrap()
    };
    assert!(change(stored.clone()));
    let mut other = stored.clone();
    other["spec"]["vmiName"] = json!("vm2");
    assert!(!change(other));
}

#[test]
fn what_a_snapshot_holds_is_judged_when_it_is_made_and_changed() {
    let content = |maps: usize| {
        let template = json!({"metadata": {"name": "a"}, "spec": {"x": vec![json!({"a": 0}); maps]}});
        let machine = json!({"spec": {"dataVolumeTemplates": [template]}});
        json!({"metadata": {"name": "c"}, "spec": {"source": {"virtualMachine": machine}}})
    };
    let path = "/virtualmachinesnapshotcontents-validate";
    let allowed = |answer: Value| answer["response"]["allowed"] == true;
    assert!(allowed(create(path, content(1))));
    assert!(!allowed(create(path, content(10_000))));
    assert!(!allowed(ask(path, "UPDATE", content(1), content(10_000), "jane")));
}

#[test]
fn names_and_paths_of_webhooks_are_unique() {
    for (n, hook) in HOOKS.iter().enumerate() {
        for other in &HOOKS[n + 1..] {
            assert!(hook.name != other.name && hook.path != other.path, "{hook:?} {other:?}");
        }
    }
}

#[test]
fn a_kubevirt_object_that_later_rules_would_refuse_can_still_be_changed() {
    let old = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"machineType": "virt"}},
    });
    let path =
        HOOKS.iter().find(|hook| matches!(hook.task, Task::Alone(Alone::ValidateKubeVirt))).unwrap().path;
    assert_eq!(create(path, old.clone())["response"]["allowed"], false);
    let mut new = old.clone();
    new["spec"]["configuration"]["developerConfiguration"] = json!({"useEmulation": true});
    let answer = ask(path, "UPDATE", old.clone(), new.clone(), "jane");
    assert_eq!(answer["response"]["allowed"], true, "{answer}");
    new["spec"]["configuration"]["cpuRequest"] = json!("0");
    assert_eq!(ask(path, "UPDATE", old, new, "jane")["response"]["allowed"], false);
}
