//! Whether a worker looks for what comes next before it sleeps, and for how long.
//!
//! # Theory of operation
//!
//! A worker that sleeps is woken by way of the scheduler. Where its processor has gone idle meanwhile, that takes longer than
//! all that netd does for a small message: some microseconds on a machine's own processor, and 50 µs or more where the
//! processor is a virtual one and its hypervisor has to run it first. So a worker *spins* while requests and answers
//! follow each other: it looks at its rings and sockets over and over, and sleeps only when it has found nothing for [`SPIN`]. Meanwhile
//! the guest need not kick, which spares its hypervisor a system call. KVM does the same for a virtual processor that halts
//! (`halt_poll_ns`, 200 µs).
//!
//! ```text
//!            the score of a dialogue,
//!            something in the budget
//!   asleep ──────────────────────────> spinning ──┐ found something
//!      ^                                │    ^    │
//!      └────────────────────────────────┘    └────┘
//!        SPIN is over, or the budget is used up
//! ```
//!
//! What bounds it:
//!
//! - Before each look the worker yields its processor (sched_yield(2)). Threads of its own control group that want the
//!   processor have it then. Those of other groups, as a busy virtual processor in a container of its own, have their group's
//!   share of it only: the kernel lets them run when the worker has used up a slice, a few milliseconds. Then a look comes late, by [`AWAY`] or more, and
//!   the worker *gives way*: it spins no more for [`REST`], and for twice as long each time that the rest has not helped, up to [`LONGEST_REST`].
//!   So such a thread loses a slice in that time.
//! - It takes a dialogue. A *score* grows with each event that came within [`SHORT`], asleep or not, and was of one of the last
//!   two flows; an event of another flow takes [`OTHER`] from it, a longer wait all of it. So connections that are opened and closed one after
//!   the other are a dialogue, but not a thousand connections in which little happens at a time. A guest that is idle, or asks now and then, never makes its
//!   worker spin.
//! - The *budget* of processor time. Spinning takes from it; each event of such a flow that was found brings [`WORTH`] back, about what
//!   the sleep would have cost; and it fills with a part of the time that passes ([`SHARE`]), up to [`BURST`]. So events that
//!   follow each other closely are spun for as long as they do, and all other spinning, whether it finds something or not, takes an eighth of a
//!   processor at most. A budget that is used up fills to [`REFILLED`] before it is touched again: the worker spins for
//!   some milliseconds and then sleeps for some, and does not mix both within one exchange.
//! - Where bytes flow in bulk the worker naps instead (see `pace`).
//! - A process whose control group has a limit of processor time does not spin at all: the kernel would make all of it wait
//!   for what its spinning has used up.

use std::time::Duration;

use crate::flow::FlowId;
use crate::time::Time;

/// How long one spin lasts at most: as KVM's for a virtual processor that halts.
const SPIN: Duration = Duration::from_micros(200);
/// A wait that is no longer than this may be one of a dialogue. It is longer than [`SPIN`]: while the worker sleeps, so do the
/// guest and the peer between two messages, and each has to be woken before it answers.
const SHORT: Duration = Duration::from_micros(500);
/// From this score on it is a dialogue.
const DIALOGUE: u8 = 2;
/// The highest score.
const MOST: u8 = 8;
/// What is taken from the score for an event of another flow.
const OTHER: u8 = 2;
/// What the budget gets for an event that was found: the sleep that was spared costs netd's thread about 25 µs, and about as
/// much the guest that kicks and the kernel that wakes.
const WORTH: Duration = Duration::from_micros(50);
/// The part of the time that passes by which the budget grows: one in so many.
const SHARE: u32 = 8;
/// The most that the budget holds.
const BURST: Duration = Duration::from_millis(20);
/// What the budget holds when it is touched again.
const REFILLED: Duration = Duration::from_millis(10);

