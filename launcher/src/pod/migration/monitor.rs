//! When a migration is to be given up, as a pure function of its progress.
//!
//! Two clocks run. The first is for the whole: so many seconds for each GiB that is to be copied. The second is for
//! progress: it begins anew whenever fewer bytes are left than ever before. What becomes known later counts as left
//! from the beginning: the hypervisor tells of memory when the disks are copied, and then nothing was left for a moment.
//! A guest that writes faster than it is copied stops the second clock's luck, a slow link the first one's. When a
//! clock has run down the guest is made to
//! stand still, if that is allowed, and both begin anew; otherwise, or the second time, the migration is given up.

use std::time::Duration;

use podvirt_proto::migration::Options;

const GIB: u64 = 1 << 30;

/// Limits of a migration, and how it stands against them. Times are since its beginning.
#[derive(Clone, Debug)]
pub(super) struct Monitor {
    progress: Option<Duration>,
    per_gib: Option<Duration>,
    may_pause: bool,
    paused: bool,
    since: Duration,
    total: u64,
    least: Option<u64>,
    least_at: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// It goes on.
    Continue,
    /// The guest is to stand still.
    Pause,
    /// It is to be given up, for this reason.
    GiveUp(String),
}

impl Monitor {
    pub(super) fn new(options: &Options) -> Self {
        let limit = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
        Monitor {
            progress: limit(options.progress_timeout),
            per_gib: limit(options.completion_timeout_per_gib),
            may_pause: options.allow_workload_disruption,
            paused: false,
            since: Duration::ZERO,
            total: 0,
            least: None,
            least_at: Duration::ZERO,
        }
    }

    /// Takes how many bytes there are in all and how many are left at `now`; none while it is not known.
    pub(super) fn look(&mut self, now: Duration, known: Option<(u64, u64)>) -> Verdict {
        if let Some((total, remaining)) = known {
            let more = total.saturating_sub(self.total);
            self.total += more;
            self.least = self.least.map(|least| least.saturating_add(more));
            if self.least.is_none_or(|least| remaining < least) {
                self.least = Some(remaining);
                self.least_at = now;
            }
        }
        let Some(reason) = self.over(now) else { return Verdict::Continue };
        if self.may_pause && !self.paused {
            self.paused = true;
            (self.since, self.least_at) = (now, now);
            return Verdict::Pause;
        }
        Verdict::GiveUp(reason)
    }

    fn over(&self, now: Duration) -> Option<String> {
        let gib = self.total.div_ceil(GIB).max(1);
        let whole = self.per_gib.map(|each| each.saturating_mul(u32::try_from(gib).unwrap_or(u32::MAX)));
        if let Some(limit) = whole.filter(|limit| now.saturating_sub(self.since) >= *limit) {
            // Upstream's tests look for the words "has been aborted".
            return Some(format!("it has been aborted: not complete after {} s", limit.as_secs()));
        }
        let limit = self.progress.filter(|limit| now.saturating_sub(self.least_at) >= *limit)?;
        Some(format!("it has been aborted: no progress for {} s", limit.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn monitor(disruption: bool) -> Monitor {
        Monitor::new(&Options {
            progress_timeout: 150,
            completion_timeout_per_gib: 100,
            allow_workload_disruption: disruption,
            ..Options::default()
        })
    }

    #[test]
    fn each_gib_has_its_time_and_a_part_of_one_counts_whole() {
        let mut two = monitor(false);
        assert_eq!(two.look(at(0), Some((GIB + 1, GIB))), Verdict::Continue);
        assert_eq!(two.look(at(100), Some((GIB + 1, GIB / 2))), Verdict::Continue);
        let over = two.look(at(200), Some((GIB + 1, 5)));
        assert_eq!(over, Verdict::GiveUp("it has been aborted: not complete after 200 s".into()));
    }

    #[test]
    fn nothing_known_is_no_progress() {
        let mut monitor = Monitor { per_gib: None, ..monitor(false) };
        assert_eq!(monitor.look(at(149), None), Verdict::Continue);
        assert_eq!(
            monitor.look(at(150), None),
            Verdict::GiveUp("it has been aborted: no progress for 150 s".into())
        );
    }

    #[test]
    fn only_fewer_bytes_than_ever_are_progress() {
        let mut monitor = Monitor { per_gib: None, ..monitor(false) };
        for (second, remaining) in [(0, 100), (100, 50), (140, 200), (240, 60)] {
            assert_eq!(monitor.look(at(second), Some((GIB, remaining))), Verdict::Continue, "{second}");
        }
        assert!(matches!(monitor.look(at(250), Some((GIB, 51))), Verdict::GiveUp(_)));
    }

    #[test]
    fn memory_that_is_known_only_after_the_disks_is_copied_in_its_own_time() {
        let mut monitor = Monitor { per_gib: None, ..monitor(false) };
        for (second, known) in
            [(0, (1, 1)), (1, (1, 0)), (2, (273, 272)), (140, (273, 200)), (280, (273, 100))]
        {
            assert_eq!(monitor.look(at(second), Some(known)), Verdict::Continue, "{second}");
        }
        assert!(matches!(monitor.look(at(430), Some((273, 100))), Verdict::GiveUp(_)));
    }

    #[test]
    fn a_guest_that_may_be_stopped_is_stopped_once() {
        let mut monitor = monitor(true);
        assert_eq!(monitor.look(at(100), Some((GIB, 9))), Verdict::Pause);
        assert_eq!(monitor.look(at(199), Some((GIB, 8))), Verdict::Continue);
        assert!(matches!(monitor.look(at(200), Some((GIB, 7))), Verdict::GiveUp(_)));
    }

    #[test]
    fn without_limits_it_takes_what_it_takes() {
        let mut monitor = Monitor::new(&Options::default());
        assert_eq!(monitor.look(at(1_000_000), Some((GIB, 9))), Verdict::Continue);
    }
}
