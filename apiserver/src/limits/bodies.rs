//! Bodies of requests in memory: each has its place in a budget before its first byte is read.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{ops, pin};

use axum::body::{Body, Bytes};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;
use crate::status::Status;

use super::Side;

/// Longest time until the API server's body is whole, from its head on. It gives up after ten seconds itself.
const READ_TIMEOUT: Duration = Duration::from_secs(8);
/// The same for all others: a client that has the place of a body and does not send it keeps the others from it so long.
const READ_TIMEOUT_OF_OTHERS: Duration = Duration::from_secs(3);
/// Bytes of an answer that are handed on at a time: what waits for the client stays here, where its place is held.
const PIECE_BYTES: usize = 16 << 10;
/// Least place that a body takes, in bytes: what is made of it takes more than a short text.
const LEAST_BYTES: usize = 64 << 10;

/// A budget of bytes.
#[derive(Debug)]
pub(super) struct Budget {
    side: Side,
    all: Arc<Semaphore>,
    total: usize,
    /// Longest time until a body is whole.
    timeout: Duration,
    /// Part of an address in bytes, where an address has one.
    share: Option<usize>,
    /// The parts in use.
    shares: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    buffered: Gauge,
}

/// A body that was read, and its place in the budget.
#[derive(Debug)]
pub struct Held {
    text: Vec<u8>,
    buffered: Gauge,
    place: Permits,
}

/// A place in the budget.
#[derive(Debug)]
struct Permits {
    all: OwnedSemaphorePermit,
    share: Option<OwnedSemaphorePermit>,
}

/// Bytes as a semaphore counts them; the budgets are far below its limit.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Bytes as a gauge counts them.
fn count(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn gone() -> Status {
    Status::internal("the server's budget is closed")
}

impl Budget {
    pub(super) fn new(side: Side, total: usize, share: Option<usize>, metrics: &Metrics) -> Self {
        Budget {
            side,
            all: Arc::new(Semaphore::new(total)),
            total,
            timeout: match side {
                Side::ApiServer => READ_TIMEOUT,
                Side::Anyone => READ_TIMEOUT_OF_OTHERS,
            },
            share,
            shares: Mutex::default(),
            buffered: metrics.buffered_bytes.get_or_create(&side.into()).clone(),
        }
    }

    /// The part of an address.
    fn share(&self, source: IpAddr) -> Option<Arc<Semaphore>> {
        let bytes = self.share?;
        let mut parts = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get(&source).and_then(Weak::upgrade) {
            return Some(part);
        }
        parts.retain(|_, part| part.strong_count() > 0);
        let part = Arc::new(Semaphore::new(bytes));
        parts.insert(source, Arc::downgrade(&part));
        Some(part)
    }

    /// Waits for `bytes` of the budget: first in the queue of the address, then in that of all.
    async fn place(&self, source: IpAddr, bytes: usize) -> Result<Permits, Status> {
        let share = match self.share(source.to_canonical()) {
            Some(part) => Some(part.acquire_many_owned(permits(bytes)).await.map_err(|_| gone())?),
            None => None,
        };
        let all = Arc::clone(&self.all).acquire_many_owned(permits(bytes)).await.map_err(|_| gone())?;
        Ok(Permits { all, share })
    }

    /// Reads a body of at most `max` bytes, which is at most an address's part.
    pub(super) async fn read(&self, source: IpAddr, body: Body, max: usize) -> Result<Held, Status> {
        let too_long = || Status::too_large(max);
        let length = body.size_hint();
        // Without a declared length it may become the longest.
        let bytes = length.upper().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(max);
        if length.lower() > max as u64 || length.upper().is_some() && bytes > max {
            return Err(too_long());
        }
        let read = async {
            let place = self.place(source, bytes.max(LEAST_BYTES)).await?;
            let mut held = Held { text: Vec::with_capacity(bytes), buffered: self.buffered.clone(), place };
            let mut body = pin::pin!(body);
            while let Some(frame) = body.frame().await {
                let frame = frame
                    .map_err(|error| Status::bad_request(format!("the body cannot be read: {error}")))?;
                let Ok(data) = frame.into_data() else { continue };
                if held.text.len() + data.len() > bytes {
                    return Err(too_long());
                }
                held.buffered.inc_by(count(data.len()));
                held.text.extend_from_slice(&data);
            }
            Ok(held)
        };
        tokio::time::timeout(self.timeout, read).await.unwrap_or_else(|_| {
            let free = self.all.available_permits();
            tracing::debug!(%source, side = self.side.label(), free, total = self.total, "a body came too late");
            Err(Status::too_slow(self.timeout))
        })
    }
}

impl ops::Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.text
    }
}

impl Held {
    /// Forgets the text; the place stays taken.
    pub fn clear(&mut self) {
        self.buffered.dec_by(count(self.text.len()));
        self.text = Vec::new();
    }