/// A look that comes so late after the one before was held up by another thread that runs on the processor. A guest that shares it and
/// answers takes less than that.
const AWAY: Duration = Duration::from_micros(500);
/// How long the worker does not spin after that: some slices of the scheduler.
const REST: Duration = Duration::from_millis(10);
/// See [`REST`].
const LONGEST_REST: Duration = Duration::from_millis(80);

/// Whether and how long a worker spins.
#[derive(Debug)]
pub(super) struct Spin {
    allowed: bool,
    /// When it was decided to look once more.
    spun_at: Option<Time>,
    rest: Rest,
    /// Since when there has been nothing to do.
    idle_since: Option<Time>,
    /// The worker has slept since then.
    slept: bool,
    /// How much it looks like a dialogue.
    score: u8,
    budget: Budget,
}

impl Spin {
    /// A worker that may spin if this is `allowed`; its budget is full.
    pub(super) fn new(allowed: bool) -> Spin {
        Spin {
            allowed,
            spun_at: None,
            rest: Rest::default(),
            idle_since: None,
            slept: false,
            score: 0,
            budget: Budget::new(),
        }
    }

    /// The turn that began at `now` had something to do; `same` is what [`Met::end_turn`] says of it.
    pub(super) fn on_work(&mut self, now: Time, same: Option<bool>) {
        self.note_look(now);
        let Some(since) = self.idle_since.take() else { return };
        let waited = now.since(since);
        self.score = match same {
            _ if waited > SHORT => 0,
            Some(true) => MOST.min(self.score + 1),
            Some(false) => self.score.saturating_sub(OTHER),
            None => self.score,
        };
        if !self.slept {
            let worth = if same == Some(false) { Duration::ZERO } else { WORTH };
            self.budget.take(waited.saturating_sub(worth));
            self.budget.put(worth.saturating_sub(waited));
        }
        self.slept = false;
    }

    /// What has been is no dialogue: there was bulk.
    pub(super) fn forget(&mut self) {
        (self.idle_since, self.spun_at, self.slept, self.score) = (None, None, false, 0);
    }

    /// There is nothing to do after the turn that began at `now`: true if the worker shall spin, false if it shall sleep.
    pub(super) fn on_idle(&mut self, now: Time) -> bool {
        self.note_look(now);
        let since = *self.idle_since.get_or_insert(now);
        if self.slept {
            return false;
        }
        let spun = now.since(since);
        let may = self.allowed && !self.rest.is_on(now);
        if may && self.score >= DIALOGUE && spun < SPIN && self.budget.has_some(now) {
            self.spun_at = Some(now);
            return true;
        }
        self.budget.take(spun);
        self.slept = true;
        false
    }
}

impl Spin {
    /// The worker, which has looked while it spun, does so again.
    fn note_look(&mut self, now: Time) {
        if self.spun_at.take().is_some_and(|before| now.since(before) >= AWAY) {
            self.rest.begin(now);
        }
    }
}

/// The time for which a worker gives way to other threads.
#[derive(Debug, Default)]
struct Rest {
    until: Option<Time>,
    length: Duration,
}

impl Rest {
    fn is_on(&self, now: Time) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    fn begin(&mut self, now: Time) {
        let again = self.until.is_some_and(|until| now.since(until) < self.length);
        self.length = if again { LONGEST_REST.min(2 * self.length) } else { REST };
        self.until = Some(now + self.length);
    }
}

/// The flows that turns have something of.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// The first of this turn.
    now: Option<FlowId>,
    /// The last two of turns before.
    before: [Option<FlowId>; 2],
}

impl Met {
    /// This turn has something of a flow.
    pub(super) fn add(&mut self, id: FlowId) {
        self.now.get_or_insert(id);
    }

    /// Whether the turn that ends had something of one of the last two flows; none: it had something of no flow.
    pub(super) fn end_turn(&mut self) -> Option<bool> {
        let met = self.now.take()?;
        let same = self.before.contains(&Some(met));
        if self.before[0] != Some(met) {
            self.before = [Some(met), self.before[0]];
        }
        Some(same)
    }
}

