use std::path::PathBuf;

use podvirt_api::backup::Key;
use podvirt_api::error::chain;
use podvirt_daemon::pki::{Purpose, make_ca, make_leaf};
use podvirt_proto::domain::Status;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::super::migration::fake::Fake;
use super::fake::Jobs;
use super::follow::{Ends, Job, Seen, failure, follow};
use super::place::Place;
use super::room::Room;
use super::tests::{AT, asked, running, shared};
use super::*;
use crate::hypervisor::BackupEnd;

/// A machine whose backup runs, in pull mode or not.
struct Machine {
    shared: Arc<Shared>,
    hypervisor: Arc<Fake>,
    followed: JoinHandle<()>,
    claim: TempDir,
}

impl Machine {
    fn new(pulls: bool) -> Self {
        Self::with(pulls, None)
    }

    fn with(pulls: bool, room: Option<Room>) -> Self {
        let shared = shared(Some(running()));
        let hypervisor = Fake::new(Status::Running).0;
        shared.view.send_modify(|view| view.hypervisor = Some(hypervisor.clone()));
        let claim = tempfile::tempdir().unwrap();
        let place = Place::make(std::fs::File::open(claim.path()).unwrap(), "vm", "b-1").unwrap();
        std::fs::write(place.path().join("b-root.qcow2"), "scratch").unwrap();
        if pulls {
            let socket = claim.path().join("nbd");
            std::fs::write(&socket, "").unwrap();
            shared.pull.begin(&running(), socket);
        }
        let followed = tokio::spawn(follow(shared.clone(), running(), Job { place, pulls, room }));
        Machine { shared, hypervisor, followed, claim }
    }

    fn jobs(&self) -> &Jobs {
        &self.hypervisor.jobs
    }

    async fn ask(&self, cmd: Command) -> Result<(), String> {
        command(&self.shared, "vm", asked("b", cmd, AT)).await.map_err(|error| chain(&error))
    }

    /// Whether the backup has failed and what is told of it, once it has ended, and what is left on the claim.
    async fn ended(self) -> (bool, String, Vec<PathBuf>) {
        self.followed.await.unwrap();
        let backup = self.shared.facts.borrow().backup.clone().unwrap();
        assert!(backup.ended_at_ms.is_some());
        assert!(may_leave(&self.shared).is_ok());
        let left = std::fs::read_dir(self.claim.path()).unwrap().map(|entry| entry.unwrap().path());
        (backup.failed, backup.message, left.collect())
    }
}

#[tokio::test]
async fn an_abort_is_the_good_end_of_a_backup_in_pull_mode() {
    let machine = Machine::new(true);
    assert_eq!(may_leave(&machine.shared), Err(UnderWay::Leaving("b".to_owned())));
    assert_eq!(may_go(&machine.shared, "b-backup-target-pvc"), Err(UnderWay::Writes("b".to_owned())));
    machine.ask(Command::Abort).await.unwrap();
    // Asked again ahead of the end, it is not asked of the hypervisor.
    machine.ask(Command::Abort).await.unwrap();
    assert_eq!(*machine.jobs().aborts.lock().unwrap(), 1);
    let refused = machine.shared.pull.export(&running(), target(), drop).unwrap_err();
    assert_eq!(chain(&refused), "backup b is about to end");
    assert_eq!(machine.ended().await, (false, String::new(), Vec::new()));
}

#[tokio::test]
async fn an_abort_that_is_refused_leaves_the_backup_as_it_is() {
    let machine = Machine::new(true);
    *machine.jobs().refusals.lock().unwrap() = 1;
    let refused = machine.ask(Command::Abort).await.unwrap_err();
    assert!(refused.ends_with("no"), "{refused}");
    machine.shared.pull.export(&running(), target(), drop).unwrap();
    // It is no good end then.
    *machine.jobs().end.lock().unwrap() = Some(BackupEnd::Complete);
    let ended = machine.ended().await;
    assert_eq!(ended, (true, "the job has ended before it was asked to".to_owned(), Vec::new()));
}

