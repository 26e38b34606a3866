//! The workers as other threads see them: one whole.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use podvirt_proto::hold;
use tokio::sync::watch;

use super::command::{Command, Mailbox};
use crate::config::ports::Reserved;
use crate::control::{Control, FlowInfo, FlowQuery, PortInfo, RefusedFlows, Status};
use crate::counters::Counters;
use crate::net::Link;
use crate::port::{PortRule, Proto};
use crate::ring::Ring;
use crate::sockets::SteeredSockets;
use crate::state::{self, Descriptors, InheritError, Pack, StateError};
use crate::tap::Tap;
use crate::time::Clock;

/// The workers of one netd. Clones speak to the same ones.
///
/// What concerns the guest as a whole (listeners, the link's services) is asked of worker 0, what concerns flows
/// of all. If one worker ends, by a shutdown or by a fault of its own, all do.
#[derive(Clone, Debug)]
pub struct Handle {
    mailboxes: Arc<[Mailbox]>,
    counters: Arc<[Arc<Counters>]>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// How many flows there may be, and how many were refused for that.
    refused: watch::Receiver<RefusedFlows>,
    /// The pod's ports that are no guest's.
    reserved: Arc<Reserved>,
}

impl Handle {
    pub(super) fn new(
        mailboxes: Arc<[Mailbox]>,
        counters: Arc<[Arc<Counters>]>,
        threads: Vec<JoinHandle<()>>,
        refused: watch::Receiver<RefusedFlows>,
        reserved: Arc<Reserved>,
    ) -> Self {
        Handle { mailboxes, counters, threads: Arc::new(Mutex::new(threads)), refused, reserved }
    }

    /// Asks the workers to end; their sockets are closed, connections reset.
    pub fn shutdown(&self) {
        shutdown(&self.mailboxes);
    }

    /// Hands over the sockets to which every port may be steered.
    pub fn steer(&self, sockets: SteeredSockets) {
        self.mailboxes[0].send(Command::Steer(sockets));
    }

    /// The guest leaves, and has no rings any more: datagrams that have come for it become a part of the state.
    pub(crate) fn keep_datagrams(&self) {
        // The first worker reads the UDP listeners, and passes on what belongs to others: they are to keep it by then.
        for mailbox in self.mailboxes.iter().rev() {
            mailbox.call(Command::Keep);
        }
    }

    /// Makes the workers stand still; false when they have ended.
    pub(crate) fn freeze(&self) -> bool {
        let frozen = self.mailboxes.iter().all(|m| m.call(Command::Freeze).is_some());
        if !frozen {
            self.thaw();
        }
        frozen
    }

    /// Asks workers that stand still for their state.
    ///
    /// # Errors
    /// The descriptors cannot be sent. None: the workers have ended.
    pub(crate) fn pack(&self, mut pack: Pack) -> Option<(Pack, Result<Vec<state::Worker>, hold::Error>)> {
        let mut states = Vec::with_capacity(self.mailboxes.len());
        for mailbox in self.mailboxes.iter() {
            let state;
            (pack, state) = mailbox.call(|reply| Command::Pack(pack, reply))?;
            match state {
                Ok(state) => states.push(state),
                Err(error) => return Some((pack, Err(error))),
            }
        }
        Some((pack, Ok(states)))
    }

    /// Lets workers that stand still go on.
    pub fn thaw(&self) {
        self.tell(|| Command::Thaw);
    }

    /// Gives workers that stand still what those of another machine had; the connections that end here are answered.
    ///
    /// # Errors
    /// There are too many, or one cannot go on with it.
    pub(crate) fn load_workers(
        &self,
        mut workers: Vec<state::Worker>,
        mut fds: Descriptors,
    ) -> Result<Vec<state::Endpoints>, StateError> {
        // The listeners are worker 0's, and flows of all name them by their places there.
        if let Some((first, others)) = workers.split_first_mut() {
            others.iter_mut().for_each(|w| w.ports.clone_from(&first.ports));
        }
        let pairs = self.mailboxes.len();
        if workers.len() > pairs {
            return Err(InheritError::Pairs { have: workers.len(), pairs }.into());
        }
        // They had one clock there, and have one here.
        let clock = Clock::resume(workers.iter().map(|w| w.state.now).max().unwrap_or_default());
        let mut refused = Vec::new();
        for (mailbox, state) in self.mailboxes.iter().zip(state::Worker::for_each_pair(workers)) {
            let loaded;
            (fds, loaded) = mailbox
                .call(|reply| Command::Load(Box::new(state), clock, fds, reply))
                .ok_or(StateError::Ended)?;
            refused.extend(loaded?);
        }
        Ok(refused)
    }

    /// Has workers that stand still end all flows but these connections.
    pub(crate) fn abandon(&self, except: HashSet<state::Endpoints>) {
        let except = Arc::new(except);
        for mailbox in self.mailboxes.iter() {
            mailbox.call(|reply| Command::Abandon(except.clone(), reply));
        }
    }

    /// Descriptors of the TCP listeners.
    pub(crate) fn listeners(&self) -> Vec<OwnedFd> {
        self.mailboxes[0].call(Command::Listeners).unwrap_or_default()
    }

    /// Accepts every connection that waits at a listener.
    pub(crate) fn accept_waiting(&self) {
        self.mailboxes[0].call(Command::AcceptWaiting);
    }