/// Processor time that may be spent.
#[derive(Debug)]
struct Budget {
    left: Duration,
    /// Until when it was filled.
    filled: Time,
    /// It was used up, and is not yet at [`REFILLED`].
    empty: bool,
}

impl Budget {
    fn new() -> Budget {
        Budget { left: BURST, filled: Time::ZERO, empty: false }
    }

    fn has_some(&mut self, now: Time) -> bool {
        self.put(now.since(self.filled) / SHARE);
        self.filled = now;
        self.empty &= self.left < REFILLED;
        !self.empty
    }

    fn put(&mut self, more: Duration) {
        self.left = BURST.min(self.left + more);
    }

    /// What is beyond the budget is not owed: it is one spin's at most.
    fn take(&mut self, spent: Duration) {
        self.left = self.left.saturating_sub(spent);
        self.empty |= self.left.is_zero();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Events that follow each other after `gaps` without end for `span`; a turn takes a microsecond, waking up takes `wake`.
    struct Run {
        /// Processor time spent with looking.
        spun: Duration,
        /// Events that were found without a sleep, and all.
        found: usize,
        events: usize,
    }

    fn run(spin: &mut Spin, same: &[bool], gaps: &[u64], wake: u64, span: Duration) -> Run {
        let begin = Time::from_micros(1_000_000);
        let mut run = Run { spun: us(0), found: 0, events: 0 };
        let mut now = begin;
        for (gap, same) in gaps.iter().cycle().zip(same.iter().cycle()) {
            if now.since(begin) > span {
                break;
            }
            let due = now + us(*gap);
            let idle = now;
            let mut sleeps = false;
            while now < due {
                if spin.on_idle(now) {
                    now = now + us(1);
                } else {
                    run.spun += now.since(idle);
                    sleeps = true;
                    now = due + us(wake);
                }
            }
            if !sleeps {
                run.spun += now.since(idle);
                run.found += 1;
            }
            run.events += 1;
            spin.on_work(now, Some(*same));
        }
        run
    }

    fn share(of: &Run, span: Duration) -> f64 {
        of.spun.as_secs_f64() / span.as_secs_f64()
    }

    const SAME: &[bool] = &[true];
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_follows_closely_is_found_without_sleeping() {
        let mut spin = Spin::new(true);
        let run = run(&mut spin, SAME, &[20, 30], 60, SECOND);
        assert_eq!(run.found + usize::from(DIALOGUE), run.events);
    }

    #[test]
    fn a_dialogue_whose_sleeps_make_it_slow_is_one_nevertheless() {
        let mut spin = Spin::new(true);
        let run = run(&mut spin, SAME, &[20], 400, SECOND);
        assert_eq!(run.found + usize::from(DIALOGUE), run.events);
    }

    #[test]
    fn what_comes_now_and_then_is_slept_for() {
        for gap in [501, 1_000, 20_000] {
            let mut spin = Spin::new(true);
            let run = run(&mut spin, SAME, &[gap], 0, SECOND);
            assert_eq!((run.found, run.spun), (0, us(0)), "{gap}");
        }
        // One request in 10 ms: the wait for the answer alone is short.
        let run = run(&mut Spin::new(true), SAME, &[10_000, 30], 50, SECOND);
        assert_eq!((run.found, run.spun), (0, us(0)));
    }

    #[test]
    fn spins_that_are_longer_than_a_sleep_is_worth_take_an_eighth_of_a_processor() {
        for gap in [60, 100, 150, 199, 201, 300, 499] {
            let mut spin = Spin::new(true);
            let run = run(&mut spin, SAME, &[gap], 0, SECOND);
            let worth = run.found as f64 * WORTH.as_secs_f64();
            let beyond = share(&run, SECOND) - worth / SECOND.as_secs_f64();
            // A full budget at the beginning is 0.02 of a second.
            assert!(beyond < 0.15, "every {gap} µs: {:?} for {} found", run.spun, run.found);
            assert!(gap < 201 || run.found == 0, "{gap}");
        }
    }

    #[test]
    fn connections_one_after_the_other_are_a_dialogue_and_many_at_a_time_are_none() {
        // Of each connection seven events, the first of which is of a flow that was not there before.
        let one = [false, true, true, true, true, true, true];
        let run_of = |same: &[bool]| run(&mut Spin::new(true), same, &[30], 60, SECOND);
        let run = run_of(&one);
        assert!(run.found + 10 > run.events, "{} of {}", run.found, run.events);
        // A burst comes in two parts, and the next one is another flow's.
        let run = run_of(&[false, true]);
        assert_eq!((run.found, run.spun), (0, us(0)));
    }

    #[test]
    fn the_last_two_flows_are_known() {
        let mut met = Met::default();
        let mut turn = |flows: &[u32]| {
            flows.iter().for_each(|n| met.add(FlowId::from_token(u64::from(*n))));
            met.end_turn()
        };
        let (a, b, c) = (1, 2, 3);
        assert_eq!([turn(&[a]), turn(&[a]), turn(&[])], [Some(false), Some(true), None]);
        assert_eq!([turn(&[b]), turn(&[a]), turn(&[b])], [Some(false), Some(true), Some(true)]);
        assert_eq!([turn(&[c, b]), turn(&[b]), turn(&[a])], [Some(false), Some(true), Some(false)]);
    }

    #[test]
    fn a_worker_with_a_limit_never_spins() {
        let mut spin = Spin::new(false);
        assert_eq!(run(&mut spin, SAME, &[20], 60, SECOND).spun, us(0));
    }

    /// A dialogue of this span, whose first `busy` looks each come `late`.
    struct Looks {
        late: Duration,
        busy: usize,
        span: Duration,
    }

    impl Looks {
        /// How often the worker decides to look again at once.
        fn count(&self, spin: &mut Spin, begin: Time) -> usize {
            let (mut now, mut looks) = (begin, 0);
            while now.since(begin) < self.span {
                spin.on_work(now, Some(true));
                for _ in 0..5 {
                    if spin.on_idle(now) {
                        looks += 1;
                        now = now + if looks <= self.busy { self.late } else { us(2) };
                    }
                }
                now = now + us(20);
            }
            looks
        }
    }

    /// What a scheduler gives to a thread at once.
    const SLICE: Duration = us(3_000);

    #[test]
    fn a_worker_whose_looks_are_held_up_by_another_thread_gives_way() {
        let begin = Time::from_micros(5_000_000);
        let count = |late, busy| Looks { late, busy, span: SECOND }.count(&mut Spin::new(true), begin);
        let all = count(SLICE, 0);
        assert!(all > 100_000, "{all}");
        // Each look costs the other thread as much as it has held up the worker.
        let few = count(SLICE, usize::MAX);
        assert!((5..20).contains(&few), "{few}");
        // A guest on the same processor answers meanwhile.
        let answered = count(us(100), usize::MAX);
        assert!(answered > 500, "{answered}");
    }

    #[test]
    fn it_spins_on_once_the_other_thread_is_gone() {
        let begin = Time::from_micros(5_000_000);
        let mut spin = Spin::new(true);
        let within_rest = Looks { late: SLICE, busy: 1, span: REST };
        assert_eq!(within_rest.count(&mut spin, begin), 1);
        let alone = Looks { late: SLICE, busy: 0, span: SECOND };
        let looks = alone.count(&mut spin, begin + REST + SLICE);
        assert!(looks > 100_000, "{looks}");
    }

    #[test]
    fn a_wake_up_without_work_is_followed_by_a_sleep() {
        let mut spin = Spin::new(true);
        run(&mut spin, SAME, &[20], 60, us(1000));
        let mut now = Time::from_micros(2_000_000);
        let begin = now;
        while spin.on_idle(now) {
            now = now + us(1);
        }
        assert_eq!(now.since(begin), SPIN);
        assert!(!spin.on_idle(now + us(10)), "a timer, which found nothing to do");
    }
}
