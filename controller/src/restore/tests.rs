use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use podvirt_api::cdi::DataVolume;
use podvirt_api::csi::VolumeSnapshot;
use podvirt_api::snapshot::RESTORE_FINALIZER;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineRestore as Restore, VirtualMachineSnapshot as Snapshot,
    VirtualMachineSnapshotContent as Content,
};
use serde_json::{Value, json};

use super::claim;
use super::decide::{Claim, Next, Observed, decide};

const MADE: &str = "2026-01-01T00:00:00Z";
const BY: &str = "r-u";

fn merged<T: serde::de::DeserializeOwned>(mut object: Value, more: &Value) -> T {
    json_patch::merge(&mut object, more);
    serde_json::from_value(object).unwrap()
}

pub(super) fn restore(more: Value) -> Restore {
    let object = json!({
        "metadata": {"name": "r", "namespace": "ns", "uid": "u", "creationTimestamp": MADE, "finalizers": [RESTORE_FINALIZER],
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "v1"}]},
        "spec": {"target": {"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"},
            "virtualMachineSnapshotName": "s"},
        "status": {"complete": false, "conditions": [{"type": "Ready", "status": "False"}]},
    });
    merged(object, &more)
}

fn noted(more: Value) -> Value {
    let mut note =
        json!({"volumeName": "data", "persistentVolumeClaim": "restore-u-data", "volumeSnapshotName": "vs"});
    json_patch::merge(&mut note, &more);
    json!({"status": {"restores": [note]}})
}

pub(super) fn vm(more: Value) -> VirtualMachine {
    let object = json!({
        "metadata": {"name": "vm", "namespace": "ns", "uid": "v1"},
        "spec": {"runStrategy": "Manual", "template": {"spec": {"domain": {"devices": {}}, "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}},
        ]}}},
        "status": {"restoreInProgress": "r"},
    });
    merged(object, &more)
}

