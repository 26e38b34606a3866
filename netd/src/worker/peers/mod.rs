//! The other workers: frames and flows that go from one to another (ADR 0006).
//!
//! # Theory of operation
//!
//! A flow is at home with one worker. A frame that comes by another pair's transmit ring misses that worker's
//! table; the directory tells whose the flow is, and a copy of the frame is *passed* to its mailbox, batched by
//! turns. Where a flow keeps coming by the other pair, the flow itself moves:
//!
//! ```text
//!   worker B (its ring carries the frames)                  worker A (has the flow)
//!     miss ── directory: A ── Frames ─────────────────────▶ carries them
//!     ... FRAMES_BEFORE_REQUEST frames later: Request ─────────────────▶ has carried fewer by its own ring since the last one?
//!     holds further copies                                    yes: directory := B, takes the flow out
//!     ◀───────────────────────────────────────── Adopt ──┘
//!     inserts the flow, then the held copies, in order       no: Refused, and B passes on what it held
//! ```
//!
//! The mailbox keeps the order of what one worker sends another, so the flow sees its frames in the order in
//! which the guest sent them. The majority rule keeps a connection at home whose acknowledgements leave the
//! guest from two processors.
//!
//! When a pair no longer receives and others do, its worker waits [`GRACE`] (a change of the memory map stops all
//! rings for a moment, and they start one after the other) and then sends each of its flows to one that does, by the same `Adopt`.
//!
//! A flow whose owner is this worker by the directory but that is not in its table is on the way: its frames
//! wait in *limbo* for it. A frame is passed [`MAX_HOPS`] times at most.
//!
//! Listeners and the services (ARP, NDP, DHCP) are with worker 0. It gives what the pod opens to the pairs that
//! run, by a hash of the tuple; it gets the frames for the services from all.

mod moves;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;

use super::command::{Command, Mailbox, PassedDatagram, PassedFrame};
use super::transmit::TxFrame;
use super::turn::Worker;
use crate::counters::Reason;
use crate::flow::{Key, Kind};
use crate::port::PortRule;
use crate::ring::Iovs;
use crate::shared::Shared;
use crate::sys::Datagram;
use crate::time::Time;
use crate::wire::VnetHeader;

/// Frames of a flow passed to its owner until the flow itself is asked for.
const FRAMES_BEFORE_REQUEST: u32 = 32;
/// How often one frame is passed, before it is dropped: its flow moves faster than the frame.
const MAX_HOPS: u8 = 4;
/// Bytes for one worker that are sent before the turn's end.
const FLUSH_BYTES: usize = 256 << 10;
/// Bytes of frames that wait here for flows that are on their way.
const HELD_BYTES: usize = 1 << 20;
/// What a passed datagram takes of the backlog beside its payload, which may be empty: its box and the command.
pub(super) const PASSED_COST: usize = 256;
/// Flows of others that are known here; beyond it they are looked up again.
const MAX_FOREIGN_FLOWS: usize = 4096;
/// How long a pair may be without its receive ring before its flows move. A frontend starts the pairs one after the other: when the
/// guest starts, when it comes from another machine, and when another netd takes over. On a node without a free processor tens of
/// milliseconds pass between two pairs.
const GRACE: Duration = Duration::from_secs(1);

/// A flow of another worker of which this worker's ring has carried frames.
struct ForeignFlow {
    owner: usize,
    /// Frames passed since it was last asked for.
    passed: u32,
    /// Asked for: frames that wait for the answer.
    held: Option<Vec<Vec<u8>>>,
}

/// What one worker knows of the others.
pub(super) struct Peers {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared>,
    mailboxes: Arc<[Mailbox]>,
    /// By worker: what is sent to it at the end of the turn, and its bytes.
    outboxes: Vec<(Vec<PassedFrame>, usize)>,
    foreign_flows: HashMap<Key, ForeignFlow>,
    /// Frames whose flow is on its way.
    limbo: Vec<PassedFrame>,
    /// Bytes in `foreign_flows` and `limbo`.
    held: usize,
    /// How often the frame that is being looked at was passed; zero: it comes from this worker's own ring.
    pub(super) hops: u8,
    /// When the flows move, as this pair does not receive.
    pub(super) move_at: Option<Time>,
}

impl Peers {
    pub(super) fn new(index: usize, shared: Arc<Shared>, mailboxes: Arc<[Mailbox]>) -> Self {
        Peers {
            index,
            shared,
            outboxes: mailboxes.iter().map(|_| (Vec::new(), 0)).collect(),
            mailboxes,
            foreign_flows: HashMap::new(),
            limbo: Vec::new(),
            held: 0,
            hops: 0,
            move_at: None,
        }
    }

    /// Whether there is no other worker.
    pub(super) fn alone(&self) -> bool {
        self.mailboxes.len() == 1
    }

    /// Whether a new flow of this key would be a second one of it.
    pub(super) fn has_elsewhere(&self, key: &Key) -> bool {
        self.shared.directory.owner(key).is_some_and(|owner| owner != self.index)
    }

