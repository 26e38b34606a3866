//! When the pod's TCP listeners are silent: while the guest does not run.
//!
//! # Theory of operation
//!
//! The kernel answers a SYN to a listening socket before netd hears of it. For a guest that is paused, or that has not
//! started, such an answer says something false: a probe finds a live service, and a client waits at a connection that
//! nothing serves. A machine on a wire says nothing then. So a listener of a guest that does not run has no room for a
//! connection, and the kernel drops SYNs ([`crate::sockets::stop_answering`]): the client's kernel sends its SYN again, and is
//! connected when the guest runs. Nothing is refused.
//!
//! The guest runs while its driver receives by the first queue pair, which every driver uses. A frontend stops the rings of a
//! machine that is paused, reset, or powered off.
//!
//! ```text
//!           start                stop
//!   SILENT ───────▶ RUNS ◀────────────────▶ STOPPED
//!     ▲                        start           │ for GRACE
//!     └────────────────────────────────────────┘
//! ```
//!
//! | state | listeners | begins |
//! |---|---|---|
//! | SILENT | are silent | with a new netd; [`GRACE`] after a stop |
//! | RUNS | answer | when the receiveq of the first pair starts |
//! | STOPPED | as they were | when it stops; with a netd that goes on where another one stopped |
//!
//! - **Short stops change nothing**: the switch-over of a migration, a snapshot, a reset of the device, an update of netd.
//!   What comes meanwhile is accepted and waits. A worker that stood still has the whole of [`GRACE`] before it again.
//! - **A change is a pass** over all listeners, from the first place to the last. There may be ten thousand, at some system
//!   calls each, so a turn does a part of it ([`settle`]). A later change begins a new pass. Listeners that are opened
//!   meanwhile are in line from the start.
//! - **What a listener has is not always known**: that of a predecessor may be silent. Such a listener is set in any case, and nothing is accepted
//!   from it before the guest is known to run: what fills its queue would be taken out, and clients come in its place.
//! - **Ports that are shut** ([`super::inquiry`]) would be refused. When all listeners are silent they listen again, and the
//!   guest is asked about them once it runs.
//!
//! What has been accepted stays. Of the handshakes that the kernel has answered in that moment, one may take the place in the queue;
//! it waits there for the guest.
//! Time comes in by arguments; sockets are [`settle`]'s.

mod settle;

use std::time::Duration;

use crate::time::Time;

/// How long a guest that has run stands still before the listeners fall silent: longer than the switch-over of a migration
/// and than a snapshot, and shorter than a probe's usual patience.
pub(in crate::worker) const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The guest has not started, or stands still for [`GRACE`].
    #[default]
    Silent,
    Runs,
    /// It is silent from this moment on.
    Stopped(Time),
}

/// Whether listeners are silent, and which of them are still to be set.
#[derive(Debug, Default)]
pub(in crate::worker) struct Silence {
    stage: Stage,
    /// The next place of the pass; none: there is no pass.
    next: Option<usize>,
}

impl Silence {
    /// That of a netd which goes on where another one stopped at `now`.
    pub(in crate::worker) fn inherited(now: Time) -> Silence {
        Silence { stage: Stage::Stopped(now + GRACE), next: None }
    }

    /// The guest's driver receives.
    pub(in crate::worker) fn start(&mut self) {
        self.stage = Stage::Runs;
        self.next = Some(0);
    }

    /// The guest's driver receives no more.
    pub(in crate::worker) fn stop(&mut self, now: Time) {
        if self.stage == Stage::Runs {
            self.stage = Stage::Stopped(now + GRACE);
        }
    }

    /// The worker has stood still until `now`, or goes by another clock.
    pub(in crate::worker) fn put_off(&mut self, now: Time) {
        if matches!(self.stage, Stage::Stopped(_)) {
            self.stage = Stage::Stopped(now + GRACE);
        }
    }

    /// When [`Silence::poll`] has something to do.
    pub(in crate::worker) fn poll_at(&self) -> Option<Time> {
        match self.stage {
            Stage::Stopped(at) => Some(at),
            Stage::Silent | Stage::Runs => None,
        }
    }

    /// Falls silent if it is time.
    pub(in crate::worker) fn poll(&mut self, now: Time) {
        if self.poll_at().is_some_and(|at| at <= now) {
            self.stage = Stage::Silent;
            self.next = Some(0);
        }
    }

    /// Whether the guest's driver is known to receive.
    pub(in crate::worker) fn runs(&self) -> bool {
        self.stage == Stage::Runs
    }

    /// Whether listeners are, or are about to be, silent.
    pub(in crate::worker) fn is_silent(&self) -> bool {
        self.stage == Stage::Silent
    }

    /// Whether listeners are to be silent, while a pass has places before it; none: they stay as they are.
    fn wanted(&self) -> Option<bool> {
        let silent = match self.stage {
            Stage::Silent => Some(true),
            Stage::Runs => Some(false),
            Stage::Stopped(_) => None,
        };
        silent.filter(|_| self.next.is_some())
    }

    /// The next of `places` to be set; none: that was the last, and the pass is over.
    fn step(&mut self, places: usize) -> Option<usize> {
        let at = self.next.filter(|at| *at < places);
        self.next = at.map(|at| at + 1);
        at
    }
}

#[cfg(test)]
mod tests;