pub(super) fn content(more: Value) -> Content {
    let stored = vm(json!({"metadata": {"labels": {"a": "b"}}}));
    let object = json!({
        "metadata": {"name": "c", "namespace": "ns"},
        "spec": {
            "source": {"virtualMachine": {"metadata": stored.metadata, "spec": stored.spec}},
            "volumeBackups": [{"volumeName": "data", "volumeSnapshotName": "vs", "persistentVolumeClaim": {
                "metadata": {"name": "claim", "labels": {"l": "1"}, "annotations": {"pv.kubernetes.io/bound": "yes", "own": "1"}},
                "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
                    "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}}}}],
        },
        "status": {"readyToUse": true},
    });
    merged(object, &more)
}

fn claim_of(name: &str, more: Value) -> (String, Arc<PersistentVolumeClaim>) {
    let object = json!({"metadata": {"name": name, "uid": "p", "annotations": {"restore.kubevirt.io/lastRestoreUID": BY}},
        "spec": {"storageClassName": "fast"}, "status": {"phase": "Bound"}});
    (name.to_owned(), Arc::new(merged(object, &more)))
}

#[derive(Default)]
struct Scene {
    target: Option<VirtualMachine>,
    runs: bool,
    content: Option<Content>,
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    data: BTreeMap<String, Arc<DataVolume>>,
    seconds: i64,
}

impl Scene {
    fn next(&self, restore: &Restore) -> Next {
        let snapshot: Snapshot = serde_json::from_value(json!({"metadata": {"name": "s"},
            "spec": {"source": {"kind": "VirtualMachine", "name": "vm"}}, "status": {"sourceUID": "v1"}}))
        .unwrap();
        let content = self.content.clone().unwrap_or_else(|| content(json!({})));
        decide(&Observed {
            restore,
            target: self.target.as_ref(),
            runs: self.runs,
            snapshot: Ok((&snapshot, &content)),
            claims: &self.claims,
            waiting: &["slow".to_owned()],
            data: &self.data,
            now: MADE.parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(self.seconds),
        })
    }
}

fn there() -> Scene {
    Scene { target: Some(vm(json!({}))), ..Scene::default() }
}

#[test]
fn it_begins_adopts_and_holds() {
    let scene = Scene { target: Some(vm(json!({"status": null}))), ..Scene::default() };
    assert_eq!(scene.next(&restore(json!({"status": null}))), Next::Begin);
    assert_eq!(scene.next(&restore(json!({"metadata": {"finalizers": null}}))), Next::Adopt);
    assert_eq!(scene.next(&restore(json!({"metadata": {"ownerReferences": null}}))), Next::Adopt);
    assert_eq!(scene.next(&restore(json!({}))), Next::Hold);
    let held = Scene { target: Some(vm(json!({"status": {"restoreInProgress": "x"}}))), ..Scene::default() };
    assert_eq!(held.next(&restore(json!({}))), Next::Problem("vm restore x in progress".into()));
    let other = Scene { target: Some(vm(json!({"metadata": {"uid": "v2"}}))), ..Scene::default() };
    assert!(matches!(other.next(&restore(json!({}))), Next::Problem(why) if why.contains("already exists")));
    let done = json!({"metadata": {"deletionTimestamp": MADE}});
    assert_eq!(scene.next(&restore(done)), Next::End);
    assert_eq!(scene.next(&restore(json!({"status": {"complete": true}}))), Next::Rest);
}

#[test]
fn a_target_that_runs_is_waited_for_stopped_or_fatal() {
    let mut scene = Scene { runs: true, ..there() };
    let by = |policy: &str| restore(json!({"spec": {"targetReadinessPolicy": policy}}));
    assert!(matches!(scene.next(&restore(json!({}))), Next::Wait(why) if why.ends_with("after 5m0s")));
    assert!(matches!(scene.next(&by("WaitEventually")), Next::Wait(_)));
    assert_eq!(scene.next(&by("StopTarget")), Next::Stop);
    assert!(matches!(scene.next(&by("FailImmediate")), Next::Fail(_)));
    scene.seconds = 301;
    assert!(matches!(scene.next(&by("WaitGracePeriod")), Next::Fail(_)));
    assert!(matches!(scene.next(&by("WaitEventually")), Next::Wait(_)));
}

#[test]
fn claims_are_noted_made_and_waited_for() {
    let mut scene = there();
    let Next::Note(notes) = scene.next(&restore(json!({}))) else { panic!() };
    assert_eq!(notes[0].persistent_volume_claim, "restore-u-data");
    let goes = restore(noted(json!({})));
    assert_eq!(scene.next(&goes), Next::Claims(vec![Claim::Make(0)]));
    scene.claims = [claim_of("restore-u-data", json!({"status": {"phase": "Pending"}}))].into();
    assert_eq!(scene.next(&goes), Next::Claims(vec![]), "not bound yet");
    let slow = json!({"spec": {"storageClassName": "slow"}, "status": {"phase": "Pending"}});
    scene.claims = [claim_of("restore-u-data", slow)].into();
    assert!(matches!(scene.next(&goes), Next::Machine(_)), "it is bound when the machine starts");
    scene.claims = [claim_of("restore-u-data", json!({"metadata": {"annotations": null}}))].into();
    assert!(matches!(scene.next(&goes), Next::Problem(why) if why.contains("has not made it")));
}

#[test]
fn in_place_a_claim_is_deleted_once_and_made_anew() {
    let mut scene = there();
    let of = |more: Value| {
        let mut object = noted(json!({"persistentVolumeClaim": "claim"}));
        json_patch::merge(&mut object, &json!({"spec": {"volumeRestorePolicy": "InPlace"}}));
        json_patch::merge(&mut object, &more);
        restore(object)
    };
    let Next::Note(notes) = scene.next(&restore(json!({"spec": {"volumeRestorePolicy": "InPlace"}}))) else {
        panic!()
    };
    assert_eq!(notes[0].persistent_volume_claim, "claim");
    scene.claims = [claim_of("claim", json!({"metadata": {"annotations": null}}))].into();
    let replaced = Claim::Replace { name: "claim".into(), uid: "p".into(), data: None };
    assert_eq!(scene.next(&of(json!({}))), Next::Claims(vec![replaced]));
    let mut other = Scene { claims: scene.claims.clone(), ..there() };
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "another"}}]);
    other.target = Some(vm(json!({"spec": {"template": {"spec": {"volumes": volumes}}}})));
    let new = json!({"spec": {"target": {"name": "copy"}}});
    for (target, more) in [(other.target.clone(), json!({})), (None, new), (None, json!({}))] {
        other.target = target;
        let next = other.next(&of(more));
        assert!(matches!(&next, Next::Problem(why) if why.contains("claims of the target only")), "{next:?}");
    }
    let labels = json!({"persistent-state-for": "vm"});
    for (uid, is_replaced) in [("v1", true), ("v0", false)] {
        let owners = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": uid, "controller": true}]);
        let state = json!({"metadata": {"annotations": null, "labels": labels, "ownerReferences": owners}});
        other.target = Some(vm(json!({"spec": {"template": {"spec": {"volumes": volumes}}}})));
        other.claims = [claim_of("claim", state)].into();
        assert_eq!(matches!(other.next(&of(json!({}))), Next::Claims(_)), is_replaced, "the state's claim");
    }
    scene.claims =
        [claim_of("claim", json!({"metadata": {"deletionTimestamp": MADE, "annotations": null}}))].into();
    assert_eq!(scene.next(&of(json!({}))), Next::Claims(vec![]), "it goes");
    scene.claims.clear();
    assert_eq!(scene.next(&of(json!({}))), Next::Claims(vec![Claim::Make(0)]));
    scene.claims = [claim_of("claim", json!({}))].into();
    assert!(matches!(scene.next(&of(json!({}))), Next::Machine(_)));
}

