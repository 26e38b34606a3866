//! The guest's datagrams on their way to sockets: what a batch of the transmit ring has gathered goes out in as few
//! system calls as can be.
//!
//! Each flow's datagrams are cut into runs ([`first_run`]), each a message. Flows with a socket of their own have a
//! call each; those of one port share their calls, as messages to many peers.

use std::io;
use std::sync::Arc;

use super::gather::Gather;
use crate::counters::Reason;
use crate::flow::FlowId;
use crate::icmp::IcmpError;
use crate::sys::{self, Message};
use crate::udp::{Run, SendOptions, first_run};
use crate::worker::datagrams::{UdpFlow, Via};
use crate::worker::flows::Flow;
use crate::worker::listening::carriers::PortSocket;
use crate::worker::stream::is_exhausted;
use crate::worker::turn::{Worker, fd};

/// Bytes of a datagram that an error about it quotes.
const QUOTE_BYTES: usize = 576;

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
struct Planned {
    /// Index of the gather it is from.
    gather: usize,
    /// Its first datagram there.
    item: usize,
    run: Run,
}

/// Scratch of one flush, kept for its capacity.
#[derive(Default)]
pub(in crate::worker) struct Outbound {
    plan: Vec<Planned>,
    /// Gathers of flows that share sockets, until they are sent together.
    shared: Vec<Gather>,
}

/// What one call for several flows takes them to have in common.
struct Outlet {
    socket: Arc<PortSocket>,
    v4: bool,
    options: SendOptions,
}

impl Outlet {
    fn is_same(&self, other: &Outlet) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket) && self.v4 == other.v4 && self.options == other.options
    }
}

impl Worker {
    /// Sends a flow's gathered datagrams, or puts them off until [`Worker::flush_shared`].
    pub(in crate::worker) fn flush_datagrams(&mut self, g: Gather) {
        match self.udp(g.flow).map(|f| &f.via) {
            Some(Via::Own { .. }) => self.send_gathers(std::slice::from_ref(&g)),
            Some(Via::Port(_)) => return self.tx.outbound.shared.push(g),
            Some(Via::Gone) | None => {}
        }
        self.tx.gathers.recycle(g);
    }

    /// Sends what shared sockets carry.
    pub(in crate::worker) fn flush_shared(&mut self) {
        if self.tx.outbound.shared.is_empty() {
            return;
        }
        let mut shared = std::mem::take(&mut self.tx.outbound.shared);
        let mut rest = shared.as_slice();
        while let Some(first) = rest.first() {
            let Some(outlet) = self.outlet(first.flow) else {
                rest = &rest[1..];
                continue;
            };
            let same = |g: &&Gather| self.outlet(g.flow).is_some_and(|o| o.is_same(&outlet));
            let (now, later) = rest.split_at(rest.iter().take_while(same).count().max(1));
            let Outlet { socket, v4, options } = outlet;
            socket.prepared(v4, options, || self.send_gathers(now));
            rest = later;
        }
        for g in shared.drain(..) {
            self.tx.gathers.recycle(g);
        }
        self.tx.outbound.shared = shared;
    }

    fn udp(&self, id: FlowId) -> Option<&UdpFlow> {
        match self.flows.get(id) {
            Some(Flow::Udp(f)) => Some(f),
            _ => None,
        }
    }

    fn udp_mut(&mut self, id: FlowId) -> Option<&mut UdpFlow> {
        match self.flows.get_mut(id) {
            Some(Flow::Udp(f)) => Some(f),
            _ => None,
        }
    }

    fn outlet(&self, id: FlowId) -> Option<Outlet> {
        let f = self.udp(id)?;
        match &f.via {
            Via::Port(c) => {
                Some(Outlet { socket: c.socket.clone(), v4: f.pod_peer.is_ipv4(), options: f.options? })
            }
            Via::Own { .. } | Via::Gone => None,
        }
    }

