//! Whose turn it is to fill the receive ring.
//!
//! What has, or may have, something for the guest waits in a queue, once; the event that put it there is an edge and
//! will not come again. It is served a bounded number of bytes and goes to the end of the queue if it has more.
//! Without receive buffers the queue waits as it is. What ends meanwhile leaves its entry behind, which finds nothing later;
//! once such entries outnumber the others they are thrown out, so that peers that come and go while the guest takes nothing
//! cost no memory.

use std::collections::{HashSet, VecDeque};

use super::inbound::Origin;
use crate::flow::FlowId;
use crate::worker::flows::Flow;
use crate::worker::listening::carriers::OutletId;
use crate::worker::turn::Worker;

/// Flows served with data in one turn, before the transmit ring gets its turn again.
const FLOWS_PER_TURN: usize = 64;
/// Turns of a socket whose datagrams are kept for a guest that leaves: more than a socket's buffer holds.
const KEEP_TURNS: usize = 64;
/// Entries of what has ended that the queue may have, beside as many as there are flows and listeners.
const STALE: usize = 1024;

/// Flows, UDP listeners and outlets that have, or may have, something for the guest.
#[derive(Default)]
pub(in crate::worker) struct Queues {
    ready: VecDeque<Origin>,
    /// With several pairs the UDP listeners and outlets, which do not wait for the guest's buffers; see
    /// [`Worker::serve_heard`].
    heard: VecDeque<Origin>,
    /// Outlets that stand in a queue.
    outlets: HashSet<OutletId>,
}

#[cfg(test)]
impl Queues {
    /// What stands in the queue of what waits for buffers, and in the queue of what does not.
    pub(in crate::worker) fn both(&self) -> [&VecDeque<Origin>; 2] {
        [&self.ready, &self.heard]
    }
}

impl Worker {
    /// Puts a flow into the queue of those that have something for the guest.
    pub(in crate::worker) fn make_ready(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(id).filter(|flow| !flow.is_parked()) else { return };
        if !flow.set_queued(true) {
            self.queues.ready.push_back(Origin::Flow(id));
            self.tidy(|worker| &mut worker.queues.ready);
        }
    }

    /// Throws entries of what has ended out of a queue, if there are many.
    fn tidy(&mut self, queue: impl Fn(&mut Worker) -> &mut VecDeque<Origin>) {
        let alive = self.flows.len() + self.listening.listeners.len() + self.queues.outlets.len();
        if queue(self).len() <= 2 * alive + STALE {
            return;
        }
        let mut tidied = std::mem::take(queue(self));
        // A listener's place may have another one by now, which is in the queue by itself; so may an outlet's.
        let (mut seen, mut outlets_seen) = (HashSet::new(), HashSet::new());
        let (flows, listeners, outlets) = (&self.flows, &mut self.listening.listeners, &self.queues.outlets);
        tidied.retain(|origin| match *origin {
            Origin::Flow(id) => flows.get(id).is_some(),
            Origin::Listener(at) => listeners.queued(at).is_some_and(|queued| *queued) && seen.insert(at),
            Origin::Outlet(id) => outlets.contains(&id) && outlets_seen.insert(id),
        });
        *queue(self) = tidied;
    }

    /// The same for a UDP listener or an outlet.
    pub(in crate::worker) fn make_heard_ready(&mut self, origin: Origin) {
        if !self.set_heard_queued(origin, true) {
            if self.peers.alone() {
                self.queues.ready.push_back(origin);
                self.tidy(|worker| &mut worker.queues.ready);
            } else {
                self.queues.heard.push_back(origin);
                self.tidy(|worker| &mut worker.queues.heard);
            }
        }
    }

    /// Notes whether a listener or an outlet is in a queue, and answers what was noted before. A listener that does
    /// not exist counts as queued.
    fn set_heard_queued(&mut self, origin: Origin, to: bool) -> bool {
        match origin {
            Origin::Flow(_) => true,
            Origin::Listener(at) => {
                self.listening.listeners.queued(at).is_none_or(|queued| std::mem::replace(queued, to))
            }
            Origin::Outlet(id) if to => !self.queues.outlets.insert(id),
            Origin::Outlet(id) => self.queues.outlets.remove(&id),
        }
    }

