//! The signals by which a launcher is asked to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP; from the moment this exists none of them ends the process by itself.
#[derive(Debug)]
pub struct StopSignals {
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl StopSignals {
    /// Takes the signals over.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn new() -> io::Result<StopSignals> {
        Ok(StopSignals {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}
