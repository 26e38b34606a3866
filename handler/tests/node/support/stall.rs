//! Connections of a launcher that can be made to say no more, and stay open.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

/// What the present connections share.
#[derive(Clone, Default)]
pub(crate) struct Stall(Arc<Mutex<Arc<AtomicBool>>>);

impl Stall {
    /// Nothing is read from the present connections any more; later ones are served.
    pub(crate) fn now(&self) {
        let mut present = self.0.lock().unwrap();
        present.store(true, Ordering::SeqCst);
        *present = Arc::default();
    }

    /// `stream` is one of the present connections.
    pub(crate) fn take(&self, stream: UnixStream) -> Stream {
        Stream { stream, stalled: Arc::clone(&self.0.lock().unwrap()) }
    }
}

/// A connection.
pub(crate) struct Stream {
    stream: UnixStream,
    stalled: Arc<AtomicBool>,
}

impl Connected for Stream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.stalled.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
