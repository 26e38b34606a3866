//! The machine's streams that wait for a request.
//!
//! ```text
//!  parked ── a request takes the newest ──> the request's ── the request has gone meanwhile ──> parked again
//!    │
//!    └── ended, or said something, or too many are newer ──> dropped
//! ```
//!
//! Each parked stream is read by a task of its own, since a stream that ends has to be noticed before a request takes it. The newest is
//! taken first: of a machine that was cut off and has dialled again, the older streams lead nowhere, and nothing tells so.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Notify, oneshot};

/// Streams that wait at most: four times as many as the machine opens ahead.
const PARKED: usize = 8;

/// What a stream can do.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Debug + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin> Duplex for T {}

/// A stream to the machine's NBD server.
pub(super) type Stream = Box<dyn Duplex>;

/// A request that waits for the stream that it takes.
type Taker = oneshot::Sender<Stream>;

/// Streams that wait.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The newest is the last.
    parked: Mutex<VecDeque<oneshot::Sender<Taker>>>,
    arrived: Notify,
}

impl Pool {
    fn parked(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<Taker>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a stream until it is taken or ends.
    pub(super) async fn keep(self: Arc<Self>, mut stream: Stream) {
        loop {
            let (asks, asked) = oneshot::channel();
            self.park(asks);
            let mut word = [0];
            let taken = tokio::select! {
                taken = asked => taken,
                // Nothing is to come before the stream is taken.
                _ = stream.read(&mut word) => return,
            };
            // An error: newer ones have taken its place.
            let Ok(taker) = taken else { return };
            match taker.send(stream) {
                Ok(()) => return,
                Err(back) => stream = back,
            }
        }
    }

    fn park(&self, asks: oneshot::Sender<Taker>) {
        let mut parked = self.parked();
        parked.retain(|other| !other.is_closed());
        if parked.len() >= PARKED {
            parked.pop_front();
        }
        parked.push_back(asks);
        drop(parked);
        self.arrived.notify_one();
    }

    /// Takes the newest stream; waits for one.
    pub(super) async fn take(&self) -> Stream {
        loop {
            let newest = self.parked().pop_back();
            let Some(asks) = newest else {
                self.arrived.notified().await;
                continue;
            };
            let (taker, given) = oneshot::channel();
            if asks.send(taker).is_ok()
                && let Ok(stream) = given.await
            {
                return stream;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::timeout;

    use super::*;

    fn park(pool: &Arc<Pool>) -> (DuplexStream, JoinHandle<()>) {
        let (ours, theirs) = duplex(64);
        (theirs, tokio::spawn(Arc::clone(pool).keep(Box::new(ours))))
    }

    async fn settle() {
        for _ in 0..10 {
            yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_stream_that_stands_is_taken() {
        let pool = Arc::new(Pool::default());
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(park(&pool));
            settle().await;
        }
        // The newest one has ended, and the second one has spoken.
        drop(all.pop());
        all[1].0.write_all(b"x").await.unwrap();
        settle().await;
        let mut taken = pool.take().await;
        taken.write_all(b"1").await.unwrap();
        assert_eq!(all[0].0.read_u8().await.unwrap(), b'1');
        assert!(timeout(Duration::from_secs(1), pool.take()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_stream_and_leaves_it_when_it_has_gone() {
        let pool = Arc::new(Pool::default());
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.take().await }
        });
        settle().await;
        let (_peer, _kept) = park(&pool);
        waiting.await.unwrap();

        // It asks for the stream and is gone before it gets it.
        let (_peer, _kept) = park(&pool);
        settle().await;
        let (taker, given) = oneshot::channel();
        drop(given);
        pool.parked().pop_back().unwrap().send(taker).unwrap();
        settle().await;
        timeout(Duration::from_secs(1), pool.take()).await.unwrap();
    }

    #[tokio::test]
    async fn the_oldest_of_too_many_gives_way() {
        let pool = Arc::new(Pool::default());
        let mut all = Vec::new();
        for _ in 0..=PARKED {
            all.push(park(&pool));
            settle().await;
        }
        let (oldest, kept) = &mut all[0];
        assert_eq!(oldest.read(&mut [0]).await.unwrap(), 0);
        kept.await.unwrap();
        assert_eq!(pool.parked().len(), PARKED);
        assert!(!all[1].1.is_finished());
    }
}
