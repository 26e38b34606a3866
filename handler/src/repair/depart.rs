//! The machine is about to leave: from the switch-over on its addresses are another pod's, and this pod must not be
//! heard.
//!
//! The backend's first request to freeze is the sign. What it freezes has timers that go on, and sends what was not
//! acknowledged again; the pod's kernel answers for the addresses, too. With one frame of either the switch looks for the
//! machine here, and its peers' packets meet no socket: a RST. So the pod is silent from then on, for good
//! unless the backend thaws what it froze, or the migration fails ([`crate::migration::network::Network::activate`]).
//! What comes in for the machine meanwhile follows it ([`podvirt_cni::net::Kept`]).

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::sys::eventfd::EventFd;
use podvirt_cni::net::{Fate, depart};
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
    /// An earlier process of virt-handler may have made the pod silent.
    Unknown,
    /// It is being made silent, or is.
    Leaves(Leaving),
    /// It is heard.
    Stays,
}

/// A machine that leaves.
struct Leaving {
    /// Makes the pod deaf and silent, and sends on what comes in.
    thread: JoinHandle<()>,
    /// Ends the sending.
    over: Arc<EventFd>,
}

impl Leaving {
    /// On a thread of its own; it returns when the pod is deaf, or cannot be made so.
    fn of(pod: Arc<File>, to: Arc<[IpAddr]>) -> io::Result<Leaving> {
        let (over, span) = (super::stop()?, Span::current());
        let ended = over.clone();
        let (deaf, is_deaf) = channel();
        let work = move || span.in_scope(|| leave(&pod, &to, deaf, &ended));
        let thread = thread::Builder::new().name("depart".into()).spawn(work)?;
        // The sender goes with the thread, if it fails.
        let _ = is_deaf.recv();
        Ok(Leaving { thread, over })
    }

    fn is_over(&self) {
        // It can only fail when it is raised already.
        let _ = self.over.write(1);
    }
}

fn leave(pod: &File, to: &[IpAddr], deaf: Sender<()>, over: &EventFd) {
    let tell = move || {
        // Heard as long as it is waited for.
        let _ = deaf.send(());
    };
    let departed = depart(pod, to, tell);
    let departed = match departed {
        Ok(departed) => departed,
        // Connections may be lost, and nothing else.
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            return warn!(error, "the source of the migration is still heard");
        }
    };
    info!(silent = ?departed.silent, "the source of the migration is silent");
    match departed.kept.map(|kept| kept.send_on(over.as_fd())) {
        Some(Ok(Fate { sent, lost })) => info!(sent, lost, "frames for the machine that has left"),
        Some(Err(error)) => warn!(%error, "frames for the machine that has left are lost"),
        None => {}
    }
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

    /// The machine leaves: what comes in for it is kept when this returns. The pod may still be heard for a moment; the target
    /// is not before everything has been given to it.
    pub(super) fn begins(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Leaves(_)) {
            return;
        }
        match Leaving::of(self.pod.clone(), self.to.clone()) {
            Ok(leaving) => *state = State::Leaves(leaving),
            Err(error) => warn!(%error, "the source of the migration is still heard"),
        }
    }

    /// The machine stays. It is tried again by the next one that says so, if it fails.
    pub(super) fn is_off(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Unknown) {
            State::Stays => *state = State::Stays,
            State::Unknown => *state = self.heard(),
            State::Leaves(leaving) => {
                leaving.is_over();
                if leaving.thread.join().is_err() {
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
                warn!(
                    error = &error as &dyn std::error::Error,
                    "the machine stays, and its addresses are silent"
                );
                State::Unknown
            }
        }
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Leaves(leaving) = state {
            leaving.is_over();
        }
    }
}
