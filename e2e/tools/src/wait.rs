//! Waiting for something another process does.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Shortest and longest pause between two attempts.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Waits until `ready` gives a value, calling it again and again. A pause is as long as the attempt before it: an attempt that starts
/// programs leaves half of a processor to what it waits for.
///
/// # Errors
/// `what` did not come within `limit`, or `ready` failed.
pub fn until<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        let began = Instant::now();
        if let Some(value) = ready()? {
            return Ok(value);
        }
        let now = Instant::now();
        if now > end {
            bail!("{what}: not within {limit:?}");
        }
        thread::sleep(pause_after(now.duration_since(began)));
    }
}

/// The pause after an attempt that took this time.
fn pause_after(attempt: Duration) -> Duration {
    attempt.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_the_attempt_within_bounds() {
        let ms = Duration::from_millis;
        assert_eq!([ms(0), ms(200), ms(9000)].map(pause_after), [ms(20), ms(200), ms(500)]);
    }

    #[test]
    fn a_value_ends_the_wait_and_so_does_the_limit() {
        let mut attempts = 0;
        let third = || {
            attempts += 1;
            Ok((attempts == 3).then_some(attempts))
        };
        assert_eq!(until("the third attempt", Duration::from_secs(10), third).unwrap(), 3);
        let never = until("what never comes", Duration::ZERO, || Ok(None::<()>));
        assert!(never.unwrap_err().to_string().contains("what never comes: not within"));
    }
}
