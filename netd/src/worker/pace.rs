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
//! The other way, the driver asks for an interrupt when its transmitted buffers come back ([`Owed`]), which costs a small guest
//! more than the frame did. The driver also frees them along the way when it receives, and wants no interrupt for them any more. So
//! the interrupt is *owed* for a while, and sent only if the driver still wants it then:
//!
//! - bare acknowledgements: [`OWED_FOR`]. The guest does not wait for their buffers, as its sockets are not charged for ACKs,
//!   unlike for data (Linux: skb_set_tcp_pure_ack).
//! - datagrams, while the worker spins: [`DATAGRAMS_FOR`]. In a dialogue the answer comes before that, and a guest that sends one
//!   datagram after the other has room for many in its socket. A worker that goes to sleep sends the interrupt first.
//! - all else: not at all. Linux's TCP holds a small segment back while the buffer of the one before is out (automatic corking).
//!
//! It is sent as soon as it is due for anything else, or when an appreciable part of the ring would be held up by it.

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
/// The same for datagrams.
const DATAGRAMS_FOR: Duration = Duration::from_micros(100);
/// Bytes of the longest datagram for which it is owed, as a frame with its virtio header: a socket has room for few longer ones.
pub(super) const DATAGRAM: usize = 1600;
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

/// What frames of the transmit ring are, by how long the guest can do without their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frames {
    /// Nothing but acknowledgements.
    Bare,
    /// Datagrams, with or without acknowledgements, while the worker spins.
    Datagrams,
    /// Anything.
    Any,
}

/// An interrupt of the transmit ring that the driver wants and has not got.
#[derive(Debug, Default)]
pub(super) struct Owed {
    due: Option<Time>,
    /// It is owed for more than acknowledgements.
    before_sleep: bool,
    /// Those given back since it is owed.
    chains: usize,
}

impl Owed {
    /// `chains` more were given back, which held such `frames`; `wanted`: the driver wants an interrupt for them. True when it
    /// is to be sent now.
    pub(super) fn owe(&mut self, now: Time, chains: usize, frames: Frames, wanted: bool, ring: u16) -> bool {
        if !wanted && self.due.is_none() {
            return false;
        }
        let due = match frames {
            Frames::Bare => now + OWED_FOR,
            Frames::Datagrams => now + DATAGRAMS_FOR,
            Frames::Any => now,
        };
        let due = self.due.map_or(due, |at| at.min(due));
        self.due = Some(due);
        self.before_sleep |= frames == Frames::Datagrams;
        self.chains += chains;
        due <= now || self.chains * OWED_PART >= usize::from(ring)
    }

    /// When it is to be sent at the latest.
    pub(super) fn due_at(&self) -> Option<Time> {
        self.due
    }

    /// Whether it is to be sent before the worker sleeps.
    pub(super) fn is_due_before_sleep(&self) -> bool {
        self.before_sleep
    }

    /// The debt ends, if there is one: for so many chains.
    pub(super) fn settle(&mut self) -> Option<usize> {
        let chains = std::mem::take(&mut self.chains);
        self.before_sleep = false;
        self.due.take().map(|_| chains)
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
    fn the_interrupt_for_anything_is_sent_at_once() {
        let mut owed = Owed::default();
        assert!(owed.owe(at(0), 1, Frames::Any, true, 256));
        assert_eq!(owed.settle(), Some(1));
        assert_eq!(owed.settle(), None);
    }

    #[test]
    fn an_interrupt_that_the_driver_does_not_want_is_never_sent() {
        let mut owed = Owed::default();
        for n in 0..100 {
            let frames = [Frames::Bare, Frames::Datagrams, Frames::Any][n as usize % 3];
            assert!(!owed.owe(at(n * 1000), 10, frames, false, 256));
        }
        assert_eq!(owed.due_at(), None);
        assert!(!owed.is_due_before_sleep());
    }

    #[test]
    fn acknowledgements_are_paid_after_a_while_or_with_what_comes_after_them() {
        let mut owed = Owed::default();
        assert!(!owed.owe(at(0), 1, Frames::Bare, true, 256));
        assert!(!owed.owe(at(900), 1, Frames::Bare, false, 256));
        assert_eq!(owed.due_at(), Some(at(1000)));
        assert!(owed.owe(at(1000), 1, Frames::Bare, false, 256));
        assert_eq!(owed.settle(), Some(3));
        assert!(!owed.owe(at(1100), 1, Frames::Bare, true, 256));
        assert!(owed.owe(at(1200), 1, Frames::Any, false, 256), "the debt is older");
    }

    #[test]
    fn datagrams_are_paid_soon_and_acknowledgements_with_them() {
        let mut owed = Owed::default();
        assert!(!owed.owe(at(0), 1, Frames::Bare, true, 256));
        assert!(!owed.is_due_before_sleep(), "a worker may sleep over acknowledgements");
        assert!(!owed.owe(at(50), 1, Frames::Datagrams, false, 256));
        assert!(owed.is_due_before_sleep());
        assert_eq!(owed.due_at(), Some(at(150)));
        assert!(!owed.owe(at(120), 1, Frames::Datagrams, true, 256));
        assert_eq!(owed.due_at(), Some(at(150)), "the oldest counts");
        assert!(owed.owe(at(150), 1, Frames::Bare, false, 256));
        assert_eq!(owed.settle(), Some(4));
        assert!(!owed.is_due_before_sleep());
    }

    #[test]
    fn a_quarter_of_the_ring_is_not_held_up() {
        for frames in [Frames::Bare, Frames::Datagrams] {
            let mut owed = Owed::default();
            assert!(!owed.owe(at(0), 63, frames, true, 256));
            assert!(owed.owe(at(1), 1, frames, false, 256));
            owed.settle();
            assert!(!owed.owe(at(2), 63, frames, true, 256), "counted anew");
            let mut tiny = Owed::default();
            assert!(tiny.owe(at(0), 1, frames, true, 4));
        }
    }
}
