//! One end for all tasks of a process.
//!
//! [`signal`] turns SIGTERM and SIGINT into a [`Shutdown`], of which each task holds a clone and waits on
//! [`Shutdown::requested`]. A request is never taken back.

use std::io;

use tokio::signal::unix::{SignalKind, signal as on_signal};
use tokio::sync::watch;

/// Tells when the process shall end. Clones tell the same.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// Asks for the end. Dropping it asks as well: what could ask no more must not keep others waiting.
#[derive(Debug)]
pub struct Trigger(watch::Sender<bool>);

impl Trigger {
    /// Asks for the end.
    pub fn request(&self) {
        self.0.send_replace(true);
    }
}

impl Shutdown {
    /// A shutdown that is asked for by hand.
    pub fn manual() -> (Trigger, Shutdown) {
        let (sender, receiver) = watch::channel(false);
        (Trigger(sender), Shutdown(receiver))
    }

    /// Returns once the end is asked for, at once if it has been.
    pub async fn requested(&self) {
        // An error is a dropped trigger, which counts as a request.
        let mut receiver = self.0.clone();
        let _dropped = receiver.wait_for(|requested| *requested).await.map(|_| ());
    }

    /// Whether the end is asked for.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Runs `work` until it ends or the end is asked for; then it is dropped where it waits.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.requested() => None,
            value = work => Some(value),
        }
    }
}

/// A shutdown that SIGTERM and SIGINT ask for. Needs a tokio runtime.
///
/// # Errors
///
/// The signals cannot be taken over.
pub fn signal() -> io::Result<Shutdown> {
    let (mut terminate, mut interrupt) =
        (on_signal(SignalKind::terminate())?, on_signal(SignalKind::interrupt())?);
    let (trigger, shutdown) = Shutdown::manual();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "shutting down");
        trigger.request();
    });
    Ok(shutdown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_sees_the_request_also_later() {
        let (trigger, shutdown) = Shutdown::manual();
        let waiting = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.requested().await }
        });
        assert!(!shutdown.is_requested());
        trigger.request();
        waiting.await.unwrap();
        drop(trigger);
        shutdown.requested().await;
        assert!(shutdown.is_requested());
        assert_eq!(shutdown.or(async { 1 }).await, None);
    }

    #[tokio::test]
    async fn a_trigger_that_is_gone_is_a_request() {
        let (trigger, shutdown) = Shutdown::manual();
        assert_eq!(shutdown.or(async { 1 }).await, Some(1));
        drop(trigger);
        shutdown.requested().await;
        assert!(shutdown.is_requested());
    }
}