#[test]
fn the_machine_keeps_its_strategy_and_gets_the_claims() {
    let mut scene = there();
    scene.claims = [claim_of("restore-u-data", json!({}))].into();
    let goes = restore(noted(json!({})));
    let Next::Machine(made) = scene.next(&goes) else { panic!() };
    let claim = |vm: &VirtualMachine| {
        let volume = vm.spec.template.as_ref().unwrap().spec.as_ref().unwrap().volumes[0].clone();
        volume.persistent_volume_claim.unwrap().claim_name.clone()
    };
    assert_eq!((claim(&made), made.metadata.uid.as_deref()), ("restore-u-data".into(), Some("v1")));
    assert_eq!(made.spec.run_strategy.as_ref().unwrap().as_str(), "Manual");
    assert_eq!(made.metadata.annotations.unwrap()["restore.kubevirt.io/lastRestoreUID"], BY);
    let settled = json!({"metadata": {"annotations": {"restore.kubevirt.io/lastRestoreUID": BY}}});
    scene.target = Some(vm(settled));
    assert_eq!(scene.next(&goes), Next::Settle);

    let patches = json!([
        "{\"op\": \"replace\", \"path\": \"/spec/template/spec/hostname\", \"value\": \"new\"}",
        "{\"op\": \"remove\", \"path\": \"/metadata/labels/a\"}",
    ]);
    let mut object = noted(json!({}));
    json_patch::merge(&mut object, &json!({"spec": {"target": {"name": "copy"}, "patches": patches}}));
    scene.target = None;
    let Next::Machine(made) = scene.next(&restore(object)) else { panic!() };
    assert_eq!((made.metadata.name.as_deref(), made.metadata.uid), (Some("copy"), None));
    assert_eq!(made.spec.run_strategy.as_ref().unwrap().as_str(), "Halted");
    assert!(made.metadata.labels.unwrap().is_empty());
    let spec = made.spec.template.unwrap().spec.unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("new"), "what is not there is added");
}

