//! The HTTPS server: from a connection's arrival to its end.
//!
//! ```text
//! arrived ──> place ──> handshake ──> front proxy's certificate? ──> HTTP/1.1 or HTTP/2 ──> end
//!    │ none free          │ 5 s              │ yes: the API server's side
//!    └─> closed           └─> closed         └─ no: whose side its address is
//! ```
//!
//! What each connection may take stands in [`limits`](crate::limits). Accepting never waits for a client. A stream of
//! a user (console, VNC, forwarded port) keeps its connection's place until it ends.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use podvirt_daemon::serve::accept;
use socket2::TcpKeepalive;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower::Service;
use tracing::{debug, warn};

use crate::front_proxy::FrontProxy;
use crate::limits::{Limits, Place, Side};
use crate::tls::Peer;

/// Longest time a client may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time until a request's head is there, and between two requests of an HTTP/1.1 connection, and until the first
/// byte by either version; not for the API server, which keeps connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until a connection takes no further request; not the API server's.
const LIFETIME: Duration = Duration::from_secs(60);
/// Longest time for requests under way behind that.
const FINISH: Duration = Duration::from_secs(10);
/// Bytes of a stream's body that HTTP/2 takes in before anything reads it, for the API server and for others.
const STREAM_WINDOW: (u32, u32) = (64 << 10, 16 << 10);
/// HTTP/2 streams of a connection at a time.
const STREAMS: (u32, u32) = (64, 8);
/// Bytes of all streams of a connection before anything reads them: those that wait never hold up one that is read.
const CONNECTION_WINDOW: (u32, u32) = (STREAM_WINDOW.0 * STREAMS.0, STREAM_WINDOW.1 * STREAMS.1);
/// Bytes of a request's head. The API server's tell all groups of a user.
const HEAD_BYTES: (u32, u32) = (64 << 10, 16 << 10);
/// Bytes of an HTTP/2 stream's answer that wait for the client.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// When a silent connection is asked whether it lives, and how often until it does not: two minutes in all.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(60))
    .with_interval(Duration::from_secs(15))
    .with_retries(4);

/// The HTTPS server.
pub struct Server {
    /// Where it listens.
    pub listener: TcpListener,
    /// Its TLS.
    pub tls: Arc<rustls::ServerConfig>,
    /// Whose certificate marks the API server.
    pub proxy: Arc<FrontProxy>,
    /// What callers may hold.
    pub limits: Arc<Limits>,
    /// What is served.
    pub router: Router,
}

/// What the connections of a server share.
struct Shared {
    tls: TlsAcceptor,
    proxy: Arc<FrontProxy>,
    router: Router,
    ending: watch::Receiver<bool>,
}

impl Server {
    /// Serves until `ended`, and returns behind the last request. Streams of users do not count as requests.
    pub async fn run(self, ended: impl Future<Output = ()>) {
        let Server { listener, tls, proxy, limits, router } = self;
        let (end, ending) = watch::channel(false);
        let shared = Arc::new(Shared { tls: TlsAcceptor::from(tls), proxy, router, ending });
        let ended = async {
            ended.await;
            end.send_replace(true);
        };
        let admit = |address| limits.admit(address);
        let each = |stream, address, place| {
            let shared = Arc::clone(&shared);
            async move { connection(&shared, stream, address, place).await }
        };
        accept(listener, ended, admit, each).await;
    }
}

async fn connection(shared: &Shared, stream: TcpStream, address: SocketAddr, place: Place) {
    // Small frames of a console should not wait for each other.
    let _ = stream.set_nodelay(true);
    // A stream may be silent for long; a client that is gone without a word must not keep its place.
    let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE);
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, shared.tls.accept(stream));
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        () = place.displaced() => {
            debug!(%address, "gave way to another client");
            return;
        }
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            debug!(%address, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            debug!(%address, "TLS handshake took too long");
            return;
        }
    };
    let peer = Peer::of(&stream, address);
    let place = if shared.proxy.is(&peer) {
        let Some(place) = place.vouch() else {
            warn!(%address, "too many connections of the front proxy");
            return;
        };
        place
    } else {
        place
    };
    serve(shared, stream, peer, Arc::new(place)).await;
}

async fn serve(shared: &Shared, stream: TlsStream<TcpStream>, peer: Peer, place: Arc<Place>) {
    let (address, side) = (peer.address, place.side());
    let router = shared.router.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        router.clone().call(request.map(Body::new))
    });
    let builder = builder(side);
    let silence = match side {
        Side::ApiServer => None,
        // The server looks at the first bytes for the version before any other deadline begins.
        Side::Anyone => Some(Box::pin(tokio::time::sleep(HEAD_TIMEOUT))),
    };
    let io = TokioIo::new(Placed { stream, silence, _place: Arc::clone(&place) });
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    let mut ending = shared.ending.clone();
    let lifetime = async {
        match side {
            Side::ApiServer => std::future::pending().await,
            Side::Anyone => tokio::time::sleep(LIFETIME).await,
        }
    };
    tokio::select! {
        served = connection.as_mut() => {
            if let Err(error) = served {
                debug!(%address, %error, "the connection broke");
            }
            return;
        }
        () = place.displaced() => {
            debug!(%address, "gave way to another client");
            return;
        }
        // An error is a server that has ended.
        _ = ending.wait_for(|ending| *ending) => {}
        () = lifetime => {}
    }
    connection.as_mut().graceful_shutdown();
    // The API server's requests take as long as they need: the process ends them.
    let finish = async {
        match side {
            Side::ApiServer => std::future::pending().await,
            Side::Anyone => tokio::time::sleep(FINISH).await,
        }
    };
    tokio::select! {
        _ = connection => {}
        () = place.displaced() => {}
        () = finish => debug!(%address, "the connection did not end"),
    }
}

/// HTTP as a side may speak it.
fn builder(side: Side) -> Builder<TokioExecutor> {
    let own = |(api_server, anyone): (u32, u32)| match side {
        Side::ApiServer => api_server,
        Side::Anyone => anyone,
    };
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(match side {
            Side::ApiServer => None,
            Side::Anyone => Some(HEAD_TIMEOUT),
        })
        .max_buf_size(own(HEAD_BYTES) as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(own(STREAMS))
        .initial_stream_window_size(own(STREAM_WINDOW))
        .initial_connection_window_size(own(CONNECTION_WINDOW))
        .max_header_list_size(own(HEAD_BYTES))
        .max_send_buf_size(SEND_BUFFER_BYTES)
        // WebSockets over HTTP/2.
        .enable_connect_protocol();
    builder
}

/// A connection that keeps its place as long as it lives, also where a user's stream has taken it over.
struct Placed {
    stream: TlsStream<TcpStream>,
    /// Until when the first byte has to be there; none once it was.
    silence: Option<Pin<Box<Sleep>>>,
    _place: Arc<Place>,
}

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match &mut self.silence {
            Some(silence) if read.is_pending() => {
                ready!(silence.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client says nothing")))
            }
            _ => {
                self.silence = None;
                read
            }
        }
    }
}

impl AsyncWrite for Placed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
