use std::sync::Mutex;

use super::*;
use crate::hypervisor::{InterfaceAddresses, Stopped};

/// A hypervisor in memory: the domain outlives connections, and every call is written down.
#[derive(Default)]
struct World {
    calls: Vec<&'static str>,
    connections: Vec<EventSink>,
    connected: Option<mpsc::UnboundedSender<()>>,
    active: bool,
    start_fails: bool,
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

    fn start(&self, xml: &str) -> Result<(), HypervisorError> {
        assert_eq!(xml, "<domain/>");
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

    fn undefine(&self) -> Result<(), HypervisorError> {
        self.world(|w| w.calls.push("undefine"));
        Ok(())
    }

    fn xml(&self) -> Result<String, HypervisorError> {
        Ok(String::new())
    }

    fn interface_addresses(&self) -> Result<Vec<InterfaceAddresses>, HypervisorError> {
        Ok(Vec::new())
    }
}

struct Running {
    fake: Fake,
    stop: watch::Sender<bool>,
    running: watch::Receiver<bool>,
    task: tokio::task::JoinHandle<Ending>,
}

fn live(fake: &Fake, grace: u64) -> Running {
    let (stop, stopping) = watch::channel(false);
    let (sender, running) = watch::channel(false);
    let life = Life {
        connector: Arc::new(fake.clone()),
        name: "n".into(),
        xml: "<domain/>".into(),
        grace: Duration::from_secs(grace),
    };
    let task = tokio::spawn(run(life, stopping, sender));
    Running { fake: fake.clone(), stop, running, task }
}

impl Running {
    async fn wait(&mut self) {
        self.running.wait_for(|running| *running).await.unwrap();
    }
}

#[tokio::test]
async fn a_stop_shuts_the_guest_down() {
    let mut life = live(&Fake::default(), 30);
    life.wait().await;
    life.stop.send_replace(true);
    assert_eq!(life.task.await.unwrap(), Ending::ShutDown);
    assert_eq!(life.fake.world(|w| w.calls.clone()), ["connect", "start", "shutdown", "undefine"]);
}

#[tokio::test]
async fn a_deaf_guest_without_a_grace_period_is_destroyed() {
    let fake = Fake::default();
    fake.world(|w| w.deaf = true);
    let mut life = live(&fake, 0);
    life.wait().await;
    life.stop.send_replace(true);
    assert_eq!(life.task.await.unwrap(), Ending::Killed);
    assert_eq!(fake.world(|w| w.calls.clone()), ["connect", "start", "destroy", "undefine"]);
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
    life.stop.send_replace(true);
    assert_eq!(life.task.await.unwrap(), Ending::ShutDown, "the old connection is not believed");
    assert_eq!(fake.world(|w| w.calls.clone()), ["connect", "start", "connect", "shutdown", "undefine"]);
}

#[cfg(feature = "libvirt")]
#[tokio::test]
async fn a_domain_of_libvirts_test_driver_lives_and_ends() {
    let (stop, stopping) = watch::channel(false);
    let (sender, mut running) = watch::channel(false);
    let life = Life {
        connector: Arc::new(crate::hypervisor::libvirt::LibvirtConnector::new("test:///default")),
        name: "whole-life".into(),
        xml: "<domain type='test'><name>whole-life</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
              <os><type>hvm</type></os></domain>"
            .into(),
        grace: Duration::from_secs(30),
    };
    let task = tokio::spawn(run(life, stopping, sender));
    running.wait_for(|running| *running).await.unwrap();
    stop.send_replace(true);
    assert_eq!(task.await.unwrap(), Ending::ShutDown);
}
