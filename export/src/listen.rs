//! Connections by TLS for downloads: bounded in number and in the time until a request is there, and not in how long an answer
//! takes.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use podvirt_daemon::connections::{Connections, Limits, Slot};
use podvirt_daemon::shutdown::Shutdown;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tower::Service;

/// Places for connections; all clients from outside the cluster come from the proxy's address.
const PLACES: Limits = Limits { total: 256, per_source: 192 };
/// Longest time until the handshake is done, until a request's head is there, and between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Pause after the kernel refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Serves `router` until `shutdown`, and gives answers that are under way `finish` to end.
///
/// # Errors
///
/// The listener's address is not known.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: Shutdown,
    finish: Duration,
) -> io::Result<()> {
    tracing::info!(address = %listener.local_addr()?, "serving");
    let tls = TlsAcceptor::from(tls);
    let places = Connections::new(PLACES);
    // Every connection holds a sender: the receiver ends behind the last one.
    let (open, mut ended) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            () = shutdown.requested() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "accepting failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(slot) = places.admit(peer.ip()) else {
            tracing::warn!(%peer, "too many connections");
            continue;
        };
        let (tls, router, shutdown, open) = (tls.clone(), router.clone(), shutdown.clone(), open.clone());
        tokio::spawn(async move {
            let shaken = tokio::select! {
                shaken = tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)) => shaken,
                () = slot.displaced() => return,
                () = shutdown.requested() => return,
            };
            match shaken {
                Ok(Ok(stream)) => connection(stream, router, &slot, shutdown, finish).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
            }
            drop(open);
        });
    }
    drop((listener, open));
    while ended.recv().await.is_some() {}
    Ok(())
}

async fn connection<S>(stream: S, router: Router, slot: &Slot, shutdown: Shutdown, finish: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| router.clone().call(request.map(Body::new)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // How a connection ends is the client's business.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = slot.displaced() => return,
        () = shutdown.requested() => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = slot.displaced() => {}
        () = tokio::time::sleep(finish) => {}
    }
}
