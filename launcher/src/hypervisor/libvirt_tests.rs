//! The driver of libvirt, against libvirt's test driver.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podvirt_proto::domain::reason;

use super::super::Event;
use super::*;
use crate::domain::schema::Domain as Schema;

/// Every connection to the test driver's default shares its domains: each test has its own name.
fn connect(name: &str) -> (Box<dyn Hypervisor>, Receiver<Event>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let sink: EventSink = Arc::new(move |event| {
        let _ = sender.lock().unwrap().send(event);
    });
    (LibvirtConnector::new("test:///default").connect(name, sink).unwrap(), receiver)
}

fn xml(name: &str) -> String {
    format!(
        "<domain type='test'><name>{name}</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>\
         <os><type>hvm</type></os></domain>"
    )
}

fn wait_for(events: &Receiver<Event>, wanted: Event) {
    loop {
        let event = events.recv_timeout(Duration::from_secs(20)).expect("the event does not come");
        if event == wanted {
            return;
        }
    }
}

#[test]
fn a_domain_starts_and_shuts_down_and_tells_so() {
    let (hypervisor, events) = connect("one");
    assert_eq!(hypervisor.state(), Ok(DomainState::Absent));
    hypervisor.start(&xml("one"), false).unwrap();
    wait_for(&events, Event::Started);
    assert_eq!(hypervisor.state(), Ok(DomainState::Active));
    hypervisor.shutdown().unwrap();
    wait_for(&events, Event::Stopped(Stopped::Shutdown));
    assert_eq!(hypervisor.state(), Ok(DomainState::Off(Stopped::Shutdown)));
    assert_eq!(hypervisor.shutdown(), Err(HypervisorError::NotRunning("one".into())));
    assert_eq!(hypervisor.destroy(), Err(HypervisorError::NotRunning("one".into())));
}

#[test]
fn a_domain_pauses_and_goes_on_however_often_it_is_asked() {
    let (hypervisor, events) = connect("seven");
    assert_eq!(hypervisor.status(), Ok(DomainStatus::default()));
    hypervisor.start(&xml("seven"), false).unwrap();
    let state = || hypervisor.status().unwrap();
    assert_eq!(state(), DomainStatus { status: Status::Running, reason: reason::BOOTED });
    hypervisor.suspend().unwrap();
    for _ in 0..2 {
        hypervisor.resume().unwrap();
        assert_eq!(state().status, Status::Running);
    }
    wait_for(&events, Event::Resumed);
    for _ in 0..2 {
        hypervisor.suspend().unwrap();
        assert_eq!(state(), DomainStatus { status: Status::Paused, reason: reason::USER });
    }
    wait_for(&events, Event::Suspended);
    hypervisor.destroy().unwrap();
    assert_eq!(state(), DomainStatus { status: Status::Shutoff, reason: reason::DESTROYED });
    assert!(hypervisor.suspend().is_err());
}

#[test]
fn a_destroyed_domain_is_told_apart() {
    let (hypervisor, events) = connect("two");
    hypervisor.start(&xml("two"), false).unwrap();
    hypervisor.destroy().unwrap();
    wait_for(&events, Event::Stopped(Stopped::Destroyed));
    assert_eq!(hypervisor.state(), Ok(DomainState::Off(Stopped::Destroyed)));
}

#[test]
fn events_of_other_domains_are_not_reported() {
    let (mine, events) = connect("three");
    let (other, others) = connect("four");
    other.start(&xml("four"), false).unwrap();
    wait_for(&others, Event::Started);
    mine.start(&xml("three"), false).unwrap();
    wait_for(&events, Event::Started);
    other.destroy().unwrap();
    wait_for(&others, Event::Stopped(Stopped::Destroyed));
    mine.destroy().unwrap();
    wait_for(&events, Event::Stopped(Stopped::Destroyed));
    assert!(events.try_recv().is_err(), "one Stopped only");
}

#[test]
fn xml_that_libvirt_wrote_is_read() {
    let (hypervisor, _events) = connect("five");
    hypervisor.start(&xml("five"), false).unwrap();
    let domain = Schema::from_xml(&hypervisor.xml().unwrap()).unwrap();
    assert_eq!((domain.name.as_str(), domain.vcpu.count), ("five", 1));
    assert_eq!(domain.memory.amount, 64 * 1024);
    assert!(!domain.uuid.is_empty());
}

#[test]
fn a_domains_statistics_have_its_name_and_what_the_driver_knows() {
    let (hypervisor, _events) = connect("eight");
    assert!(matches!(hypervisor.statistics(), Err(HypervisorError::NotRunning(_))));
    hypervisor.start(&xml("eight"), false).unwrap();
    let stats = hypervisor.statistics().unwrap();
    assert_eq!((stats.name.as_str(), stats.uuid.len()), ("eight", 36));
    assert_eq!((stats.block, stats.net), (Vec::new(), Vec::new()));
}

#[test]
fn refusals_carry_the_hypervisors_words() {
    let (hypervisor, _events) = connect("six");
    let Err(HypervisorError::Refused { action, message }) = hypervisor.start("<domain/>", false) else {
        panic!("must be refused");
    };
    assert_eq!(action, "define the domain");
    assert!(!message.is_empty());
    assert!(matches!(hypervisor.xml(), Err(HypervisorError::NotRunning(_))));
}

#[test]
fn a_uri_without_a_libvirt_is_an_error() {
    let sink: EventSink = Arc::new(|_| {});
    let connector = LibvirtConnector::new("qemu+unix:///session?socket=/nonexistent/libvirt-sock");
    assert!(connector.connect("x", sink).is_err());
}
