use k8s_openapi::api::core::v1::Pod;
use podvirt_api::v1::{
    VirtualMachineBackup as Backup, VirtualMachineExport as Export, VirtualMachineExportPhase as Phase,
};
use serde_json::{Value, json};

use super::backup::{Offered, of_backup};
use super::decide::{Action, Plan};
use super::pod::{self, Settings};
use super::source::Seen;
use super::tests::{export, of, plan, settings, told};
use crate::template::restricted;

/// The export of a backup: named as the backup, owned by it, with the backup's token.
fn own() -> Export {
    let mut export = export("VirtualMachineBackup", "b");
    export.metadata.name = Some("b".into());
    export.metadata.owner_references = of(json!([{"apiVersion": "backup.kubevirt.io/v1alpha1",
        "kind": "VirtualMachineBackup", "name": "b", "uid": "backup", "controller": true}]));
    export.spec.token_secret_ref = Some("token".into());
    export
}

fn backup(more: &Value) -> Backup {
    let mut object = json!({
        "metadata": {"name": "b", "namespace": "ns", "uid": "backup"}, "spec": {"mode": "Pull"},
        "status": {
            "type": "Incremental", "conditions": [{"type": "Progressing", "status": "True", "reason": "r"}],
            "includedVolumes": [{"volumeName": "root", "diskTarget": "vda"}, {"volumeName": "data", "diskTarget": "vdb"}],
        },
    });
    json_patch::merge(&mut object, more);
    of(object)
}

fn available() -> Seen {
    of_backup(&own(), Some(&backup(&json!({}))))
}

fn pod_of(export: &Export, phase: &str) -> Pod {
    let seen = available();
    let offered = seen.backup.as_ref().map(|offered| (offered, "CAS"));
    let settings = Settings { backup: offered, ..settings() };
    let mut pod = pod::pod(export, &[], &settings);
    pod.metadata.creation_timestamp = Some(of(json!("2026-01-01T00:59:50Z")));
    let ready = phase == "Running";
    pod.status = of(json!({"phase": phase, "containerStatuses": [
        {"name": "exporter", "ready": ready, "restartCount": 0, "image": "", "imageID": ""}]}));
    pod
}

/// What stands beside the Service, and the condition.
fn waits(plan: &Plan) -> String {
    assert_eq!((&plan.actions[..], &plan.status.phase), (&[Action::MakeService][..], &Some(Phase::Pending)));
    assert_eq!(plan.status.links, Some(Default::default()));
    let all = told(plan);
    let [ready] = &all[..] else { panic!("{all:?}") };
    ready
        .strip_prefix("Ready=False VirtualMachineBackupReady ")
        .unwrap_or_else(|| panic!("{ready}"))
        .to_owned()
}

#[test]
fn what_a_backup_is_not_is_told_in_upstreams_words() {
    let export = own();
    let look = |backup: Option<&Backup>| waits(&plan(&export, &of_backup(&export, backup), None));
    assert_eq!(look(None), "VMBackup does not exist yet");
    for (more, why) in [
        (json!({"spec": {"mode": null}}), "VirtualMachineBackup ns/b is not in pull mode"),
        (
            json!({"metadata": {"uid": "later"}}),
            "VirtualMachineBackup ns/b is read by its own VirtualMachineExport alone, ns/b",
        ),
        (json!({"status": null}), "VMBackup progressing condition not found"),
        (
            json!({"status": {"conditions": [{"type": "Progressing", "status": "False"}]}}),
            "VMBackup is not progressing",
        ),
        (json!({"status": {"type": null}}), "VMBackup is not progressing"),
        (json!({"status": {"includedVolumes": []}}), "VMBackup has no included volumes"),
    ] {
        assert_eq!(look(Some(&backup(&more))), why, "{more}");
    }
}

