use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action as Requeue;
use podvirt_api::v1::{VirtualMachineBackup as Backup, VirtualMachineExport as Export};
use podvirt_daemon::pki::{Certificate, KeyPairPem, Purpose, make_ca};
use podvirt_daemon::testing;
use serde_json::{Value, json};

use crate::backup::controller::one;
use crate::backup::fixtures::{backup, begun, complete, export, held, mounted, pulls, tracker, vmi};
use crate::backup::shell_tests::{Scene, done, names};
use crate::failure::Error;

/// A backup with a century left.
fn pulled(initiated: Option<&str>) -> Backup {
    let mut of = pulls(initiated, initiated.map(|_| "False"));
    of["spec"]["ttlDuration"] = json!("876000h");
    backup(&of)
}

fn scene(
    of: &Backup,
    told: &Value,
    exports: Vec<Export>,
    ca: Option<KeyPairPem>,
    answer: (u16, Value),
) -> Scene {
    Scene::with((of, &tracker(&json!({})), &vmi(&held(told, mounted()))), (exports, ca), answer)
}

fn reason(asked: &(String, Value)) -> &str {
    let conditions = asked.1["status"]["conditions"].as_array().unwrap();
    let initiated = conditions.iter().find(|one| one["type"] == "ExportInitiated");
    initiated.unwrap()["reason"].as_str().unwrap()
}

#[tokio::test]
async fn an_export_is_made_once() {
    let first = pulled(None);
    let before = scene(&first, &begun(), vec![], None, done());
    one(&first, &before.shared).await.unwrap();
    assert_eq!(names(&before.asked()), ["PATCH b/status", "event VirtualMachineBackupPreparingExport"]);

    let of = pulled(Some("False"));
    let made = scene(&of, &begun(), vec![], None, done());
    let again = one(&of, &made.shared).await.unwrap();
    assert_ne!(again, Requeue::await_change(), "its life ends");
    let asked = made.asked();
    assert_eq!(names(&asked), ["POST ns/virtualmachineexports", "PATCH b/status"]);
    assert_eq!(asked[0].1["kind"], "VirtualMachineExport");
    assert_eq!(asked[0].1["metadata"]["ownerReferences"][0]["uid"], "u");
    // An earlier pass has made it, and the cache lags.
    let lags = scene(&of, &begun(), vec![], None, testing::failure(409, "AlreadyExists", "there"));
    one(&of, &lags.shared).await.unwrap();
    assert_eq!(names(&lags.asked()), ["POST ns/virtualmachineexports", "PATCH b/status"]);

    let full = scene(&of, &begun(), vec![], None, testing::failure(403, "Forbidden", "quota"));
    assert!(matches!(one(&of, &full.shared).await, Err(Error::Refused(_))));
    let asked = full.asked();
    assert_eq!(names(&asked), ["POST ns/virtualmachineexports", "PATCH b/status"]);
    assert_eq!(reason(&asked[1]), "VirtualMachineExport b not made: quota");
}

#[tokio::test]
async fn the_machine_gets_a_certificate_that_names_the_backup() {
    let ca = make_ca(Timestamp::now(), Duration::from_secs(3600)).unwrap();
    let signer = Certificate::all_from_pem(&ca.certificate).unwrap().remove(0);
    let of = pulled(Some("False"));
    let there = || vec![export("Pending", &json!({}))];
    let told = scene(&of, &begun(), there(), Some(ca.clone()), done());
    one(&of, &told.shared).await.unwrap();
    let asked = told.asked();
    let wanted = ["PUT vm/backup", "PATCH b/status", "event VirtualMachineBackupExportInitiated"];
    assert_eq!(names(&asked), wanted);
    let options = &asked[0].1;
    assert_eq!(options["cmd"], "Export");
    assert_eq!(options["caCert"].as_str().unwrap(), ca.certificate.trim());
    let text = |field: &str| options[field].as_str().unwrap().to_owned();
    let pair = KeyPairPem { certificate: text("backupCert"), key: text("backupKey") };
    pair.certified_key().unwrap();
    let leaf = Certificate::all_from_pem(&pair.certificate).unwrap().remove(0);
    assert_eq!(leaf.common_name, "kubevirt.io:system:client:u");
    assert_eq!((leaf.purpose, &leaf.authority_key), (Some(Purpose::Client), &signer.subject_key));
    assert_eq!(leaf.not_after, signer.not_after, "it lives no longer than what has signed it");

    for (ca, answer, why) in [
        (None, done(), "the CA of exports is not there yet; virt-api makes it"),
        (
            Some(ca),
            testing::failure(409, "Conflict", "backup b is not under way"),
            "backup b is not under way",
        ),
    ] {
        let refused = scene(&of, &begun(), there(), ca, answer);
        assert!(matches!(one(&of, &refused.shared).await, Err(Error::Refused(_))));
        let asked = refused.asked();
        assert_eq!(names(&asked).last(), Some(&"PATCH b/status"));
        assert_eq!(reason(&asked[asked.len() - 1]), format!("the machine does not offer its disks: {why}"));
    }
}

#[tokio::test]
async fn an_abort_that_is_refused_is_not_written() {
    let mut of = pulled(Some("True"));
    of.spec.ttl_duration = Some("1s".into());
    let there = || vec![export("Ready", &json!({}))];
    let ended = scene(&of, &begun(), there(), None, done());
    one(&of, &ended.shared).await.unwrap();
    let asked = ended.asked();
    assert_eq!(names(&asked), ["PUT vm/backup", "PATCH b/status", "event VirtualMachineBackupAborting"]);
    assert_eq!((&asked[0].1["cmd"], &asked[2].1["type"]), (&json!("Abort"), &json!("Normal")));
    let refused = scene(&of, &begun(), there(), None, testing::failure(500, "InternalError", "no libvirt"));
    assert!(matches!(one(&of, &refused.shared).await, Err(Error::Refused(_))));
    assert_eq!(names(&refused.asked()), ["PUT vm/backup"]);
}

#[tokio::test]
async fn the_very_export_that_was_seen_is_deleted() {
    let of = pulled(Some("True"));
    let scene = scene(&of, &complete(), vec![export("Ready", &json!({}))], None, done());
    one(&of, &scene.shared).await.unwrap();
    let asked = scene.asked();
    assert_eq!(asked[0].0, "DELETE virtualmachineexports/b");
    assert_eq!(asked[0].1["preconditions"], json!({"uid": "e"}));
}
