//! Changes that are decided by what was read, and decided anew where the object has changed meanwhile.
//!
//! Several clients may change a machine at once, and the controllers write its status. At each conflict one writer has won; the
//! others read again after a pause. Pauses grow, and are drawn at random, so that those who lost together do not meet again.

use std::time::Duration;

use podvirt_api::delay::drawn;

/// How often a decision is made, the first time included: more than clients that plug disks at once.
pub(crate) const MAX_ATTEMPTS: usize = 12;
/// Longest pause behind the first attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause behind any.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Waits before the next attempt; `attempt` counts those that were made, from 0.
pub(crate) async fn pause(attempt: usize) {
    tokio::time::sleep(drawn(FIRST_PAUSE, MAX_PAUSE, u32::try_from(attempt).unwrap_or(u32::MAX))).await;
}
