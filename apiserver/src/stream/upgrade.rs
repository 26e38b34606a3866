//! The handshake of a WebSocket (RFC 6455, section 4.2), for streams that end here.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::status::Status;

/// Subprotocol of upstream's clients.
pub const SUBPROTOCOL: &str = "plain.kubevirt.io";

/// Whether a comma-separated header holds `word`.
fn holds(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(word))
}

/// Whether the client's connection can become a stream.
///
/// # Errors
///
/// It asks for none, or speaks HTTP/2.
pub fn is_upgradable(request: &Request<Body>) -> Result<(), Status> {
    let asks = request.headers().contains_key(header::UPGRADE);
    if asks && request.extensions().get::<hyper::upgrade::OnUpgrade>().is_some() {
        Ok(())
    } else {
        Err(Status::bad_request("a WebSocket upgrade over HTTP/1.1 is needed"))
    }
}

/// The agreement to a client's request.
///
/// # Errors
///
/// The request is no WebSocket's of version 13.
pub fn agree(headers: &HeaderMap) -> Result<Response, Status> {
    let is_websocket = holds(headers, header::UPGRADE, "websocket")
        && holds(headers, header::CONNECTION, "upgrade")
        && holds(headers, header::SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| is_websocket);
    let key = key.ok_or_else(|| Status::bad_request("a WebSocket upgrade of version 13 is needed"))?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|error| Status::internal(error.to_string()))?;
    answer.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if holds(headers, header::SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        answer.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    const ASKED: [(&str, &str); 4] = [
        ("upgrade", "WebSocket"),
        ("connection", "keep-alive, Upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[test]
    fn the_example_of_the_rfc_is_agreed_to() {
        let response = agree(&headers(&ASKED)).unwrap();
        assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(!response.headers().contains_key("sec-websocket-protocol"));
        let mut with_protocol = headers(&ASKED);
        let offered = HeaderValue::from_static("base64.binary.k8s.io, plain.kubevirt.io");
        with_protocol.insert("sec-websocket-protocol", offered);
        let response = agree(&with_protocol).unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], "plain.kubevirt.io");
    }

    #[test]
    fn every_missing_part_is_refused() {
        for missing in 0..ASKED.len() {
            let mut asked = ASKED.to_vec();
            asked.remove(missing);
            assert_eq!(agree(&headers(&asked)).unwrap_err().code, 400, "{missing}");
        }
    }
}