#[test]
fn data_volumes_take_over_the_claims() {
    let with_data = json!({"spec": {
        "dataVolumeTemplates": [{"metadata": {"name": "old"}, "spec": {}}],
        "template": {"spec": {"volumes": [{"name": "data", "dataVolume": {"name": "old"}}]}}}});
    let mut scene = Scene { target: Some(vm(with_data.clone())), ..Scene::default() };
    scene.content = Some(content(json!({"spec": {"source": {"virtualMachine": with_data}}})));
    scene.claims = [claim_of("restore-u-data", json!({}))].into();
    let Next::Mark(notes) = scene.next(&restore(noted(json!({})))) else { panic!() };
    assert_eq!(notes[0].data_volume_name.as_deref(), Some("restore-u-data"));
    let marked =
        json!({"metadata": {"annotations": {"cdi.kubevirt.io/storage.populatedFor": "restore-u-data"}}});
    scene.claims = [claim_of("restore-u-data", marked)].into();
    let goes = restore(noted(json!({"dataVolumeName": "restore-u-data"})));
    assert_eq!(scene.next(&goes), Next::DataVolumes(vec![0]));
    let data = |phase: &str| {
        let object = json!({"metadata": {"name": "restore-u-data"}, "status": {"phase": phase}});
        [("restore-u-data".to_owned(), Arc::new(serde_json::from_value::<DataVolume>(object).unwrap()))]
            .into()
    };
    scene.data = data("Pending");
    assert_eq!(scene.next(&goes), Next::DataVolumes(vec![]));
    scene.data = data("Succeeded");
    assert_eq!(scene.next(&goes), Next::Obsolete(vec!["old".into()]));
    let mut object = noted(json!({"dataVolumeName": "restore-u-data"}));
    json_patch::merge(&mut object, &json!({"status": {"deletedDataVolumes": ["old"]}}));
    let Next::Machine(made) = scene.next(&restore(object)) else { panic!() };
    assert_eq!(crate::data::look::name_of(&made.spec.data_volume_templates[0]), "restore-u-data");
}