#[tokio::test]
async fn a_machine_that_ends_takes_its_backup_along() {
    let machine = Machine::new(true);
    *machine.jobs().gone.lock().unwrap() = true;
    assert_eq!(machine.ended().await, (true, "the machine has ended".to_owned(), Vec::new()));
}

#[tokio::test]
async fn a_backup_ends_before_its_claim_is_full() {
    let machine = Machine::with(true, Some(Room::all_of(std::path::Path::new("/"))));
    let (failed, why, left) = machine.ended().await;
    assert!(failed && why.starts_with("No space left on device"), "{why}");
    assert_eq!(left, [""; 0].map(PathBuf::from));
}

#[tokio::test]
async fn checkpoints_that_no_tracker_and_no_backup_goes_on_from_are_forgotten() {
    let machine = Machine::new(false);
    let kept = |keep: Option<&[&str]>, incremental: Option<&str>| Options {
        keep_checkpoints: keep.map(|all| all.iter().map(|name| (*name).to_owned()).collect()),
        incremental: incremental.map(ToOwned::to_owned),
        ..Options::default()
    };
    for (options, wanted) in [
        (kept(None, Some("a")), None),
        (kept(Some(&[]), None), Some(&[][..])),
        (kept(Some(&["b"]), Some("a")), Some(&["a", "b"][..])),
    ] {
        *machine.jobs().kept.lock().unwrap() = None;
        checkpoint::forget_superseded(&machine.shared, &options).await;
        let told = machine.jobs().kept.lock().unwrap().clone();
        let wanted = wanted.map(|all| all.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(told, wanted);
    }
}

#[tokio::test]
async fn copies_stay_where_all_is_copied() {
    let machine = Machine::new(false);
    let copies = machine.claim.path().join("vm");
    assert_eq!(machine.ask(Command::Export).await.unwrap_err(), "exportServerAddr: required");
    *machine.jobs().end.lock().unwrap() = Some(BackupEnd::Complete);
    assert_eq!(machine.ended().await, (false, String::new(), vec![copies]));
    let machine = Machine::new(false);
    *machine.jobs().end.lock().unwrap() = Some(BackupEnd::Aborted);
    assert_eq!(machine.ended().await, (true, "backup aborted".to_owned(), Vec::new()));
}

#[test]
fn how_a_job_has_ended_goes_by_what_was_to_end_it() {
    use BackupEnd::{Aborted, Complete, Failed};
    use Ends::{Asked, ByItself, Unasked};
    let early = Some("the job has ended before it was asked to");
    for (ends, seen, wanted) in [
        (ByItself, Seen::Told(Complete), None),
        (ByItself, Seen::Told(Aborted), Some("backup aborted")),
        (ByItself, Seen::Told(Failed("full".into())), Some("full")),
        (ByItself, Seen::Gone, Some("the machine has ended")),
        (ByItself, Seen::Lost("away".into()), Some("away")),
        (Unasked, Seen::Told(Complete), early),
        (Unasked, Seen::Told(Aborted), early),
        (Unasked, Seen::Told(Failed("full".into())), Some("full")),
        (Unasked, Seen::Gone, Some("the machine has ended")),
        (Unasked, Seen::Lost("away".into()), Some("away")),
        (Asked, Seen::Told(Complete), None),
        (Asked, Seen::Told(Aborted), None),
        (Asked, Seen::Told(Failed("full".into())), Some("full")),
        (Asked, Seen::Gone, None),
        (Asked, Seen::Lost("away".into()), Some("away")),
    ] {
        assert_eq!(failure(ends, seen.clone()).as_deref(), wanted, "{ends:?} {seen:?}");
    }
}

#[test]
fn the_socket_has_a_path_that_a_socket_can_have() {
    let socket = pull::socket("a25ddbdd-6e5c-4dfc-9dbf-1d4ebd0c2e6e").unwrap();
    assert_eq!(
        socket.to_str(),
        Some("/var/run/kubevirt-private/a25ddbdd-6e5c-4dfc-9dbf-1d4ebd0c2e6e/backup-nbd")
    );
    let error = chain(&pull::socket(&"x".repeat(100)).unwrap_err());
    assert!(error.ends_with("137 bytes; 107 are allowed"), "{error}");
}

fn export() -> Options {
    let (now, day) = (jiff::Timestamp::now(), std::time::Duration::from_secs(86_400));
    let ca = make_ca(now, day).unwrap();
    let leaf = make_leaf(&ca, "m", &[], Purpose::Client, now, day).unwrap();
    Options {
        export_server_addr: Some("virt-export-b.ns.svc".into()),
        export_server_name: Some("virt-export-b.ns.svc".into()),
        backup_key: Some(Key(leaf.key)),
        backup_cert: Some(leaf.certificate),
        ca_cert: Some(ca.certificate),
        ..asked("b", Command::Export, AT)
    }
}

fn target() -> Target {
    Target::new(&export()).unwrap()
}

#[tokio::test]
async fn an_export_is_of_the_backup_in_pull_mode_that_runs() {
    let machine = Machine::new(true);
    command(&machine.shared, "vm", export()).await.unwrap();
    // Again, with a new certificate.
    command(&machine.shared, "vm", export()).await.unwrap();
    for options in [
        Options { backup_name: "c".into(), ..export() },
        Options {
            backup_start_time: asked("b", Command::Export, "2026-01-02T03:04:06Z").backup_start_time,
            ..export()
        },
    ] {
        let name = options.backup_name.clone();
        let refused = command(&machine.shared, "vm", options).await.unwrap_err();
        assert_eq!(chain(&refused), format!("backup {name} is not under way"));
    }
    machine.ask(Command::Abort).await.unwrap();
    let shared = machine.shared.clone();
    machine.ended().await;
    let late = command(&shared, "vm", export()).await.unwrap_err();
    assert_eq!(chain(&late), "backup b is not under way");
    let pushes = Machine::new(false);
    let refused = command(&pushes.shared, "vm", export()).await.unwrap_err();
    assert_eq!(chain(&refused), "backup b is not one in pull mode");
}

#[test]
fn what_an_export_lacks_is_told_and_the_key_is_not() {
    let all = export();
    for (options, wanted) in [
        (Options { export_server_addr: None, ..all.clone() }, "exportServerAddr: required"),
        (Options { export_server_addr: Some(String::new()), ..all.clone() }, "exportServerAddr: required"),
        (
            Options { export_server_addr: Some("host:443".into()), ..all.clone() },
            "exportServerAddr: 'host:443': a host's name without a port is allowed",
        ),
        (Options { export_server_name: None, ..all.clone() }, "exportServerName: required"),
        (
            Options { export_server_name: Some("a b".into()), ..all.clone() },
            "exportServerName: 'a b': a DNS name is allowed",
        ),
        (Options { ca_cert: Some("x".into()), ..all.clone() }, "caCert: certificates as PEM are allowed"),
        (Options { backup_cert: None, ..all.clone() }, "backupCert: required"),
        (Options { backup_key: None, ..all.clone() }, "backupKey: required"),
        (
            Options { backup_key: Some(Key("secret".into())), ..all.clone() },
            "backupKey: a private key as PEM is allowed",
        ),
    ] {
        assert_eq!(chain(&Target::new(&options).unwrap_err()), wanted);
    }
    let other = Options { backup_key: export().backup_key, ..all.clone() };
    let error = chain(&Target::new(&other).unwrap_err());
    assert!(error.starts_with("backupCert, backupKey: they do not fit"), "{error}");
    let told = format!("{:?} {}", target(), target());
    assert!(told.ends_with(" virt-export-b.ns.svc:443") && !told.contains("Key"), "{told}");
}