    /// Reads UDP listeners and outlets, where there are other pairs: what came is theirs as well, so it is passed on whether or not
    /// this pair's ring has buffers. True when some listeners are left that could go on.
    pub(in crate::worker) fn serve_heard(&mut self) -> bool {
        for _ in 0..FLOWS_PER_TURN.min(self.queues.heard.len()) {
            if !self.can_hear() {
                return false;
            }
            let Some(origin) = self.queues.heard.pop_front() else { break };
            self.set_heard_queued(origin, false);
            if self.deliver_arrivals(origin) {
                self.make_heard_ready(origin);
            }
        }
        !self.queues.heard.is_empty() && self.can_hear()
    }

    fn can_hear(&self) -> bool {
        self.others_receive() || (!self.receiveq.starved && self.receiveq.rx.is_some())
    }

    /// The guest leaves, and its rings are gone: what has come for its datagram flows waits with the frames that follow it.
    pub(in crate::worker) fn keep_datagrams(&mut self) {
        self.receiveq.keep(true);
        let mut all = std::mem::take(&mut self.queues.ready);
        all.append(&mut self.queues.heard);
        for origin in all {
            let more = match origin {
                Origin::Listener(_) | Origin::Outlet(_) => {
                    self.set_heard_queued(origin, false);
                    if self.peers.alone() {
                        self.keep_all(|worker| worker.deliver_datagrams(origin))
                    } else {
                        self.keep_all(|worker| worker.deliver_arrivals(origin))
                    }
                }
                Origin::Flow(id) => {
                    let Some(flow) = self.flows.get_mut(id) else { continue };
                    match flow {
                        // A connection's bytes stay in its socket, which goes along.
                        Flow::Tcp(_) => {
                            self.queues.ready.push_back(origin);
                            continue;
                        }
                        Flow::Udp(f) => {
                            f.queued = false;
                            self.keep_all(|worker| worker.deliver_datagrams(origin))
                        }
                        Flow::Echo(f) => {
                            f.queued = false;
                            self.keep_all(|worker| worker.deliver_echoes(id))
                        }
                    }
                }
            };
            match origin {
                // If the guest stays they have their turn again.
                Origin::Flow(id) if more => self.make_ready(id),
                _ if more => self.make_heard_ready(origin),
                _ => {}
            }
        }
    }

    /// Delivers until there is no more; true when there may be: there is no more room, or a peer sends without end.
    fn keep_all(&mut self, mut deliver: impl FnMut(&mut Worker) -> bool) -> bool {
        for _ in 0..KEEP_TURNS {
            if !deliver(self) {
                return false;
            }
            if !self.receiveq.takes_datagram() {
                break;
            }
        }
        true
    }

    /// Makes every flow, UDP listener and outlet ready: what each has waited for is there.
    pub(in crate::worker) fn wake_all(&mut self) {
        let all: Vec<FlowId> = self.flows.iter().map(|(id, _, _)| id).collect();
        for id in all {
            self.make_ready(id);
        }
        for at in 0..self.listening.listeners.len() as u32 {
            if self.listening.listeners.udp(at).is_some() {
                self.make_heard_ready(Origin::Listener(at));
            }
        }
        if self.peers.index == 0 {
            for id in self.carriers.outlets().iter().filter_map(|s| OutletId::from_place(s.place)) {
                self.make_heard_ready(Origin::Outlet(id));
            }
        }
    }

    /// Lets flows fill the receive ring, each a bounded amount; true when some are left that could go on.
    pub(in crate::worker) fn serve_ready(&mut self) -> bool {
        for _ in 0..FLOWS_PER_TURN.min(self.queues.ready.len()) {
            if self.receiveq.starved || self.receiveq.rx.is_none() {
                return false;
            }
            let id = match self.queues.ready.pop_front() {
                None => break,
                Some(Origin::Flow(id)) => {
                    self.met.add(id);
                    id
                }
                Some(origin @ (Origin::Listener(_) | Origin::Outlet(_))) => {
                    self.set_heard_queued(origin, false);
                    if self.deliver_datagrams(origin) {
                        self.make_heard_ready(origin);
                    }
                    continue;
                }
            };
            let again = match self.flows.get_mut(id) {
                Some(Flow::Tcp(f)) => {
                    f.queued = false;
                    self.deliver_stream(id)
                }
                Some(Flow::Udp(f)) => {
                    f.queued = false;
                    self.deliver_datagrams(Origin::Flow(id))
                }
                Some(Flow::Echo(f)) => {
                    f.queued = false;
                    self.deliver_echoes(id)
                }
                None => false,
            };
            if again {
                self.make_ready(id);
            }
        }
        !self.queues.ready.is_empty() && !self.receiveq.starved && self.receiveq.rx.is_some()
    }
}
