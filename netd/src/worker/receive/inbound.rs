//! Datagrams of the pod on their way to the guest.
//!
//! One receive call fills a batch of buffers, each with a datagram or with a run of them that the kernel has left
//! together. The batch is cut into frames for as long as the receive ring has room; what is left waits in the batch,
//! at a cursor, for the guest's next buffers, and until then no socket is read into it: nothing that was taken from
//! a socket is lost, and the order of a flow's datagrams stays.

use std::collections::HashSet;
use std::io;

use super::queue::{FrameAddresses, Full, ReceiveQueue, complete};
use crate::counters::Reason;
use crate::flow::FlowId;
use crate::sys::{BATCH, Datagram, ReceiveBatch};
use crate::wire::{ETH_LEN, MAX_HEADERS, VNET_LEN, build_udp};
use crate::worker::command::PassedDatagram;
use crate::worker::flows::Flow;
use crate::worker::listening::carriers::OutletId;
use crate::worker::peers::PASSED_COST;
use crate::worker::slow::FragmentIds;
use crate::worker::turn::{Worker, fd};

/// Receive calls for one socket in one turn.
const READS_PER_TURN: usize = 4;
/// Datagrams of one socket in one turn; then the next flow has its turn.
const DATAGRAMS_PER_TURN: u64 = 256;
/// Buffers filled at once by a socket whose datagrams come in runs, up to 64 KiB each.
const RUNS: usize = 4;
/// Turns in which a datagram finds buffers, but not enough, before it is given up.
const TRIES: u8 = 64;

/// Whose datagrams are in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) enum Origin {
    /// A flow's own socket.
    Flow(FlowId),
    /// The listener at this place.
    Listener(u32),
    /// An outlet.
    Outlet(OutletId),
}

/// The batch and how far it has been delivered.
#[derive(Default)]
struct Inbound {
    batch: ReceiveBatch,
    /// None: everything is delivered.
    origin: Option<Origin>,
    /// The next buffer, and the next byte in it.
    at: usize,
    offset: usize,
    tries: u8,
    /// The last batch held runs.
    runs: bool,
    /// It waits for no buffers: what this guest's ring has no room for is dropped, as the rest is for other workers.
    hurries: bool,
}

/// What was received from sockets and is not with the guest yet.
#[derive(Default)]
pub(in crate::worker) struct InHand {
    inbound: Inbound,
    /// In place of `inbound` for UDP listeners, where there are other pairs.
    arrivals: Inbound,
}

/// Headers of a frame, good for all datagrams of one length of a run.
struct Headers {
    bytes: [u8; MAX_HEADERS],
    end: usize,
    payload: usize,
}

