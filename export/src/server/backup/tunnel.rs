//! Streams that the machine opens.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http::Request;
use hyper_util::rt::TokioIo;
use podvirt_daemon::pki::common_name;
use podvirt_daemon::serve::PeerCertificate;

use super::pool::Pool;

/// The protocol that the machine speaks on its streams.
const PROTOCOL: HeaderValue = HeaderValue::from_static("nbd");

/// Takes the stream of a request of the machine's, which is known by the name `machine` in its certificate.
pub(super) fn answer(pool: &Arc<Pool>, machine: &str, mut request: Request<Body>) -> Response {
    let Some(shown) = request.extensions().get::<PeerCertificate>() else {
        return (StatusCode::UNAUTHORIZED, "a client certificate is required\n").into_response();
    };
    let name = common_name(&shown.0).unwrap_or_default();
    if name != machine {
        tracing::warn!(name, "a client whose certificate is not of the backup's machine was turned away");
        return (StatusCode::FORBIDDEN, "the client certificate is not of the backup's machine\n")
            .into_response();
    }
    let asked = request.headers().get(header::UPGRADE);
    if !asked.is_some_and(|asked| asked.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        let fields = [(header::UPGRADE, PROTOCOL)];
        return (StatusCode::UPGRADE_REQUIRED, fields, "upgrade: nbd is allowed\n").into_response();
    }
    let (taken, pool) = (hyper::upgrade::on(&mut request), Arc::clone(pool));
    tokio::spawn(async move {
        match taken.await {
            Ok(stream) => pool.keep(Box::new(TokioIo::new(stream))).await,
            Err(error) => tracing::debug!(%error, "a stream of the machine's has ended at once"),
        }
    });
    let fields = [(header::CONNECTION, HeaderValue::from_static("upgrade")), (header::UPGRADE, PROTOCOL)];
    (StatusCode::SWITCHING_PROTOCOLS, fields).into_response()
}
