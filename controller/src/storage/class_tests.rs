use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use podvirt_api::cdi::StorageProfile;
use podvirt_api::csi::VolumeSnapshotClass;
use serde_json::{Value, json};

use super::*;
use crate::kept::Kept;

fn cluster(claims: Value, classes: Value, profiles: Value, snapshot_classes: Value) -> Storage {
    fn kept<K: crate::kept::Kind>(list: Value) -> Kept<K> {
        let list: Vec<K> = serde_json::from_value(list).unwrap();
        let (kept, _writer) = Kept::with(list);
        kept
    }
    Storage {
        claims: kept::<PersistentVolumeClaim>(claims),
        classes: kept::<StorageClass>(classes),
        profiles: kept::<StorageProfile>(profiles),
        data_settings: kept(json!([])),
        snapshots: kept(json!([])),
        snapshot_classes: kept::<VolumeSnapshotClass>(snapshot_classes),
    }
}

fn class(name: &str, provisioner: &str) -> Value {
    json!({"metadata": {"name": name}, "provisioner": provisioner})
}

fn taking(name: &str, driver: &str, default: bool) -> Value {
    let annotations = if default { json!({DEFAULT_CLASS: "true"}) } else { json!({}) };
    json!({"metadata": {"name": name, "annotations": annotations}, "driver": driver})
}

#[test]
fn the_class_is_cdis_or_the_drivers() {
    let classes = json!([
        class("fast", "csi.a"),
        class("slow", "csi.b"),
        class("told", "csi.a"),
        class("lost", "csi.a")
    ]);
    let profiles = json!([
        {"metadata": {"name": "told"}, "status": {"snapshotClass": "a-second"}},
        {"metadata": {"name": "lost"}, "status": {"snapshotClass": "gone"}},
    ]);
    let one = |taking: Value| cluster(json!([]), classes.clone(), profiles.clone(), taking);
    let seen = one(json!([taking("a", "csi.a", false), taking("a-second", "csi.a", true)]));
    assert_eq!(snapshot_class("fast", &seen), Ok(Some("a-second".into())), "the default one");
    assert_eq!(snapshot_class("slow", &seen), Ok(None));
    assert_eq!(snapshot_class("unknown", &seen), Ok(None));
    assert_eq!(snapshot_class("told", &seen), Ok(Some("a-second".into())));
    assert_eq!(snapshot_class("lost", &seen), Ok(None), "of what CDI names, nothing is there");
    let seen = one(json!([taking("a", "csi.a", false), taking("b", "csi.a", false)]));
    let error = snapshot_class("fast", &seen).unwrap_err();
    assert_eq!(error.to_string(), "2 matching VolumeSnapshotClasses for fast");
}

#[test]
fn the_machine_is_told_of_each_volume() {
    let vm: VirtualMachine = serde_json::from_value(json!({
        "metadata": {"name": "vm", "namespace": "ns"},
        "spec": {"template": {"spec": {"domain": {"devices": {}}, "volumes": [
            {"name": "root", "containerDisk": {"image": "x"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "plain", "persistentVolumeClaim": {"claimName": "plain"}},
            {"name": "missing", "dataVolume": {"name": "missing"}},
        ]}}},
    }))
    .unwrap();
    let claim = |name: &str, class: Value| json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"storageClassName": class}});
    let seen = cluster(
        json!([claim("data", json!("fast")), claim("plain", Value::Null)]),
        json!([class("fast", "csi.a")]),
        json!([]),
        json!([taking("a", "csi.a", false)]),
    );
    let (data, _writer) = DataVolumes::with([]);
    let told = snapshot_statuses(&vm, &seen, &data).unwrap();
    assert_eq!(
        serde_json::to_value(told).unwrap(),
        json!([
            {"name": "root", "enabled": false, "reason": "Snapshot is not supported for this volumeSource type [root]"},
            {"name": "data", "enabled": true},
            {"name": "plain", "enabled": false, "reason":
                "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [] [plain]"},
            {"name": "missing", "enabled": false, "reason": "PVC not found"},
        ])
    );
    assert_eq!(snapshot_statuses(&vm, &Storage::new().0, &data), None, "what is not known is not told");
}
