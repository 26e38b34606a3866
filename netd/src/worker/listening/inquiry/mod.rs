//! On which of the listed TCP ports the guest listens: the guest itself is asked.
//!
//! # Theory of operation
//!
//! The kernel completes a connection to a listening socket before netd hears of it: netd cannot leave a client's SYN
//! unanswered until the guest has answered. So netd asks the guest ahead of any client, by a SYN of its own to each
//! listed port, in both families, and the pod's socket listens or does not by the guest's answer. A client of a port on
//! which the guest does not listen is then refused by the kernel, as it is by a host.
//!
//! ```text
//!                 SYN-ACK
//!   UNKNOWN ──────────────────▶ OPEN
//!    │  ▲                       │  ▲
//!    │  │ no answer to          │  │ SYN-ACK
//!    │  │ FORGOTTEN questions   │  │
//! RST│  └───────── SHUT ────────┼──┘
//!    └───────────▶      ◀───────┘ RST, asked as the guest has refused a client
//! ```
//!
//! | state | the pod's socket | asked |
//! |---|---|---|
//! | UNKNOWN | listens | each [`ROUND`], after [`OFTEN`] questions without an answer each [`RARE`] |
//! | OPEN | listens | when the guest has refused a client, or its driver has started anew |
//! | SHUT | does not listen | each [`ROUND`] |
//!
//! - **Silence shuts nothing.** A guest that boots, or whose firewall swallows the question, has the port open; its clients
//!   wait for the guest itself, as without questions.
//! - **A refused client shuts nothing either**, it is the reason for a question: a guest may refuse a single client, and
//!   that client must not shut the port to the others.
//! - **One family is enough.** A port is shut if the guest answers the question of some family by a RST and that of none by
//!   a SYN-ACK. The two answers do not come in the same moment: after a RST the other one is waited for, for [`SECOND_ANSWER`].
//! - A guest with nothing to be asked costs nothing: no port is looked at while all are open.
//!
//! Time comes in by arguments; frames and sockets are the caller's ([`super::ask`]).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::MAX_ASKED;
use crate::time::Time;

/// Between two questions about a port.
pub(in crate::worker) const ROUND: Duration = Duration::from_secs(1);
/// The same where no question has been answered for long.
pub(in crate::worker) const RARE: Duration = Duration::from_secs(16);
/// Unanswered questions until a port is asked about [rarely](RARE).
pub(in crate::worker) const OFTEN: u32 = 64;
/// Unanswered questions until a port that was shut is taken for unknown.
pub(in crate::worker) const FORGOTTEN: u32 = 10;
/// Unanswered questions until a port that was open is left in peace.
const DOUBTS: u32 = 3;
/// How long after a RST the answer of the other family is waited for.
pub(in crate::worker) const SECOND_ANSWER: Duration = Duration::from_millis(500);
/// Ports looked at in one turn of the worker.
const PER_TURN: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Open,
    Shut,
}

#[derive(Clone, Copy, Debug)]
struct AskedPort {
    state: State,
    /// When it is looked at; none: not by itself.
    at: Option<Time>,
    /// The sequence number of the question that waits for its answer.
    asked: Option<u32>,
    /// When the last question was sent.
    asked_at: Option<Time>,
    /// The question was answered by a RST.
    refused: bool,
    /// Questions in a row that were not answered.
    silent: u32,
}

impl AskedPort {
    fn new(state: State, at: Time) -> AskedPort {
        AskedPort { state, at: Some(at), asked: None, asked_at: None, refused: false, silent: 0 }
    }

    /// Between this question and the next.
    fn pause(&self) -> Duration {
        if self.state == State::Unknown && self.silent >= OFTEN { RARE } else { ROUND }
    }

    /// The question had no answer.
    fn note_silence(&mut self) {
        self.silent = self.silent.saturating_add(1);
        match self.state {
            State::Shut if self.silent >= FORGOTTEN => (self.state, self.silent) = (State::Unknown, 0),
            // There is nothing to be learnt: it stays open.
            State::Open if self.silent >= DOUBTS => (self.at, self.silent) = (None, 0),
            _ => {}
        }
    }
}

/// What becomes of the sockets that lead to a port of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) enum Change {
    /// They listen.
    Open(u16),
    /// They do not.
    Shut(u16),
}

/// A question for the guest: a SYN to its port, with this sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) struct Question {
    pub(in crate::worker) port: u16,
    pub(in crate::worker) seq: u32,
}

/// What one look at the ports comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::worker) struct Turn {
    pub(in crate::worker) changes: Vec<Change>,
    pub(in crate::worker) questions: Vec<Question>,
}

/// The guest's ports that are asked about.
#[derive(Debug, Default)]
pub(in crate::worker) struct Inquiry {
    ports: BTreeMap<u16, AskedPort>,
    /// The guest's driver receives.
    running: bool,
}

