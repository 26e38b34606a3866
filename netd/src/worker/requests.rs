//! Commands of the mailbox: rings that come and go, a new link, questions about the state.

use std::sync::Arc;

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::command::{Command, FlowPage};
use super::flows::Flow;
use super::turn::{RX, TAG_SHIFT, TX, Worker, tag};
use crate::control::{FlowQuery, Status};
use crate::net::Link;
use crate::ring::Ring;
use crate::tap::Taps;
use crate::tcp::State;

/// Rows of the flow table told in one turn: some 0.5 ms with three system calls each.
const ROWS_PER_TURN: usize = 256;
/// Slots of the flow table looked at in one turn.
const SLOTS_PER_TURN: usize = 4096;

impl Worker {
    /// Carries out a command of the mailbox.
    pub(super) fn on_command(&mut self, command: Command) {
        // The asker may have gone; then the answer is of no use.
        match command {
            Command::StartRing { index, ring, reply } => {
                self.start_ring(index, *ring);
                let _ = reply.send(());
            }
            Command::StopRing { index, reply } => {
                let ring = self.stop_ring(index);
                let _ = reply.send(ring);
            }
            Command::Features(features) => {
                self.guest.features = features;
                self.receiveq.set_features(features);
                self.tx.set_features(features);
            }
            Command::Connected(connected) => {
                self.guest.connected = connected;
                // Not when one comes: that of a live update has shown its guest's address to the netd before.
                if !connected {
                    self.guest.station_seen = false;
                    self.receiveq.clear();
                    // The next guest asks for its addresses.
                    self.guest.homes.clear();
                    self.apply_homes();
                    // A successor may have the sockets of a worker that stands still.
                    if !self.life.frozen {
                        self.forget_answers();
                    }
                }
            }
            Command::Link(link) => self.set_link(link),
            Command::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Command::Flows { query, from, rows, reply } => {
                let _ = reply.send(self.flow_page(&query, from, rows));
            }
            Command::Ports(reply) => {
                let _ = reply.send(self.listening.listeners.infos());
            }
            Command::AddPorts(rules, reply) => {
                let _ = reply.send(self.add_ports(&rules));
            }
            Command::Steer(sockets) => self.add_steered(sockets),
            Command::RemovePorts(rules, reply) => {
                let _ = reply.send(self.remove_ports(&rules));
            }
            Command::PartFromPorts(pods, reply) => {
                self.part_from_ports(&pods);
                let _ = reply.send(());
            }
            Command::Shutdown => self.life.running = false,
            Command::Accepted { rule, socket, from } => self.on_assigned_connection(rule, socket, from),
            Command::Datagram(datagram) => {
                if let Err(reason) = self.on_passed_datagram(&datagram) {
                    self.counters.count_drop(reason);
                }
            }
            Command::Frames { frames, bytes } => self.on_passed_frames(frames, bytes),
            Command::Answer { port, ack, listens } => self.on_answer(port, ack, listens),
            Command::ClientRefused(port) => self.on_client_refused(port),
            Command::Request { key, pair, passed } => self.on_request(key, pair, passed),
            Command::Refused(key) => self.on_refused(&key),
            Command::Adopt(flows) => self.adopt(flows),
            Command::GuestMac(mac) => {
                if !std::mem::replace(&mut self.guest.station_seen, true)
                    && self.receiveq.guest_mac.replace(mac).is_none()
                {
                    self.wake_all();
                }
            }
            // The end of the turn looks at it.
            Command::PairsChanged => {}
            Command::Tap(tap) => self.receiveq.taps = Taps::add(self.receiveq.taps.take(), tap),
            Command::Untap(id) => self.receiveq.taps = Taps::remove(self.receiveq.taps.take(), id),
            Command::Keep(reply) => {
                self.keep_datagrams();
                let _ = reply.send(());
            }
            Command::Freeze(reply) => {
                let again = std::mem::replace(&mut self.life.frozen, true);
                let _ = reply.send(());
                if !again {
                    self.stand_still();
                }
            }
            Command::Pack(mut pack, reply) => {
                self.life.packed = true;
                let state = self.pack(&mut pack);
                let _ = reply.send((pack, state));
            }
            Command::Load(state, clock, mut fds, reply) => {
                let loaded = self.load(*state, clock, &mut fds);
                let _ = reply.send((fds, loaded));
            }
            Command::Listeners(reply) => {
                let _ = reply.send(self.listening.listeners.of_tcp());
            }
            Command::AcceptWaiting(reply) => {
                self.accept_waiting();
                let _ = reply.send(());
            }
            Command::Park(connections, reply) => {
                self.park(&connections);
                let _ = reply.send(());
            }
            Command::Unpark(connections) => self.unpark(&connections),
            Command::Abandon(except, reply) => {
                self.abandon(&except);
                let _ = reply.send(());
            }
            Command::Thaw => {
                self.receiveq.keep(false);
                (self.life.frozen, self.life.packed) = (false, false);
            }
        }
    }

