//! Listeners: the pod's ports that lead to the guest.

mod accept;
mod ask;
pub(super) mod carriers;
pub(super) mod inquiry;
pub(super) mod silence;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use socket2::Socket;

use super::turn::{Worker, fd};
use crate::control::PortInfo;
use crate::port::{PortRule, Proto};
use crate::sockets::{self, PeekOffset, SteeredSockets};
use crate::state::{self, Descriptors, InheritError, Named};
use crate::time::Time;
use carriers::PortSocket;
use inquiry::Inquiry;
use silence::Silence;

/// Listeners of a predecessor that are looked after in one turn: each costs some system calls, and there may be ten
/// thousand of them.
const WATCHED_PER_TURN: usize = 64;

/// The pod's port in the rule of a socket to which every port is steered.
pub(super) const STEERED: u16 = 0;

/// Places there can be: every port of both protocols, as often again for those that came and went.
pub(super) const MAX_ENTRIES: usize = 1 << 18;

pub(super) struct Entry {
    pub(super) rule: PortRule,
    pub(super) socket: Option<Listener>,
    error: Option<String>,
    /// Stands in `Queues` (UDP), or among those with a connection to accept (TCP).
    queued: bool,
    /// The socket does not listen, as the guest does not.
    pub(super) shut: bool,
}

/// An open port's socket.
pub(super) struct Listener {
    pub(super) socket: Arc<PortSocket>,
    /// What it accepts has its options from it (TCP).
    pub(super) bequeaths: bool,
    /// epoll tells of it. What a predecessor had is watched when flows go on; see [`Worker::watch_some`].
    watched: bool,
    /// It answers no SYN, and nothing is accepted (TCP); none: that is not known.
    silent: Option<bool>,
}

/// The listeners, and what is known of the guest's own.
pub(super) struct Listening {
    pub(super) listeners: Listeners,
    /// The guest is asked on which ports it listens.
    asks: bool,
    pub(super) inquiry: Inquiry,
    pub(super) silence: Silence,
    /// Until when no connection is accepted, as descriptors ran out.
    retry: Option<Time>,
}

impl Listening {
    /// Without a listener; with `asks` the guest is asked on which ports it listens.
    pub(super) fn new(asks: bool) -> Listening {
        let (listeners, inquiry, silence) = Default::default();
        Listening { listeners, asks, inquiry, silence, retry: None }
    }

    /// When a listener is tried again.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.retry
    }

    /// Connections are accepted again.
    pub(super) fn end_retry(&mut self) {
        self.retry = None;
    }
}

impl Listener {
    /// One that epoll does not know yet. No system call is made.
    fn inherited(socket: Socket, rule: PortRule, place: u32) -> Listener {
        let socket = Arc::new(PortSocket::new(socket, rule, place));
        Listener { socket, bequeaths: false, watched: false, silent: None }
    }

    /// One that epoll knows.
    fn watched(socket: Socket, rule: PortRule, place: u32, peek: PeekOffset) -> Listener {
        let mut listener = Listener::inherited(socket, rule, place);
        listener.note_watched(rule.proto, peek);
        listener
    }

    fn note_watched(&mut self, proto: Proto, peek: PeekOffset) {
        self.watched = true;
        self.bequeaths = proto == Proto::Tcp && sockets::bequeath_options(&self.socket, peek);
    }
}

/// Every forwarded port. An entry's place is its epoll token, so entries are reused, not removed.
#[derive(Default)]
pub(super) struct Listeners {
    pub(super) entries: Vec<Option<Entry>>,
    /// TCP listeners at which connections may wait, in the order in which they have their turn.
    pub(super) knocking: VecDeque<u32>,
    /// Those of a predecessor that epoll does not know yet.
    unwatched: VecDeque<u32>,
}

impl Listeners {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of open listeners.
    pub(super) fn open(&self) -> u32 {
        self.entries.iter().flatten().filter(|e| e.socket.is_some() && !e.shut).count() as u32
    }

    /// Every port.
    pub(super) fn infos(&self) -> Vec<PortInfo> {
        self.entries.iter().flatten().filter(|e| e.rule.pod != STEERED).map(Entry::info).collect()
    }

