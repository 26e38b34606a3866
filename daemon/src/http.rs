//! The small HTTP server of every daemon: `/healthz`, `/readyz`, `/metrics`.
//!
//! `/healthz` answers while the process serves at all. `/readyz` answers 200 once every [`Gate`] is open, and 503
//! with the closed ones' names before. Metrics are in the OpenMetrics text format. The server speaks plain HTTP
//! and tells nothing secret.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::net;
use crate::shutdown::Shutdown;

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

/// Serves on `listen` until `shutdown`.
///
/// # Errors
///
/// The address cannot be listened on, or the listener fails.
pub async fn serve(
    listen: SocketAddr,
    registry: Arc<Registry>,
    readiness: Readiness,
    shutdown: Shutdown,
) -> io::Result<()> {
    serve_on(net::listen(listen).await?, registry, readiness, shutdown).await
}

/// Serves on a listener that is there already until `shutdown`.
///
/// # Errors
///
/// The listener fails.
pub async fn serve_on(
    listener: TcpListener,
    registry: Arc<Registry>,
    readiness: Readiness,
    shutdown: Shutdown,
) -> io::Result<()> {
    tracing::info!(address = %listener.local_addr()?, "serving health and metrics");
    axum::serve(listener, router(registry, readiness))
        .with_graceful_shutdown(async move { shutdown.requested().await })
        .await
}

/// The three routes, for daemons that have a server of their own.
pub fn router(registry: Arc<Registry>, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    let missing = readiness.missing();
    if missing.is_empty() {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", missing.join(", "))).into_response()
    }
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn answer(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
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
        let server = tokio::spawn(serve_on(listener, Arc::new(registry), readiness, shutdown));

        assert!(answer(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let text = answer(address, "/readyz").await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("waiting for caches, lease"), "{text}");
        caches.open();
        assert!(answer(address, "/readyz").await.contains("waiting for lease"));
        lease.open();
        assert!(answer(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let text = answer(address, "/metrics").await;
        assert!(text.contains("things_total 1") && text.contains(OPEN_METRICS), "{text}");

        trigger.request();
        server.await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }
}
