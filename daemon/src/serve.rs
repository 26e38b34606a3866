//! A bounded HTTP/1.1 server: connections, plain or by TLS, for a router.
//!
//! Every pod may reach a daemon, so what a connection can take is bounded ([`Bounds`]): places are shared out by source
//! ([`connections`](crate::connections)), a handshake and a request's head have a deadline and a head its size, and where answers are
//! short no connection outlives its lifetime.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tower::Service;
use tracing::debug;

use crate::connections::{Connections, Limits, Slot};
use crate::shutdown::Shutdown;

/// Pause after the kernel refused a connection, mostly for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// The certificate that a client has shown in the handshake and that the server's TLS has found good. Requests of such a client have it
/// among their extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate(pub CertificateDer<'static>);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Places for connections.
    pub places: Limits,
    /// Longest time until the handshake is done, until a request's head is there, and between two requests.
    pub head_timeout: Duration,
    /// Largest head of a request, in bytes.
    pub max_head_bytes: usize,
    /// Time until a connection takes no further request; `None`: there is no such time.
    pub lifetime: Option<Duration>,
    /// Time that an answer that is under way has to end, after the connection's lifetime or the server's.
    pub finish: Duration,
}

/// Serves `router` until `shutdown`, and ends behind the last answer. A connection that a handler has taken over for another protocol
/// (`Upgrade`) is the handler's: its place is free again.
///
/// # Errors
///
/// The listener's address is not known.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
    bounds: Bounds,
    shutdown: Shutdown,
) -> io::Result<()> {
    tracing::info!(address = %listener.local_addr()?, tls = tls.is_some(), "serving");
    let tls = tls.map(TlsAcceptor::from);
    let places = Connections::new(bounds.places);
    let admit = |address| places.admit(address);
    let each = |stream, peer, slot: Slot| {
        let (tls, router, shutdown) = (tls.clone(), router.clone(), shutdown.clone());
        async move {
            let Some(tls) = tls else {
                return connection(stream, None, router, bounds, &slot, shutdown).await;
            };
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(bounds.head_timeout, tls.accept(stream)) => shaken,
                () = slot.displaced() => return,
                () = shutdown.requested() => return,
            };
            match shaken {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                    let shown = shown.map(|leaf| PeerCertificate(leaf.clone().into_owned()));
                    connection(stream, shown, router, bounds, &slot, shutdown).await;
                }
                Ok(Err(error)) => debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => debug!(%peer, "TLS handshake took too long"),
            }
        }
    };
    accept(listener, shutdown.requested(), admit, each).await;
    Ok(())
}

/// Accepts connections until `ended`, has a task of its own serve each that `admit` gives a place, and returns behind the last of
/// these. Those without a place are closed.
pub async fn accept<P, F>(
    listener: TcpListener,
    ended: impl Future<Output = ()>,
    admit: impl Fn(IpAddr) -> Option<P>,
    each: impl Fn(TcpStream, SocketAddr, P) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    // Every connection holds a sender: the receiver ends behind the last one.
    let (open, mut all_ended) = mpsc::channel::<()>(1);
    let mut ended = pin!(ended);
    loop {
        let accepted = tokio::select! {
            () = &mut ended => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "accepting failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = admit(peer.ip()) else {
            debug!(%peer, "too many connections");
            continue;
        };
        let (served, open) = (each(stream, peer, place), open.clone());
        tokio::spawn(async move {
            served.await;
            drop(open);
        });
    }
    drop((listener, open));
    while all_ended.recv().await.is_some() {}
}

async fn connection<S>(
    stream: S,
    shown: Option<PeerCertificate>,
    router: Router,
    bounds: Bounds,
    slot: &Slot,
    shutdown: Shutdown,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(shown) = &shown {
            request.extensions_mut().insert(shown.clone());
        }
        router.clone().call(request.map(Body::new))
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_timeout)
        .max_buf_size(bounds.max_head_bytes);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let lifetime = async {
        match bounds.lifetime {
            Some(lifetime) => tokio::time::sleep(lifetime).await,
            None => std::future::pending().await,
        }
    };
    // How a connection ends is the client's business.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = slot.displaced() => return,
        () = shutdown.requested() => {}
        () = lifetime => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = slot.displaced() => {}
        () = tokio::time::sleep(bounds.finish) => {}
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
