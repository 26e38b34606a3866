use std::sync::Mutex;

use super::*;
use podvirt_proto::domain::{Status, reason};

use podvirt_proto::migration::Progress;

use crate::hypervisor::{DomainStatus, Move, Picture, Stopped};

/// A hypervisor in memory: the domain outlives connections, and every call is written down.
#[derive(Default)]
struct World {
    calls: Vec<&'static str>,
    connections: Vec<EventSink>,
    connected: Option<mpsc::UnboundedSender<()>>,
    active: bool,
    start_fails: bool,
    /// A start lasts until this is not so any more.
    start_hangs: bool,
    deaf: bool,
    unreachable: u32,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<World>>);

impl Fake {
    fn world<T>(&self, with: impl FnOnce(&mut World) -> T) -> T {
        with(&mut self.0.lock().unwrap())
    }

    fn end(&self, how: Stopped) {
        let sink = self.world(|w| {
            w.active = false;
            w.connections.last().cloned()
        });
        sink.unwrap()(Event::Stopped(how));
    }
}

impl Connector for Fake {
    fn connect(&self, _: &str, sink: EventSink) -> Result<Box<dyn Hypervisor>, HypervisorError> {
        self.world(|w| {
            if w.unreachable > 0 {
                w.unreachable -= 1;
                return Err(HypervisorError::Refused { action: "connect", message: "refused".into() });
            }
            w.calls.push("connect");
            w.connections.push(sink);
            if let Some(connected) = &w.connected {
                connected.send(()).unwrap();
            }
            Ok(Box::new(self.clone()) as Box<dyn Hypervisor>)
        })
    }
}

impl Hypervisor for Fake {
    fn state(&self) -> Result<DomainState, HypervisorError> {
        Ok(self.world(|w| if w.active { DomainState::Active } else { DomainState::Absent }))
    }

    fn status(&self) -> Result<DomainStatus, HypervisorError> {
        let active = self.world(|w| w.active);
        Ok(if active {
            DomainStatus { status: Status::Running, reason: reason::BOOTED }
        } else {
            DomainStatus::default()
        })
    }

    fn start(&self, xml: &str, paused: bool) -> Result<(), HypervisorError> {
        assert_eq!((xml, paused), ("<domain/>", false));
        while self.world(|w| w.start_hangs) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.world(|w| {
            w.calls.push("start");
            w.active = !w.start_fails;
            if w.start_fails {
                return Err(HypervisorError::Refused { action: "start", message: "no memory".into() });
            }
            Ok(())
        })
    }

    fn shutdown(&self) -> Result<(), HypervisorError> {
        let deaf = self.world(|w| {
            w.calls.push("shutdown");
            w.deaf
        });
        if !deaf {
            self.end(Stopped::Shutdown);
        }
        Ok(())
    }

    fn destroy(&self) -> Result<(), HypervisorError> {
        self.world(|w| w.calls.push("destroy"));
        self.end(Stopped::Destroyed);
        Ok(())
    }

    fn dump(&self, _: &std::path::Path) -> Result<(), HypervisorError> {
        unreachable!("no memory is dumped")
    }

    fn undefine(&self) -> Result<(), HypervisorError> {
        self.world(|w| w.calls.push("undefine"));
        Ok(())
    }

    fn xml(&self) -> Result<String, HypervisorError> {
        Ok(String::new())
    }

    fn suspend(&self) -> Result<(), HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn resume(&self) -> Result<(), HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn reset(&self) -> Result<(), HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn reboot(&self) -> Result<(), HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn picture(&self) -> Result<Picture, HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn agent(&self, _: &str, _: Duration) -> Result<String, HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn migrate(&self, _: &Move) -> Result<(), HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn progress(&self) -> Result<Option<Progress>, HypervisorError> {
        Ok(None)
    }

    fn statistics(&self) -> Result<podvirt_proto::stats::DomainStats, HypervisorError> {
        Ok(podvirt_proto::stats::DomainStats::default())
    }

    fn limit_downtime(&self, _: Duration) -> Result<(), HypervisorError> {
        Ok(())
    }

    fn abort_move(&self) -> Result<(), HypervisorError> {
        Ok(())
    }

    fn set_link(&self, _: &str, _: bool) -> Result<(), HypervisorError> {
        Ok(())
    }
    fn plug(&self, _: &str) -> Result<(), HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn capacity(&self, _: &str) -> Result<u64, HypervisorError> {
        Ok(0)
    }
    fn change_medium(&self, _: &str) -> Result<(), HypervisorError> {
        Ok(())
    }
    fn unplug(&self, _: &str) -> Result<(), HypervisorError> {
        Err(HypervisorError::NotRunning("fake".into()))
    }

    fn grow(&self, _: &str, _: u64) -> Result<bool, HypervisorError> {
        Ok(false)
    }
    fn hand_over(&self, _: &std::fs::File, _: u64) -> Result<(), HypervisorError> {
        Ok(())
    }
    fn take_back(&self, _: u64) -> Result<(), HypervisorError> {
        Ok(())
    }
    fn keep(&self) -> Result<(), HypervisorError> {
        Ok(())
    }
}

struct Running {
    fake: Fake,
    wish: watch::Sender<Wish>,
    view: watch::Receiver<View>,
    task: tokio::task::JoinHandle<Ending>,
}

