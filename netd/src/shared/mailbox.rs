//! A worker's mailbox.
//!
//! What is sent is in the queue before the bell rings, and the worker that the bell wakes empties the queue: nothing
//! stays in it unseen. What one thread has done before it sends is done for the thread that takes out what it has sent.

use std::{fmt, io};

use super::sync::{Arc, Bell, Receiver, Sender, channel};

/// The sending end.
pub struct Mailbox<T> {
    queue: Sender<T>,
    bell: Arc<Bell>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Mailbox { queue: self.queue.clone(), bell: self.bell.clone() }
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("bell", &self.bell).finish_non_exhaustive()
    }
}

/// The worker's end.
pub struct Inbox<T> {
    queue: Receiver<T>,
    bell: Arc<Bell>,
}

/// Makes both ends.
///
/// # Errors
/// As eventfd(2).
pub fn mailbox<T>() -> io::Result<(Mailbox<T>, Inbox<T>)> {
    let (tx, rx) = channel();
    let bell = Arc::new(Bell::new()?);
    Ok((Mailbox { queue: tx, bell: bell.clone() }, Inbox { queue: rx, bell }))
}

impl<T> Mailbox<T> {
    /// Sends something; false when the worker has ended.
    pub fn send(&self, what: T) -> bool {
        self.queue.send(what).is_ok() && self.bell.ring()
    }
}

impl<T> Inbox<T> {
    /// What rings when something arrives.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Waits for what comes next; none when no sender is left.
    pub fn wait(&self) -> Option<T> {
        self.queue.recv().ok()
    }

    /// What comes next, if it is there.
    pub fn next(&self) -> Option<T> {
        self.queue.try_recv().ok()
    }
}
