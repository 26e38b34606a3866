//! A worker that stands still, gives what it has, and goes on here or in another process.
//!
//! [`Command::Freeze`] makes the worker wait on its mailbox alone: no socket is read, no timer runs, no listener
//! accepts, and what the kernel has to tell stays in epoll. Questions are answered; commands that would change something
//! wait until the thaw. [`Command::Pack`] asks a frozen worker for its state. Its sockets stay where they are and are
//! only borrowed for the message that carries them, so [`Command::Thaw`] goes on as if nothing had been.
//!
//! A worker that is made from such a state ([`Worker::inherit`]) begins frozen, too: the flows' sockets are watched, but
//! nothing is done until it is thawed. Listeners are watched only then, some in each turn: they may be thousands, and
//! the guest's flows shall not wait for them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use podvirt_proto::hold;

use super::command::Command;
use super::flows::Flow;
use super::flows::TcpFlow;
use super::listening::carriers::OutletId;
use super::listening::silence::Silence;
use super::turn::{Worker, fd, watch, watch_input};
use crate::counters::Reason;
use crate::flow::{FlowId, Key, Kind};
use crate::net::Home;
use crate::port::Proto;
use crate::state::{self, Descriptors, InheritError, Named, Pack};
use crate::time::{Clock, Time};

/// Addresses that a guest may bring along: one of each family.
const HOMES: usize = 2;

impl Worker {
    /// Waits until it is thawed. Commands that change something wait, too.
    pub(super) fn stand_still(&mut self) {
        let mut later = Vec::new();
        while self.life.frozen && self.life.running {
            match self.next_command() {
                Some(
                    command @ (Command::Status(_)
                    | Command::Flows { .. }
                    | Command::Ports(_)
                    | Command::Connected(_)
                    | Command::Freeze(_)
                    | Command::Pack(..)
                    | Command::Load(..)
                    | Command::Abandon(..)
                    | Command::Listeners(_)
                    | Command::AcceptWaiting(_)
                    | Command::Park(..)
                    | Command::Thaw
                    | Command::Shutdown),
                ) => self.on_command(command),
                // What another worker has sent before it, too, stood still belongs to this worker's state.
                Some(
                    command @ (Command::Adopt(_)
                    | Command::Accepted { .. }
                    | Command::Frames { .. }
                    | Command::Datagram(_)),
                ) if !self.life.packed => self.on_command(command),
                Some(command) => later.push(command),
                // No handle is left that could thaw it.
                None => self.life.running = false,
            }
        }
        self.now = self.clock.now();
        self.listening.silence.put_off(self.now);
        for command in later {
            self.on_command(command);
        }
    }

    /// The state, its descriptors into the pack.
    pub(super) fn pack(&mut self, pack: &mut Pack) -> Result<state::Worker, hold::Error> {
        self.now = self.clock.now();
        let datagrams = self.flows.iter().filter(|(_, _, flow)| matches!(flow, Flow::Udp(_)));
        for id in datagrams.map(|(id, _, _)| id).collect::<Vec<_>>() {
            if let Some(Flow::Udp(f)) = self.flows.get_mut(id) {
                f.connect();
            }
        }
        let outlets = if self.peers.index == 0 { self.carriers.outlets() } else { Vec::new() };
        let mut named = Named::after(pack);
        let mut out = state::Worker {
            state: state::WorkerState {
                now: self.now,
                started: self.life.started,
                guest_mac: self.receiveq.guest_mac,
                seen_mac: self.guest.services.guest_mac(),
                station_seen: self.guest.station_seen,
                seen: self.guest.services.seen().to_vec(),
                fragment_id: self.slow.fragment_ids.last(),
                homes: self.receiveq.link.homes(),
            },
            ports: self.listening.listeners.state(&mut named),
            outlets: outlets
                .iter()
                .map(|s| state::Outlet { place: s.place, socket: named.name(fd(s)) })
                .collect(),
            waiting: self.receiveq.waiting(),
            ..Default::default()
        };
        for (_, key, flow) in self.flows.iter() {
            match flow {
                Flow::Tcp(f) => out.tcp.push(f.state(&key, &mut named)),
                Flow::Udp(f) => out.udp.push(f.state(&key, &mut named)),
                Flow::Echo(f) => out.echo.push(f.state(&key, &mut named)),
            }
        }
        pack.add(named.fds())?;
        Ok(out)
    }