    /// Closes listeners and answers those that there were.
    pub(super) fn remove(&mut self, rules: &[PortRule]) -> Vec<PortInfo> {
        let mut removed = Vec::new();
        // Looking through a long list for each of a long list would be quadratic.
        let rules: HashSet<&PortRule> = rules.iter().collect();
        for slot in &mut self.entries {
            if slot.as_ref().is_some_and(|e| rules.contains(&e.rule)) {
                removed.extend(slot.take().map(|e| e.info()));
            }
        }
        removed
    }

    /// The places of these rules' open UDP listeners.
    fn udp_places(&self, rules: &[PortRule]) -> HashSet<u32> {
        let rules: HashSet<&PortRule> = rules.iter().collect();
        let open = |at: &u32| self.udp(*at).is_some_and(|(rule, _)| rules.contains(&rule));
        (0..self.entries.len() as u32).filter(open).collect()
    }

    /// The open UDP listener at a place.
    pub(super) fn udp(&self, at: u32) -> Option<(PortRule, &Listener)> {
        let e = self.entries.get(at as usize)?.as_ref().filter(|e| e.rule.proto == Proto::Udp)?;
        Some((e.rule, e.socket.as_ref()?))
    }

    /// The sockets of the UDP ports.
    pub(super) fn of_udp(&self) -> impl Iterator<Item = &Arc<PortSocket>> {
        let udp = self.entries.iter().flatten().filter(|e| e.rule.proto == Proto::Udp);
        udp.filter(|e| e.rule.pod != STEERED).filter_map(|e| Some(&e.socket.as_ref()?.socket))
    }

    /// Whether a listener waits in the queue of what has something for the guest.
    pub(super) fn queued(&mut self, at: u32) -> Option<&mut bool> {
        self.entries.get_mut(at as usize)?.as_mut().map(|e| &mut e.queued)
    }

