//! The shells before an API server that answers as it is told and keeps what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use kube::runtime::reflector::{ObjectRef, store};
use kube::runtime::watcher::Event;
use podvirt_api::v1::{
    VirtualMachine, VirtualMachineBackup, VirtualMachineBackupTracker, VirtualMachineExport,
    VirtualMachineInstance, VirtualMachineInstanceMigration,
};
use podvirt_daemon::events::Recorder;
use podvirt_daemon::pki::KeyPairPem;
use podvirt_daemon::testing::{self, Asked};
use serde_json::{Value, json};

use super::controller::{Context, Shared, cache, changes, evacuations, one};
use super::fixtures::{
    MADE, backup, claim, complete, held, mounted, of_tracker, runs, tracker, vmi, with_checkpoint,
};
use super::{orphan, trackers};
use crate::export::Exports;
use crate::failure::Error;
use crate::kept::{Kept, Kind};
use crate::metrics::Metrics;
use crate::storage::Storage;
use crate::vm::Machines;
use crate::vmi::{Change, View};

pub(super) struct Scene {
    asked: Arc<Mutex<VecDeque<Asked>>>,
    context: Context,
    pub(super) shared: Shared,
}

fn kept<K: Kind>(list: Vec<K>) -> Kept<K> {
    Kept::with(list).0
}

impl Scene {
    /// A cluster with a machine, its instance, a backup and a tracker; `answer` is to subresources.
    fn new(
        backup: &VirtualMachineBackup,
        tracker: &VirtualMachineBackupTracker,
        instance: &VirtualMachineInstance,
        answer: (u16, Value),
    ) -> Scene {
        Self::with((backup, tracker, instance), (Vec::new(), None), answer)
    }

