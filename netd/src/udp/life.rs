//! How long a datagram flow lives, and which of them goes first when there is no room.
//!
//! # Theory of operation
//!
//! Datagrams have no end that netd could see, so a flow ends when it was not used for a while. How long that is
//! depends on what the flow has shown so far, as in the kernel's own connection tracking:
//!
//! ```text
//!   one side has sent ── the other answers ──> both have ── both still send after SUSTAINED ──> sustained
//!   udp_unreplied                              udp_unreplied, or udp_exchange                   udp_replied
//!                                              for a question of EXCHANGES
//! ```
//!
//! So a question and its answer hold their place for a short time, and only a conversation keeps it over longer
//! silences. The same difference tells which flow gives its place to a new one when all places are taken: first the
//! one that was not used for the longest time among those that are not sustained, then among the others.
//!
//! The order of use need not be exact: a flow that is used all the time is moved to the end of its list once in
//! [`RANKED`], so that a datagram seldom costs more than a comparison of two moments.

use std::time::Duration;

use super::Session;
use crate::limits::Timeouts;
use crate::time::Time;

/// Traffic of both sides for longer than this after the first datagram is a conversation.
const SUSTAINED: Duration = Duration::from_secs(2);
/// How exact the order of use is.
const RANKED: Duration = Duration::from_millis(100);
/// Services that answer each question by itself: DNS and NTP. RFC 4787, section 4.3, lets a mapping for a well-known
/// port live as long as its protocol asks for.
const EXCHANGES: [u16; 2] = [53, 123];

/// The life of a UDP or echo flow.
#[derive(Clone, Debug)]
pub struct Life {
    session: Session,
    began: Time,
    /// The lifetime of a flow that was answered and is not sustained.
    short: Duration,
    sustained: bool,
    /// When its place in the order of use was settled the last time.
    ranked: Time,
}

/// What the use of a flow changes for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The flow ends sooner than it would have without.
    pub sooner: bool,
    /// Its place in the order of use is to be settled.
    pub ranks: bool,
}

impl Life {
    /// A new UDP flow to `service`, the port of the side that did not begin.
    pub fn udp(timeouts: &Timeouts, service: u16, now: Time) -> Life {
        let session = Session::udp(timeouts, now);
        let answered = if EXCHANGES.contains(&service) {
            timeouts.udp_exchange.min(timeouts.udp_unreplied)
        } else {
            timeouts.udp_unreplied
        };
        Life::new(session, answered.min(timeouts.udp_replied), now)
    }

    /// A new echo flow, which has one timeout.
    pub fn echo(timeouts: &Timeouts, now: Time) -> Life {
        Life::new(Session::echo(timeouts, now), timeouts.echo, now)
    }

    fn new(session: Session, short: Duration, now: Time) -> Life {
        Life { session, began: now, short, sustained: false, ranked: now }
    }

    /// A UDP flow of a predecessor.
    pub fn resume_udp(session: Session, timeouts: &Timeouts) -> Life {
        Life::resume(session, timeouts.udp_replied, timeouts.udp_unreplied)
    }

    /// An echo flow of a predecessor.
    pub fn resume_echo(session: Session, timeouts: &Timeouts) -> Life {
        Life::resume(session, timeouts.echo, timeouts.echo)
    }

    /// What was saved tells by the lifetime of an answered flow whether it was sustained; see [`Life::saved`].
    fn resume(session: Session, long: Duration, short: Duration) -> Life {
        let sustained = session.is_replied() && session.replied >= long;
        let short = if session.is_replied() { session.replied } else { short }.min(long);
        let (began, ranked) = (session.used, session.used);
        Life { session: Session { replied: long, ..session }, began, short, sustained, ranked }
    }

    /// The flow for a successor, with the lifetime that it has at present.
    pub fn saved(&self) -> Session {
        Session { replied: self.answered(), ..self.session.clone() }
    }

    /// The guest sent something.
    pub fn on_guest(&mut self, now: Time) -> Used {
        let before = self.expires();
        self.session.on_guest(now);
        self.on_use(before, now)
    }

    /// The peer sent something.
    pub fn on_pod(&mut self, now: Time) -> Used {
        let before = self.expires();
        self.session.on_pod(now);
        self.on_use(before, now)
    }

    fn on_use(&mut self, before: Time, now: Time) -> Used {
        let rises = !self.sustained && self.session.is_replied() && now.since(self.began) > SUSTAINED;
        self.sustained |= rises;
        let ranks = rises || now.since(self.ranked) >= RANKED;
        if ranks {
            self.ranked = now;
        }
        Used { sooner: self.expires() < before, ranks }
    }