    /// How many workers there are.
    pub(super) fn count(&self) -> usize {
        self.mailboxes.len()
    }

    /// Sends a command to one worker. A worker that has ended takes netd with it, so nothing is to be done then.
    pub(super) fn send(&self, to: usize, command: Command) {
        if let Some(mailbox) = self.mailboxes.get(to) {
            mailbox.send(command);
        }
    }

    /// Sends a command to every other worker.
    pub(super) fn tell(&self, command: impl Fn() -> Command) {
        for to in (0..self.mailboxes.len()).filter(|i| *i != self.index) {
            self.send(to, command());
        }
    }

    /// Puts a frame into the outbox of `to`; false when too much waits there already.
    fn pass(&mut self, to: usize, frame: PassedFrame) -> bool {
        let Some((frames, bytes)) = self.outboxes.get_mut(to) else { return false };
        if !self.shared.backlogs[to].has_room(*bytes + frame.bytes.len()) {
            return false;
        }
        *bytes += frame.bytes.len();
        frames.push(frame);
        if *bytes >= FLUSH_BYTES {
            return self.flush(to);
        }
        true
    }

    /// Sends what is in the outbox of `to`; false, and it is gone, when too much waits there.
    fn flush(&mut self, to: usize) -> bool {
        let Some((frames, bytes)) = self.outboxes.get_mut(to) else { return false };
        let (frames, bytes) = (std::mem::take(frames), std::mem::take(bytes));
        if frames.is_empty() {
            return true;
        }
        if !self.shared.backlogs[to].add(bytes) {
            return false;
        }
        self.send(to, Command::Frames { frames, bytes });
        true
    }

    /// Room for `bytes` among the frames that wait here.
    fn hold(&mut self, bytes: usize) -> bool {
        let fits = self.held + bytes <= HELD_BYTES;
        if fits {
            self.held += bytes;
        }
        fits
    }

    /// Forgets whose a flow was. Frames that wait for an answer about it stay: they are released with it.
    fn forget(&mut self, key: &Key) {
        if self.foreign_flows.get(key).is_some_and(|s| s.held.is_none()) {
            self.foreign_flows.remove(key);
        }
    }

    fn foreign_flow(&mut self, key: &Key, owner: usize) -> &mut ForeignFlow {
        if self.foreign_flows.len() >= MAX_FOREIGN_FLOWS && !self.foreign_flows.contains_key(key) {
            self.foreign_flows.retain(|_, s| s.held.is_some());
        }
        self.foreign_flows.entry(*key).or_insert(ForeignFlow { owner, passed: 0, held: None })
    }
}

impl Worker {
    /// Gives a frame of a flow that is not in the table to the worker that has it; false when no worker has it.
    /// `opens`: the frame would open a flow, so that what was known of an older one does not count.
    pub(super) fn pass_on(&mut self, key: &Key, frame: &TxFrame<'_>, opens: bool) -> bool {
        if self.peers.alone() {
            return false;
        }
        let outcome = self.pass_to_owner(key, frame, opens);
        if outcome == Passed::Dropped {
            self.counters.count_drop(Reason::PairBacklog);
        }
        outcome != Passed::NotOwned
    }

    fn pass_to_owner(&mut self, key: &Key, frame: &TxFrame<'_>, opens: bool) -> Passed {
        let p = &mut self.peers;
        let copy = || {
            let mut bytes = vec![0; frame.bytes];
            frame.slices.read(frame.first, 0, &mut bytes);
            bytes
        };
        let known = p.foreign_flows.get(key).filter(|_| p.hops == 0).map(|s| (s.owner, s.held.is_some()));
        let owner = match known {
            Some((_, true)) => {
                if !p.hold(frame.bytes) {
                    return Passed::Dropped;
                }
                if let Some(held) = p.foreign_flows.get_mut(key).and_then(|s| s.held.as_mut()) {
                    held.push(copy());
                }
                return Passed::Taken;
            }
            Some((owner, false)) if !opens => owner,
            _ => {
                p.forget(key);
                match p.shared.directory.owner(key) {
                    None => return Passed::NotOwned,
                    Some(owner) => owner,
                }
            }
        };
        let hops = p.hops + 1;
        if hops > MAX_HOPS {
            return Passed::Dropped;
        }
        if owner == p.index {
            if !p.hold(frame.bytes) {
                return Passed::Dropped;
            }
            p.limbo.push(PassedFrame { bytes: copy(), hops });
            return Passed::Taken;
        }
        if !p.pass(owner, PassedFrame { bytes: copy(), hops }) {
            return Passed::Dropped;
        }
        self.counters.pair_frames_passed.add(1);
        if hops == 1 {
            let pair = p.index;
            let foreign_flow = p.foreign_flow(key, owner);
            foreign_flow.passed += 1;
            let passed = foreign_flow.passed;
            if passed >= FRAMES_BEFORE_REQUEST {
                foreign_flow.held = Some(Vec::new());
                // Behind what was passed so far.
                if !p.flush(owner) {
                    self.counters.count_drop(Reason::PairBacklog);
                }
                self.peers.send(owner, Command::Request { key: *key, pair, passed });
            }
        }
        Passed::Taken
    }

