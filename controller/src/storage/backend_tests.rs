use podvirt_api::cdi::StorageProfile;
use serde_json::{Value, json};

use super::*;
use crate::kept::{Kept, Kind};

fn cluster(claims: Value, classes: Value, profiles: Value) -> Storage {
    fn kept<K: Kind>(list: Value) -> Kept<K> {
        let list: Vec<K> = serde_json::from_value(list).unwrap();
        Kept::with(list).0
    }
    Storage {
        claims: kept::<PersistentVolumeClaim>(claims),
        classes: kept::<StorageClass>(classes),
        profiles: kept::<StorageProfile>(profiles),
        data_settings: kept(json!([])),
        snapshots: kept(json!([])),
        snapshot_classes: kept(json!([])),
    }
}

fn classes() -> Value {
    json!([
        {"metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p"},
        {"metadata": {"name": "late"}, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer"},
    ])
}

/// The machine's instance; a VirtualMachine owns it.
fn machine(persistent: bool) -> VirtualMachineInstance {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "i2", "ownerReferences": [
            {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "m1", "controller": true}]},
        "spec": {"domain": {"devices": {"tpm": {"persistent": persistent}}}},
    }))
    .unwrap()
}

fn claim(name: &str, owner: &str, more: Value) -> Value {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {"persistent-state-for": "web"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "VirtualMachine", "name": "web", "uid": owner}]},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Bound"},
    });
    json_patch::merge(&mut claim, &more);
    claim
}

fn looked(claims: Value, config: Value) -> Backend {
    let storage = cluster(claims, classes(), json!([]));
    look(&machine(true), &storage, &serde_json::from_value(config).unwrap())
}

#[test]
fn a_claim_is_made_of_the_default_class_and_belongs_to_the_machine() {
    let Backend::Missing(made) = looked(json!([]), json!({})) else { panic!("it is not there") };
    let made = serde_json::to_value(made).unwrap();
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("persistent-state-for-web-") && name.len() == 30, "{name}");
    assert_eq!(
        made["metadata"]["labels"],
        json!({"persistent-state-for": "web", "cdi.kubevirt.io/applyStorageProfile": "true"})
    );
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "m1");
    assert_eq!(
        made["spec"],
        json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "10Mi"}}})
    );
    let Backend::Missing(again) = looked(json!([]), json!({})) else { panic!("it is not there") };
    assert_eq!(again.metadata.name.as_deref(), Some(name), "not made twice");
    let mut alone = machine(true);
    alone.metadata.owner_references = None;
    let storage = cluster(json!([]), classes(), json!([]));
    let Backend::Missing(own) = look(&alone, &storage, &KubeVirtConfiguration::default()) else { panic!() };
    let owner = &own.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("VirtualMachineInstance", "i2"));
}

#[test]
fn the_access_mode_is_the_best_that_cdi_knows_or_follows_from_how_the_class_was_chosen() {
    let chosen = |config: Value, profiles: Value| {
        let storage = cluster(json!([]), classes(), profiles);
        let Backend::Missing(made) = look(&machine(true), &storage, &serde_json::from_value(config).unwrap())
        else {
            panic!("it is not there")
        };
        let spec = made.spec.unwrap();
        format!("{} {}", spec.storage_class_name.unwrap(), spec.access_modes.unwrap().join(","))
    };
    let profile =
        |sets: Value| json!([{"metadata": {"name": "late"}, "status": {"claimPropertySets": sets}}]);
    let late = || json!({"vmStateStorageClass": "late"});
    assert_eq!(chosen(json!({}), json!([])), "local ReadWriteOnce");
    assert_eq!(chosen(late(), json!([])), "late ReadWriteMany");
    let once = json!([{"accessModes": ["ReadWriteMany"], "volumeMode": "Block"},
        {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"}]);
    assert_eq!(chosen(late(), profile(once)), "late ReadWriteOnce");
    let many = json!([{"accessModes": ["ReadWriteOnce", "ReadWriteMany"], "volumeMode": "Filesystem"}]);
    assert_eq!(chosen(late(), profile(many)), "late ReadWriteMany");
}

#[test]
fn a_claim_that_cannot_be_used_says_why() {
    let told = |claims: Value, config: Value| match looked(claims, config) {
        Backend::Waits(_, reason, message) => format!("{reason}: {message}"),
        other => format!("{other:?}").chars().take(5).collect(),
    };
    let phase = |phase: &str, class: &str| {
        json!([claim("a", "m1", json!({"status": {"phase": phase}, "spec": {"storageClassName": class}}))])
    };
    assert_eq!(told(phase("Bound", "local"), json!({})), "Ready");
    assert_eq!(told(phase("Pending", "late"), json!({})), "Ready", "its class waits for the pod");
    assert_eq!(told(phase("Pending", "local"), json!({})), "BackendStorageNotReady: PVC pending");
    assert_eq!(
        told(phase("Pending", "gone"), json!({})),
        "FailedBackendStorageProbe: storage class gone not found"
    );
    assert_eq!(
        told(phase("Lost", "local"), json!({})),
        "FailedBackendStorageProbe: backend storage PVC lost"
    );
    let none = cluster(json!([]), json!([]), json!([]));
    let Backend::Waits(None, reason, message) =
        look(&machine(true), &none, &KubeVirtConfiguration::default())
    else {
        panic!("there is no class")
    };
    assert_eq!((reason, message.as_str()), ("FailedBackendStorageCreate", "no default storage class found"));
    assert_eq!(look(&machine(true), &Storage::new().0, &KubeVirtConfiguration::default()), Backend::Unknown);
}

#[test]
fn the_newest_claim_of_the_machines_owner_counts() {
    let found = |claims: Value| match looked(claims, json!({})) {
        Backend::Ready(claim) => claim.metadata.name.clone(),
        _ => None,
    };
    let older = || claim("old", "m1", json!({}));
    let later = json!({"metadata": {"creationTimestamp": "2026-01-01T11:00:00Z"}});
    assert_eq!(found(json!([older(), claim("new", "m1", later.clone())])).as_deref(), Some("new"));
    // Of a machine of the same name that is gone.
    assert_eq!(found(json!([older(), claim("new", "m0", later.clone())])).as_deref(), Some("old"));
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T11:00:00Z"}});
    assert_eq!(found(json!([claim("old", "m1", going)])), None);
    // As earlier releases of upstream called it.
    let plain = json!({"metadata": {"labels": null}});
    assert_eq!(
        found(json!([claim("persistent-state-for-web", "m1", plain)])).as_deref(),
        Some("persistent-state-for-web")
    );
    let storage = cluster(json!([older()]), classes(), json!([]));
    let left = look(&machine(false), &storage, &KubeVirtConfiguration::default());
    assert!(matches!(left, Backend::Unneeded(Some(_))), "of a machine that keeps nothing any more");
}
