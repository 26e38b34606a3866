//! A backup in pull mode: what the machine's NBD server offers, by HTTP.
//!
//! # Theory of operation
//!
//! ```text
//!  virt-launcher ── GET /tunnel, its certificate ──> 101 ──> parked ──┐ ended: forgotten
//!  client ── GET /exports/VOLUME/data|map, the token ──> waits for ───┤
//!                                                        none: 503    └─> 0x01 ──> an NBD session ──> the answer ──> ended
//! ```
//!
//! Nothing dials into the machine's pod: virt-launcher dials this server, by the name that its certificate has ([`tunnel`]), and the
//! streams that it opens are kept until a request needs one ([`pool`]). Each request takes a stream for itself, has an NBD session on it
//! ([`nbd`]), and ends it. A stream on which no session opens is dropped, and the next one is tried, until the request has waited long
//! enough. What the machine offers does not change while the backup runs, so that requests may be repeated.

mod data;
mod map;
pub mod nbd;
mod pool;
mod query;
#[cfg(any(test, feature = "testing"))]
pub mod served;
#[cfg(test)]
mod tests;
mod tunnel;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use podvirt_api::backup::tunnel_identity;
use podvirt_api::error::chain;
use podvirt_api::export::backup::TUNNEL_PATH;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::RETRY_SECONDS;
use super::config::Backup;
use nbd::{NbdError, Session};
use pool::{Pool, Stream};
use query::Part;

/// The byte by which a parked stream is taken.
const TAKEN: u8 = 1;
/// Longest time that a request waits for a stream of the machine's.
const WAIT: Duration = Duration::from_secs(10);
/// Streams that a request tries.
const TRIES: usize = 4;
/// Longest time to write into a stream that was parked.
const WRITE: Duration = Duration::from_secs(5);

/// Why a request has no session.
#[derive(Debug, thiserror::Error)]
enum Unserved {
    /// The machine has not dialled, or what it has dialled does not work.
    #[error("the backup's machine is not connected: {0}")]
    Away(String),
    /// The machine cannot do what is wanted.
    #[error("the backup's machine cannot serve this")]
    Refused(#[from] NbdError),
}

impl IntoResponse for Unserved {
    fn into_response(self) -> Response {
        let text = format!("{}\n", chain(&self));
        match self {
            Unserved::Away(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, RETRY_SECONDS)], text)
                    .into_response()
            }
            Unserved::Refused(_) => (StatusCode::BAD_GATEWAY, text).into_response(),
        }
    }
}

/// The routes with disks' data and maps, which want the token, and the one for the machine, which does not.
pub(super) fn routers(backup: &Backup) -> (Router, Router) {
    let pool = Arc::new(Pool::default());
    let mut disks = Router::new();
    for disk in &backup.disks {
        let volume: Arc<str> = disk.volume.as_str().into();
        if let Some(path) = &disk.data {
            let (pool, volume) = (Arc::clone(&pool), Arc::clone(&volume));
            disks = disks.route(path, get(async move |uri| data::answer(&pool, &volume, &uri).await));
        }
        if let Some(path) = &disk.map {
            let (pool, volume) = (Arc::clone(&pool), Arc::clone(&volume));
            disks = disks.route(path, get(async move |uri| map::answer(&pool, &volume, &uri).await));
        }
    }
    let machine: Arc<str> = tunnel_identity(&backup.uid).into();
    let tunnel = async move |request| tunnel::answer(&pool, &machine, request);
    (disks, Router::new().route(TUNNEL_PATH, get(tunnel)))
}

/// A session of a volume in which `contexts` can be asked about, and the part of its disk that a request is of.
///
/// # Errors
///
/// What the client is told: there is no session, or no such part.
async fn open(
    pool: &Pool,
    volume: &str,
    contexts: &[&str],
    part: Part,
) -> Result<(Session<Stream>, Range<u64>), Response> {
    let session = session(pool, volume, contexts).await.map_err(IntoResponse::into_response)?;
    match part.within(session.size()) {
        Ok(part) => Ok((session, part)),
        Err(refusal) => {
            session.close().await;
            Err(refusal.into_response())
        }
    }
}

/// A session of `export` on one of the machine's streams, in which it can be asked what is where by those of `contexts` that it grants.
async fn session(pool: &Pool, export: &str, contexts: &[&str]) -> Result<Session<Stream>, Unserved> {
    let deadline = Instant::now() + WAIT;
    let mut last = "it has not dialled".to_owned();
    for _ in 0..TRIES {
        let Ok(mut stream) = timeout_at(deadline, pool.take()).await else { break };
        let written = timeout(WRITE, async {
            stream.write_u8(TAKEN).await?;
            stream.flush().await
        });
        let opened = match written.await {
            Ok(Ok(())) => Session::open(stream, export, contexts).await,
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(NbdError::Silent(WRITE)),
        };
        match opened {
            Ok(session) => return Ok(session),
            Err(error @ (NbdError::Stream(_) | NbdError::Silent(_))) => last = chain(&error),
            Err(error) => {
                tracing::warn!(
                    export,
                    error = &error as &dyn std::error::Error,
                    "the machine's disk is not served"
                );
                return Err(error.into());
            }
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    tracing::warn!(export, last, "the machine is not connected");
    Err(Unserved::Away(last))
}