    fn start_ring(&mut self, index: usize, mut ring: Ring) {
        let kick = match index {
            RX => tag::RX_KICK,
            TX => tag::TX_KICK,
            _ => return,
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, kick << TAG_SHIFT);
        if let Err(error) = self.epoll.add(ring.kick_fd(), event) {
            tracing::warn!(index, %error, "the ring's kick descriptor cannot be watched; ring disabled");
            self.counters.ring_errors.add(1);
            ring.break_down();
            return;
        }
        ring.suppress_kicks();
        tracing::debug!(index, position = ring.next_avail(), size = ring.size(), "ring started");
        if index == RX {
            self.receiveq.rx = Some(ring);
            self.receiveq.starved = false;
            self.services_up();
            self.listening.inquiry.start(self.now);
            self.set_pair_running(true);
            self.guest_runs(true);
            // What happened while there was no ring waits for one.
            self.wake_all();
        } else {
            self.tx.begin(ring);
        }
    }

    /// Takes a ring's kicks out of epoll. The frontend has another descriptor of the eventfd, so epoll would keep it after the ring's end, wake
    /// the worker for each kick, and refuse the next ring that has it.
    pub(super) fn unwatch_ring(&self, ring: &Ring) {
        if let Err(error) = self.epoll.delete(ring.kick_fd()) {
            tracing::debug!(%error, "epoll_ctl");
        }
    }

    fn stop_ring(&mut self, index: usize) -> Option<Ring> {
        let ring = match index {
            RX => {
                // What is in hand finds its way now or never, if this is for a handover.
                self.deliver_all_in_hand();
                self.receiveq.publish();
                self.set_pair_running(false);
                self.listening.inquiry.stop();
                self.guest_runs(false);
                self.receiveq.take_ring()
            }
            TX => self.end_transmit(),
            _ => None,
        }?;
        self.unwatch_ring(&ring);
        tracing::debug!(index, position = ring.next_avail(), "ring stopped");
        Some(ring)
    }

    /// The guest's driver receives by the first pair, or does no more: worker 0's listeners answer, or fall silent.
    fn guest_runs(&mut self, runs: bool) {
        match self.peers.index {
            0 if runs => {
                self.listening.silence.start();
                // A driver that knows of its start finds them answering, unless they are many.
                self.settle_silence();
            }
            0 => self.listening.silence.stop(self.now),
            _ => {}
        }
    }

    fn set_link(&mut self, link: Arc<Link>) {
        tracing::info!(v4 = ?link.v4.as_ref().map(|l| l.guest), v6 = ?link.v6.as_ref().map(|l| l.guest), "link changed");
        if link.guest_mac.is_some() {
            self.receiveq.guest_mac = link.guest_mac;
        }
        self.guest.own = link;
        self.apply_homes();
        // The guest learns new routes and resolvers by a router advertisement at once.
        self.services_up();
    }

    /// The link is the pod's, but for what the guest has brought along.
    pub(super) fn apply_homes(&mut self) {
        self.receiveq.link = if self.guest.homes.is_empty() {
            self.guest.own.clone()
        } else {
            Arc::new(Link::clone(&self.guest.own).with_homes(&self.guest.homes))
        };
    }

    /// The guest's link has come up or has changed: worker 0 tells it what there is.
    fn services_up(&mut self) {
        if self.peers.index == 0 {
            self.guest.services.link_up(self.now);
        }
    }

    fn status(&self) -> Status {
        let mut flows = [0; 3];
        let mut tcp_states = State::ALL.map(|s| (s.name(), 0));
        for (_, _, flow) in self.flows.iter() {
            match flow {
                Flow::Tcp(f) => {
                    flows[0] += 1;
                    tcp_states[f.conn.state() as usize].1 += 1;
                }
                Flow::Udp(_) => flows[1] += 1,
                Flow::Echo(_) => flows[2] += 1,
            }
        }
        let mut running_rings = Vec::new();
        let ring = |which: usize| (2 * self.peers.index + which) as u32;
        running_rings.extend(self.receiveq.rx.as_ref().map(|_| ring(RX)));
        running_rings.extend(self.tx.ring().filter(|r| !r.is_disabled()).map(|_| ring(TX)));
        Status {
            uptime: self.now.since(self.life.started),
            frontend_connected: self.guest.connected,
            features: self.guest.features,
            running_rings,
            link: self.receiveq.link.clone(),
            guest_mac: self.receiveq.guest_mac,
            guest_seen: self.guest.services.seen().to_vec(),
            flows,
            listeners: self.listening.listeners.open(),
            silent: self.listening.silence.is_silent(),
            tcp_states: tcp_states.into_iter().filter(|s| s.1 > 0).collect(),
        }
    }

    /// Flows from the `from`th slot of the table on, as many as one turn may tell.
    fn flow_page(&self, query: &FlowQuery, from: usize, rows: usize) -> FlowPage {
        let mut page = FlowPage::default();
        let rows = rows.min(ROWS_PER_TURN);
        let last = from.saturating_add(SLOTS_PER_TURN);
        for (id, key, flow) in self.flows.iter_from(from) {
            if page.rows.len() >= rows || id.slot() >= last {
                page.next = Some(id.slot());
                break;
            }
            let mut info = match flow {
                Flow::Tcp(f) => f.info(&key, self.now),
                Flow::Udp(f) => f.info(&key, self.now),
                Flow::Echo(f) => f.info(&key, self.now),
            };
            if !query.matches(&info) {
                continue;
            }
            if let (true, Some(tcp), Flow::Tcp(f)) = (query.sockets, info.tcp.as_mut(), flow) {
                tcp.socket = f.socket_info();
            }
            page.rows.push(info);
        }
        page
    }
}
