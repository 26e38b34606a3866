//! The small HTTP server of every daemon: `/healthz`, `/readyz`, `/metrics`.
//!
//! `/healthz` answers while the process serves at all. `/readyz` answers 200 once every [`Gate`] is open, and 503
//! with the closed ones' names before. Metrics are in the OpenMetrics text format. The server speaks plain HTTP/1.1
//! and tells nothing secret.
//!
//! It is bounded ([`crate::serve`]), and no connection outlives a minute. The node agent opens a connection for each probe and
//! always finds a place.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use tokio::net::TcpListener;

use crate::connections::Limits;
use crate::net;
use crate::serve::{self, Bounds};
use crate::shutdown::Shutdown;

/// What connections may take: some places are for the node agent's probes, some for each collector of metrics.
const BOUNDS: Bounds = Bounds {
    places: Limits { total: 64, per_source: 16 },
    head_timeout: Duration::from_secs(10),
    max_head_bytes: 16 << 10,
    lifetime: Some(Duration::from_secs(60)),
    finish: Duration::from_secs(5),
};

/// Media type of the OpenMetrics text format, version 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a daemon waits for before it is of use. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<BTreeMap<String, bool>>>);

/// One condition of a daemon's readiness. Closed at first.
#[derive(Clone, Debug)]
pub struct Gate {
    name: String,
    of: Readiness,
}

impl Readiness {
    /// Without gates: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition; `name` says what is waited for (`caches`, `certificate`).
    pub fn gate(&self, name: &str) -> Gate {
        let gate = Gate { name: name.to_owned(), of: self.clone() };
        gate.set(false);
        gate
    }

    /// Names of the closed gates. Empty: ready.
    pub fn missing(&self) -> Vec<String> {
        let gates = self.0.read().unwrap_or_else(PoisonError::into_inner);
        gates.iter().filter(|(_, open)| !**open).map(|(name, _)| name.clone()).collect()
    }
}

impl Gate {
    /// Opens or closes the gate.
    pub fn set(&self, open: bool) {
        self.of.0.write().unwrap_or_else(PoisonError::into_inner).insert(self.name.clone(), open);
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.set(true);
    }
}

/// Families of series that have to be asked for, in the OpenMetrics text format without its end.
pub type More = Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

/// What `/metrics` answers.
#[derive(Clone)]
pub struct Exposition {
    registry: Arc<Registry>,
    more: Option<More>,
}

impl Exposition {
    /// What is in `registry`.
    pub fn new(registry: impl Into<Arc<Registry>>) -> Self {
        Self { registry: registry.into(), more: None }
    }

    /// The same with what `more` answers at each scrape, which must have a deadline of its own.
    #[must_use]
    pub fn with_more(self, more: More) -> Self {
        Self { more: Some(more), ..self }
    }