    /// Takes in what another worker had when it stood still. The worker stays frozen.
    pub(super) fn inherit(
        &mut self,
        mut state: state::Worker,
        fds: &mut Descriptors,
    ) -> Result<(), InheritError> {
        self.life.frozen = true;
        let ports = std::mem::take(&mut state.ports);
        if self.peers.index == 0 {
            self.listening.silence = Silence::inherited(self.now);
            self.listening.listeners.restore(ports, fds)?;
            self.list_inherited();
            self.listening.listeners.of_udp().for_each(|socket| self.carriers.add_listener(socket.clone()));
            for outlet in std::mem::take(&mut state.outlets) {
                let socket = fds.take(outlet.socket)?;
                // Flows that it would have carried get another.
                if let Err(error) = self.carriers.restore(outlet.place, socket) {
                    tracing::warn!(place = outlet.place, %error, "a UDP socket of many flows is not gone on with");
                }
            }
        }
        // Flows that exist go on, whatever has become of the policy.
        self.take_over(state, fds, false).map(drop)
    }

    /// Takes in what a worker of another machine had, in place of everything that this worker had. The worker stays
    /// frozen; its clock goes on where the workers there stood, as its flows' deadlines do. Connections are parked: their
    /// sockets are in repair mode. Those that this pod's link does not let the guest have end, and are answered.
    pub(super) fn load(
        &mut self,
        mut state: state::Worker,
        clock: Clock,
        fds: &mut Descriptors,
    ) -> Result<Vec<state::Endpoints>, InheritError> {
        self.abandon(&HashSet::new());
        self.set_clock(clock);
        self.receiveq.clear();
        // Ports have other places here.
        for flow in &mut state.udp {
            let Some(place) = flow.listener else { continue };
            let port = flow.key.0.port();
            flow.listener = match OutletId::from_place(place) {
                // An outlet's name tells its port, which is bound: no other than the guest's own may be.
                Some(id) => id.is_of(port, flow.pod_peer.is_ipv4()).then_some(place),
                None => {
                    let there = state.ports.iter().find(|p| p.place == place && p.proto == Proto::Udp);
                    there.and_then(|p| self.carriers.place_of(p.pod))
                }
            };
        }
        state.ports.clear();
        self.take_over(state, fds, true)
    }

    /// Ends all flows, connections by a RST to their peers; those between `except` stay as they are.
    pub(super) fn abandon(&mut self, except: &HashSet<state::Endpoints>) {
        let stays = |key: &Key| key.kind == Kind::Tcp && except.contains(&(key.guest, key.peer));
        let ids = self.flows.iter().filter(|(_, key, _)| !stays(key)).map(|(id, _, _)| id);
        for id in ids.collect::<Vec<_>>() {
            if let Some((_, Flow::Tcp(flow))) = self.flows.remove(id) {
                flow.reset_peer();
            }
        }
    }

    fn take_over(
        &mut self,
        state: state::Worker,
        fds: &mut Descriptors,
        moved: bool,
    ) -> Result<Vec<state::Endpoints>, InheritError> {
        let state::Worker { state, tcp, udp, echo, waiting, ports: _, outlets: _ } = state;
        self.life.started = state.started;
        self.slow.fragment_ids.restore(state.fragment_id);
        // A guest that has the pod's addresses follows when they change.
        let own = self.guest.own.homes();
        let foreign = |home: &Home| home.is_sound() && own.iter().all(|own| own.guest != home.guest);
        self.guest.homes = state.homes.into_iter().filter(foreign).take(HOMES).collect();
        self.apply_homes();
        // An address that is configured is stronger than one that was learned.
        self.receiveq.guest_mac = self.receiveq.link.guest_mac.or(state.guest_mac);
        self.guest.station_seen = state.station_seen;
        self.guest.services.restore(state.seen_mac, state.seen);
        self.receiveq.restore(waiting);
        let (mut over, mut refused) = (Vec::new(), Vec::new());
        for f in tcp {
            let key = key(Kind::Tcp, f.key);
            let config = self.tcp_config(f.pod_peer.ip(), f.kernel_offset);
            let mut flow = TcpFlow::from_state(f, config, fds)?;
            if moved {
                flow.on_moved();
            }
            if moved && flow.socket.is_some() {
                if self.may_go_on(&key, flow.pod_peer, flow.from_guest) {
                    flow.park();
                } else {
                    flow.refuse();
                    refused.push((key.guest, key.peer));
                }
            }
            let at = flow.conn.poll_at();
            let id = self.take_in(key, Flow::Tcp(Box::new(flow)), at)?;
            if self.is_over(id) {
                over.push((at, id));
            }
        }
        // They end in the order in which they came.
        over.sort_unstable();
        over.into_iter().for_each(|(_, id)| self.note_over(id));
        let mtu = self.receiveq.link.mtu;
        for f in udp {
            let key = key(Kind::Udp, f.key);
            if moved && !self.may_go_on(&key, f.pod_peer, f.from_guest) {
                continue;
            }
            let flow = super::datagrams::UdpFlow::from_state(f, mtu, &self.timeouts, &self.carriers, fds)?;
            let at = flow.life.expires();
            self.take_in_datagrams(key, Flow::Udp(Box::new(flow)), at)?;
        }
        for f in echo {
            let any = match f.guest {
                std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
                std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
            };
            let key = key(Kind::Echo, (f.guest, std::net::SocketAddr::new(any, 0)));
            let flow = super::echo::EchoFlow::from_state(f, &self.timeouts, fds)?;
            let at = flow.life.expires();
            self.take_in_datagrams(key, Flow::Echo(Box::new(flow)), at)?;
        }
        Ok(refused)
    }

