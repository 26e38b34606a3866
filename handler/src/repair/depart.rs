//! The machine is about to leave: from the switch-over on its addresses are another pod's, and this one must not be heard.
//!
//! The backend's first request to freeze is the sign. What it freezes has timers that go on, and sends what was not
//! acknowledged again; the pod's kernel answers for the addresses, too. With one frame of either the switch looks for the
//! machine here, and its peers' packets meet no socket: a RST. So the pod is silent from then on, for good
//! unless the backend thaws what it froze, or the migration fails ([`crate::migration::network::Network::activate`]).

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use podvirt_cni::net::depart;
use tracing::{Span, info, warn};

use super::arrive::Make;

/// A departure that may come.
pub(super) struct Departure {
    /// The pod's network namespace.
    pod: Arc<File>,
    /// The addresses of the pod that the machine goes to.
    to: Arc<[IpAddr]>,
    /// Has them speak here again.
    stay: Stay,
    state: Mutex<State>,
}

/// What to await so that the pod is heard, and where.
pub(super) struct Stay {
    pub(super) make: Make,
    pub(super) runtime: tokio::runtime::Handle,
}

/// Where it stands.
enum State {
    /// A process before this one may have made the pod silent.
    Unknown,
    /// It is being made silent, or is.
    Leaves(JoinHandle<()>),
    /// It is heard.
    Stays,
}

impl std::fmt::Debug for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Departure").field("to", &self.to).finish_non_exhaustive()
    }
}

impl Departure {
    /// The machine in `pod` goes to where the addresses `to` are.
    pub(super) fn new(pod: File, to: &[IpAddr], stay: Stay) -> Departure {
        Departure { pod: Arc::new(pod), to: to.into(), stay, state: Mutex::new(State::Unknown) }
    }

    /// The machine leaves. The guest stands still meanwhile, so this is not waited for: the target is not heard before
    /// everything has been given to it.
    pub(super) fn begins(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Leaves(_)) {
            return;
        }
        let (pod, to, span) = (self.pod.clone(), self.to.clone(), Span::current());
        let work = move || {
            span.in_scope(|| match depart(&pod, &to) {
                Ok(silent) => info!(?silent, "the source of the migration is silent"),
                // Connections may be lost, and nothing else.
                Err(error) => warn!(%error, "the source of the migration is still heard"),
            });
        };
        match thread::Builder::new().name("depart".into()).spawn(work) {
            Ok(thread) => *state = State::Leaves(thread),
            Err(error) => warn!(%error, "the source of the migration is still heard"),
        }
    }

    /// The machine stays. It is tried again by the next one that says so, if it fails.
    pub(super) fn is_off(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Unknown) {
            State::Stays => *state = State::Stays,
            State::Unknown => *state = self.heard(),
            State::Leaves(thread) => {
                if thread.join().is_err() {
                    warn!("the thread that made the source silent has panicked");
                }
                *state = self.heard();
            }
        }
    }

    fn heard(&self) -> State {
        let heard: io::Result<()> = self.stay.runtime.block_on((self.stay.make)());
        match heard {
            Ok(()) => State::Stays,
            Err(error) => {
                warn!(%error, "the machine stays, and its addresses are silent");
                State::Unknown
            }
        }
    }
}
