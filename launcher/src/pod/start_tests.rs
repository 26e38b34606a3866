//! What is told of a start: one that lasts, and one that comes to nothing.

use super::*;
use crate::hypervisor::{EventSink, Hypervisor, HypervisorError};
use crate::pod::emulator_log::{last_message, tail};

/// As libvirt 11 and QEMU 10 write it.
const LOG: &str = "2026-11-23 01:02:03.004+0000: starting up libvirt version: 11.3.0\n\
    LC_ALL=C \\\n/usr/bin/qemu-system-x86_64 \\\n-name guest=demo_tiny,debug-threads=on \\\n-msg timestamp=on\n\
    char device redirected to /dev/pts/0 (label charserial0)\n\
    2026-11-23T01:02:05.678901Z qemu-system-x86_64: -netdev {\"type\":\"vhost-user\"}: info: one\n\
    2026-11-23T01:02:06.678901Z qemu-system-x86_64: -netdev {\"type\":\"vhost-user\"}: \
    you are asking more queues than supported: 1\n";

#[test]
fn the_last_words_are_qemus_own_and_the_same_each_time() {
    let words = last_message(LOG).unwrap();
    assert!(words.ends_with("you are asking more queues than supported: 1"), "{words}");
    assert!(!words.contains("2026"), "a repeated line changes nothing that is told");
    assert_eq!(last_message(&LOG[..150]), None);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("log");
    assert_eq!(tail(&file), "");
    std::fs::write(&file, "x".repeat(10_000) + LOG).unwrap();
    assert_eq!(last_message(&tail(&file)).unwrap(), words);
    assert!(slow(Some(&words)).ends_with(&words) && slow(None).contains("says nothing"));
}

struct NoHypervisor;

impl Connector for NoHypervisor {
    fn connect(&self, _: &str, _: EventSink) -> Result<Box<dyn Hypervisor>, HypervisorError> {
        Err(HypervisorError::Refused { action: "connect", message: "there is none".into() })
    }
}

/// A starter, and virt-handler's side of it.
fn starter(logs: &Path) -> (Starter, mpsc::Sender<Wanted>, mpsc::Receiver<Wanted>) {
    let (sync, syncs) = mpsc::channel(1);
    let starter = Starter {
        shared: Arc::new(Shared::new(Default::default(), sync.clone())),
        connector: Arc::new(NoHypervisor),
        allow_emulation: true,
        hook_sidecars: 0,
        grace: Duration::ZERO,
        limit: LIMIT,
        logs: logs.to_owned(),
    };
    (starter, sync, syncs)
}

/// How long virt-launcher waits for a machine in these tests.
const LIMIT: Duration = Duration::from_secs(300);

/// The end that comes, and after how many seconds, in virtual time.
async fn end(ending: impl Future<Output = Ending>) -> (Ending, u64) {
    let begin = Instant::now();
    let ending = tokio::time::timeout(10 * LIMIT, ending).await.expect("it is waited for without end");
    (ending, begin.elapsed().as_secs())
}

