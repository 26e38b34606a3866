//! Flows that go from one worker to another.

use super::{GRACE, PassedFrame};
use crate::counters::Reason;
use crate::flow::{FlowId, Key};
use crate::worker::command::Command;
use crate::worker::flows::Flow;
use crate::worker::turn::{Worker, fd, watch, watch_input};

impl Worker {
    /// Another pair has carried `passed` frames of a flow that is here.
    pub(in crate::worker) fn on_request(&mut self, key: Key, pair: usize, passed: u32) {
        // What was gathered is sent from here, before what will be sent from there.
        self.flush_gathers();
        let granted = self.flows.find(&key).filter(|id| {
            let own = match self.flows.get_mut(*id) {
                Some(Flow::Tcp(f)) => std::mem::take(&mut f.own_segments),
                _ => 0,
            };
            own <= passed && self.peers.shared.running.has(pair)
        });
        match granted.and_then(|id| self.part_with(id, pair)) {
            Some(flow) => self.peers.send(pair, Command::Adopt(vec![flow])),
            None => self.peers.send(pair, Command::Refused(key)),
        }
    }

    /// Takes a flow out of the table, for another worker to adopt; None when there is no such flow, or it cannot move.
    fn part_with(&mut self, id: FlowId, to: usize) -> Option<(Key, Flow)> {
        if self.flows.get(id)?.is_parked() {
            return None;
        }
        let (key, flow) = self.flows.part(id, to)?;
        if let Some(s) = flow.socket()
            && let Err(error) = self.epoll.delete(fd(s))
        {
            tracing::debug!(%error, "epoll_ctl");
        }
        Some((key, flow))
    }

    /// Flows that come from another worker.
    pub(in crate::worker) fn adopt(&mut self, flows: Vec<(Key, Flow)>) {
        for (key, mut flow) in flows {
            flow.set_queued(false);
            self.counters.pair_flows_moved.add(1);
            if let Some(id) = self.flows.adopt(key, flow) {
                self.settle_adopted(id);
            }
            self.release_held(&key);
        }
        let limbo = std::mem::take(&mut self.peers.limbo);
        for frame in limbo {
            self.peers.held -= frame.bytes.len();
            self.on_passed_frame(frame);
        }
        self.flush_gathers();
    }

    fn settle_adopted(&mut self, id: FlowId) {
        // Watching by edges tells at once of what is there already.
        let stream = matches!(self.flows.get(id), Some(Flow::Tcp(_)));
        let watched = match self.flows.get_mut(id).and_then(|f| f.socket()) {
            Some(s) if stream => watch(&self.epoll, fd(s), id),
            Some(s) => watch_input(&self.epoll, fd(s), id),
            None => Ok(()),
        };
        if let Err(error) = watched {
            tracing::warn!(%error, "the socket of a flow that moved cannot be watched; the flow ends");
            self.counters.count_drop(Reason::SocketLimit);
            self.flows.remove(id);
            return;
        }
        let expires = match self.flows.get_mut(id) {
            Some(Flow::Tcp(_)) => None,
            Some(Flow::Udp(f)) => Some(f.life.expires()),
            Some(Flow::Echo(f)) => Some(f.life.expires()),
            None => return,
        };
        match expires {
            Some(at) => self.flows.arm(id, at),
            None => {
                if self.is_over(id) {
                    self.note_over(id);
                }
                self.settle_stream(id);
            }
        }
        self.make_ready(id);
    }

    /// The owner keeps the flow that was asked for, or does not have it any more.
    pub(in crate::worker) fn on_refused(&mut self, key: &Key) {
        self.release_held(key);
        self.flush_gathers();
    }

    /// Looks again at the frames that have waited for an answer.
    fn release_held(&mut self, key: &Key) {
        for bytes in self.peers.foreign_flows.remove(key).and_then(|s| s.held).unwrap_or_default() {
            self.peers.held -= bytes.len();
            self.on_passed_frame(PassedFrame { bytes, hops: 1 });
        }
    }

    /// The pair receives, or no longer does.
    pub(in crate::worker) fn set_pair_running(&mut self, runs: bool) {
        self.peers.shared.running.set(self.peers.index, runs);
        if runs {
            self.peers.move_at = None;
            self.peers.tell(|| Command::PairsChanged);
        }
    }

    /// At the end of a turn: flows of a pair that does not receive shall move to one that does.
    pub(in crate::worker) fn plan_move(&mut self) {
        if self.receiveq.rx.is_some() || self.peers.alone() {
            return;
        }
        let (running, index) = (&self.peers.shared.running, self.peers.index);
        if running.has(index) {
            // The driver has broken the ring.
            running.set(index, false);
        }
        if self.peers.move_at.is_none() && !self.flows.is_empty() && running.others(index) {
            self.peers.move_at = Some(self.now + GRACE);
        }
    }

    /// The time has come to move the flows, if that is still to be done.
    pub(in crate::worker) fn move_flows(&mut self) {
        self.peers.move_at = None;
        if self.receiveq.rx.is_some() {
            return;
        }
        let mut parted: Vec<Vec<(Key, Flow)>> = (0..self.peers.count()).map(|_| Vec::new()).collect();
        let all: Vec<(FlowId, Key)> = self.flows.iter().map(|(id, key, _)| (id, key)).collect();
        for (id, key) in all {
            let to = self.peers.shared.assign(&key).filter(|to| *to != self.peers.index);
            if let Some(to) = to
                && let Some(flow) = self.part_with(id, to)
            {
                parted[to].push(flow);
            }
        }
        for (to, flows) in parted.into_iter().enumerate().filter(|(_, f)| !f.is_empty()) {
            tracing::debug!(flows = flows.len(), from = self.peers.index, to, "flows move to another pair");
            self.peers.send(to, Command::Adopt(flows));
        }
    }
}
