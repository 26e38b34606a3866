//! What the tests decide on.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use podvirt_api::backup::FINALIZER;
use podvirt_api::v1::{
    VirtualMachineBackup as Backup, VirtualMachineBackupTracker as Tracker, VirtualMachineExport as Export,
    VirtualMachineInstance,
};
use serde_json::{Value, json};

pub(super) const MADE: &str = "2026-01-01T00:00:00Z";

fn merged<T: serde::de::DeserializeOwned>(mut object: Value, more: &Value) -> T {
    json_patch::merge(&mut object, more);
    serde_json::from_value(object).unwrap()
}

pub(super) fn backup(more: &Value) -> Backup {
    let of = json!({
        "metadata": {"name": "b", "namespace": "ns", "uid": "u", "creationTimestamp": MADE,
            "finalizers": [FINALIZER], "resourceVersion": "1"},
        "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}, "pvcName": "to"},
    });
    merged(of, more)
}

pub(super) fn of_tracker() -> Value {
    json!({"spec": {"source": {"apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackupTracker", "name": "t"}}})
}

pub(super) fn tracker(more: &Value) -> Tracker {
    let of = json!({"metadata": {"name": "t", "namespace": "ns", "uid": "t", "resourceVersion": "1"},
        "spec": {"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"}}});
    merged(of, more)
}

/// Of a checkpoint that the instance of [`vmi`] knows.
pub(super) fn with_checkpoint() -> Value {
    json!({"metadata": {"annotations": {"backup.podvirt.io/defined-for": "i/n"}},
        "status": {"latestCheckpoint": {"name": "c"}}})
}

pub(super) fn vmi(more: &Value) -> VirtualMachineInstance {
    let of = json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "i", "resourceVersion": "1"},
        "spec": {"domain": {"devices": {}}, "volumes": [{"name": "root", "dataVolume": {"name": "root"}}]},
        "status": {"phase": "Running", "nodeName": "n", "changedBlockTracking": {"state": "Enabled"}},
    });
    merged(of, more)
}

pub(super) fn claim(mode: &str) -> PersistentVolumeClaim {
    let of = json!({"metadata": {"name": "to", "namespace": "ns"}, "spec": {"volumeMode": mode}});
    serde_json::from_value(of).unwrap()
}

/// That the backup holds the instance, and what is told of it; `target`: how its status tells of the target's claim.
pub(super) fn held(told: &Value, target: Option<Value>) -> Value {
    let mut status = json!({"backupName": "b", "startTimestamp": MADE});
    json_patch::merge(&mut status, told);
    json!({
        "spec": {"utilityVolumes": [{"name": "b-backup-target-pvc", "claimName": "to", "type": "Backup"}]},
        "status": {"changedBlockTracking": {"backupStatus": status}, "volumeStatus": target.into_iter().collect::<Vec<_>>()},
    })
}

pub(super) fn mounted() -> Option<Value> {
    Some(json!({"name": "b-backup-target-pvc", "target": "", "phase": "MountedToPod", "hotplugVolume": {}}))
}

pub(super) fn complete() -> Value {
    json!({"completed": true, "checkpointName": "b-1", "volumes": [{"volumeName": "root", "diskTarget": "vda"}]})
}

pub(super) fn runs() -> Value {
    json!({"status": {"type": "Full", "conditions": [
        {"type": "Progressing", "status": "True"}, {"type": "Done", "status": "False"}]}})
}

/// A backup in pull mode, of an hour's life, that runs; its conditions ExportInitiated and ExportReady, where they are there.
pub(super) fn pulls(initiated: Option<&str>, ready: Option<&str>) -> Value {
    let mut of = runs();
    json_patch::merge(
        &mut of,
        &json!({"spec": {"mode": "Pull", "tokenSecretRef": "token", "ttlDuration": "1h"}}),
    );
    let known = [("ExportInitiated", initiated), ("ExportReady", ready)];
    let more = known.iter().filter_map(|(kind, is)| Some(json!({"type": kind, "status": (*is)?})));
    if let Some(conditions) = of["status"]["conditions"].as_array_mut() {
        conditions.extend(more);
    }
    of
}

/// That the machine has begun, and offers two disks.
pub(super) fn begun() -> Value {
    json!({"checkpointName": "b-1", "volumes": [
        {"volumeName": "data", "diskTarget": "vdb"}, {"volumeName": "root", "diskTarget": "vda"}]})
}

/// The backup's export, in a phase and with links.
pub(super) fn export(phase: &str, links: &Value) -> Export {
    let owner = json!({"apiVersion": "backup.kubevirt.io/v1alpha1", "kind": "VirtualMachineBackup", "name": "b",
        "uid": "u", "controller": true});
    let of = json!({
        "metadata": {"name": "b", "namespace": "ns", "uid": "e", "ownerReferences": [owner]},
        "spec": {"source": {"apiGroup": "backup.kubevirt.io", "kind": "VirtualMachineBackup", "name": "b"}},
        "status": {"phase": phase, "links": links},
    });
    serde_json::from_value(of).unwrap()
}

/// A link to both disks below an address.
pub(super) fn link(base: &str, cert: &str) -> Value {
    let endpoint =
        |volume: &str, what: &str| json!({"endpoint": what, "url": format!("{base}/{volume}/{what}")});
    let of = |volume: &str| json!({"name": volume, "endpoints": [endpoint(volume, "map"), endpoint(volume, "data")]});
    json!({"cert": cert, "backups": [of("root"), of("data")]})
}
