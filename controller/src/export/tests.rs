use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use podvirt_api::export::{pod_name, service_name};
use podvirt_api::names::event;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineExport as Export, VirtualMachineExportPhase as Phase,
    VirtualMachineInstance, VirtualMachineSnapshot as Snapshot, VirtualMachineSnapshotContent as Content,
};
use serde_json::{Value, json};

use super::controller::{CLAIM_SOURCE, OTHER_SOURCE, names};
use super::decide::{Action, Observed, Plan, decide};
use super::external::External;
use super::pod::{self, Exported, Settings};
use super::source::{self, Known, Seen};
use crate::data::DataVolumes;
use crate::kept::{Kept, Kind};
use crate::storage::Storage;
use crate::template::restricted;

pub(super) const PARAMETERS: &str = r#"{"Duration":86400000000000,"RenewBefore":17280000000000}"#;

pub(super) fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

pub(super) fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(super) fn export(kind: &str, name: &str) -> Export {
    of(json!({
        "metadata": {"name": "x", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"team": "a"}},
        "spec": {"source": {"kind": kind, "name": name}},
    }))
}

fn kept<K: Kind>(list: Value) -> Kept<K> {
    let list: Vec<K> = of(list);
    Kept::with(list).0
}

fn storage(claims: Value) -> Storage {
    Storage {
        claims: kept(claims),
        classes: kept(json!([])),
        profiles: kept(json!([])),
        data_settings: kept(json!([])),
        snapshots: kept(json!([])),
        snapshot_classes: kept(json!([])),
    }
}

fn claim(name: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns"}, "status": {"phase": phase}})
}

fn filled_by(name: &str) -> Value {
    let mut claim = claim(name, "Bound");
    claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "name": name, "uid": "d", "controller": true}]);
    claim
}

fn data(phase: &str) -> DataVolumes {
    kept(json!([{"metadata": {"name": "disk", "namespace": "ns"}, "status": {"phase": phase}}]))
}

/// What is in every pod of these tests.
pub(super) fn settings() -> Settings<'static> {
    Settings {
        image: "exporter:1",
        pull_secrets: &[],
        resources: podvirt_api::resources::exporter(&podvirt_api::v1::KubeVirtConfiguration::default()),
        parameters: PARAMETERS,
        deadline: now(),
        token_secret: "export-token-x",
        certificate_secret: "secret-1",
        has_manifest: false,
        backup: None,
    }
}

/// The pod of a claim's export, in a phase.
fn pod_of(export: &Export, phase: &str) -> Pod {
    let claims = [
        Exported { name: "disk".into(), is_block: false, is_disk: true },
        Exported { name: "files".into(), is_block: false, is_disk: false },
        Exported { name: "my.device".into(), is_block: true, is_disk: false },
    ];
    let settings = Settings { has_manifest: true, ..settings() };
    let mut pod = pod::pod(export, &claims, &settings);
    pod.metadata.creation_timestamp = Some(of(json!("2026-01-01T00:59:00Z")));
    let ready = phase == "Running";
    pod.status = of(
        json!({"phase": phase, "containerStatuses": [{"name": "exporter", "ready": ready, "restartCount": 0,
        "image": "", "imageID": ""}]}),
    );
    pod
}

fn available() -> Seen {
    let known = storage(json!([claim("disk", "Bound")]));
    source::of_claim("ns", "disk", false, Known { storage: &known, data: &data("Succeeded") })
}

pub(super) fn plan(export: &Export, source: &Seen, pod: Option<&Pod>) -> Plan {
    let external = External { host: "export.example.org".into(), certificate: "CERT".into() };
    decide(&Observed {
        export,
        source,
        pod,
        has_service: pod.is_some(),
        parameters: PARAMETERS,
        bundle: Some("BUNDLE\n"),
        external: Some(&external),
        now: now(),
    })
}

