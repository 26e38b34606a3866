use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::sync::mpsc;

use super::super::shared::{Final, Identity};
use super::*;
use crate::hypervisor::{DomainState, DomainStatus, DomainUsage, Hypervisor};
use crate::life::runner::View;

type Outcome = Result<(), HypervisorError>;

/// A hypervisor whose moves end as they are told to.
struct Fake {
    moves: Mutex<Vec<Move>>,
    outcome: Mutex<Receiver<Outcome>>,
    /// Where an abort ends the move.
    aborted: Sender<Outcome>,
    kept: Mutex<u32>,
    agent: Mutex<Vec<String>>,
    status: Mutex<DomainStatus>,
}

fn no() -> HypervisorError {
    HypervisorError::Refused { action: "move the domain", message: "no".into() }
}

impl Hypervisor for Fake {
    fn state(&self) -> Result<DomainState, HypervisorError> {
        Ok(DomainState::Active)
    }
    fn status(&self) -> Result<DomainStatus, HypervisorError> {
        Ok(*self.status.lock().unwrap())
    }
    fn start(&self, _: &str, _: bool) -> Outcome {
        Err(no())
    }
    fn suspend(&self) -> Outcome {
        Err(no())
    }
    fn resume(&self) -> Outcome {
        Err(no())
    }
    fn reset(&self) -> Outcome {
        Err(no())
    }
    fn reboot(&self) -> Outcome {
        Err(no())
    }
    fn shutdown(&self) -> Outcome {
        Err(no())
    }
    fn destroy(&self) -> Outcome {
        Err(no())
    }
    fn undefine(&self) -> Outcome {
        Err(no())
    }
    fn xml(&self) -> Result<String, HypervisorError> {
        Ok("<domain type='kvm'><name>x</name><devices><disk type='file' device='disk'><source file='/a'/>\
            <target dev='vda' bus='virtio'/><alias name='ua-root'/></disk></devices></domain>"
            .into())
    }
    fn agent(&self, command: &str, _: Duration) -> Result<String, HypervisorError> {
        self.agent.lock().unwrap().push(command.into());
        Ok(r#"{"return": {}}"#.into())
    }
    fn migrate(&self, to: &Move) -> Outcome {
        self.moves.lock().unwrap().push(to.clone());
        self.outcome.lock().unwrap().recv().unwrap()
    }
    fn progress(&self) -> Result<Option<Progress>, HypervisorError> {
        Ok(Some(Progress { total: 100, remaining: 40, ..Progress::default() }))
    }
    fn limit_downtime(&self, _: Duration) -> Outcome {
        Ok(())
    }
    fn abort_move(&self) -> Outcome {
        self.aborted.send(Err(no())).unwrap();
        Ok(())
    }
    fn keep(&self) -> Outcome {
        *self.kept.lock().unwrap() += 1;
        Ok(())
    }
    fn usage(&self) -> Result<DomainUsage, HypervisorError> {
        Ok(DomainUsage::default())
    }
    fn version(&self) -> Result<String, HypervisorError> {
        Err(no())
    }
}

fn machine() -> (Arc<Shared>, Arc<Fake>, Sender<Outcome>) {
    let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
    let (tell, outcome) = channel();
    let fake = Arc::new(Fake {
        moves: Mutex::default(),
        outcome: Mutex::new(outcome),
        aborted: tell.clone(),
        kept: Mutex::default(),
        agent: Mutex::default(),
        status: Mutex::new(DomainStatus { status: Status::Running, reason: reason::BOOTED }),
    });
    let hypervisor: Arc<dyn Hypervisor> = fake.clone();
    shared.view.send_replace(View { running: true, hypervisor: Some(hypervisor), ..View::default() });
    shared.facts.send_modify(|facts| facts.started_at = Some(Duration::from_secs(1)));
    (shared, fake, tell)
}

fn request(uid: &str) -> cmd::MigrationRequest {
    let options = Options { migration_uid: uid.into(), bandwidth: MIB + 1, ..Options::default() };
    cmd::MigrationRequest {
        vmi: Some(cmd::Vmi { vmi_json: b"{}".to_vec() }),
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
    assert_eq!(begin(&shared, request("b")).await.unwrap_err(), "migration a runs; one at a time");
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
    assert_eq!(cancel(&shared).unwrap_err(), "no migration runs");
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
    let last = Final { status: Status::Shutoff, reason: reason::MIGRATED, message: String::new() };
    shared.facts.send_modify(|facts| facts.ended = Some(last));
    assert!(!over(&shared).await.failed);
}

#[tokio::test]
async fn nothing_moves_that_does_not_run() {
    let (shared, ..) = machine();
    shared.facts.send_modify(|facts| facts.started_at = None);
    assert_eq!(begin(&shared, request("a")).await.unwrap_err(), "no machine runs here");
    assert!(begin(&shared, request("../a")).await.unwrap_err().starts_with("options.migrationUid: '../a'"));
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
