use std::sync::mpsc::Sender;

use tokio::sync::mpsc;

use super::super::shared::{Final, Identity};
use super::fake::{Fake, Outcome, no};
use super::*;
use crate::hypervisor::{DomainStatus, Hypervisor};
use crate::life::runner::View;

fn machine() -> (Arc<Shared>, Arc<Fake>, Sender<Outcome>) {
    let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
    let (fake, tell) = Fake::new(Status::Running);
    let hypervisor: Arc<dyn Hypervisor> = fake.clone();
    shared.view.send_replace(View { running: true, hypervisor: Some(hypervisor), ..View::default() });
    shared.facts.send_modify(|facts| facts.started_at = Some(Duration::from_secs(1)));
    (shared, fake, tell)
}

/// The machine's VMI as virt-handler has it from virt-controller.
fn vmi() -> Value {
    json!({
        "metadata": {"name": "x"},
        "spec": {"domain": {"devices": {}}, "volumes": [{"name": "root", "containerDisk": {"image": "i"}}]},
        "status": {"migrationMethod": "BlockMigration"},
    })
}

fn request(uid: &str) -> cmd::MigrationRequest {
    let options = Options { migration_uid: uid.into(), bandwidth: MIB + 1, ..Options::default() };
    cmd::MigrationRequest {
        vmi: Some(cmd::Vmi { vmi_json: serde_json::to_vec(&vmi()).unwrap() }),
        options: serde_json::to_vec(&options).unwrap(),
    }
}

async fn over(shared: &Shared) -> Migration {
    let mut facts = shared.facts.subscribe();
    let facts = facts.wait_for(|facts| facts.migration.as_ref().is_some_and(|m| m.completed)).await;
    facts.unwrap().migration.clone().unwrap()
}

#[tokio::test]
async fn a_machine_moves_once_however_often_it_is_asked() {
    let (shared, fake, tell) = machine();
    begin(&shared, request("a")).await.unwrap();
    begin(&shared, request("a")).await.unwrap();
    let refused = begin(&shared, request("b")).await.unwrap_err();
    assert_eq!(chain(&refused), "migration a runs; one at a time");
    tell.send(Ok(())).unwrap();
    let migration = over(&shared).await;
    assert!(!migration.failed && migration.abort_status.is_none(), "{migration:?}");
    begin(&shared, request("a")).await.unwrap();
    let moves = fake.moves.lock().unwrap().clone();
    let [to] = moves.as_slice() else { panic!("{moves:?}") };
    assert_eq!(to.connection, "qemu+unix:///session?socket=/var/run/kubevirt/migration-a-0.sock");
    assert_eq!(to.state, "unix:///var/run/kubevirt/migration-a-49152.sock");
    assert_eq!((to.copied.as_slice(), to.bandwidth_mib), (["vda".to_owned()].as_slice(), 2));
    assert!(cancel(&shared).is_err());
}