pub(super) fn told(plan: &Plan) -> Vec<String> {
    let conditions = plan.status.conditions.iter();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let line = |one: &podvirt_api::v1::ExportCondition| {
        format!("{}={} {} {}", one.r#type.as_str(), one.status, text(&one.reason), text(&one.message))
            .trim()
            .to_owned()
    };
    conditions.map(line).collect()
}

#[test]
fn what_a_claim_is_not_is_told_in_upstreams_words() {
    let export = export("PersistentVolumeClaim", "disk");
    let look = |claims: Value, phase: &str, in_use: bool| {
        let (known, data) = (storage(claims), data(phase));
        let seen = source::of_claim("ns", "disk", in_use, Known { storage: &known, data: &data });
        let plan = plan(&export, &seen, None);
        assert_eq!(plan.status.phase, Some(Phase::Pending));
        (told(&plan), plan.actions.len())
    };
    let service_only = 1;
    for (claims, phase, in_use, ready, own) in [
        (
            json!([]),
            "",
            false,
            "Ready=False Initializing",
            "PVCReady=False PVCNotFound PersistentVolumeClaim ns/disk not found",
        ),
        (
            json!([claim("disk", "Bound")]),
            "",
            true,
            "Ready=False InUse PersistentVolumeClaim ns/disk is in use",
            "PVCReady=True PVCBound",
        ),
        (
            json!([filled_by("disk")]),
            "ImportInProgress",
            false,
            "Ready=False PVCPending PersistentVolumeClaim ns/disk is not populated",
            "PVCReady=True PVCBound",
        ),
    ] {
        let (told, actions) = look(claims, phase, in_use);
        assert_eq!((told, actions), (vec![ready.to_owned(), own.to_owned()], service_only));
    }
    // A claim whose storage waits for its first user has one in the exporter.
    let (told, actions) = look(json!([claim("disk", "Pending")]), "", false);
    assert_eq!((told[1].as_str(), actions), ("PVCReady=False PVCPending", 4));
    assert_eq!(look(json!([filled_by("disk")]), "Succeeded", false).1, 4);
}

#[test]
fn a_machine_has_to_be_off_and_to_have_disks() {
    let vm = |volumes: Value| -> VirtualMachine {
        of(
            json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": {"template": {"spec": {"domain": {"devices": {}}, "volumes": volumes}}}}),
        )
    };
    let disk = json!([{"name": "d", "dataVolume": {"name": "disk"}}, {"name": "i", "containerDisk": {"image": "i"}}]);
    let vmi = |phase: &str| -> VirtualMachineInstance {
        of(json!({"metadata": {"name": "vm"}, "status": {"phase": phase}}))
    };
    let export = export("VirtualMachine", "vm");
    let look = |vm: Option<&VirtualMachine>, vmi: Option<&VirtualMachineInstance>, claims: Value| {
        let (known, data) = (storage(claims), data("Succeeded"));
        let seen = source::of_machine("ns", "vm", vm, vmi, Known { storage: &known, data: &data });
        let plan = plan(&export, &seen, None);
        (told(&plan).join(", "), plan.status.phase.unwrap(), seen.is_available())
    };
    let mut keeps = vm(json!([]));
    keeps.spec.template.as_mut().unwrap().spec.as_mut().unwrap().domain.devices.tpm =
        Some(of(json!({"persistent": true})));
    let mut state = claim("persistent-state-for-vm-x", "Bound");
    state["metadata"]["labels"] = json!({"persistent-state-for": "vm"});
    let (text, _, available) = look(Some(&keeps), None, json!([state]));
    assert!(available, "the machine's state is exported: {text}");
    assert!(
        look(Some(&keeps), None, json!([])).0.contains("VolumesNotPopulated"),
        "its first start makes it"
    );
    let own = vm(disk);
    let bound = || json!([claim("disk", "Bound")]);
    let (text, phase, _) = look(None, None, bound());
    assert_eq!(
        (text.as_str(), phase),
        ("Ready=False VMNotFound Virtual Machine ns/vm not found", Phase::Skipped)
    );
    let (text, phase, _) = look(Some(&vm(json!([]))), None, bound());
    assert_eq!(
        (text.as_str(), phase),
        ("Ready=False VMNoVolumes Virtual Machine ns/vm has no volumes", Phase::Skipped)
    );
    let (text, phase, _) = look(Some(&own), None, json!([]));
    assert_eq!(
        (text.as_str(), phase),
        (
            "Ready=False VolumesNotPopulated Not all volumes in the Virtual Machine ns/vm are populated",
            Phase::Pending
        )
    );
    let (text, _, usable) = look(Some(&own), Some(&vmi("Running")), bound());
    assert_eq!((text.as_str(), usable), ("Ready=False InUse Virtual Machine ns/vm is running", false));
    assert!(look(Some(&own), Some(&vmi("Succeeded")), bound()).2);
    assert!(look(Some(&own), None, bound()).2);
}

#[test]
fn a_snapshots_claims_are_made_first() {
    let export = export("VirtualMachineSnapshot", "s");
    let snapshot = |ready: bool| -> Snapshot {
        of(
            json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": {"source": {"kind": "VirtualMachine", "name": "vm"}},
            "status": {"readyToUse": ready}}),
        )
    };
    let content = |backups: Value| -> Content {
        of(json!({"metadata": {"name": "c"}, "spec": {"source": {}, "volumeBackups": backups}}))
    };
    let backup = json!([{"volumeName": "d", "persistentVolumeClaim": {"metadata": {"name": "disk"}}, "volumeSnapshotName": "vs"}]);
    let look = |snapshot: Option<&Snapshot>, content: Option<&Content>, claims: Value| {
        let (known, data) = (storage(claims), data("Succeeded"));
        let seen = source::of_snapshot(&export, snapshot, content, Known { storage: &known, data: &data });
        let plan = plan(&export, &seen, None);
        (told(&plan), plan)
    };
    let (told, plan) = look(None, None, json!([]));
    assert_eq!(told[0], "Ready=False VMSnapshotNotFound VirtualMachineSnapshot ns/s not found");
    assert_eq!(plan.status.phase, Some(Phase::Skipped));
    let (ready, own) = (snapshot(true), content(backup));
    let (told, _) = look(Some(&snapshot(false)), None, json!([]));
    assert_eq!(
        told[1],
        "VolumesCreated=False NotAllPVCsCreated VirtualMachineSnapshot ns/s is not ready to use"
    );
    let (told, plan) = look(Some(&ready), Some(&content(json!([]))), json!([]));
    assert_eq!(
        told[1],
        "VolumesCreated=False VMSnapshotNoVolumes VirtualMachineSnapshot ns/s does not contain any volume snapshots"
    );
    assert_eq!(plan.status.phase, Some(Phase::Skipped));
    let (told, plan) = look(Some(&ready), Some(&own), json!([]));
    assert_eq!(
        told[1],
        "VolumesCreated=False NotAllPVCsCreated Not all PVCs have been successfully restored"
    );
    assert_eq!(plan.actions, [Action::MakeService, Action::MakeClaims(vec![0])]);
    let restored = |phase: &str, uid: &str| {
        let mut claim = claim("x-disk", phase);
        claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "export.kubevirt.io/v1beta1",
            "kind": "VirtualMachineExport", "name": "x", "uid": uid, "controller": true}]);
        claim
    };
    let uid = export.metadata.uid.clone().unwrap();
    for other in [claim("x-disk", "Bound"), restored("Bound", "another")] {
        let (told, plan) = look(Some(&ready), Some(&own), json!([other]));
        let why = "NotAllPVCsCreated PersistentVolumeClaim ns/x-disk exists, and is not this export's";
        assert_eq!(told[..2], [format!("Ready=False {why}"), format!("VolumesCreated=False {why}")]);
        assert_eq!(plan.actions, [Action::MakeService], "neither a claim nor a pod");
    }
    let (told, plan) = look(Some(&ready), Some(&own), json!([restored("Pending", &uid)]));
    assert_eq!(told[1], "VolumesCreated=False NotAllPVCsReady Not all PVCs are ready");
    assert!(
        plan.actions.contains(&Action::MakePod("export-token-x".into())),
        "a pod may be what they wait for"
    );
    let (told, plan) = look(Some(&ready), Some(&own), json!([restored("Bound", &uid)]));
    assert_eq!(told[1], "VolumesCreated=True AllPVCsReady");
    assert_eq!(plan.status.virtual_machine_name.as_deref(), Some("vm"));
}

