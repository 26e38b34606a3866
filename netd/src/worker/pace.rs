//! How the loop gets from one turn to the next, and how long the guest waits for an interrupt.
//!
//! # Theory of operation
//!
//! A kick costs the guest a system call of its hypervisor, and a sleep costs netd the way through the scheduler;
//! while bytes flow in bulk both come once for every few frames. So a worker that moves much and has nothing
//! left to do does not ask for kicks and sleep: it naps for [`NAP`], still undisturbed by the guest, and looks
//! again. Meanwhile the guest fills its rings. When naps bring little for [`BULK_FOR`], the loop asks for kicks and
//! sleeps ([`Pause::Sleep`]); asking looks at the ring once more, so no frame is missed, and an idle worker is woken by
//! nothing. A frame that comes during a nap waits for [`NAP`] at most, events of sockets end it at once, and
//! where no bulk flows there is no nap at all. Small messages that follow each other make it spin ([`super::spin`]).
//!
//! The other way, the driver asks for an interrupt when its transmitted buffers come back ([`Owed`]). Where these
//! are bare acknowledgements the guest does not wait for them: the guest's sockets are not charged for ACKs, unlike for data
//! (Linux: skb_set_tcp_pure_ack), and the driver frees them along the way when it next sends or receives. Such
//! an interrupt is owed for [`OWED_FOR`] at most, and paid as soon as it is due for anything else, or when an
//! appreciable part of the ring would be held up by it.

use std::time::Duration;

use super::spin::Spin;
use crate::time::Time;

/// Length of a nap: as the interrupt moderation of a network card, long enough for some large frames at some
/// Gbit/s and short beside a round trip beyond the node. 50 µs cost a third more CPU time a byte.
pub(super) const NAP: Duration = Duration::from_micros(100);
/// Bytes of a turn from which on it counts as bulk: more than a few frames of a dialogue.
const BULK: usize = 32 << 10;
/// Turns in bulk further apart are not worth a nap: it would bring nothing.
const BULK_GAP: Duration = Duration::from_micros(300);
/// How long turns that move little may go on with naps: acknowledgements come between the data.
const BULK_FOR: Duration = Duration::from_micros(150);
/// Turns that have more to do follow each other without a look at events for so long.
const UNSEEN: Duration = Duration::from_micros(200);
/// For so long after a turn in bulk small messages are what belongs to it.
const AFTER_BULK: Duration = Duration::from_millis(2);
/// How long the interrupt for bare acknowledgements is owed.
pub(super) const OWED_FOR: Duration = Duration::from_millis(1);
/// The part of the ring that may be held up by it.
const OWED_PART: usize = 4;

/// What the loop does before its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Nothing: there is more to do.
    None,
    /// It looks at events.
    Look,
    /// It yields its processor and looks at events.
    Spin,
    /// It waits for events for [`NAP`] and is not kicked.
    Nap,
    /// It asks for kicks and waits.
    Sleep,
}

/// What a turn did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// When it began.
    pub(super) at: Time,
    /// Bytes that it moved.
    pub(super) moved: usize,
    /// Something had happened, or there were frames.
    pub(super) worked: bool,
    /// What [`super::spin::Met::end_turn`] says.
    pub(super) same: Option<bool>,
    /// There is more to do at once.
    pub(super) more: bool,
}

/// The loop's pace.
#[derive(Debug)]
pub(super) struct Pace {
    /// When events were last looked at.
    looked: Time,
    /// The last turn that moved much.
    last_bulk: Option<Time>,
    /// It was not the only one.
    in_bulk: bool,
    spin: Spin,
}

impl Pace {
    /// The pace of a loop that may spin if this is `allowed`.
    pub(super) fn new(allowed: bool) -> Pace {
        Pace { looked: Time::ZERO, last_bulk: None, in_bulk: false, spin: Spin::new(allowed) }
    }

    /// What follows a turn; `fine`: naps are possible.
    pub(super) fn after(&mut self, turn: Turn, fine: bool) -> Pause {
        let Turn { at: now, moved, worked, same, more } = turn;
        if worked {
            self.spin.on_work(now, same);
        }
        if moved >= BULK {
            let last = self.last_bulk.replace(now);
            self.in_bulk = last.is_some_and(|last| now.since(last) <= BULK_GAP);
        } else {
            self.in_bulk &= self.last_bulk.is_some_and(|last| now.since(last) < BULK_FOR);
        }
        if more {
            if now.since(self.looked) < UNSEEN {
                return Pause::None;
            }
            self.looked = now;
            return Pause::Look;
        }
        self.looked = now;
        if fine && self.in_bulk {
            return Pause::Nap;
        }
        let after_bulk = self.last_bulk.is_some_and(|last| now.since(last) < AFTER_BULK);
        if after_bulk {
            self.spin.forget();
            return Pause::Sleep;
        }
        if self.spin.on_idle(now) { Pause::Spin } else { Pause::Sleep }
    }
}

/// An interrupt of the transmit ring that the driver wants and has not got.
#[derive(Debug, Default)]
pub(super) struct Owed {
    since: Option<Time>,
    chains: usize,
}

impl Owed {
    /// `chains` more were given back, nothing but acknowledgements if `bare`; `wanted`: the driver wants an
    /// interrupt for them. True when it is to be sent now.
    pub(super) fn owe(&mut self, now: Time, chains: usize, bare: bool, wanted: bool, ring: u16) -> bool {
        self.chains += chains;
        if wanted {
            self.since.get_or_insert(now);
        }
        self.since.is_some() && (!bare || self.chains * OWED_PART >= usize::from(ring)) || self.is_due(now)
    }