fn live(fake: &Fake, grace: u64) -> Running {
    let (wish, wishes) = watch::channel(Wish::Run);
    let (sender, view) = watch::channel(View::default());
    let life = Life {
        connector: Arc::new(fake.clone()),
        name: "n".into(),
        xml: Some("<domain/>".into()),
        paused: false,
        grace: Duration::from_secs(grace),
        word: watch::channel(Word::None).1,
    };
    let task = tokio::spawn(run(life, wishes, sender));
    Running { fake: fake.clone(), wish, view, task }
}

impl Running {
    async fn wait(&mut self) {
        self.view.wait_for(|view| view.running).await.unwrap();
    }
}

#[tokio::test]
async fn a_stop_shuts_the_guest_down() {
    let mut life = live(&Fake::default(), 30);
    life.wait().await;
    life.wish.send_replace(Wish::ShutDown);
    assert_eq!(life.task.await.unwrap(), Ending::ShutDown);
    assert_eq!(life.fake.world(|w| w.calls.clone()), ["connect", "start", "shutdown", "undefine"]);
}

#[tokio::test]
async fn a_start_that_lasts_is_seen() {
    let fake = Fake::default();
    fake.world(|w| w.start_hangs = true);
    let mut life = live(&fake, 30);
    let seen = tokio::time::timeout(Duration::from_secs(20), life.view.wait_for(|view| view.starting));
    let seen = seen.await.map(|seen| seen.is_ok_and(|view| !view.running));
    fake.world(|w| w.start_hangs = false);
    assert!(seen.expect("it is not seen"));
    assert!(!life.view.wait_for(|view| view.running).await.unwrap().starting);
    life.wish.send_replace(Wish::Kill);
    life.task.await.unwrap();
}

#[tokio::test]
async fn a_deaf_guest_without_a_grace_period_is_destroyed() {
    let fake = Fake::default();
    fake.world(|w| w.deaf = true);
    let mut life = live(&fake, 0);
    life.wait().await;
    life.wish.send_replace(Wish::ShutDown);
    assert_eq!(life.task.await.unwrap(), Ending::Killed);
    assert_eq!(fake.world(|w| w.calls.clone()), ["connect", "start", "destroy", "undefine"]);
}

#[tokio::test]
async fn a_kill_does_not_wait_for_a_deaf_guest() {
    let fake = Fake::default();
    fake.world(|w| w.deaf = true);
    let mut life = live(&fake, 3600);
    life.wait().await;
    life.wish.send_replace(Wish::ShutDown);
    life.view.wait_for(|view| !view.running).await.unwrap();
    // Calls are made side by side: the later one may come first.
    while !fake.world(|w| w.calls.contains(&"shutdown")) {
        tokio::task::yield_now().await;
    }
    life.wish.send_replace(Wish::Kill);
    assert_eq!(life.task.await.unwrap(), Ending::Killed);
    assert_eq!(fake.world(|w| w.calls.clone()), ["connect", "start", "shutdown", "destroy", "undefine"]);
}

#[tokio::test]
async fn what_the_hypervisor_tells_is_seen() {
    let fake = Fake::default();
    let mut life = live(&fake, 30);
    life.wait().await;
    let sink = fake.world(|w| w.connections[0].clone());
    sink(Event::Rebooted);
    life.view.wait_for(|view| view.reboots == 1).await.unwrap();
    sink(Event::GuestCrashed);
    let seen = life.view.wait_for(|view| view.panicked).await.unwrap().clone();
    assert_eq!(seen.hypervisor.unwrap().status().unwrap().status, Status::Running);
    fake.end(Stopped::Crashed);
    assert_eq!(life.task.await.unwrap(), Ending::Crashed);
    assert!(life.view.borrow().hypervisor.is_none());
}

#[tokio::test]
async fn a_start_that_fails_ends_with_the_reason() {
    let fake = Fake::default();
    fake.world(|w| w.start_fails = true);
    assert_eq!(live(&fake, 30).task.await.unwrap(), Ending::FailedToStart("start: no memory".into()));
}

#[tokio::test]
async fn a_connection_that_is_lost_is_made_again_and_the_domain_goes_on() {
    let fake = Fake::default();
    let mut life = live(&fake, 30);
    life.wait().await;
    let (connected, mut again) = mpsc::unbounded_channel();
    let lost = fake.world(|w| {
        w.unreachable = 2;
        w.connected = Some(connected);
        w.connections[0].clone()
    });
    lost(Event::Closed);
    again.recv().await.unwrap();
    assert!(!life.task.is_finished());
    lost(Event::Stopped(Stopped::Crashed));
    life.wish.send_replace(Wish::ShutDown);
    assert_eq!(life.task.await.unwrap(), Ending::ShutDown, "the old connection is not believed");
    assert_eq!(fake.world(|w| w.calls.clone()), ["connect", "start", "connect", "shutdown", "undefine"]);
}

#[cfg(feature = "libvirt")]
#[tokio::test]
async fn a_domain_of_libvirts_test_driver_lives_and_ends() {
    let (wish, wishes) = watch::channel(Wish::Run);
    let (sender, mut view) = watch::channel(View::default());
    let life = Life {
        connector: Arc::new(crate::hypervisor::libvirt::LibvirtConnector::new("test:///default")),
        name: "whole-life".into(),
        xml: Some(
            "<domain type='test'><name>whole-life</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
              <os><type>hvm</type></os></domain>"
                .into(),
        ),
        paused: false,
        grace: Duration::from_secs(30),
        word: watch::channel(Word::None).1,
    };
    let task = tokio::spawn(run(life, wishes, sender));
    view.wait_for(|view| view.running).await.unwrap();
    wish.send_replace(Wish::ShutDown);
    assert_eq!(task.await.unwrap(), Ending::ShutDown);
}
