//! How long the guest may stand still at the end of a move, as a pure function of how the copying goes.
//!
//! The hypervisor stops the guest as soon as what is left takes no longer than this to send. A guest that writes little
//! gets there with a short limit as surely as with a long one, so it begins short, and grows by half each time the copying
//! has gone over written memory for [`STEP`] without getting there, up to what is allowed. The first copy of the whole
//! memory, which takes what it takes, counts for nothing.

use std::time::Duration;

use podvirt_proto::migration::Progress;

/// The first limit.
const FIRST: Duration = Duration::from_millis(80);
/// How long each limit has.
const STEP: Duration = Duration::from_secs(4);

/// The limit, and how it grows. Times are since the beginning of the move.
#[derive(Clone, Debug)]
pub(super) struct Downtime {
    most: Duration,
    again_since: Option<Duration>,
}

impl Downtime {
    /// At most `most`.
    pub(super) fn new(most: Duration) -> Self {
        Downtime { most, again_since: None }
    }

    /// The limit at `now`, with this progress.
    pub(super) fn limit(&mut self, now: Duration, progress: &Progress) -> Duration {
        if progress.iteration >= 2 {
            self.again_since.get_or_insert(now);
        }
        let passed = self.again_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let mut limit = FIRST;
        for _ in 0..passed.as_millis() / STEP.as_millis() {
            if limit >= self.most {
                break;
            }
            limit = limit * 3 / 2;
        }
        limit.min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pass(iteration: u64) -> Progress {
        Progress { iteration, ..Progress::default() }
    }

    #[test]
    fn it_is_short_until_copying_again_and_again_gets_nowhere() {
        let ms = Duration::from_millis;
        let mut downtime = Downtime::new(ms(900));
        assert_eq!(downtime.limit(at(0), &pass(0)), FIRST);
        assert_eq!(downtime.limit(at(3600), &pass(1)), FIRST, "a large machine");
        assert_eq!(downtime.limit(at(3601), &pass(2)), FIRST);
        assert_eq!(downtime.limit(at(3604), &pass(3)), FIRST);
        assert_eq!(downtime.limit(at(3605), &pass(4)), ms(120));
        assert_eq!(downtime.limit(at(3609), &pass(5)), ms(180));
        assert_eq!(downtime.limit(at(3625), &pass(9)), ms(900));
        assert_eq!(downtime.limit(at(u64::MAX), &pass(9)), ms(900));
    }

    #[test]
    fn less_is_allowed_as_well() {
        let mut downtime = Downtime::new(Duration::from_millis(20));
        assert_eq!(downtime.limit(at(0), &pass(5)), Duration::from_millis(20));
        assert_eq!(downtime.limit(at(100), &pass(5)), Duration::from_millis(20));
    }
}