#[test]
fn a_pod_is_made_served_and_made_anew() {
    let mut own = export("PersistentVolumeClaim", "disk");
    let seen = available();
    let first = plan(&own, &seen, None);
    let token = || "export-token-x".to_owned();
    assert_eq!(
        first.actions,
        [Action::MakeService, Action::MakeToken(token()), Action::MakePod(token()), Action::MakeCertificate]
    );
    assert_eq!(first.status.token_secret_ref, Some(token()));
    assert_eq!(first.status.service_name.as_deref(), Some("virt-export-x"));
    assert_eq!(json!(first.status)["ttlExpirationTime"], "2026-01-01T02:00:00Z");
    own.status = first.status;

    let pending = pod_of(&own, "Pending");
    let waits = plan(&own, &seen, Some(&pending));
    assert_eq!(waits.actions, [Action::MakeCertificate], "what was cut short is done again");
    assert!(
        told(&waits)[0].starts_with("Ready=False PodPending exporter pod virt-export-x does not start"),
        "{waits:?}"
    );

    let running = pod_of(&own, "Running");
    let serves = plan(&own, &seen, Some(&running));
    assert_eq!((serves.actions.len(), serves.status.phase.clone()), (0, Some(Phase::Ready)));
    assert_eq!(told(&serves)[0], "Ready=True PodReady");
    has_links(&serves);

    let failed = pod_of(&own, "Failed");
    let again = plan(&own, &seen, Some(&failed));
    let message = "Exporter pod ns/virt-export-x is in phase Failed".to_owned();
    assert_eq!(again.actions, [Action::DeletePod { reason: event::EXPORTER_ENDED, message }]);
    let ended = plan(&own, &seen, Some(&pod_of(&own, "Succeeded")));
    assert_eq!(ended.status.phase, Some(Phase::Terminated));
    let mut old = running.clone();
    old.metadata
        .annotations
        .as_mut()
        .unwrap()
        .insert("kubevirt.io/export.certParameters".into(), "{}".into());
    assert!(matches!(
        plan(&own, &seen, Some(&old)).actions[..],
        [Action::DeletePod { reason: event::CERTIFICATE_CHANGED, .. }]
    ));
    let known = storage(json!([claim("disk", "Bound")]));
    let used = source::of_claim("ns", "disk", true, Known { storage: &known, data: &data("Succeeded") });
    let paused = plan(&own, &used, Some(&running));
    assert!(matches!(paused.actions[..], [Action::DeletePod { reason: event::EXPORT_PAUSED, .. }]));
    // A pod that is going is waited for.
    old.metadata.deletion_timestamp = Some(of(json!("2026-01-01T01:00:00Z")));
    let waits = plan(&own, &used, Some(&old));
    assert_eq!((waits.actions.len(), waits.status.phase), (0, Some(Phase::Pending)));
}