fn too_late(why: &str) -> (Ending, u64) {
    (Ending::FailedToStart(format!("no machine after 300 s: {why}")), 300)
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_gets_no_vmi_or_none_of_use_says_so_at_its_end() {
    let never = async |_: &Wanted, _: Instant| -> Attempt { std::future::pending().await };
    let (starter, _sync, syncs) = self::starter(Path::new("/nowhere"));
    let ending = end(attempts(&starter, syncs, never)).await;
    assert_eq!(ending, too_late("virt-handler did not call SyncVirtualMachine"));

    let (starter, sync, syncs) = self::starter(Path::new("/nowhere"));
    for (n, incoming) in [(1, false), (2, true)] {
        let sync = sync.clone();
        tokio::spawn(async move {
            sleep(Duration::from_secs(n)).await;
            sync.send(Wanted { incoming, ..Wanted::default() }).await.unwrap();
        });
    }
    let why = |incoming: bool| format!("the disk of volume {} is no qcow2", if incoming { "b" } else { "a" });
    let fails = async |wanted: &Wanted, _: Instant| Attempt::Failed(why(wanted.incoming));
    assert_eq!(end(attempts(&starter, syncs, fails)).await, too_late(&why(true)), "the last reason counts");
    assert_eq!(*starter.shared.attempts.borrow(), Err(why(true)), "the handler hears of it");
    assert_eq!(starter.shared.facts.borrow().message, why(true));
}

#[tokio::test(start_paused = true)]
async fn a_launcher_that_waits_for_others_until_its_end_says_for_what() {
    for waiting in ["", "netd's socket /run/netd.sock"] {
        let (starter, ..) = self::starter(Path::new("/nowhere"));
        starter.shared.facts.send_modify(|facts| facts.wait_for(waiting, report::now()));
        let deadline = Instant::now() + LIMIT;
        let prepared = async {
            match starter.prepared(std::future::pending(), false, deadline).await {
                Err(Attempt::Ended(ending)) => ending,
                _ => panic!("there is no machine"),
            }
        };
        let what = if waiting.is_empty() { "its disks" } else { waiting };
        assert_eq!(end(prepared).await, too_late(&format!("still waiting for {what}")));
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_prepared_is_told_with_its_causes_and_no_more_waited_for() {
    let (starter, ..) = self::starter(Path::new("/nowhere"));
    starter.shared.facts.send_modify(|facts| facts.wait_for("its image", report::now()));
    let broken = async { Err(anyhow::anyhow!("no file").context("the containerDisk of the volume a")) };
    match starter.prepared(broken, false, Instant::now() + LIMIT).await {
        Err(Attempt::Failed(why)) => assert_eq!(why, "the containerDisk of the volume a: no file"),
        _ => panic!("it is no machine"),
    }
    assert_eq!(starter.shared.facts.borrow().waiting_for, "");
    for (wish, incoming, expected) in [
        (Wish::ShutDown, false, Ending::NeverStarted),
        (Wish::Leave, false, Ending::NeverCame),
        (Wish::ShutDown, true, Ending::NeverCame),
    ] {
        let (starter, ..) = self::starter(Path::new("/nowhere"));
        starter.shared.wish_for(wish);
        match starter.prepared(std::future::pending(), incoming, Instant::now() + LIMIT).await {
            Err(Attempt::Ended(ending)) => assert_eq!(ending, expected),
            _ => panic!("there is no machine"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_lasts_is_told_with_qemus_last_message() {
    let logs = tempfile::tempdir().unwrap();
    let log = logs.path().join("n.log");
    let (starter, ..) = starter(logs.path());
    let mut explains = std::pin::pin!(starter.explains(&log));
    let mut after = async |seconds| {
        let time = Duration::from_secs(seconds);
        tokio::time::timeout(time, explains.as_mut()).await.unwrap_err();
        let facts = starter.shared.facts.borrow();
        (facts.waiting_for.clone(), facts.waiting_since)
    };
    assert_eq!(after(60).await, (String::new(), None), "nothing starts");
    starter.shared.view.send_modify(|view| view.starting = true);
    let (what, since) = after(9).await;
    assert_eq!(what, QEMU);
    assert_eq!(after(2).await, (slow(None), since));
    std::fs::write(&log, LOG).unwrap();
    let words = last_message(LOG).unwrap();
    assert_eq!(after(5).await, (slow(Some(&words)), since), "what is found out begins no wait");
    starter.shared.view.send_modify(|view| view.starting = false);
    after(1).await;
    let (shared, (shows, shown)) = (Arc::clone(&starter.shared), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        shared.view.send_modify(|view| view.events += 1);
        shows.send(()).unwrap();
    });
    shown.recv_timeout(Duration::from_secs(60)).expect("the life cannot show the next view");
    starter.shared.facts.send_modify(Facts::wait_is_over);
    assert_eq!(after(60).await, (String::new(), None), "it has an end");
}