#[tokio::test]
async fn a_move_that_fails_leaves_a_machine_that_can_move_later() {
    let (shared, fake, tell) = machine();
    begin(&shared, request("a")).await.unwrap();
    tell.send(Err(no())).unwrap();
    let failed = over(&shared).await;
    assert_eq!((failed.failed, failed.failure_reason.as_str()), (true, "move the domain: no"));
    begin(&shared, request("b")).await.unwrap();
    tell.send(Ok(())).unwrap();
    assert_eq!(over(&shared).await.uid, "b");
    assert_eq!(fake.moves.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_abort_ends_the_move_and_says_so() {
    let (shared, ..) = machine();
    assert!(matches!(cancel(&shared), Err(MigrationError::NoMigration)));
    begin(&shared, request("a")).await.unwrap();
    cancel(&shared).unwrap();
    cancel(&shared).unwrap();
    let aborted = over(&shared).await;
    assert_eq!((aborted.failed, aborted.abort_status), (true, Some(AbortStatus::Succeeded)));
    assert!(aborted.failure_reason.starts_with("it was aborted"), "{aborted:?}");
}

#[tokio::test]
async fn a_broken_call_is_no_failure_when_the_machine_has_left() {
    let (shared, fake, tell) = machine();
    *fake.status.lock().unwrap() = DomainStatus { status: Status::Paused, reason: reason::MIGRATION };
    begin(&shared, request("a")).await.unwrap();
    tell.send(Err(no())).unwrap();
    let last =
        Final { status: Status::Shutoff, reason: reason::MIGRATED, message: String::new(), with_pod: false };
    shared.facts.send_modify(|facts| facts.ended = Some(last));
    assert!(!over(&shared).await.failed);
}

#[tokio::test]
async fn nothing_moves_that_does_not_run() {
    let (shared, ..) = machine();
    shared.facts.send_modify(|facts| facts.started_at = None);
    assert!(matches!(begin(&shared, request("a")).await, Err(MigrationError::NoMachine)));
    assert!(matches!(begin(&shared, request("../a")).await, Err(MigrationError::Uid(uid)) if uid == "../a"));
    assert!(finalize(&shared, None).await.is_err());
}

#[tokio::test]
async fn what_has_come_is_kept_and_learns_the_time() {
    let (shared, fake, _tell) = machine();
    shared.agent_connected.send_replace(true);
    finalize(&shared, None).await.unwrap();
    assert_eq!(*fake.kept.lock().unwrap(), 1);
    assert!(fake.agent.lock().unwrap()[0].contains("guest-set-time"));
}

#[tokio::test(start_paused = true)]
async fn links_go_down_and_up_where_a_plugin_asks_for_it() {
    let (shared, fake, _tell) = machine();
    let registered = json!({
        "fresh": {"domainAttachmentType": "tap", "migration": {"method": "link-refresh"}},
        "still": {"domainAttachmentType": "tap", "migration": {}},
    });
    let vmi = json!({
        "metadata": {"name": "x", "annotations": {"podvirt.io/binding-plugins": registered.to_string()}},
        "spec": {"domain": {"devices": {"interfaces": [
            {"name": "a", "binding": {"name": "still"}}, {"name": "b", "binding": {"name": "fresh"}},
        ]}}},
    });
    let vmi = cmd::Vmi { vmi_json: serde_json::to_vec(&vmi).unwrap() };
    finalize(&shared, Some(&vmi)).await.unwrap();
    assert_eq!(*fake.links.lock().unwrap(), [("ua-b".to_owned(), false), ("ua-b".to_owned(), true)]);
}

#[tokio::test]
async fn nothing_moves_of_which_virt_controller_has_not_said_how() {
    let (shared, fake, _tell) = machine();
    for status in [json!({}), json!({"migrationMethod": "LiveMigration"})] {
        let mut vmi = vmi();
        vmi["status"] = status;
        let vmi_json = serde_json::to_vec(&vmi).unwrap();
        let here = chain(&admit(&vmi_json).unwrap_err());
        let request = cmd::MigrationRequest { vmi: Some(cmd::Vmi { vmi_json }), ..request("a") };
        let there = chain(&begin(&shared, request).await.unwrap_err());
        assert_eq!(here, there);
        assert!(here.starts_with("status.migrationMethod: "), "{here}");
    }
    assert_eq!(*fake.moves.lock().unwrap(), []);
    assert_eq!(shared.facts.borrow().migration, None);
    admit(&serde_json::to_vec(&vmi()).unwrap()).unwrap();
}

#[tokio::test]
async fn a_frozen_guest_stays_until_it_is_thawed_and_one_that_moves_is_not_frozen() {
    let (shared, fake, tell) = machine();
    shared.agent_connected.send_replace(true);
    shared.freezes.freeze(Arc::clone(&shared), None).await.unwrap();
    let why = chain(&begin(&shared, request("a")).await.unwrap_err());
    assert!(why.starts_with("the guest's file systems are frozen"), "{why}");
    assert_eq!(*fake.moves.lock().unwrap(), []);
    shared.freezes.thaw(Arc::clone(&shared)).await.unwrap();
    begin(&shared, request("a")).await.unwrap();
    let why = shared.freezes.freeze(Arc::clone(&shared), None).await.unwrap_err().to_string();
    assert!(why.starts_with("the machine moves to another node"), "{why}");
    let told = fake.agent.lock().unwrap().clone();
    let told: Vec<&str> = told.iter().map(|t| if t.contains("thaw") { "thaw" } else { "freeze" }).collect();
    assert_eq!(told, ["freeze", "thaw"]);
    tell.send(Err(no())).unwrap();
    assert!(over(&shared).await.failed);
    // It has stayed.
    shared.freezes.freeze(Arc::clone(&shared), None).await.unwrap();
}

#[tokio::test]
async fn an_answer_waits_for_the_report_that_tells_the_same() {
    let (shared, ..) = machine();
    timeout(Duration::from_millis(1), reported(&shared)).await.expect("there is nothing to report");
    let report = |uid: &str, completed| {
        let migration = Migration { uid: uid.into(), completed, ..Migration::default() };
        shared.report.send_modify(|report| report.migration = Some(migration));
    };
    let waits = async || timeout(Duration::from_millis(50), reported(&shared)).await.is_err();
    report("older", true);
    begin(&shared, request("a")).await.unwrap();
    assert!(waits().await, "of another one");
    report("a", false);
    assert!(!waits().await);
    cancel(&shared).unwrap();
    over(&shared).await;
    assert!(waits().await, "it has ended since");
    report("a", true);
    assert!(!waits().await);
}