    /// Whether a flow of another machine would be opened here, to the same peer of the pod: it is judged by the link that
    /// it comes to. Otherwise it is counted. Echo requests are judged one by one.
    fn may_go_on(&self, key: &Key, pod_peer: SocketAddr, from_guest: bool) -> bool {
        let link = &self.receiveq.link;
        let judged = match (from_guest, key.kind) {
            // An address that was opened there may not be here, and then leads elsewhere.
            (true, _) => link.way_out(key.kind, key.peer).map(|to| to == pod_peer),
            // Put together, a connection says nothing to a peer that does not know it.
            (false, Kind::Tcp) => Ok(true),
            // That a peer has begun it is what the source says. What the guest may not begin begins anew when that peer
            // speaks again. A peer with a link-local address, or one of the pod's own, was there and is not here.
            (false, _) => link.way_out(key.kind, pod_peer).map(|to| {
                let link_local = matches!(pod_peer.ip(), IpAddr::V4(ip) if ip.is_link_local());
                to == pod_peer && !link_local && link.source_for_guest(pod_peer.ip()) == Some(key.peer.ip())
            }),
        };
        let judged = judged.and_then(|may| if may { Ok(()) } else { Err(Reason::Denied) });
        if let Err(reason) = judged {
            tracing::debug!(guest = %key.guest, peer = %key.peer, ?reason, "a flow does not go on here");
            self.counters.count_drop(reason);
        }
        judged.is_ok()
    }

    /// As [`Worker::take_in`]. Flows beyond the part of the table that datagrams may have end: an older netd let them
    /// have all of it.
    fn take_in_datagrams(&mut self, key: Key, flow: Flow, at: Time) -> Result<(), InheritError> {
        if self.flows.has_all_datagrams() {
            self.counters.datagram_flows_evicted.add(1);
            return Ok(());
        }
        self.take_in(key, flow, Some(at)).map(|_| ())
    }

    fn take_in(&mut self, key: Key, flow: Flow, at: Option<Time>) -> Result<FlowId, InheritError> {
        let missing = InheritError::Flow { guest: key.guest, peer: key.peer };
        let id: FlowId = self.flows.insert(key, flow).map_err(|_| missing)?;
        let (socket, input, parked) = match self.flows.get(id) {
            Some(flow) => (flow.socket().map(AsFd::as_fd), matches!(flow, Flow::Udp(_)), flow.is_parked()),
            None => (None, false, false),
        };
        // Watched by edges: epoll tells of what is there already, so nothing that the former worker had not seen, or
        // had seen and not done, is lost.
        if let Some(socket) = socket.filter(|_| !parked) {
            let watch = if input { watch_input } else { watch };
            watch(&self.epoll, socket, id)?;
        }
        if let Some(at) = at {
            self.flows.arm(id, at);
        }
        Ok(id)
    }
}

fn key(kind: Kind, (guest, peer): (std::net::SocketAddr, std::net::SocketAddr)) -> Key {
    Key { kind, guest, peer }
}