/// The links of a pod of three claims.
fn has_links(plan: &Plan) {
    let links = json!(plan.status.links);
    let internal = &links["internal"];
    assert_eq!(internal["cert"], "BUNDLE");
    let base = "https://virt-export-x.ns.svc";
    assert_eq!(
        internal["volumes"],
        json!([
            {"name": "disk", "formats": [
                {"format": "raw", "url": format!("{base}/volumes/disk/disk.img")},
                {"format": "gzip", "url": format!("{base}/volumes/disk/disk.img.gz")}]},
            {"name": "files", "formats": [
                {"format": "dir", "url": format!("{base}/volumes/files/dir")},
                {"format": "tar.gz", "url": format!("{base}/volumes/files/disk.tar.gz")}]},
            {"name": "my.device", "formats": [
                {"format": "raw", "url": format!("{base}/volumes/my.device/disk.img")},
                {"format": "gzip", "url": format!("{base}/volumes/my.device/disk.img.gz")}]},
        ])
    );
    assert_eq!(
        internal["manifests"][1],
        json!({"type": "auth-header-secret", "url": format!("{base}/internal/manifests/secret")})
    );
    let external = &links["external"];
    let base =
        "https://export.example.org/api/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/x";
    assert_eq!(external["volumes"][0]["formats"][0]["url"], format!("{base}/volumes/disk/disk.img"));
    assert_eq!(external["manifests"][0]["url"], format!("{base}/external/manifests/all"));
    assert_eq!(external["cert"], "CERT");
}