    /// Gives an Ethernet frame for the services to worker 0.
    pub(super) fn pass_service_frame(&mut self, frame: &[u8]) -> Result<(), Reason> {
        let bytes = [&VnetHeader::PLAIN.to_bytes()[..], frame].concat();
        let hops = self.peers.hops + 1;
        if hops > MAX_HOPS || !self.peers.pass(0, PassedFrame { bytes, hops }) {
            return Err(Reason::PairBacklog);
        }
        self.counters.pair_frames_passed.add(1);
        Ok(())
    }

    /// Sends the other workers what this turn has for them.
    pub(super) fn flush_outboxes(&mut self) {
        for to in 0..self.peers.outboxes.len() {
            if !self.peers.flush(to) {
                self.counters.count_drop(Reason::PairBacklog);
            }
        }
    }

    /// Frames that other workers' rings have carried.
    pub(super) fn on_passed_frames(&mut self, frames: Vec<PassedFrame>, bytes: usize) {
        self.peers.shared.backlogs[self.peers.index].done(bytes);
        for frame in frames {
            self.on_passed_frame(frame);
        }
        self.flush_gathers();
    }

    fn on_passed_frame(&mut self, frame: PassedFrame) {
        let len = frame.bytes.len();
        self.peers.hops = frame.hops;
        let slices = Iovs::from_owned(frame.bytes);
        if let Err(reason) = self.on_frame_apart(&slices, len) {
            self.counters.count_drop(reason);
        }
        self.peers.hops = 0;
    }

    /// Whether another pair receives.
    pub(super) fn others_receive(&self) -> bool {
        !self.peers.alone() && self.peers.shared.running.others(self.peers.index)
    }

    /// Which other worker shall have a flow that the pod opens; None: this worker.
    pub(super) fn assign(&self, kind: Kind, rule: PortRule, from: SocketAddr) -> Option<usize> {
        if self.peers.alone() {
            return None;
        }
        let link = &self.receiveq.link;
        let guest = SocketAddr::new(link.guest_address(from.ip())?, rule.guest);
        let peer = SocketAddr::new(link.source_for_guest(from.ip())?, from.port());
        let key = Key { kind, guest, peer };
        if self.flows.find(&key).is_some() {
            return None;
        }
        let shared = &self.peers.shared;
        // The worker that has that tuple knows whether the tuple can be used again.
        shared.directory.owner(&key).or_else(|| shared.assign(&key)).filter(|to| *to != self.peers.index)
    }

    /// Gives a connection that the pod has accepted to another worker.
    pub(super) fn pass_connection(&mut self, to: usize, rule: PortRule, socket: Socket, from: SocketAddr) {
        self.peers.send(to, Command::Accepted { rule, socket, from });
    }

    /// Gives a received datagram, or a run of them, for `rule` or (Err) for a listener at a port, to another worker. Those for which too
    /// much waits there are counted as dropped.
    pub(super) fn pass_datagram(
        &mut self,
        to: usize,
        rule: Result<PortRule, u16>,
        d: &Datagram<'_>,
        local: Option<IpAddr>,
    ) {
        for payload in d.each() {
            if !self.peers.shared.backlogs[to].add(payload.len() + PASSED_COST) {
                self.counters.count_drop(Reason::PairBacklog);
                continue;
            }
            let Datagram { from, ttl, class, .. } = *d;
            let passed = PassedDatagram { rule, local, from, ttl, class, payload: payload.to_vec() };
            self.peers.send(to, Command::Datagram(Box::new(passed)));
        }
    }
}

/// What became of a frame that is not for a flow of this worker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// Another worker has it, or it waits.
    Taken,
    /// There was no room for it.
    Dropped,
    /// No worker has such a flow.
    NotOwned,
}

#[cfg(test)]
mod tests {

    use super::super::command::mailbox;
    use super::*;
    use crate::limits::Limits;
    use crate::time::Clock;

    #[test]
    fn frames_that_wait_for_an_answer_stay_when_the_flow_is_looked_up_again() {
        let (mailboxes, _inboxes): (Vec<_>, Vec<_>) = (0..2).map(|_| mailbox().unwrap()).unzip();
        let shared = Arc::new(Shared::new(2, &Limits::default(), Clock::new()));
        let mut peers = Peers::new(0, shared, mailboxes.into());
        let peer = "192.0.2.1:80".parse().unwrap();
        let [asked, known] =
            [1, 2].map(|port| Key { kind: Kind::Tcp, guest: ([10, 9, 0, 2], port).into(), peer });
        assert!(peers.hold(100));
        peers.foreign_flow(&asked, 1).held = Some(vec![vec![0; 100]]);
        peers.foreign_flow(&known, 1);
        peers.forget(&asked);
        peers.forget(&known);
        assert!(!peers.foreign_flows.contains_key(&known));
        let kept = peers.foreign_flows.get(&asked).and_then(|s| s.held.as_ref()).map_or(0, |h| h[0].len());
        assert_eq!((kept, peers.held), (100, 100));
    }
}
