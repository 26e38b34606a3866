//! The transfer of the device's state in a migration: one thread, one result.
//!
//! vhost-user, "Migrating backend state": the frontend hands over a descriptor, the backend says at once whether the
//! transfer begins, and `CHECK_DEVICE_STATE` asks for its outcome. A frontend that saves asks after it has read the end of
//! the stream, one that loads after it has closed its end: in both cases the thread is about to end.

use std::fs::File;
use std::sync::Arc;
use std::thread::JoinHandle;

use tracing::{info, warn};

use super::RingSink;
use super::message::{Message, code};

/// Set in an answer to which no descriptor belongs.
const NO_FD: u64 = 0x100;
/// Something is wrong.
const FAILED: u64 = 1;

/// The side that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// netd.
    Save,
    /// The frontend.
    Load,
}

impl Direction {
    /// The direction with this number.
    pub(super) fn of(number: u32) -> Option<Direction> {
        match number {
            0 => Some(Direction::Save),
            1 => Some(Direction::Load),
            _ => None,
        }
    }
}

/// The answer to `SET_DEVICE_STATE_FD`.
pub(super) fn began(began: bool) -> Message {
    let value = if began { NO_FD } else { NO_FD | FAILED };
    Message::reply(code::SET_DEVICE_STATE_FD, value.to_ne_bytes().to_vec())
}

/// The answer to `CHECK_DEVICE_STATE`.
pub(super) fn checked(good: bool) -> Message {
    let value = if good { 0 } else { FAILED };
    Message::reply(code::CHECK_DEVICE_STATE, value.to_ne_bytes().to_vec())
}

/// The transfer of a connection.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    thread: Option<JoinHandle<bool>>,
    /// A state was saved or loaded and the guest has not run here since.
    pending: bool,
}

impl Transfer {
    /// Begins one; false when it cannot be.
    pub(super) fn begin(&mut self, direction: Direction, file: File, sink: &Arc<dyn RingSink>) -> bool {
        if self.thread.is_some() || self.pending {
            warn!(?direction, "the state of the device is being transferred already, or was");
            return false;
        }
        let sink = Arc::clone(sink);
        let run = move || {
            let done = match direction {
                Direction::Save => sink.save(file),
                Direction::Load => sink.load(file),
            };
            match &done {
                Ok(()) => info!(?direction, "state of the device transferred"),
                Err(error) => warn!(?direction, %error, "state of the device cannot be transferred"),
            }
            done.is_ok()
        };
        match std::thread::Builder::new().name("netd-state".into()).spawn(run) {
            Ok(thread) => {
                self.thread = Some(thread);
                true
            }
            Err(error) => {
                warn!(%error, "no thread for the state of the device");
                false
            }
        }
    }

    /// Waits for the transfer's end; whether it succeeded. False when there was none.
    pub(super) fn finish(&mut self) -> bool {
        let good = self.thread.take().is_some_and(|thread| thread.join().unwrap_or(false));
        self.pending |= good;
        good
    }

    /// The guest is about to run here.
    pub(super) fn resume(&mut self, sink: &Arc<dyn RingSink>) {
        // A frontend that does not ask for the outcome gets on without the state.
        self.finish();
        if std::mem::take(&mut self.pending) {
            sink.resume();
        }
    }

    /// Whether there is, or was, a transfer and the guest has not run here since.
    fn is_open(&self) -> bool {
        self.thread.is_some() || self.pending
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.is_open() {
            // Ends as soon as the frontend's end of the pipe is closed, or by its own timeout.
            self.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_the_protocol() {
        assert_eq!(began(true).u64(0), Some(0x100));
        assert_eq!(began(false).u64(0), Some(0x101));
        assert_eq!((checked(true).u64(0), checked(false).u64(0)), (Some(0), Some(1)));
        assert!(began(true).is_reply() && checked(true).is_reply());
    }
}