impl Inquiry {
    /// These are the ports, as far as [`MAX_ASKED`] goes; what is known of those that were among them before stays known.
    pub(in crate::worker) fn set_ports(&mut self, ports: impl IntoIterator<Item = u16>, now: Time) {
        let known = std::mem::take(&mut self.ports);
        for port in ports {
            if self.ports.len() < MAX_ASKED {
                let known = || known.get(&port).copied().unwrap_or(AskedPort::new(State::Unknown, now));
                self.ports.entry(port).or_insert_with(known);
            }
        }
    }

    /// The sockets of this port do not listen.
    pub(in crate::worker) fn assume_shut(&mut self, port: u16, now: Time) {
        if let Some(p) = self.ports.get_mut(&port) {
            *p = AskedPort::new(State::Shut, now + ROUND);
        }
    }

    /// The ports that are shut.
    pub(in crate::worker) fn shut(&self) -> impl Iterator<Item = u16> {
        self.ports.iter().filter(|(_, p)| p.state == State::Shut).map(|(port, _)| *port)
    }

    /// The guest's driver has started: a guest that has booted may listen on other ports than before. A question that
    /// is on its way stays the only one, since drivers start more than once in a row: to a guest a second SYN from the
    /// same port is one that belongs to the first, and its answer tells nothing of listening.
    pub(in crate::worker) fn start(&mut self, now: Time) {
        self.running = true;
        for p in self.ports.values_mut() {
            let on_its_way = p.asked.is_some() && p.asked_at.is_some_and(|at| now.since(at) < ROUND);
            if !on_its_way {
                *p = AskedPort::new(p.state, now);
            }
        }
    }

    /// The guest's driver receives no more.
    pub(in crate::worker) fn stop(&mut self) {
        self.running = false;
    }

    /// The guest is another one: nothing is known of it. The ports that are no longer shut.
    pub(in crate::worker) fn forget(&mut self, now: Time) -> Vec<Change> {
        let open = self.shut().map(Change::Open).collect();
        self.ports.values_mut().for_each(|p| *p = AskedPort::new(State::Unknown, now));
        open
    }

    /// When [`Inquiry::poll`] has something to do.
    pub(in crate::worker) fn poll_at(&self) -> Option<Time> {
        let next = self.ports.values().filter_map(|p| p.at).min();
        next.filter(|_| self.running)
    }

    /// Looks at the ports whose time has come, a bounded number. `sequence` makes the sequence number of a question.
    pub(in crate::worker) fn poll(&mut self, now: Time, sequence: impl Fn(u16) -> u32) -> Turn {
        let mut turn = Turn::default();
        let due = self.ports.iter_mut().filter(|(_, p)| p.at.is_some_and(|at| at <= now));
        for (&port, p) in due.take(PER_TURN) {
            let refused = std::mem::take(&mut p.refused);
            if refused && p.state != State::Shut {
                // The question stays: a SYN-ACK that is late opens the port again.
                (p.state, p.at) = (State::Shut, Some(now + ROUND));
                turn.changes.push(Change::Shut(port));
                continue;
            }
            if p.asked.take().is_some() && !refused {
                let before = p.state;
                p.note_silence();
                if before == State::Shut && p.state == State::Unknown {
                    turn.changes.push(Change::Open(port));
                }
            }
            if p.at.is_some() {
                let seq = sequence(port);
                (p.asked, p.asked_at, p.at) = (Some(seq), Some(now), Some(now + p.pause()));
                turn.questions.push(Question { port, seq });
            }
        }
        turn
    }

    /// The guest has answered a question about `port`: by a SYN-ACK (`listens`) or a RST that acknowledges `ack`. What is
    /// no answer to the last question changes nothing.
    pub(in crate::worker) fn on_answer(
        &mut self,
        port: u16,
        ack: u32,
        listens: bool,
        now: Time,
    ) -> Option<Change> {
        let p = self.ports.get_mut(&port)?;
        p.asked.filter(|seq| seq.wrapping_add(1) == ack)?;
        p.silent = 0;
        if listens {
            let was = std::mem::replace(&mut p.state, State::Open);
            (p.asked, p.at, p.refused) = (None, None, false);
            return (was == State::Shut).then_some(Change::Open(port));
        }
        // Of a port that is shut it is no news.
        if !std::mem::replace(&mut p.refused, true) && p.state != State::Shut {
            p.at = Some(now + SECOND_ANSWER);
        }
        None
    }

    /// The guest has refused a client's connection to `port`: it is asked, but not more often than each [`ROUND`].
    pub(in crate::worker) fn on_refusal(&mut self, port: u16, now: Time) {
        let Some(p) = self.ports.get_mut(&port) else { return };
        if p.asked.is_none() {
            let earliest = p.asked_at.map_or(now, |at| now.max(at + ROUND));
            p.at = Some(p.at.map_or(earliest, |at| at.min(earliest)));
        }
    }
}

#[cfg(test)]
mod tests;