#[test]
fn an_export_ends_with_its_time_whatever_its_source_is() {
    let mut own = export("PersistentVolumeClaim", "disk");
    let until = plan(&own, &available(), Some(&pod_of(&own, "Running"))).again_after.unwrap();
    assert_eq!(until.as_secs(), 30, "whether the claim is in use");
    own.spec.ttl_duration = Some("1h10s".into());
    let waits = plan(&own, &Seen::default(), None);
    assert_eq!(waits.again_after.unwrap().as_secs(), 10);
    own.spec.ttl_duration = Some("1h".into());
    assert_eq!(plan(&own, &Seen::default(), None).actions, [Action::Expire]);
    own.metadata.deletion_timestamp = Some(of(json!("2026-01-01T00:30:00Z")));
    assert_eq!(plan(&own, &available(), None).actions, []);
}

#[test]
fn a_given_token_is_not_made() {
    let mut own = export("PersistentVolumeClaim", "disk");
    own.spec.token_secret_ref = Some("mine".into());
    let plan = plan(&own, &available(), None);
    assert_eq!(plan.actions, [Action::MakeService, Action::MakePod("mine".into()), Action::MakeCertificate]);
    assert_eq!(plan.status.token_secret_ref.as_deref(), Some("mine"));
}

#[test]
fn the_pod_passes_the_restricted_standard_and_reads_only() {
    let own = export("PersistentVolumeClaim", "disk");
    let pod = pod_of(&own, "Running");
    assert_eq!(restricted::violations(&pod), [""; 0]);
    assert_eq!(pod.metadata.labels.as_ref().unwrap()["team"], "a");
    let spec = pod.spec.as_ref().unwrap();
    let container = &spec.containers[0];
    assert!(container.volume_mounts.as_ref().unwrap().iter().all(|mount| mount.read_only == Some(true)));
    assert_eq!(container.volume_devices.as_ref().unwrap()[0].device_path, "/dev/export-volumes/my-device");
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(pod::certificate_secret(&pod), Some("secret-1"));
    let service = json!(pod::service(&own));
    assert_eq!(service["spec"]["selector"], json!({"kubevirt.io.virt-export-service": "x"}));
    assert_eq!(
        service["spec"]["ports"][0],
        json!({"name": "export", "protocol": "TCP", "port": 443, "targetPort": 8443})
    );
}

#[test]
fn another_pod_that_uses_the_claim_is_told_from_the_exports_own() {
    let own = export("PersistentVolumeClaim", "disk");
    let mut pod = pod_of(&own, "Running");
    assert!(!source::uses(&pod, "disk", &own));
    pod.metadata.owner_references = None;
    assert!(source::uses(&pod, "disk", &own) && !source::uses(&pod, "other", &own));
    for ended in ["Succeeded", "Failed"] {
        pod.status.as_mut().unwrap().phase = Some(ended.into());
        assert!(!source::uses(&pod, "disk", &own), "{ended}");
    }
}

#[test]
fn exports_are_found_by_their_source_and_by_what_is_made_for_them() {
    for (kind, text) in [("PersistentVolumeClaim", CLAIM_SOURCE), ("VirtualMachine", OTHER_SOURCE)] {
        let own = [pod_name("x"), service_name("x")];
        assert_eq!(names(&export(kind, "data")), ["data", own[0].as_str(), own[1].as_str(), text]);
    }
}
