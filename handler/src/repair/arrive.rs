//! The machine is about to run here, as its backend says: the pod's addresses are to speak before its connections do.
//!
//! The backend is the first to know: the hypervisor tells it to go on, and the machine runs some moments later. A
//! frame that is sent before the address has moved is lost, and so is what its peer answers.

use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tracing::warn;

/// Something to be done once, from a thread that may wait.
pub(super) type Make = Box<dyn Fn() -> BoxFuture<'static, std::io::Result<()>> + Send + Sync>;

/// An arrival that is awaited.
pub(super) struct Arrival {
    make: Make,
    runtime: Handle,
    done: Mutex<bool>,
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrival").finish_non_exhaustive()
    }
}

impl Arrival {
    /// When the machine arrives, what `make` makes is awaited on `runtime`.
    pub(super) fn new(runtime: Handle, make: Make) -> Arrival {
        Arrival { make, runtime, done: Mutex::default() }
    }

    /// The machine arrives. A caller that says so while it is being done waits; when it fails, the next one tries again.
    pub(super) fn now(&self) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if !*done {
            match self.runtime.block_on((self.make)()) {
                Ok(()) => *done = true,
                Err(error) => warn!(
                    error = &error as &dyn std::error::Error,
                    "the machine arrives, and its addresses stay silent"
                ),
            }
        }
    }
}
