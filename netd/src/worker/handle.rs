//! The worker as other threads see it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::command::{Command, Mailbox};
use super::sockets::SteeredSockets;
use crate::counters::Counters;
use crate::ctl::{Control, FlowInfo, FlowQuery, PortInfo, PortRule, Status};
use crate::net::Link;
use crate::ring::Ring;
use crate::tap::Tap;
use crate::vhost::RingSink;

/// A worker that runs. Clones speak to the same one.
#[derive(Clone, Debug)]
pub struct Handle {
    mailbox: Mailbox,
    counters: Arc<Counters>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Handle {
    pub(super) fn new(mailbox: Mailbox, counters: Arc<Counters>, thread: JoinHandle<()>) -> Self {
        Handle { mailbox, counters, thread: Arc::new(Mutex::new(Some(thread))) }
    }

    /// Asks the worker to end; its sockets are closed, connections reset.
    pub fn shutdown(&self) {
        self.mailbox.send(Command::Shutdown);
    }

    /// Hands over the sockets to which every port may be steered.
    pub fn steer(&self, sockets: SteeredSockets) {
        self.mailbox.send(Command::Steer(sockets));
    }

    /// Waits until the worker has ended; at once when somebody has waited already.
    pub fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(t) = thread
            && t.join().is_err()
        {
            tracing::error!("the worker ended by a panic");
        }
    }
}

impl Control for Handle {
    fn status(&self) -> Option<Status> {
        self.mailbox.call(Command::Status)
    }

    fn flows(&self, query: FlowQuery) -> Vec<FlowInfo> {
        let query = Arc::new(query);
        let mut flows = Vec::new();
        let mut from = 0;
        loop {
            let rows = query.rows() - flows.len();
            let command = |reply| Command::Flows { query: query.clone(), from, rows, reply };
            let page = self.mailbox.call(command).unwrap_or_default();
            flows.extend(page.rows);
            match page.next {
                Some(next) if flows.len() < query.rows() => from = next,
                _ => return flows,
            }
        }
    }

    fn ports(&self) -> Vec<PortInfo> {
        self.mailbox.call(Command::Ports).unwrap_or_default()
    }

    fn add_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo> {
        self.mailbox.call(|reply| Command::AddPorts(rules, reply)).unwrap_or_default()
    }

    fn remove_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo> {
        self.mailbox.call(|reply| Command::RemovePorts(rules, reply)).unwrap_or_default()
    }

    fn set_link(&self, link: Arc<Link>) {
        self.mailbox.send(Command::Link(link));
    }

    fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    fn tap(&self, tap: Tap) -> bool {
        self.mailbox.send(Command::Tap(tap))
    }

    fn untap(&self, id: u64) {
        self.mailbox.send(Command::Untap(id));
    }
}

impl RingSink for Handle {
    fn start(&self, index: usize, ring: Ring) {
        self.mailbox.call(|reply| Command::StartRing { index, ring: Box::new(ring), reply });
    }

    fn stop(&self, index: usize) -> Option<Ring> {
        self.mailbox.call(|reply| Command::StopRing { index, reply }).flatten()
    }

    fn set_features(&self, acked: u64) {
        self.mailbox.send(Command::Features(acked));
    }

    fn set_connected(&self, connected: bool) {
        self.mailbox.send(Command::Connected(connected));
    }
}