impl Worker {
    /// Moves datagrams of one socket to the guest; true when there may be more.
    pub(in crate::worker) fn deliver_datagrams(&mut self, origin: Origin) -> bool {
        // What was received before goes first, whosever it is.
        if !self.deliver_inbound() {
            return true;
        }
        let before = self.counters.udp_datagrams_to_guest.get();
        for _ in 0..READS_PER_TURN {
            if !self.in_hand.inbound.hurries && !self.receiveq.takes_datagram() {
                return true;
            }
            let most = if self.in_hand.inbound.runs { RUNS } else { BATCH };
            let received = match origin {
                Origin::Flow(id) => {
                    let Some(Flow::Udp(f)) = self.flows.get(id) else { return false };
                    let Some(socket) = f.socket() else { return false };
                    self.in_hand.inbound.batch.receive(fd(socket), most)
                }
                Origin::Listener(at) => {
                    let Some((_, listener)) = self.listening.listeners.udp(at) else { return false };
                    self.in_hand.inbound.batch.receive(fd(&listener.socket), most)
                }
                Origin::Outlet(id) => {
                    let Some(socket) = self.carriers.outlet(id) else { return false };
                    self.in_hand.inbound.batch.receive(fd(&socket), most)
                }
            };
            let n = match received {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    match origin {
                        Origin::Flow(id) => self.on_datagram_errors(id),
                        Origin::Listener(at) => self.on_listener_errors(at),
                        Origin::Outlet(id) => {
                            if let Some(socket) = self.carriers.outlet(id) {
                                self.relay_errors(&socket, Some(id.port()));
                            }
                        }
                    }
                    return true;
                }
            };
            (self.in_hand.inbound.at, self.in_hand.inbound.offset, self.in_hand.inbound.tries) = (0, 0, 0);
            self.in_hand.inbound.origin = Some(origin);
            if !self.deliver_inbound() {
                return true;
            }
            if n < most {
                return false;
            }
            if self.counters.udp_datagrams_to_guest.get() - before >= DATAGRAMS_PER_TURN {
                return true;
            }
        }
        true
    }

    /// Moves datagrams of a UDP listener or an outlet to the guest and to the other workers; true when there may be more. A flow's
    /// datagrams that wait for this worker's buffers stay where they are.
    pub(in crate::worker) fn deliver_arrivals(&mut self, origin: Origin) -> bool {
        std::mem::swap(&mut self.in_hand.inbound, &mut self.in_hand.arrivals);
        self.in_hand.inbound.hurries = self.others_receive();
        let more = self.deliver_datagrams(origin);
        std::mem::swap(&mut self.in_hand.inbound, &mut self.in_hand.arrivals);
        more
    }

    /// Delivers what is in hand for as far as the receive ring has room.
    pub(in crate::worker) fn deliver_all_in_hand(&mut self) {
        for _ in 0..2 {
            self.deliver_inbound();
            std::mem::swap(&mut self.in_hand.inbound, &mut self.in_hand.arrivals);
        }
    }

    /// Delivers what is in the batch; false when the receive ring has no room for the rest.
    pub(in crate::worker) fn deliver_inbound(&mut self) -> bool {
        let Some(origin) = self.in_hand.inbound.origin else { return true };
        // Apart from the worker for as long as its buffers are borrowed.
        let mut inbound = std::mem::take(&mut self.in_hand.inbound);
        if inbound.at == 0 && inbound.offset == 0 {
            inbound.runs = false;
        }
        while inbound.at < inbound.batch.len() {
            if let Some(d) = inbound.batch.get(inbound.at) {
                inbound.runs |= d.segment.is_some();
                let from = inbound.offset;
                if self.deliver_buffer(origin, &d, &mut inbound.offset).is_err() {
                    inbound.tries = if inbound.offset > from { 0 } else { inbound.tries + 1 };
                    if !inbound.hurries && inbound.tries < TRIES {
                        break;
                    }
                    self.counters.count_drop(Reason::NoRxBuffer);
                }
            }
            inbound.at += 1;
            (inbound.offset, inbound.tries) = (0, 0);
        }
        let done = inbound.at >= inbound.batch.len();
        if done {
            inbound.origin = None;
        }
        self.in_hand.inbound = inbound;
        done
    }

    /// Drops what closed UDP listeners have received and the guest had no buffers for: their places will be others'.
    pub(in crate::worker) fn forget_arrivals(&mut self, closed: &HashSet<u32>) {
        for inbound in [&mut self.in_hand.inbound, &mut self.in_hand.arrivals] {
            if matches!(inbound.origin, Some(Origin::Listener(at)) if closed.contains(&at)) {
                for _ in inbound.at..inbound.batch.len() {
                    self.counters.count_drop(Reason::Denied);
                }
                inbound.origin = None;
            }
        }
    }

    /// Delivers one buffer's datagrams from `offset` on.
    fn deliver_buffer(&mut self, origin: Origin, d: &Datagram<'_>, offset: &mut usize) -> Result<(), Full> {
        // The flow or the worker that gets the run gets what was not delivered yet.
        let rest = Datagram { payload: &d.payload[*offset..], ..*d };
        let placed = match origin {
            Origin::Flow(id) => self.flow_of_own(id, &rest),
            Origin::Listener(at) => self.flow_of_arrival(at, &rest, d.to),
            Origin::Outlet(id) => self.flow_of_early(id.port(), &rest, d.to),
        };
        self.deliver_placed(placed, d, offset)
    }

    /// Delivers datagrams from `offset` on to the flow that they belong to; none: another worker has them.
    fn deliver_placed(
        &mut self,
        placed: Result<Option<FlowId>, Reason>,
        d: &Datagram<'_>,
        offset: &mut usize,
    ) -> Result<(), Full> {
        let ends = placed.and_then(|id| {
            let Some(id) = id else { return Ok(None) };
            self.met.add(id);
            let key = self.flows.key(id).ok_or(Reason::NoConnection)?;
            if self.receiveq.guest_mac.is_none() {
                let link = self.receiveq.link.clone();
                crate::guest::Services::solicit(&link, &mut self.frames);
                self.send_frames();
            }
            let mut ends = self.receiveq.ends(&key, d.ttl).ok_or(Reason::NoGuest)?;
            ends.at.class = d.class;
            Ok(Some((id, ends)))
        });
        let (id, ends) = match ends {
            Ok(Some(ends)) => ends,
            Ok(None) => return Ok(()),
            Err(reason) => {
                let rest = Datagram { payload: &d.payload[*offset..], ..*d };
                for _ in rest.each() {
                    self.counters.count_drop(reason);
                }
                return Ok(());
            }
        };
        let step = d.segment.map_or(d.payload.len(), usize::from).max(1);
        let mut headers = None;
        let (mut count, mut bytes, mut result) = (0, 0, Ok(()));
        loop {
            let payload = &d.payload[*offset..(*offset + step).min(d.payload.len())];
            result = result.and(write_datagram(
                &mut self.receiveq,
                &mut self.slow.fragment_ids,
                &ends,
                &mut headers,
                payload,
            ));
            if result.is_err() {
                break;
            }
            count += 1;
            bytes += payload.len() as u64;
            *offset += payload.len();
            if *offset >= d.payload.len() {
                break;
            }
        }
        self.counters.udp_datagrams_to_guest.add(count);
        self.counters.udp_bytes_to_guest.add(bytes);
        if let Some(Flow::Udp(f)) = self.flows.get_mut(id) {
            f.bytes_to_guest += bytes;
            let used = f.life.on_pod(self.now);
            self.note_use(id, used);
        }
        result
    }

    /// A datagram that another worker has received.
    pub(in crate::worker) fn on_passed_datagram(&mut self, passed: &PassedDatagram) -> Result<(), Reason> {
        self.peers.shared.backlogs[self.peers.index].done(passed.payload.len() + PASSED_COST);
        let d = Datagram {
            payload: &passed.payload,
            from: passed.from,
            to: None,
            to_port: None,
            ttl: passed.ttl,
            class: passed.class,
            segment: None,
        };
        let placed = match passed.rule {
            Ok(rule) => self.flow_of_assigned(rule, &d, passed.local).map(Some),
            Err(port) => self.flow_of_early(port, &d, passed.local),
        };
        self.deliver_placed(placed, &d, &mut 0).map_err(|Full| Reason::NoRxBuffer)
    }

    /// How many datagrams the receive ring can surely take.
    pub(in crate::worker) fn receivable(&mut self) -> usize {
        if self.receiveq.is_keeping() {
            return if self.receiveq.takes_datagram() { BATCH } else { 0 };
        }
        // Mergeable buffers are at least 1.5 KiB; a larger datagram takes several.
        let each = 1 + usize::from(self.receiveq.link.mtu) / 1536;
        let datagrams = self.receiveq.free_chains(BATCH * each) / each;
        if datagrams == 0 && self.receiveq.rx.is_some() {
            // A few buffers are left, but not enough for one.
            self.receiveq.full();
        }
        datagrams
    }
}