    /// Sends gathers of one socket.
    fn send_gathers(&mut self, gathers: &[Gather]) {
        let mut plan = std::mem::take(&mut self.tx.outbound.plan);
        for (gather, g) in gathers.iter().enumerate() {
            let Some(f) = self.udp(g.flow) else { continue };
            plan_runs(&mut plan, gather, g, 0, f.largest_run);
        }
        let mut at = 0;
        let mut again = false;
        while at < plan.len() {
            match self.send_planned(gathers, &plan[at..]) {
                Ok(n) => {
                    let sent = &plan[at..(at + n.max(1)).min(plan.len())];
                    let datagrams = sent.iter().map(|p| p.run.items as u64).sum();
                    self.counters.udp_datagrams_to_pod.add(datagrams);
                    for p in sent {
                        let g = &gathers[p.gather];
                        let items = &g.items[p.item..p.item + p.run.items];
                        let bytes = items.iter().map(|item| u64::from(item.bytes)).sum();
                        self.counters.udp_bytes_to_pod.add(bytes);
                        if let Some(f) = self.udp_mut(g.flow) {
                            f.bytes_to_pod += bytes;
                        }
                    }
                    at += sent.len();
                    again = false;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || is_exhausted(&e) => break,
                Err(error) => {
                    let failed = plan[at];
                    let flow = gathers[failed.gather].flow;
                    // A shared socket reports the ICMP errors of all its peers, so the first may be of another flow.
                    let meant = again || matches!(self.udp(flow).map(|f| &f.via), Some(Via::Own { .. }));
                    let refused = failed.run.segment.filter(|_| meant);
                    if let Some(largest) = refused.and_then(|size| refused_run(&error, size)) {
                        // These go one by one from now on, this flow's others of this batch as well.
                        self.cut_runs(&mut plan, at, gathers, largest);
                        again = false;
                    } else if again {
                        tracing::trace!(peer = ?self.udp(flow).map(|f| f.pod_peer), %error, "send");
                        for _ in 0..failed.run.items {
                            self.counters.count_drop(Reason::UdpSend);
                        }
                        self.tell_unsent(&gathers[failed.gather], failed.item, &error);
                        at += 1;
                        again = false;
                    } else {
                        // The first call after an ICMP error reports that error instead of sending: the datagram has
                        // its second chance. One that fails again is given up.
                        again = true;
                    }
                    self.on_datagram_errors(flow);
                }
            }
        }
        for p in &plan[at..] {
            for _ in 0..p.run.items {
                self.counters.count_drop(Reason::UdpSend);
            }
        }
        plan.clear();
        self.tx.outbound.plan = plan;
    }

    /// Tells the guest that the pod has no way to a peer of a socket that is not connected. One that is, is told so when it
    /// becomes that.
    fn tell_unsent(&mut self, g: &Gather, item: usize, error: &io::Error) {
        let kind = match error.raw_os_error() {
            Some(libc::ENETUNREACH) => IcmpError::NetUnreachable,
            Some(libc::EHOSTUNREACH) => IcmpError::HostUnreachable,
            Some(libc::EACCES | libc::EPERM) => IcmpError::AdminProhibited,
            _ => return,
        };
        let via = self.udp(g.flow).map(|f| &f.via);
        if !matches!(via, Some(Via::Port(_) | Via::Own { connected: false, .. })) {
            return;
        }
        let (Some(key), Some(item)) = (self.flows.key(g.flow), g.items.get(item)) else { return };
        let mut payload = vec![0; (item.bytes as usize).min(QUOTE_BYTES)];
        g.iovs.read(item.first as usize, 0, &mut payload);
        if let Some(quote) = crate::icmp::quote_udp(key.guest, key.peer, &payload) {
            self.tell(kind, None, key.guest.ip(), &quote);
        }
    }

    /// Plans the rest of a flow's datagrams anew, from the message `at` on, with runs up to `largest` only.
    fn cut_runs(&mut self, plan: &mut Vec<Planned>, at: usize, gathers: &[Gather], largest: u16) {
        let Planned { gather, item, .. } = plan[at];
        let g = &gathers[gather];
        if let Some(f) = self.udp_mut(g.flow) {
            f.largest_run = largest;
        }
        let same = plan[at..].iter().take_while(|p| p.gather == gather).count();
        let mut anew = Vec::new();
        plan_runs(&mut anew, gather, g, item, largest);
        plan.splice(at..at + same, anew);
    }

    fn send_planned(&self, gathers: &[Gather], plan: &[Planned]) -> io::Result<usize> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let flow = |p: &Planned| self.udp(gathers[p.gather].flow);
        let message = |p: &Planned| Message {
            payload: &gathers[p.gather].iovs,
            first: p.run.first as usize,
            slices: p.run.slices as usize,
            segment: p.run.segment,
            to: None,
            from: None,
        };
        match plan.first().and_then(flow).map(|f| &f.via) {
            Some(Via::Own { socket, connected, .. }) => {
                let message = |p: &Planned| match flow(p).filter(|_| !connected) {
                    Some(f) => Message { to: Some(f.pod_peer), from: f.local, ..message(p) },
                    None => message(p),
                };
                sys::send_messages(fd(socket), false, plan.iter().map(message))
            }
            Some(Via::Port(c)) => {
                let message = |p: &Planned| {
                    flow(p).map(|f| Message { to: Some(f.pod_peer), from: f.local, ..message(p) })
                };
                sys::send_messages(fd(&c.socket), c.socket.dual(), plan.iter().map_while(message))
            }
            Some(Via::Gone) | None => Err(gone()),
        }
    }
}

/// Cuts a flow's datagrams from the `item`th on into runs.
fn plan_runs(plan: &mut Vec<Planned>, gather: usize, g: &Gather, mut item: usize, largest: u16) {
    while let Some(run) = first_run(&g.items[item..], largest) {
        plan.push(Planned { gather, item, run });
        item += run.items;
    }
}

/// What may still go in runs after the path has refused one of datagrams of `size` bytes; none if it did not refuse
/// it for being one. `EINVAL` and `EMSGSIZE`: larger than the path, or an ICMP error of the past that says so; `EIO`: a
/// device without checksum offload, or IPsec.
fn refused_run(error: &io::Error, size: u16) -> Option<u16> {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::EMSGSIZE) => Some(size.saturating_sub(1)),
        Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => Some(0),
        _ => None,
    }
}
