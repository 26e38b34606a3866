//! Waiting for something another process does.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition that nothing announces is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `ready` gives a value, looking at it again and again.
///
/// # Errors
/// `what` did not come within `limit`, or `ready` failed.
pub fn until<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if Instant::now() > end {
            bail!("{what}: not within {limit:?}");
        }
        thread::sleep(INTERVAL);
    }
}