/// Writes one datagram to the guest.
fn write_datagram(
    receiveq: &mut ReceiveQueue,
    fragment_ids: &mut FragmentIds,
    ends: &FrameAddresses,
    headers: &mut Option<Headers>,
    payload: &[u8],
) -> Result<(), Full> {
    let h = match headers.take_if(|h| h.payload == payload.len()) {
        Some(h) => headers.insert(h),
        None => {
            let mut bytes = [0; MAX_HEADERS];
            let end = build_udp(&mut bytes, &ends.at, ends.src_port, ends.dst_port, payload.len());
            headers.insert(Headers { bytes, end, payload: payload.len() })
        }
    };
    let head = &h.bytes[..h.end];
    let mtu = receiveq.link.mtu;
    if head.len() - VNET_LEN - ETH_LEN + payload.len() <= usize::from(mtu) {
        return receiveq.frame(head, payload);
    }
    // The pod's kernel has put it together from fragments; for the guest it is cut again.
    let frame = complete(head, payload);
    match crate::frag::split_frame(&frame, mtu, fragment_ids.next()) {
        Some(fragments) => receiveq.fragments(fragments),
        None => {
            receiveq.counters.count_drop(Reason::TooLarge);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::ports::Ports;
    use crate::counters::Counters;
    use crate::flow::{Key, Kind};
    use crate::limits::{Limits, Timeouts};
    use crate::net::test_link;
    use crate::shared::Shared;
    use crate::sockets::PeekOffset;
    use crate::time::Clock;
    use crate::worker::command::{Command, mailbox};
    use crate::worker::peers::Peers;
    use crate::worker::source_ports::SourcePorts;
    use crate::worker::turn::Parts;

    #[test]
    fn of_a_run_that_meets_a_full_backlog_the_datagrams_alone_that_were_not_passed_are_dropped() {
        const LEN: usize = 100;
        let (mailboxes, mut inboxes): (Vec<_>, Vec<_>) = (0..2).map(|_| mailbox().unwrap()).unzip();
        let other = inboxes.pop().unwrap();
        let limits = Limits::default();
        let shared = Arc::new(Shared::new(2, &limits, Clock::new()));
        let counters = Arc::new(Counters::default());
        let parts = Parts {
            limits,
            timeouts: Timeouts::default(),
            link: Arc::new(test_link()),
            asks: false,
            counters: counters.clone(),
            peek: PeekOffset::NONE,
            spins: false,
            peers: Peers::new(0, shared.clone(), mailboxes.into()),
            carriers: Arc::default(),
            source_ports: SourcePorts::of_pod(&Ports::default()),
            refused: Default::default(),
        };
        let mut worker = Worker::new(parts, inboxes.pop().unwrap()).unwrap();
        // The flow is the other worker's, for which two datagrams may still wait.
        let peer = "192.0.2.1:5000".parse().unwrap();
        let key = Key { kind: Kind::Udp, guest: "10.9.0.2:53".parse().unwrap(), peer };
        shared.directory.claim(&key, 1).unwrap();
        for bytes in [1 << 20, 1 << 10, 1] {
            while shared.backlogs[1].add(bytes) {}
        }
        shared.backlogs[1].done(2 * (LEN + PASSED_COST) + LEN);
        let run = Datagram {
            payload: &[0; 5 * LEN],
            from: peer,
            to: None,
            to_port: None,
            ttl: None,
            class: 0,
            segment: Some(LEN as u16),
        };
        worker.deliver_buffer(Origin::Outlet(OutletId::from_bits(53)), &run, &mut 0).unwrap();
        let passed = std::iter::from_fn(|| other.next());
        assert_eq!(passed.filter(|command| matches!(command, Command::Datagram(_))).count(), 2);
        assert_eq!(counters.dropped(Reason::PairBacklog), 3);
        assert_eq!(Reason::ALL.iter().map(|reason| counters.dropped(*reason)).sum::<u64>(), 3);
    }
}