    /// The body's text on its own, for what is short; its place is free again.
    pub fn into_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.text)
    }

    /// An answer that takes the body's place until it has been handed to the client.
    ///
    /// # Errors
    ///
    /// It is longer than the body's place, and there is no more now.
    pub fn answer(mut self, head: Response<()>, text: Vec<u8>) -> Result<Response, Status> {
        self.clear();
        let more = text.len().saturating_sub(self.place.all.num_permits());
        let mut grown = Vec::new();
        if more > 0 {
            for permit in [Some(&self.place.all), self.place.share.as_ref()].into_iter().flatten() {
                let more = Arc::clone(permit.semaphore()).try_acquire_many_owned(permits(more));
                grown.push(more.map_err(|_| Status::unavailable("the answer has no place in memory now"))?);
            }
        }
        let body = Answer { text: Bytes::from(text), _held: self, _grown: grown };
        Ok(head.map(|()| Body::new(body)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What is left of an answer, and the place that it takes.
struct Answer {
    text: Bytes,
    _held: Held,
    _grown: Vec<OwnedSemaphorePermit>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.text.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.text.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.text.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.text.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt, stream};

    use super::*;

    const KIB: usize = 1 << 10;

    fn budget() -> Budget {
        Budget::new(Side::Anyone, 256 * KIB, Some(128 * KIB), &Metrics::default())
    }

    fn source(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn body(bytes: usize) -> Body {
        Body::from(vec![b' '; bytes])
    }

    #[tokio::test]
    async fn an_answer_takes_its_bodys_place_until_it_has_been_handed_over() {
        let budget = budget();
        let held = budget.read(source(1), body(2), KIB).await.unwrap();
        assert_eq!(budget.all.available_permits(), 192 * KIB, "the least place");
        assert_eq!(budget.buffered.get(), 2);
        let answer = held.answer(Response::new(()), vec![b'x'; 100 * KIB]).unwrap();
        assert_eq!(budget.all.available_permits(), 156 * KIB, "a longer answer takes more");
        assert_eq!(budget.buffered.get(), 0, "the body's text is gone before");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), 100 * KIB);
        assert_eq!(budget.all.available_permits(), 256 * KIB);
        let held = budget.read(source(1), body(2), KIB).await.unwrap();
        assert_eq!(held.answer(Response::new(()), vec![b'x'; 129 * KIB]).unwrap_err().code, 503);
        assert_eq!(budget.all.available_permits(), 256 * KIB);
    }

    #[tokio::test]
    async fn what_does_not_fit_into_an_addresss_part_waits_alone() {
        let budget = budget();
        let max = 128 * KIB;
        let first = budget.read(source(1), body(128 * KIB), max).await.unwrap();
        assert_eq!(budget.buffered.get(), 128 << 10);
        let mut second = Box::pin(budget.read(source(1), body(1), max));
        assert!(second.as_mut().now_or_never().is_none());
        let other = budget.read(source(2), body(64 * KIB), max).await.unwrap();
        drop(first);
        assert_eq!(second.await.unwrap().len(), 1);
        drop(other);
        assert_eq!(budget.buffered.get(), 0);
        assert_eq!(budget.shares.lock().unwrap().len(), 2);
        let last = budget.read(source(3), body(1), max).await.unwrap();
        assert_eq!(budget.shares.lock().unwrap().len(), 1, "parts that are not used are forgotten");
        drop(last);
    }

    /// A body in pieces, whose length is not known before.
    fn pieces(pieces: impl futures::Stream<Item = std::io::Result<&'static [u8]>> + Send + 'static) -> Body {
        Body::from_stream(pieces)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let budget = budget();
        let never = || pieces(stream::iter([Ok(&b"{"[..])]).chain(stream::pending()));
        for _ in 0..2 {
            let read = budget.read(source(1), never(), 128 * KIB);
            let refused =
                tokio::time::timeout(Duration::from_secs(60), read).await.expect("it is waited for");
            assert_eq!(refused.unwrap_err().code, 408);
            assert_eq!((budget.all.available_permits(), budget.buffered.get()), (256 * KIB, 0));
        }
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_or_breaks_off_is_refused_and_takes_nothing() {
        const PIECE: &[u8] = &[b' '; KIB];
        let budget = budget();
        let broken = || Err(std::io::Error::other("the client is gone"));
        for (body, code) in [
            (body(KIB + 1), 413),
            // Not declared, it is no longer than it may be either.
            (pieces(stream::iter([Ok(PIECE), Ok(PIECE)])), 413),
            (pieces(stream::iter([Ok(PIECE), broken()])), 400),
        ] {
            assert_eq!(budget.read(source(1), body, KIB).await.unwrap_err().code, code);
            assert_eq!((budget.all.available_permits(), budget.buffered.get()), (256 * KIB, 0));
        }
    }
}