    /// Whether it has been owed for long enough.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.due_at().is_some_and(|at| at <= now)
    }

    /// When it is to be sent at the latest.
    pub(super) fn due_at(&self) -> Option<Time> {
        self.since.map(|since| since + OWED_FOR)
    }

    /// It is sent now, if there is one: true.
    pub(super) fn take_owed(&mut self) -> bool {
        self.chains = 0;
        self.since.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Time {
        Time::from_micros(1_000_000 + us)
    }

    fn after(pace: &mut Pace, at: Time, moved: usize, more: bool, fine: bool) -> Pause {
        pace.after(Turn { at, moved, worked: moved > 0, same: Some(true), more }, fine)
    }

    #[test]
    fn what_little_moves_is_followed_by_a_sleep() {
        let mut pace = Pace::new(false);
        for us in [0, 10, 20, 5_000] {
            assert_eq!(after(&mut pace, at(us), BULK - 1, false, true), Pause::Sleep);
        }
    }

    #[test]
    fn bulk_is_followed_by_naps_and_naps_without_work_by_a_sleep() {
        let mut pace = Pace::new(false);
        assert_eq!(after(&mut pace, at(0), BULK, false, true), Pause::Sleep);
        assert_eq!(after(&mut pace, at(100), BULK, false, true), Pause::Nap);
        assert_eq!(after(&mut pace, at(200), BULK, false, true), Pause::Nap);
        assert_eq!(after(&mut pace, at(350), 0, false, true), Pause::Sleep);
        assert_eq!(after(&mut pace, at(360), 100, false, true), Pause::Sleep);
    }

    #[test]
    fn acknowledgements_between_turns_in_bulk_do_not_end_the_naps() {
        let mut pace = Pace::new(false);
        after(&mut pace, at(0), BULK, false, true);
        for us in [100, 220, 340] {
            assert_eq!(after(&mut pace, at(us), BULK, false, true), Pause::Nap);
            assert_eq!(after(&mut pace, at(us + 20), 100, false, true), Pause::Nap);
            assert_eq!(after(&mut pace, at(us + 70), 100, false, true), Pause::Nap);
        }
        assert_eq!(after(&mut pace, at(490), 100, false, true), Pause::Sleep);
    }

    #[test]
    fn a_single_large_message_is_no_bulk() {
        let mut pace = Pace::new(false);
        for us in [0, 301, 602, 903] {
            assert_eq!(after(&mut pace, at(us), 60_000, false, true), Pause::Sleep);
        }
    }

    #[test]
    fn where_waits_are_coarse_there_is_no_nap() {
        let mut pace = Pace::new(false);
        for us in [0, 100, 200] {
            assert_eq!(after(&mut pace, at(us), BULK, false, false), Pause::Sleep);
        }
    }

    #[test]
    fn small_messages_that_follow_each_other_make_it_spin_but_not_beside_bulk() {
        let mut pace = Pace::new(true);
        let pauses: Vec<Pause> = (0..4).map(|n| after(&mut pace, at(n * 30), 100, false, true)).collect();
        assert_eq!(pauses, [Pause::Sleep, Pause::Sleep, Pause::Spin, Pause::Spin]);
        after(&mut pace, at(130), BULK, false, true);
        assert_eq!(after(&mut pace, at(600), 100, false, true), Pause::Sleep);
        assert_eq!(
            after(&mut pace, at(2_200), 100, false, true),
            Pause::Sleep,
            "another dialogue, if at all"
        );
    }

    #[test]
    fn turns_with_more_to_do_look_at_events_now_and_then() {
        let mut pace = Pace::new(false);
        let pauses: Vec<Pause> = (0..5).map(|n| after(&mut pace, at(n * 90), BULK, true, true)).collect();
        assert_eq!(pauses, [Pause::Look, Pause::None, Pause::None, Pause::Look, Pause::None]);
    }

    #[test]
    fn data_and_datagrams_are_paid_at_once() {
        let mut owed = Owed::default();
        assert!(owed.owe(at(0), 1, false, true, 256));
        assert!(owed.take_owed());
        assert!(!owed.take_owed());
    }

    #[test]
    fn an_interrupt_that_nobody_wants_is_never_sent() {
        let mut owed = Owed::default();
        for n in 0..100 {
            assert!(!owed.owe(at(n * 1000), 10, n % 2 == 0, false, 256));
        }
        assert_eq!(owed.due_at(), None);
    }

    #[test]
    fn acknowledgements_are_paid_after_a_while_or_with_what_comes_after_them() {
        let mut owed = Owed::default();
        assert!(!owed.owe(at(0), 1, true, true, 256));
        assert!(!owed.owe(at(900), 1, true, false, 256));
        assert_eq!(owed.due_at(), Some(at(1000)));
        assert!(owed.owe(at(1000), 1, true, false, 256));
        assert!(owed.take_owed());
        assert!(!owed.owe(at(1100), 1, true, true, 256));
        assert!(owed.owe(at(1200), 1, false, false, 256), "the debt is older");
    }

    #[test]
    fn a_quarter_of_the_ring_is_not_held_up() {
        let mut owed = Owed::default();
        assert!(!owed.owe(at(0), 63, true, true, 256));
        assert!(owed.owe(at(1), 1, true, false, 256));
        owed.take_owed();
        assert!(!owed.owe(at(2), 63, true, true, 256), "counted anew");
        let mut tiny = Owed::default();
        assert!(tiny.owe(at(0), 1, true, true, 4));
    }
}