    /// The sockets of these connections are being repaired: the workers do not touch them.
    pub(crate) fn park(&self, connections: HashSet<state::Endpoints>) {
        let connections = Arc::new(connections);
        if !connections.is_empty() {
            for mailbox in self.mailboxes.iter() {
                mailbox.call(|reply| Command::Park(connections.clone(), reply));
            }
        }
    }

    /// The sockets of these connections are as others again, or could not be repaired.
    pub(crate) fn unpark(&self, connections: Vec<(state::Endpoints, bool)>) {
        let connections = Arc::new(connections);
        self.tell(|| Command::Unpark(connections.clone()));
    }

    /// How many flows there may be.
    pub(crate) fn most_flows(&self) -> u32 {
        self.refused.borrow().limit
    }

    /// The pod's ports that are no guest's.
    pub(crate) fn reserved(&self) -> &Reserved {
        &self.reserved
    }

    /// The counters of what concerns the guest as a whole.
    pub(crate) fn own_counters(&self) -> &Counters {
        &self.counters[0]
    }

    /// Waits until the workers have ended; at once when another thread has waited already.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker ended by a panic");
            }
        }
    }

    /// Gives the worker of ring `index` its ring; when this returns, the worker has it.
    pub fn start_ring(&self, index: usize, ring: Ring) {
        if let Some(mailbox) = self.mailboxes.get(index / 2) {
            let ring = Box::new(ring);
            mailbox.call(|reply| Command::StartRing { index: index % 2, ring, reply });
        }
    }

    /// Takes ring `index` back from its worker.
    pub fn stop_ring(&self, index: usize) -> Option<Ring> {
        let mailbox = self.mailboxes.get(index / 2)?;
        mailbox.call(|reply| Command::StopRing { index: index % 2, reply }).flatten()
    }

    /// Tells the workers which features the driver has accepted.
    pub fn set_features(&self, acked: u64) {
        self.tell(|| Command::Features(acked));
    }

    /// Tells the workers that a frontend has come, or has gone.
    pub fn set_connected(&self, connected: bool) {
        self.tell(|| Command::Connected(connected));
    }

    /// Sends each worker a command.
    fn tell(&self, command: impl Fn() -> Command) {
        for mailbox in self.mailboxes.iter() {
            mailbox.send(command());
        }
    }
}

/// Asks all workers to end.
pub(super) fn shutdown(mailboxes: &[Mailbox]) {
    for mailbox in mailboxes {
        mailbox.send(Command::Shutdown);
    }
}

impl Control for Handle {
    fn status(&self) -> Option<Status> {
        let mut parts = Vec::with_capacity(self.mailboxes.len());
        for mailbox in self.mailboxes.iter() {
            parts.push(mailbox.call(Command::Status)?);
        }
        let mut parts = parts.into_iter();
        let mut status = parts.next()?;
        for part in parts {
            for (sum, flows) in status.flows.iter_mut().zip(part.flows) {
                *sum += flows;
            }
            status.running_rings.extend(part.running_rings);
        }
        Some(status)
    }

    fn flows(&self, query: FlowQuery) -> Vec<FlowInfo> {
        let query = Arc::new(query);
        let mut flows = Vec::new();
        for mailbox in self.mailboxes.iter() {
            let mut next = Some(0);
            while let Some(from) = next {
                let rows = query.rows() - flows.len();
                let command = |reply| Command::Flows { query: query.clone(), from, rows, reply };
                let page = mailbox.call(command).unwrap_or_default();
                flows.extend(page.rows);
                if flows.len() >= query.rows() {
                    return flows;
                }
                next = page.next;
            }
        }
        flows
    }

    fn ports(&self) -> Vec<PortInfo> {
        self.mailboxes[0].call(Command::Ports).unwrap_or_default()
    }

    fn add_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo> {
        self.mailboxes[0].call(|reply| Command::AddPorts(rules, reply)).unwrap_or_default()
    }

    fn remove_ports(&self, rules: Vec<PortRule>) -> Vec<PortInfo> {
        let removed = self.mailboxes[0].call(|reply| Command::RemovePorts(rules, reply)).unwrap_or_default();
        let open = removed.iter().filter(|info| info.rule.proto == Proto::Udp && info.error.is_none());
        let pods: Arc<HashSet<u16>> = Arc::new(open.map(|info| info.rule.pod).collect());
        // Nothing is passed to the other workers by these listeners any more, but they still hold the sockets.
        if !pods.is_empty() {
            for mailbox in self.mailboxes.iter().skip(1) {
                mailbox.call(|reply| Command::PartFromPorts(pods.clone(), reply));
            }
        }
        removed
    }

    fn set_link(&self, link: Arc<Link>) {
        self.tell(|| Command::Link(link.clone()));
    }

    fn counters(&self) -> Arc<Counters> {
        match &*self.counters {
            [only] => only.clone(),
            several => Arc::new(Counters::sum(several.iter().map(Arc::as_ref))),
        }
    }

    fn refused(&self) -> watch::Receiver<RefusedFlows> {
        self.refused.clone()
    }

    fn tap(&self, tap: Tap) -> bool {
        let sent = self.mailboxes.iter().filter(|m| m.send(Command::Tap(tap.clone()))).count();
        sent == self.mailboxes.len()
    }

    fn untap(&self, id: u64) {
        self.tell(|| Command::Untap(id));
    }
}