    /// Every port for a successor.
    pub(super) fn state<'a>(&'a self, named: &mut Named<'a>) -> Vec<state::ForwardedPort> {
        let port = |(place, e): (usize, &'a Entry)| state::ForwardedPort {
            place: place as u32,
            proto: e.rule.proto,
            pod: e.rule.pod,
            guest: e.rule.guest,
            socket: e.socket.as_ref().map(|l| named.name(fd(&l.socket))),
            error: e.error.clone(),
        };
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(i, e)| e.as_ref().map(|e| (i, e))).map(port).collect()
    }

    /// The ports of a predecessor at their places, in place of none.
    pub(super) fn restore(
        &mut self,
        ports: Vec<state::ForwardedPort>,
        fds: &mut Descriptors,
    ) -> Result<(), InheritError> {
        for port in ports {
            let place = port.place as usize;
            if place >= MAX_ENTRIES {
                return Err(InheritError::Place(port.place));
            }
            if self.entries.len() <= place {
                self.entries.resize_with(place + 1, || None);
            }
            let rule = PortRule { proto: port.proto, pod: port.pod, guest: port.guest };
            let socket: Option<Socket> = fds.take_if(port.socket)?.map(Into::into);
            let listens = |s: &Socket| rule.proto == Proto::Udp || s.is_listener().unwrap_or(true);
            let shut = socket.as_ref().is_some_and(|s| !listens(s));
            let socket = socket.map(|s| Listener::inherited(s, rule, port.place));
            if socket.is_some() {
                self.unwatched.push_back(port.place);
            }
            let entry = Entry { rule, socket, error: port.error, queued: false, shut };
            self.put(place, entry);
        }
        Ok(())
    }

    /// Descriptors of the TCP listeners, as many as the process may have.
    pub(super) fn of_tcp(&self) -> Vec<OwnedFd> {
        let tcp = self.entries.iter().flatten().filter(|e| e.rule.proto == Proto::Tcp);
        tcp.filter_map(|e| fd(&e.socket.as_ref()?.socket).try_clone_to_owned().ok()).collect()
    }

    /// The entry at a place.
    pub(super) fn at(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)?.as_ref()
    }

    /// The listed TCP ports.
    pub(super) fn listed_tcp(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten().filter(|e| e.rule.proto == Proto::Tcp && e.rule.pod != STEERED)
    }

    /// The places of the TCP listeners that lead to this port of the guest.
    pub(super) fn leading_to(&self, guest: u16) -> Vec<u32> {
        let leads = |e: &Entry| {
            e.rule.proto == Proto::Tcp && e.rule.pod != STEERED && e.rule.guest == guest && e.socket.is_some()
        };
        let all = 0..self.entries.len() as u32;
        all.filter(|at| self.at(*at).is_some_and(leads)).collect()
    }

    /// Has a listener refuse connections. It keeps its port.
    pub(super) fn shut(&mut self, at: u32) {
        let Some(e) = self.entries.get_mut(at as usize).and_then(Option::as_mut) else { return };
        let Some(listener) = e.socket.as_ref().filter(|_| !e.shut) else { return };
        // For a listening socket this is the end of listening; it stays bound.
        match listener.socket.shutdown(std::net::Shutdown::Read) {
            Ok(()) => e.shut = true,
            Err(error) => tracing::warn!(port = e.rule.pod, %error, "the port's listener cannot be shut"),
        }
    }

    /// Has a listener that was shut listen again; false when the kernel does not let it.
    pub(super) fn listen_again(&mut self, at: u32, peek: PeekOffset) -> bool {
        let Some(e) = self.entries.get_mut(at as usize).and_then(Option::as_mut) else { return true };
        let Some(listener) = e.socket.as_mut().filter(|_| e.shut) else { return true };
        listener.bequeaths = sockets::bequeath_options(&listener.socket, peek);
        let listens = sockets::listen(&listener.socket);
        e.shut = listens.is_err();
        if let Err(error) = listens {
            tracing::warn!(port = e.rule.pod, %error, "the port's listener cannot listen again");
        }
        !e.shut
    }

    /// The first free place from `from` on.
    fn free(&self, from: usize) -> usize {
        let taken = self.entries.iter().skip(from).take_while(|e| e.is_some()).count();
        from + taken
    }

    fn put(&mut self, at: usize, entry: Entry) {
        match self.entries.get_mut(at) {
            Some(slot) => *slot = Some(entry),
            None => self.entries.push(Some(entry)),
        }
    }

    /// The place of each port.
    fn places(&self) -> HashMap<(Proto, u16), usize> {
        let place = |(i, e): (usize, &Option<Entry>)| e.as_ref().map(|e| ((e.rule.proto, e.rule.pod), i));
        self.entries.iter().enumerate().filter_map(place).collect()
    }
}

/// The rule for what came to the pod's `port` by a listener of `rule`: of a steered socket every port leads to the same of
/// the guest.
pub(super) fn rule_for(rule: PortRule, port: u16) -> PortRule {
    if rule.pod == STEERED { PortRule { proto: rule.proto, pod: port, guest: port } } else { rule }
}

impl Entry {
    /// Whether its connections are accepted now, for a guest that `runs`. Those of a listener wait that a predecessor may have left silent:
    /// its queue stays full until it is known whether the guest runs.
    fn accepts(&self, runs: bool) -> bool {
        let silent = self.socket.as_ref().map(|l| l.silent.unwrap_or(!runs));
        !self.shut && silent == Some(false)
    }

    fn info(&self) -> PortInfo {
        PortInfo { rule: self.rule, error: self.error.clone(), shut: self.shut }
    }
}

impl Worker {
    /// Opens listeners and tells what became of each.
    pub(super) fn add_ports(&mut self, rules: &[PortRule]) -> Vec<PortInfo> {
        // Looking for a duplicate in a long list for each of a long list would be quadratic.
        let mut places = self.listening.listeners.places();
        let mut infos = Vec::with_capacity(rules.len());
        let mut free = 0;
        for rule in rules {
            if let Some(i) = places.get(&(rule.proto, rule.pod)).copied() {
                let open = self.listening.listeners.entries[i].as_ref().is_some_and(|e| e.socket.is_some());
                if open {
                    let error = Some("forwarded already".to_owned());
                    infos.push(PortInfo { rule: *rule, error, shut: false });
                    continue;
                }
                self.listening.listeners.entries[i] = None;
            }
            free = self.listening.listeners.free(free);
            let entry = self.open_port(*rule, free);
            infos.push(entry.info());
            places.insert((rule.proto, rule.pod), free);
            self.listening.listeners.put(free, entry);
        }
        self.list_asked();
        infos
    }