    /// Whether both sides have sent.
    pub fn is_replied(&self) -> bool {
        self.session.is_replied()
    }

    /// Whether both sides have sent for a while.
    pub fn is_sustained(&self) -> bool {
        self.sustained
    }

    fn answered(&self) -> Duration {
        if self.sustained { self.session.replied } else { self.short }
    }

    /// When the flow ends unless it is used again.
    pub fn expires(&self) -> Time {
        let session = &self.session;
        session.used + if session.is_replied() { self.answered() } else { session.unreplied }
    }

    /// Time since the last use.
    pub fn idle(&self, now: Time) -> Duration {
        self.session.idle(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port of no service that answers each question by itself.
    const ANY: u16 = 5060;

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn lives(life: &Life, from: Time) -> Duration {
        life.expires().since(from)
    }

    #[test]
    fn what_one_side_sends_lives_for_a_short_time_however_often() {
        let t = Timeouts::default();
        let mut life = Life::udp(&t, ANY, Time::ZERO);
        for second in 0..10 {
            life.on_guest(at(second * 1000));
        }
        assert_eq!(lives(&life, at(9000)), t.udp_unreplied);
        assert!(!life.is_sustained());
    }

    #[test]
    fn an_answer_alone_makes_no_conversation() {
        let t = Timeouts::default();
        let mut life = Life::udp(&t, ANY, Time::ZERO);
        life.on_guest(at(0));
        assert!(!life.on_pod(at(20)).sooner);
        assert_eq!(lives(&life, at(20)), t.udp_unreplied);
        // Exactly that long is not longer.
        life.on_guest(at(2000));
        assert!(!life.is_sustained());
        life.on_guest(at(2001));
        assert!(life.is_sustained());
        assert_eq!(lives(&life, at(2001)), t.udp_replied);
    }

    #[test]
    fn a_question_and_its_answer_leave_early() {
        let t = Timeouts::default();
        for (port, early) in [(53, true), (123, true), (5353, false)] {
            let mut life = Life::udp(&t, port, Time::ZERO);
            assert!(!life.on_guest(at(0)).sooner);
            assert_eq!(lives(&life, at(0)), t.udp_unreplied, "the answer may take its time");
            assert_eq!(life.on_pod(at(5)).sooner, early);
            assert_eq!(lives(&life, at(5)), if early { t.udp_exchange } else { t.udp_unreplied });
            // A client that goes on asking from the same port keeps the flow.
            life.on_guest(at(4000));
            assert_eq!(lives(&life, at(4000)), t.udp_replied);
        }
    }

    #[test]
    fn a_flow_in_use_is_ranked_once_in_a_while_and_when_it_rises() {
        let t = Timeouts::default();
        let mut life = Life::udp(&t, ANY, Time::ZERO);
        let ranked: Vec<u64> = (0..50).map(|i| i * 10).filter(|ms| life.on_guest(at(*ms)).ranks).collect();
        assert_eq!(ranked, [100, 200, 300, 400]);
        assert!(life.on_pod(at(4950)).ranks, "it has become a conversation");
        assert!(!life.on_pod(at(4960)).ranks);
    }

    #[test]
    fn a_move_keeps_what_a_flow_has_shown() {
        let t = Timeouts::default();
        let mut life = Life::udp(&t, 53, Time::ZERO);
        life.on_guest(at(0));
        for (second, lifetime) in [(1, t.udp_exchange), (3, t.udp_replied)] {
            life.on_pod(at(second * 1000));
            let moved = Life::resume_udp(life.saved(), &t);
            assert_eq!(moved.expires(), life.expires());
            assert_eq!(moved.is_sustained(), lifetime == t.udp_replied);
        }
        let silent = Life::resume_udp(Life::udp(&t, ANY, at(7)).saved(), &t);
        assert_eq!(lives(&silent, at(7)), t.udp_unreplied);
        // An older netd had the long lifetime for everything that was answered.
        let mut older = Session::udp(&t, Time::ZERO);
        older.on_guest(at(0));
        older.on_pod(at(1));
        assert_eq!(lives(&Life::resume_udp(older, &t), at(1)), t.udp_replied);
        let echo = Life::echo(&t, at(0));
        assert_eq!(lives(&Life::resume_echo(echo.saved(), &t), at(0)), t.echo);
    }
}