    /// With exports, whose certificates `ca` signs; `answer` is also to an export that is made.
    pub(super) fn with(
        (backup, tracker, instance): (
            &VirtualMachineBackup,
            &VirtualMachineBackupTracker,
            &VirtualMachineInstance,
        ),
        (exports, ca): (Vec<VirtualMachineExport>, Option<KeyPairPem>),
        answer: (u16, Value),
    ) -> Scene {
        let there = [json!(backup), json!(tracker), json!(instance)];
        let (client, asked) = testing::recorded("ns", move |(what, change)| {
            let makes = what.starts_with("POST") && what.ends_with("/virtualmachineexports");
            if what.contains("/apis/subresources.kubevirt.io/") || (makes && answer.0 != 200) {
                return Some(answer.clone());
            }
            let (method, path) = what.split_once(' ')?;
            if path.split('?').next()?.ends_with("/virtualmachinebackuptrackers") {
                let mut other = there[1].clone();
                other["spec"]["source"]["name"] = "other".into();
                other["status"]["latestCheckpoint"]["name"] = "of-another".into();
                return Some((200, json!({"metadata": {}, "items": [there[1], other]})));
            }
            let name = path.strip_suffix("/status").unwrap_or(path).rsplit('/').next()?;
            let Some(mut found) = there.iter().find(|one| one["metadata"]["name"] == name).cloned() else {
                return (method == "GET").then(|| testing::failure(404, "NotFound", "it is not there"));
            };
            if method == "PATCH" && change.is_object() {
                json_patch::merge(&mut found, change);
            }
            Some((200, found))
        });
        let machine: VirtualMachine =
            serde_json::from_value(json!({"metadata": {"name": "vm", "namespace": "ns"},
            "spec": {"template": {}}, "status": {"changedBlockTracking": {"state": "Enabled"}}}))
            .unwrap();
        let (machines, mut writer) = Machines::new();
        for event in [Event::Init, Event::InitApply(machine), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        let (view, mut writer) = View::new();
        view.fill_pods();
        for event in [Event::Init, Event::InitApply(instance.clone()), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        let storage = Storage { claims: kept(vec![claim("Filesystem")]), ..Storage::new().0 };
        let context = Context {
            recorder: Recorder::new(client.clone(), "virt-controller", None),
            metrics: Metrics::new(&mut Default::default()),
            machines,
            view,
            storage,
            exports: Exports::with(client.clone(), exports, ca),
            migrations: {
                let (migrations, mut writer) = store();
                [Event::Init, Event::InitDone].iter().for_each(|event| writer.apply_watcher_event(event));
                migrations
            },
            client,
        };
        let (backups, trackers) = (kept(vec![backup.clone()]), kept(vec![tracker.clone()]));
        Scene { asked, shared: Shared::new(context.clone(), backups, trackers), context }
    }

    /// What was asked beside reads, by the last two parts of the paths, and the bodies.
    pub(super) fn asked(&self) -> Vec<(String, Value)> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let told = asked.into_iter().filter(|(what, _)| !what.starts_with("GET"));
        told.map(|(what, body)| {
            let (method, path) = what.split_once(' ').unwrap();
            if let Some(reason) = body["reason"].as_str().filter(|_| path.ends_with("/events")) {
                return (format!("event {reason}"), body);
            }
            let parts: Vec<&str> = path.rsplit('/').take(2).collect();
            (format!("{method} {}/{}", parts[1], parts[0]), body)
        })
        .collect()
    }
}

pub(super) fn names(asked: &[(String, Value)]) -> Vec<&str> {
    asked.iter().map(|(what, _)| what.as_str()).collect()
}

pub(super) fn done() -> (u16, Value) {
    (200, json!({}))
}

#[tokio::test]
async fn a_patch_holds_the_instance_if_it_is_as_it_was_read() {
    let of = backup(&json!({}));
    let volume = json!({"name": "b-backup-target-pvc", "claimName": "to", "type": "Backup"});
    let mut has_claim = held(&json!({}), mounted());
    has_claim["status"]["changedBlockTracking"]["backupStatus"] = Value::Null;
    for (instance, change) in [
        (json!({}), json!({"op": "add", "path": "/spec/utilityVolumes", "value": [volume]})),
        (
            has_claim,
            json!({"op": "add", "path": "/status/changedBlockTracking/backupStatus",
                "value": {"backupName": "b", "startTimestamp": MADE}}),
        ),
    ] {
        let scene = Scene::new(&of, &tracker(&json!({})), &vmi(&instance), done());
        one(&of, &scene.shared).await.unwrap();
        let asked = scene.asked();
        assert_eq!(names(&asked), ["PATCH virtualmachineinstances/vm", "PATCH b/status"]);
        let unchanged = json!({"op": "test", "path": "/metadata/resourceVersion", "value": "1"});
        assert_eq!(asked[0].1, json!([unchanged, change]));
    }
}

#[tokio::test]
async fn an_instance_is_released_of_a_backup_only_if_that_is_gone() {
    let (of, complete) = (backup(&json!({})), vmi(&held(&complete(), None)));
    let scene = Scene::new(&of, &tracker(&json!({})), &complete, done());
    let unseen = kept(Vec::new());
    orphan::release(&scene.context, &unseen, &complete).await.unwrap();
    assert_eq!(names(&scene.asked()), [""; 0], "the API server has it, and the cache lags");
    let gone = vmi(&held(&json!({"backupName": "gone", "volumes": [{"volumeName": "root"}]}), mounted()));
    orphan::release(&scene.context, &unseen, &gone).await.unwrap();
    let asked = scene.asked();
    assert_eq!(names(&asked), ["PUT vm/backup"]);
    assert_eq!((&asked[0].1["cmd"], &asked[0].1["backupName"]), (&json!("Abort"), &json!("gone")));
}

#[tokio::test]
async fn the_claim_of_a_backup_that_went_before_it_held_the_instance_leaves() {
    let unheld = |volume: &str| {
        let volumes = json!([{"name": volume, "claimName": "to", "type": "Backup"}]);
        vmi(&json!({"spec": {"utilityVolumes": volumes}}))
    };
    let change = json!({"op": "remove", "path": "/spec/utilityVolumes"});
    let another = json!({"spec": {"source": {"name": "other"}}});
    for (of, volume, leaves) in [
        (json!({}), "b-backup-target-pvc", false),
        (of_tracker(), "b-backup-target-pvc", false),
        (another, "b-backup-target-pvc", true),
        (json!({}), "gone-backup-target-pvc", true),
        (json!({}), "no-backups", false),
    ] {
        let (of, instance) = (backup(&of), unheld(volume));
        let scene = Scene::new(&of, &tracker(&json!({})), &instance, done());
        orphan::release(&scene.context, &kept(vec![of.clone()]), &instance).await.unwrap();
        let asked = scene.asked();
        assert_eq!(names(&asked).len(), usize::from(leaves), "{volume}: {asked:?}");
        assert!(!leaves || asked[0].1[1] == change, "{asked:?}");
    }
}

#[tokio::test]
async fn a_backup_that_is_deleted_with_its_tracker_takes_its_claim_along() {
    let mut of = of_tracker();
    json_patch::merge(&mut of, &json!({"metadata": {"deletionTimestamp": MADE}}));
    let of = backup(&of);
    let mut attached = held(&json!({}), None);
    attached["status"]["changedBlockTracking"]["backupStatus"] = Value::Null;
    let scene = Scene::new(&of, &tracker(&json!({})), &vmi(&attached), done());
    let shared = Shared::new(scene.context.clone(), kept(vec![of.clone()]), kept(Vec::new()));
    one(&of, &shared).await.unwrap();
    let asked = scene.asked();
    assert_eq!(names(&asked)[0], "PATCH virtualmachineinstances/vm");
    assert_eq!(asked[0].1[1], json!({"op": "remove", "path": "/spec/utilityVolumes"}));
}

#[tokio::test(start_paused = true)]
async fn backups_of_a_machine_that_is_to_leave_its_node_are_looked_at_and_once_more_after_that() {
    let of = backup(&json!({}));
    let migration = |phase: &str, more: Value| -> VirtualMachineInstanceMigration {
        let mut one = json!({"metadata": {"name": "m", "namespace": "ns", "uid": "m"},
            "spec": {"vmiName": "vm", "priority": "system-critical"}, "status": {"phase": phase}});
        json_patch::merge(&mut one, &more);
        serde_json::from_value(one).unwrap()
    };
    let (migrations, mut writer) = store();
    let mut scene = Scene::new(&of, &tracker(&json!({})), &vmi(&json!({})), done());
    scene.context.migrations = migrations;
    let shared =
        Arc::new(Shared::new(scene.context.clone(), kept(vec![of]), kept(vec![tracker(&json!({}))])));
    let mut queue = Box::pin(evacuations(&shared));
    let rests = json!({"status": {"conditions": [{"type": "MigrationBackoff", "status": "True"}]}});
    let of_user = json!({"spec": {"priority": "user-triggered"}});
    for (one, is_found) in [
        (migration("Pending", rests.clone()), false),
        (migration("Pending", of_user), false),
        (migration("Pending", json!({})), true),
        (migration("Failed", json!({})), true),
        (migration("Failed", json!({})), false),
    ] {
        for event in [Event::Init, Event::InitApply(one.clone()), Event::InitDone] {
            writer.apply_watcher_event(&event);
        }
        let next = tokio::time::timeout(Duration::from_millis(5500), queue.next()).await;
        assert_eq!(next.is_ok(), is_found, "{one:?}");
    }
}

#[tokio::test]
async fn a_start_is_told_whether_it_is_taken_or_not() {
    let of = backup(&json!({}));
    for (answer, is_taken) in [(done(), true), (testing::failure(409, "Conflict", "no libvirt"), false)] {
        let instance = vmi(&held(&json!({}), mounted()));
        let scene = Scene::new(&of, &tracker(&with_checkpoint()), &instance, answer);
        let passed = one(&of, &scene.shared).await;
        assert_eq!(matches!(passed, Err(Error::Refused(_))), !is_taken, "{passed:?}");
        let asked = scene.asked();
        assert_eq!(names(&asked), ["PUT vm/backup", "PATCH b/status"]);
        assert_eq!(asked[0].1["cmd"], "Start");
        assert_eq!(asked[0].1["keepCheckpoints"], json!(["c"]), "those of the machine's own trackers");
        let first = &asked[1].1["status"]["conditions"][0];
        let reason = first["reason"].as_str().unwrap();
        assert_eq!(first["type"], if is_taken { "Progressing" } else { "Initializing" });
        assert_eq!(reason.contains("no libvirt"), !is_taken, "{reason}");
    }
}

#[tokio::test]
async fn the_tracker_says_which_instance_knows_the_checkpoint_before_it_has_it() {
    let mut of = runs();
    json_patch::merge(&mut of, &of_tracker());
    let of = backup(&of);
    let scene = Scene::new(&of, &tracker(&json!({})), &vmi(&held(&complete(), mounted())), done());
    one(&of, &scene.shared).await.unwrap();
    let asked = scene.asked();
    assert_eq!(names(&asked), ["PATCH virtualmachinebackuptrackers/t", "PATCH t/status", "PATCH b/status"]);
    assert_eq!(asked[0].1["metadata"]["annotations"]["backup.podvirt.io/defined-for"], "i/n");
    assert_eq!(asked[1].1["status"]["latestCheckpoint"]["name"], "b-1");
}

#[tokio::test]
async fn the_outcome_is_told_after_it_is_written() {
    let of = backup(&runs());
    let mut instance = held(&complete(), None);
    instance["spec"] = json!({});
    let scene = Scene::new(&of, &tracker(&json!({})), &vmi(&instance), done());
    one(&of, &scene.shared).await.unwrap();
    assert_eq!(names(&scene.asked()), ["PATCH b/status", "event VirtualMachineBackupCompletedSuccessfully"]);
}

#[tokio::test]
async fn a_checkpoint_is_redefined_dropped_or_tried_again() {
    let mut of = with_checkpoint();
    of["metadata"]["annotations"]["backup.podvirt.io/defined-for"] = "former/n".into();
    of["status"]["checkpointRedefinitionRequired"] = true.into();
    let of = tracker(&of);
    for (answer, wanted) in [
        (
            done(),
            &["PUT vm/redefine-checkpoint", "PATCH virtualmachinebackuptrackers/t", "PATCH t/status"][..],
        ),
        (
            testing::failure(422, "Invalid", "no bitmap"),
            &["PUT vm/redefine-checkpoint", "PATCH t/status", "event CheckpointRedefinitionFailed"],
        ),
        (testing::failure(500, "InternalError", "no libvirt"), &["PUT vm/redefine-checkpoint"]),
    ] {
        let code = answer.0;
        let scene = Scene::new(&backup(&json!({})), &of, &vmi(&json!({})), answer);
        let passed = trackers::one(&of, &scene.context).await;
        assert_eq!(passed.is_err(), code == 500);
        let asked = scene.asked();
        assert_eq!(names(&asked), wanted);
        assert_eq!(asked[0].1["name"], "c");
        if code == 200 {
            assert_eq!(asked[1].1["metadata"]["annotations"]["backup.podvirt.io/defined-for"], "i/n");
            assert_eq!(asked[2].1["status"], json!({"checkpointRedefinitionRequired": null}));
        } else if code == 422 {
            let gone = json!({"checkpointRedefinitionRequired": null, "latestCheckpoint": null});
            assert_eq!(asked[1].1["status"], gone);
        }
    }
}

#[tokio::test]
async fn backups_are_looked_at_when_what_they_rest_on_changes() {
    let (waiting, mut running) = (backup(&of_tracker()), backup(&runs()));
    running.metadata.name = Some("r".into());
    let mut pulled = backup(&json!({"spec": {"mode": "Pull"}}));
    pulled.metadata.name = Some("p".into());
    let of = tracker(&json!({}));
    let scene = Scene::new(&waiting, &of, &vmi(&json!({})), done());
    let mut over = backup(&json!({"status": {"conditions": [{"type": "Done", "status": "True"}]}}));
    over.metadata.name = Some("o".into());
    let (backups, _writer) = Kept::listed(cache(), [waiting, running, over, pulled]);
    let (known, _writer) = Kept::listed(Kept::indexed(trackers::names), [of.clone()]);
    let shared = Arc::new(Shared::new(scene.context.clone(), backups, known));
    let mut queue = changes(&shared);
    let mut found = || {
        let all = std::iter::from_fn(|| queue.next().now_or_never().flatten());
        let mut names: Vec<String> = all.map(|one| one.unwrap().obj_ref.name.clone()).collect();
        names.sort();
        names
    };
    for (machine, wanted) in [("vm", &["b", "p", "r"][..]), ("other", &[])] {
        scene.context.view.changed(Change::Machine(ObjectRef::new(machine).within("ns")));
        assert_eq!(found(), wanted, "by itself or by its tracker, of {machine}");
    }
    shared.trackers.taken(&Ok(Event::Apply(of)));
    assert_eq!(found(), ["b"], "its source");
    scene.context.storage.claims.taken(&Ok(Event::Apply(claim("Filesystem"))));
    assert_eq!(found(), ["b", "p"], "its target, as it waits");
    scene.context.storage.claims.taken(&Ok(Event::InitDone));
    assert_eq!(found(), ["b", "p"]);
    shared.trackers.taken(&Ok(Event::InitDone));
    assert_eq!(found(), ["b"]);
    let exports = &scene.context.exports.exports;
    for (name, wanted) in [("p", &["p"][..]), ("b", &[])] {
        let mut export = VirtualMachineExport::default();
        (export.metadata.name, export.metadata.namespace) = (Some(name.into()), Some("ns".into()));
        exports.taken(&Ok(Event::Delete(export)));
        assert_eq!(found(), wanted, "the export of a backup in pull mode");
    }
    exports.taken(&Ok(Event::InitDone));
    assert_eq!(found(), ["p"]);
}