    /// Closes listeners. The flows that UDP listeners carry go on by sockets of their own.
    pub(super) fn remove_ports(&mut self, rules: &[PortRule]) -> Vec<PortInfo> {
        let closing = self.listening.listeners.udp_places(rules);
        if !closing.is_empty() {
            let pods: HashSet<u16> = closing
                .iter()
                .filter_map(|at| self.listening.listeners.udp(*at))
                .map(|(rule, _)| rule.pod)
                .collect();
            pods.iter().for_each(|pod| self.carriers.remove_listener(*pod));
            self.part_from_ports(&pods);
            self.forget_arrivals(&closing);
        }
        let removed = self.listening.listeners.remove(rules);
        self.list_asked();
        removed
    }

    /// Serves sockets to which every port may be steered.
    pub(super) fn add_steered(&mut self, sockets: SteeredSockets) {
        for (proto, socket) in [(Proto::Tcp, sockets.tcp), (Proto::Udp, sockets.udp)] {
            let Some(socket) = socket else { continue };
            let free = self.listening.listeners.free(0);
            let rule = PortRule { proto, pod: STEERED, guest: STEERED };
            let opened = self
                .watch_listener(fd(&socket), free as u32)
                .map(|()| Listener::watched(socket, rule, free as u32, self.peek));
            match opened {
                Ok(socket) => {
                    let socket = Some(Listener { silent: Some(false), ..socket });
                    self.listening
                        .listeners
                        .put(free, Entry { rule, socket, error: None, queued: false, shut: false });
                    // Before the sockets are lent to a helper, no peer knows their ports.
                    if self.listening.silence.is_silent() {
                        self.set_silent(free, true);
                    }
                }
                Err(error) => tracing::warn!(?proto, %error, "the steered socket cannot be watched"),
            }
        }
    }

    fn open_port(&self, rule: PortRule, index: usize) -> Entry {
        let silent = self.listening.silence.is_silent();
        let opened = match rule.proto {
            Proto::Tcp => sockets::listen_tcp(rule.pod, self.peek, silent),
            Proto::Udp => sockets::listen_udp(rule.pod),
        }
        .and_then(|s| self.watch_listener(fd(&s), index as u32).map(|()| s))
        .map(|s| Listener { silent: Some(silent), ..Listener::watched(s, rule, index as u32, self.peek) });
        match opened {
            Ok(s) => {
                if rule.proto == Proto::Udp {
                    self.carriers.add_listener(s.socket.clone());
                }
                Entry { rule, socket: Some(s), error: None, queued: false, shut: false }
            }
            Err(e) => Entry { rule, socket: None, error: Some(e.to_string()), queued: false, shut: false },
        }
    }

    /// Has epoll tell of listeners that a predecessor had, a bounded number; true when there are more. Not before the
    /// flows go on: a peer that connects waits in the listener's queue meanwhile, and epoll tells of what is there
    /// already.
    pub(super) fn watch_some(&mut self) -> bool {
        for _ in 0..WATCHED_PER_TURN {
            if self.listening.retry.is_some() {
                return false;
            }
            let Some(index) = self.listening.listeners.unwatched.pop_front() else { return false };
            let entry = self.listening.listeners.entries.get(index as usize).and_then(Option::as_ref);
            let Some((rule, listener)) = entry.and_then(|e| Some((e.rule, e.socket.as_ref()?))) else {
                continue;
            };
            // It may have been closed, and another be in its place.
            if listener.watched {
                continue;
            }
            if let Err(error) = self.watch_listener(fd(&listener.socket), index) {
                tracing::warn!(proto = ?rule.proto, port = rule.pod, %error, "the port's listener cannot be watched yet");
                self.listening.listeners.unwatched.push_front(index);
                self.retry_listeners();
                return false;
            }
            let entry = self.listening.listeners.entries.get_mut(index as usize).and_then(Option::as_mut);
            if let Some(listener) = entry.and_then(|e| e.socket.as_mut()) {
                listener.note_watched(rule.proto, self.peek);
            }
        }
        !self.listening.listeners.unwatched.is_empty()
    }
}