#[test]
fn a_data_volume_of_a_restore_copies_nothing_of_another_namespace() {
    let patch = json!({"op": "add", "path": "/spec/dataVolumeTemplates", "value": [{"metadata": {"name": "loot"},
        "spec": {"source": {"pvc": {"namespace": "bank", "name": "ledger"}}, "storage": {}}}]});
    let of = restore(json!({"spec": {"target": {"name": "copy"}, "patches": [patch.to_string()]}}));
    let content = content(json!({}));
    let vm =
        super::machine::restored(&of, content.spec.source.virtual_machine.as_ref().unwrap(), None).unwrap();
    let filled: PersistentVolumeClaim =
        serde_json::from_value(json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}})).unwrap();
    let made = super::act::restored_data(&of, None, &vm, &vm.spec.data_volume_templates[0], Some(&filled));
    assert_eq!(
        made.data["spec"],
        json!({"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}})
    );
    assert_eq!(made.annotations()["cdi.kubevirt.io/storage.prePopulated"], "true");
}

#[test]
fn patches_that_grow_or_reach_elsewhere_are_refused_at_once() {
    let content = content(json!({}));
    let stored = content.spec.source.virtual_machine.as_ref().unwrap();
    let error = |patches: Vec<Value>| {
        let texts: Vec<String> = patches.iter().map(Value::to_string).collect();
        let of = restore(json!({"spec": {"target": {"name": "copy"}, "patches": texts}}));
        podvirt_api::error::chain(&super::machine::restored(&of, stored, None).unwrap_err())
    };
    let doubles = json!({"op": "copy", "from": "/spec/a", "path": "/spec/a/-"});
    let begin = json!({"op": "add", "path": "/spec/a", "value": [0]});
    let grows = std::iter::once(begin).chain(std::iter::repeat_n(doubles, 30)).collect();
    let why = error(grows);
    assert!(why.starts_with("spec.patches: operation 1") && why.contains("copy"), "{why}");
    let why = error(vec![json!({"op": "replace", "path": "/metadata/ownerReferences", "value": []})]);
    assert!(why.contains("/metadata/ownerReferences"), "{why}");
    let labels = json!({"labels": {"kubevirt.io/created-by": "v1"}});
    let why = error(vec![json!({"op": "add", "path": "/spec/template/metadata", "value": labels})]);
    assert_eq!(why, "spec.template.metadata.labels: only podvirt may set the label kubevirt.io/created-by");
}

#[test]
fn a_claim_is_as_it_was_and_no_smaller_than_its_snapshot() {
    let taken: VolumeSnapshot =
        serde_json::from_value(json!({"metadata": {"name": "vs"}, "status": {"restoreSize": "2Gi"}}))
            .unwrap();
    let content = content(json!({}));
    let (backup, stored) =
        (&content.spec.volume_backups[0], content.spec.source.virtual_machine.as_ref().unwrap());
    let with = noted(json!({}));
    let overrides = json!([{"volumeName": "data", "labels": {"more": "2"}}]);
    let mut object = with.clone();
    json_patch::merge(&mut object, &json!({"spec": {"volumeRestoreOverrides": overrides}}));
    let of = restore(object);
    let target = vm(json!({}));
    let made = |target: Option<&VirtualMachine>, of: &Restore| {
        serde_json::to_value(claim::restored(of, target, stored, backup, &of.status.restores[0], &taken))
            .unwrap()
    };
    let own = made(Some(&target), &of);
    assert_eq!(
        own["metadata"]["annotations"],
        json!({"own": "1", "restore.kubevirt.io/name": "r", "restore.kubevirt.io/lastRestoreUID": BY})
    );
    assert_eq!(own["metadata"]["labels"]["more"], "2");
    assert_eq!(own["metadata"]["labels"]["restore.kubevirt.io/source-vm-name"], "vm");
    assert_eq!(own["metadata"]["ownerReferences"][0]["uid"], "v1");
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "vs"});
    assert_eq!(
        own["spec"],
        json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Block",
            "resources": {"requests": {"storage": "2Gi"}}, "dataSource": source, "dataSourceRef": source})
    );
    let new = made(None, &of);
    assert_eq!(new["metadata"].get("ownerReferences"), None, "the snapshot's claim had no owner");
    let mut object = with;
    json_patch::merge(&mut object, &json!({"spec": {"volumeOwnershipPolicy": "None"}}));
    assert_eq!(made(Some(&target), &restore(object))["metadata"].get("ownerReferences"), None);
}

#[test]
fn what_firmware_and_tpm_keep_is_restored_to_the_same_machine_alone() {
    let tpm = json!({"domain": {"devices": {"tpm": {"persistent": true}}}});
    let keeps = json!({"spec": {"source": {"virtualMachine": {"spec": {"template": {"spec": tpm}}}}}});
    let other =
        restore(json!({"spec": {"target": {"name": "other"}}, "metadata": {"ownerReferences": null}}));
    let mut scene = Scene { content: Some(content(keeps)), ..Scene::default() };
    let why = "Restore to a different VM is not supported when snapshotted VM has backend storage (persistent TPM or EFI)";
    assert_eq!(scene.next(&other), Next::Problem(why.into()));
    // A machine that is made anew is found by its TPM.
    let stored = scene.content.as_ref().unwrap().spec.source.virtual_machine.as_ref().unwrap();
    let uuid =
        |vm: VirtualMachine| vm.spec.template.unwrap().spec.unwrap().domain.firmware.and_then(|f| f.uuid);
    let made = super::machine::restored(&restore(json!({})), stored, None).unwrap();
    assert_eq!(uuid(made), Some(podvirt_api::defaults::uuid(&["ns", "vm", "v1"])));
    let there = super::machine::restored(&restore(json!({})), stored, Some(&vm(json!({})))).unwrap();
    assert_eq!(uuid(there), None);
    scene.content = None;
    assert!(!matches!(scene.next(&other), Next::Problem(_)));
}
