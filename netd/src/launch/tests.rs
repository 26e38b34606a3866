use std::sync::Arc;

use clap::Parser;
use futures::FutureExt;

use super::*;
use crate::control::{FlowInfo, FlowQuery, RefusedFlows, Status};
use crate::counters::Counters;
use crate::net::Link;
use crate::tap::Tap;

/// A worker whose ports are these, and how often more it cannot open those that are taken.
#[derive(Debug)]
struct Worker(Vec<PortInfo>, Mutex<u32>);

impl RingSink for Worker {
    fn start(&self, _: usize, _: Ring) {}
    fn stop(&self, _: usize) -> Option<Ring> {
        None
    }
    fn set_features(&self, _: u64) {}
    fn set_connected(&self, _: bool) {}
}

impl Control for Worker {
    fn status(&self) -> Option<Status> {
        None
    }
    fn flows(&self, _: FlowQuery) -> Vec<FlowInfo> {
        Vec::new()
    }
    fn ports(&self) -> Vec<PortInfo> {
        self.0.clone()
    }
    fn add_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo> {
        let mut left = self.1.lock().unwrap();
        *left = left.saturating_sub(1);
        let error = (*left > 0).then(|| TAKEN.to_owned());
        rules.into_iter().map(|rule| PortInfo { rule, error: error.clone(), shut: false }).collect()
    }
    fn remove_ports(&self, _: Vec<PortRule>) -> Vec<PortInfo> {
        Vec::new()
    }
    fn set_link(&self, _: Arc<Link>) {}
    fn counters(&self) -> Arc<Counters> {
        Arc::default()
    }
    fn refused(&self) -> tokio::sync::watch::Receiver<RefusedFlows> {
        tokio::sync::watch::channel(RefusedFlows::default()).1
    }
    fn tap(&self, _: Tap) -> bool {
        false
    }
    fn untap(&self, _: u64) {}
}

const TAKEN: &str = "address already in use";

/// Options for ports 80 and 443 and, in `more`, others; and a worker that could not open the port `taken`, nor can the
/// next `tries` times.
fn watch(more: &str, taken: u16, tries: u32) -> (Watch<Worker, Worker>, EndEvents) {
    let words = format!("passt --foreground --vhost-user --socket /s --tcp-ports 80,443 {more}");
    let options = Passt::parse_from(words.split_whitespace());
    let ports = options.config().unwrap().ports;
    let open = [80, 443, 8080].map(|port| PortInfo {
        rule: PortRule { proto: Proto::Tcp, pod: port, guest: port },
        error: (port == taken).then(|| TAKEN.to_owned()),
        shut: false,
    });
    let worker = Arc::new(Worker(open.into(), Mutex::new(tries)));
    Launch::passt(&options).unwrap().unwrap().watch(worker.clone(), worker, &ports)
}

#[test]
fn a_port_that_was_asked_for_and_is_taken_ends_it() {
    let (watch, mut ends) = watch("", 443, u32::MAX);
    watch.listening();
    let told = End::Ports(vec!["TCP 443: address already in use".into()]);
    assert_eq!(ends.next().now_or_never(), Some(told.clone()));
    let text = told.result().unwrap_err().to_string();
    assert_eq!(text, "ports cannot be opened: TCP 443: address already in use");
}

#[test]
fn a_port_whose_owner_ends_is_waited_for() {
    let (watch, mut ends) = watch("", 443, 3);
    watch.listening();
    assert_eq!(ends.next().now_or_never(), None);
}

#[test]
fn a_port_among_all_may_be_taken() {
    let (watch, mut ends) = watch("--tcp-ports all", 8080, u32::MAX);
    watch.listening();
    assert_eq!(ends.next().now_or_never(), None);
}

#[test]
fn one_off_ends_with_its_frontend() {
    let (watch, mut ends) = watch("--one-off", 0, u32::MAX);
    watch.listening();
    watch.set_connected(false);
    assert_eq!(ends.next().now_or_never(), None, "there was no frontend yet");
    watch.set_connected(true);
    assert_eq!(ends.next().now_or_never(), None);
    watch.set_connected(false);
    let end = ends.next().now_or_never().unwrap();
    assert!(end.result().unwrap().contains("frontend"));
}

#[test]
fn otherwise_it_waits_for_the_next_frontend() {
    let (watch, mut ends) = watch("", 0, u32::MAX);
    watch.set_connected(true);
    watch.set_connected(false);
    assert_eq!(ends.next().now_or_never(), None);
}