    /// The text of one scrape.
    async fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        if let Some(more) = &self.more {
            text.push_str(&more().await);
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

impl From<Arc<Registry>> for Exposition {
    fn from(registry: Arc<Registry>) -> Self {
        Self::new(registry)
    }
}

/// Serves on `listen` until `shutdown`.
///
/// # Errors
///
/// The address cannot be listened on, or the listener fails.
pub async fn serve(
    listen: SocketAddr,
    exposition: impl Into<Exposition>,
    readiness: Readiness,
    shutdown: Shutdown,
) -> io::Result<()> {
    serve_on(net::listen(listen).await?, exposition, readiness, shutdown).await
}

/// Serves `router` by TLS on `listen` until `shutdown`, with the bounds of [`serve()`]. A handshake has as much time as a
/// request's head.
///
/// # Errors
///
/// The address cannot be listened on, or the listener fails.
pub async fn serve_tls(
    listen: SocketAddr,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: Shutdown,
) -> io::Result<()> {
    serve::serve(net::listen(listen).await?, Some(tls), router, BOUNDS, shutdown).await
}

/// Serves on a listener that is there already until `shutdown`, and ends behind the last answer.
///
/// # Errors
///
/// The listener fails.
pub async fn serve_on(
    listener: TcpListener,
    exposition: impl Into<Exposition>,
    readiness: Readiness,
    shutdown: Shutdown,
) -> io::Result<()> {
    serve::serve(listener, None, router(exposition, readiness), BOUNDS, shutdown).await
}

/// The three routes, for daemons that have a server of their own.
pub fn router(exposition: impl Into<Exposition>, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(metrics).with_state(exposition.into()))
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    let missing = readiness.missing();
    if missing.is_empty() {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", missing.join(", "))).into_response()
    }
}

async fn metrics(State(exposition): State<Exposition>) -> Response {
    match exposition.text().await {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::stream::FuturesUnordered;
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};

    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::pki;

    async fn answer(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    /// Clients do not have to know the CA to reach it; whether it is the daemon's, the certificate says.
    #[tokio::test]
    async fn by_tls_a_router_is_served_beside_clients_that_never_finish_their_handshake() {
        let now = jiff::Timestamp::now();
        let day = Duration::from_secs(86_400);
        let ca = pki::make_ca(now, day).unwrap();
        let names = ["virt-controller.kubevirt.svc".to_owned()];
        let leaf = pki::make_leaf(&ca, &names[0], &names, pki::Purpose::Server, now, day).unwrap();
        let identity = pki::Identity::fixed(&leaf, &ca.certificate).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = identity.server_config(false).unwrap();
        let (end, shutdown) = Shutdown::manual();
        let routes = Router::new().route("/healthz", get(async || "well"));
        let server = tokio::spawn(serve::serve(listener, Some(tls), routes, BOUNDS, shutdown));
        let silent = TcpStream::connect(address).await.unwrap();

        let connector = TlsConnector::from(identity.client_config(&names[0]).unwrap());
        let name = "virt-controller.kubevirt.svc".try_into().unwrap();
        let mut stream = connector.connect(name, TcpStream::connect(address).await.unwrap()).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("well"), "{text}");

        end.request();
        server.await.unwrap().unwrap();
        drop(silent);
    }

    #[tokio::test]
    async fn health_readiness_and_metrics_are_answered_until_the_end() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("things", "Things counted", counter.clone());
        counter.inc();
        let readiness = Readiness::new();
        let (caches, lease) = (readiness.gate("caches"), readiness.gate("lease"));
        let (trigger, shutdown) = Shutdown::manual();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let more: More = Arc::new(|| Box::pin(async { "# TYPE other gauge\nother 2\n".to_owned() }));
        let exposition = Exposition::new(registry).with_more(more);
        let server = tokio::spawn(serve_on(listener, exposition, readiness, shutdown));

        assert!(answer(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let text = answer(address, "/readyz").await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("waiting for caches, lease"), "{text}");
        caches.open();
        assert!(answer(address, "/readyz").await.contains("waiting for lease"));
        lease.open();
        assert!(answer(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let text = answer(address, "/metrics").await;
        assert!(text.contains("things_total 1") && text.contains(OPEN_METRICS), "{text}");
        assert!(text.ends_with("other 2\n# EOF\n"), "{text}");

        trigger.request();
        server.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// A connection from another address of this machine.
    async fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    }

    #[tokio::test]
    async fn silent_connections_keep_no_client_out() {
        let (_trigger, shutdown) = Shutdown::manual();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_on(listener, Arc::new(Registry::default()), Readiness::new(), shutdown));
        let mut silent = Vec::new();
        for n in 0..400 {
            silent.push(connect_from([127, 0, 1, n as u8 % 10], address).await);
        }
        assert!(answer(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        // What has no place is closed, and what gave way.
        let ends = silent.iter_mut().map(async |stream| stream.read(&mut [0; 1]).await.unwrap_or(0));
        let closed =
            ends.collect::<FuturesUnordered<_>>().take(400 - BOUNDS.places.total).collect::<Vec<_>>();
        assert!(closed.await.iter().all(|bytes| *bytes == 0));
    }

    /// Serves for as long as the trigger lives.
    async fn served() -> (SocketAddr, crate::shutdown::Trigger) {
        let (trigger, shutdown) = Shutdown::manual();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_on(listener, Arc::new(Registry::default()), Readiness::new(), shutdown));
        (address, trigger)
    }

    /// After how much of the test's own time the server closes a connection.
    async fn closed_after(stream: &mut TcpStream) -> Duration {
        let begin = tokio::time::Instant::now();
        let _reset = stream.read_to_end(&mut Vec::new()).await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn connections_without_a_place_are_closed_at_once_and_silent_ones_in_time() {
        let (address, _trigger) = served().await;
        let mut silent = Vec::new();
        for n in 0..2 * BOUNDS.places.total {
            let n = u8::try_from(n / BOUNDS.places.per_source).unwrap();
            silent.push(connect_from([127, 0, 1, n], address).await);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let open = |stream: &TcpStream| {
            let error = stream.try_read(&mut [0; 1]).err();
            error.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        assert_eq!(silent.iter().filter(|stream| open(stream)).count(), BOUNDS.places.total);
        drop(silent);
        let mut silent = connect_from([127, 0, 1, 1], address).await;
        let after = closed_after(&mut silent).await;
        assert!(after.abs_diff(BOUNDS.head_timeout) < Duration::from_secs(1), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_goes_on_asking_is_closed_after_its_lifetime() {
        let lifetime = BOUNDS.lifetime.unwrap();
        let (address, _trigger) = served().await;
        let mut stream = connect_from([127, 0, 1, 1], address).await;
        let begin = tokio::time::Instant::now();
        let mut answer = [0; 4096];
        while stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.is_ok()
            && stream.read(&mut answer).await.is_ok_and(|bytes| bytes > 0)
        {
            assert!(begin.elapsed() < 2 * lifetime, "it goes on for ever");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(begin.elapsed() >= lifetime - Duration::from_secs(1), "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let (address, _trigger) = served().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let long = "x".repeat(BOUNDS.max_head_bytes);
        let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nLong: {long}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 64];
        let bytes = stream.read(&mut answer).await.unwrap();
        assert!(answer[..bytes].starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    }
}
