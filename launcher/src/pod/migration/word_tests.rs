use std::os::unix::process::{CommandExt, ExitStatusExt};

use podvirt_proto::migration::Migration;
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::super::super::shared::Identity;
use super::super::fake::Fake;
use super::*;
use crate::hypervisor::Hypervisor;
use crate::life::runner::View;

/// Two launchers and the way between them.
struct Bed {
    source: Arc<Shared>,
    target: Arc<Shared>,
    there: Arc<Fake>,
    socket: PathBuf,
    directory: TempDir,
    _taker: JoinSet<()>,
}

fn launcher(status: Status) -> (Arc<Shared>, Arc<Fake>) {
    let shared = Arc::new(Shared::new(Identity::default(), mpsc::channel(1).0));
    let (fake, _) = Fake::new(status);
    let hypervisor: Arc<dyn Hypervisor> = fake.clone();
    shared.view.send_replace(View { hypervisor: Some(hypervisor), ..View::default() });
    (shared, fake)
}

impl Bed {
    fn new(source: Status) -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("word");
        let listener = UnixListener::bind(&socket).unwrap();
        let ((source, _), (target, there)) = (launcher(source), launcher(Status::Paused));
        let mut taker = JoinSet::new();
        taker.spawn(take(target.clone(), listener));
        Bed { source, target, there, socket, directory, _taker: taker }
    }

    /// The source's run directory.
    fn runtime(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    async fn promise(&self) -> Promise {
        promise(&self.socket).await.unwrap().unwrap()
    }

    fn complete(&self) {
        self.target.view.send_modify(|view| view.held = true);
    }

    async fn taken(&self) {
        let taken = self.target.word.subscribe().wait_for(|word| *word == Word::Taken).await.is_ok();
        assert!(taken);
    }

    fn runs_there(&self) -> bool {
        self.there.status.lock().unwrap().status == Status::Running
    }
}

#[tokio::test]
async fn a_machine_that_has_moved_runs_there_by_the_sources_word() {
    let bed = Bed::new(Status::Paused);
    let giver = bed.promise().await.keep(bed.source.clone(), bed.runtime(), true);
    assert_eq!(*bed.target.word.borrow(), Word::Awaited);
    assert!(giver.end(&bed.source, true).await);
    // libvirt at the source is told before the target's launcher sees it.
    bed.complete();
    bed.taken().await;
    assert!(bed.runs_there());
    assert!(bed.socket.exists());
    bed.target.facts.send_modify(|facts| facts.started_at = Some(Duration::from_secs(1)));
    while bed.socket.exists() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_machine_is_ended_here_before_it_runs_there() {
    let bed = Bed::new(Status::Paused);
    let run = bed.runtime().join("x/libvirt/qemu/run");
    std::fs::create_dir_all(&run).unwrap();
    let mut machine = std::process::Command::new("sleep");
    let mut machine = machine.arg("1000").arg0(bed.runtime()).spawn().unwrap();
    // The command line appears a moment after the process.
    while std::fs::read(format!("/proc/{}/cmdline", machine.id())).unwrap().is_empty() {
        std::thread::yield_now();
    }
    std::fs::write(run.join("vm.pid"), machine.id().to_string()).unwrap();
    bed.source.facts.send_modify(|facts| facts.migration = Some(Migration::default()));

    let giver = bed.promise().await.keep(bed.source.clone(), bed.runtime(), true);
    bed.complete();
    bed.taken().await;
    assert!(bed.runs_there());
    assert_eq!(machine.wait().unwrap().signal(), Some(9));
    assert_eq!(*bed.source.word.borrow(), Word::Given);
    let told = bed.source.facts.borrow().migration.clone().unwrap();
    assert!(told.completed && !told.failed, "{told:?}");
    // libvirt calls it a failure.
    assert!(giver.end(&bed.source, false).await);
}

#[tokio::test]
async fn a_machine_that_was_paused_stays_so() {
    let bed = Bed::new(Status::Paused);
    let giver = bed.promise().await.keep(bed.source.clone(), bed.runtime(), false);
    bed.complete();
    assert!(giver.end(&bed.source, true).await);
    bed.taken().await;
    assert!(!bed.runs_there());
}

#[tokio::test]
async fn a_source_that_cannot_end_its_machine_or_has_it_running_gives_no_word() {
    // There is no run directory, and so nothing to be ended, in the one case; it is not tried in the other.
    for status in [Status::Paused, Status::Running] {
        let bed = Bed::new(status);
        let giver = bed.promise().await.keep(bed.source.clone(), bed.runtime(), true);
        bed.complete();
        tokio::task::yield_now().await;
        assert!(!giver.end(&bed.source, false).await);
        assert_eq!((*bed.source.word.borrow(), *bed.target.word.borrow()), (Word::None, Word::Awaited));
        assert!(!bed.runs_there());
        // The next one comes to the same target.
        let giver = bed.promise().await.keep(bed.source.clone(), bed.runtime(), true);
        assert!(giver.end(&bed.source, true).await);
        bed.taken().await;
    }
}

#[tokio::test]
async fn a_target_without_a_word_is_told_apart_from_one_that_talks_nonsense() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("word");
    assert!(promise(&socket).await.unwrap().is_none());
    let listener = UnixListener::bind(&socket).unwrap();
    let answers = |answer: &'static [u8]| {
        let accepted = listener.accept();
        async move {
            let (mut stream, _) = accepted.await.unwrap();
            stream.read_exact(&mut [0; HELLO.len() + 1]).await.unwrap();
            stream.write_all(answer).await.unwrap();
        }
    };
    // The handler over there found no socket.
    let (promised, ()) = tokio::join!(promise(&socket), answers(b""));
    assert!(promised.unwrap().is_none());
    let (promised, ()) = tokio::join!(promise(&socket), answers(b"podvirt-word 7\n"));
    assert!(matches!(promised, Err(WordError::Greeting(said)) if said == "podvirt-word 7"));
}

#[tokio::test]
async fn nonsense_and_silence_leave_the_machine_held() {
    let bed = Bed::new(Status::Paused);
    for said in ["", "podvirt-word 2\n", "\u{0}", "podvirt-word 1\nhurry\n", "podvirt-word 1\n"] {
        let mut stream = UnixStream::connect(&bed.socket).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
    }
    let endless = vec![b'a'; usize::try_from(MOST).unwrap() * 4];
    let mut stream = UnixStream::connect(&bed.socket).await.unwrap();
    // It is not listened to for so long.
    let _cut = stream.write_all(&endless).await;
    let _cut = stream.read_to_end(&mut Vec::new()).await;
    bed.complete();
    assert_eq!(*bed.target.word.borrow(), Word::Awaited);
    assert!(!bed.runs_there());
}

#[tokio::test(start_paused = true)]
async fn a_word_that_was_lost_comes_from_the_handler() {
    let (target, there) = launcher(Status::Paused);
    target.word.send_replace(Word::Awaited);
    assert!(matches!(from_handler(&target, true).await, Err(WordError::Incomplete)));
    target.view.send_modify(|view| view.held = true);
    target.facts.send_modify(|facts| facts.started_at = Some(Duration::from_secs(1)));
    from_handler(&target, true).await.unwrap();
    assert_eq!((*target.word.borrow(), there.status.lock().unwrap().status), (Word::Taken, Status::Running));
}