#[test]
fn a_backup_that_runs_is_served_without_claims() {
    let export = own();
    let seen = available();
    let volumes = vec!["root".to_owned(), "data".to_owned()];
    let offered = Offered { uid: "backup".into(), kind: "Incremental".into(), volumes };
    assert_eq!((&seen.backup, seen.claims.len()), (&Some(offered), 0));
    let first = plan(&export, &seen, None);
    assert_eq!(
        first.actions,
        [Action::MakeService, Action::MakePod("token".into()), Action::MakeCertificate]
    );
    assert_eq!(told(&first), ["Ready=False Initializing"]);
    assert_eq!(first.status.virtual_machine_name, None);
    let starts = plan(&export, &seen, Some(&pod_of(&export, "Pending")));
    assert_eq!(told(&starts), ["Ready=False PodPending"]);
    let serves = plan(&export, &seen, Some(&pod_of(&export, "Running")));
    assert_eq!((serves.actions.len(), serves.status.phase.clone()), (0, Some(Phase::Ready)));
    assert_eq!(told(&serves), ["Ready=True VirtualMachineBackupReady"]);
    assert_eq!(serves.again_after.unwrap().as_secs(), 3600, "its time alone is looked at");
    let links = json!(serves.status.links);
    for (kind, base, cert) in [
        ("internal", "https://virt-export-b.ns.svc", "BUNDLE"),
        (
            "external",
            "https://export.example.org/api/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/b",
            "CERT",
        ),
    ] {
        let volume = |name: &str| {
            let url = |what: &str| format!("{base}/exports/{name}/{what}");
            json!({"name": name, "endpoints": [
                {"endpoint": "data", "url": url("data")}, {"endpoint": "map", "url": url("map")}]})
        };
        assert_eq!(links[kind]["backups"], json!([volume("root"), volume("data")]));
        assert_eq!((&links[kind]["cert"], links[kind].get("volumes")), (&json!(cert), None));
    }
    let ended = backup(&json!({"status": {"conditions": [{"type": "Progressing", "status": "False"}]}}));
    let paused = plan(&export, &of_backup(&export, Some(&ended)), Some(&pod_of(&export, "Running")));
    let message = "VMBackup is not progressing".to_owned();
    assert_eq!(paused.actions, [Action::DeletePod { reason: "ExportPaused", message }]);
}

#[test]
fn the_pod_is_told_what_is_offered() {
    let pod = pod_of(&own(), "Running");
    assert_eq!(restricted::violations(&pod), [""; 0]);
    let spec = pod.spec.as_ref().unwrap();
    let environment = spec.containers[0].env.as_ref().unwrap();
    let told: Vec<(&str, &str)> = environment
        .iter()
        .filter(|one| one.name.starts_with("BACKUP"))
        .map(|one| (one.name.as_str(), one.value.as_deref().unwrap()))
        .collect();
    let wanted = [
        ("BACKUP0_BACKUP_PATH", "root"),
        ("BACKUP0_DATA_URI", "/exports/root/data"),
        ("BACKUP0_MAP_URI", "/exports/root/map"),
        ("BACKUP1_BACKUP_PATH", "data"),
        ("BACKUP1_DATA_URI", "/exports/data/data"),
        ("BACKUP1_MAP_URI", "/exports/data/map"),
        ("BACKUP_CACERT", "CAS"),
        ("BACKUP_UID", "backup"),
        ("BACKUP_TYPE", "Incremental"),
    ];
    assert_eq!(told, wanted);
    let volumes: Vec<&str> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    assert_eq!(volumes, ["certificates", "token"]);
}

#[test]
fn the_pod_of_an_earlier_export_of_the_name_is_waited_for() {
    let (export, mut earlier) = (own(), own());
    earlier.metadata.uid = Some("earlier".into());
    let waits = plan(&export, &available(), Some(&pod_of(&earlier, "Running")));
    assert_eq!((waits.actions.len(), waits.status.phase.clone()), (0, Some(Phase::Pending)));
    assert_eq!(waits.status.links, Some(Default::default()));
}
