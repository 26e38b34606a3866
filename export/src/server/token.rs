//! Whether a client has the token.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::Request;
use podvirt_api::export::TOKEN_HEADER;
use subtle::ConstantTimeEq;

/// Where the token is. The kubelet writes the file anew when its Secret changes.
#[derive(Debug)]
pub(super) struct Token(PathBuf);

impl Token {
    pub(super) fn new(file: PathBuf) -> Self {
        Token(file)
    }

    /// The token, if it says something.
    pub(super) async fn read(&self) -> std::io::Result<String> {
        let text = tokio::fs::read_to_string(&self.0).await?;
        if text.is_empty() {
            return Err(std::io::Error::other("the token is empty"));
        }
        Ok(text)
    }
}

/// The parameter of the header's name, without its percent signs read: a token has none.
fn parameter(query: &str) -> Option<&str> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(name, _)| *name == TOKEN_HEADER)
        .map(|pair| pair.1)
}

/// Passes on requests with the token.
pub(super) async fn check(State(token): State<Arc<Token>>, request: Request<Body>, next: Next) -> Response {
    let wanted = match token.read().await {
        Ok(wanted) => wanted,
        Err(error) => {
            tracing::warn!(%error, "the token cannot be read");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let is = |given: &[u8]| bool::from(given.ct_eq(wanted.as_bytes()));
    let by_header = request.headers().get(TOKEN_HEADER).is_some_and(|given| is(given.as_bytes()));
    let by_parameter = request.uri().query().and_then(parameter).is_some_and(|given| is(given.as_bytes()));
    if by_header || by_parameter {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, "the token is missing or wrong\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_is_found_among_others() {
        assert_eq!(parameter("a=b&x-kubevirt-export-token=t&c"), Some("t"));
        assert_eq!(parameter("a=x-kubevirt-export-token"), None);
    }
}
