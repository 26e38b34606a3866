//! Whether a worker runs, stands still, or ends.

use crate::time::Time;

/// The stage of a worker's life.
pub(super) struct Life {
    /// False: the loop ends.
    pub(super) running: bool,
    /// The mailbox may hold commands.
    pub(super) rung: bool,
    /// See [`super::freeze`].
    pub(super) frozen: bool,
    /// Its state has been given: nothing may change it any more until it is thawed.
    pub(super) packed: bool,
    /// When the clock was started that this worker goes by.
    pub(super) started: Time,
}

impl Life {
    /// Of a worker that begins at `started`.
    pub(super) fn new(started: Time) -> Life {
        Life { running: true, rung: false, frozen: false, packed: false, started }
    }
}
