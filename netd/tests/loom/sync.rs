//! loom's types in place of the standard library's, and out of them the two that loom has not.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{RecvError, SendError, TryRecvError};

use loom::sync::Condvar;
pub use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
pub use loom::sync::{Arc, Mutex, MutexGuard};

/// An eventfd as epoll shows its edges: several rings may be one edge, and none is lost.
#[derive(Debug)]
pub struct Bell {
    edge: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    pub fn new() -> io::Result<Bell> {
        Ok(Bell { edge: Mutex::new(false), rung: Condvar::new() })
    }

    pub fn ring(&self) -> bool {
        *self.edge.lock().unwrap() = true;
        self.rung.notify_one();
        true
    }

    /// epoll_wait(2).
    pub fn listen(&self) {
        let mut edge = self.edge.lock().unwrap();
        while !std::mem::take(&mut *edge) {
            edge = self.rung.wait(edge).unwrap();
        }
    }
}

/// A queue that ends when no sender is left, which loom's own does not.
struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    receives: bool,
}

pub struct Sender<T>(Arc<Queue<T>>);

pub struct Receiver<T>(Arc<Queue<T>>);

pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = Mutex::new(State { queue: VecDeque::new(), senders: 1, receives: true });
    let queue = Arc::new(Queue { state, changed: Condvar::new() });
    (Sender(queue.clone()), Receiver(queue))
}

impl<T> Sender<T> {
    pub fn send(&self, what: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock().unwrap();
        if !state.receives {
            return Err(SendError(what));
        }
        state.queue.push_back(what);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().unwrap().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().senders -= 1;
        self.0.changed.notify_one();
    }
}

impl<T> Receiver<T> {
    pub fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock().unwrap();
        loop {
            match state.queue.pop_front() {
                Some(what) => return Ok(what),
                None if state.senders == 0 => return Err(RecvError),
                None => state = self.0.changed.wait(state).unwrap(),
            }
        }
    }

    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.state.lock().unwrap().queue.pop_front().ok_or(TryRecvError::Empty)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().receives = false;
    }
}
