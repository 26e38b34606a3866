//! Kubernetes' `Status`, which says what went wrong to people and to programs.

use std::io;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use podvirt_api::error::chain;
use serde_json::json;

use crate::launcher::client::Error;

/// Why a request came to nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
}

impl Failure {
    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { code: StatusCode::NOT_FOUND, reason: "NotFound", message: message.into() }
    }

    /// The machine is not in the state for this.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self { code: StatusCode::CONFLICT, reason: "Conflict", message: message.into() }
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: StatusCode::BAD_REQUEST, reason: "BadRequest", message: message.into() }
    }

    /// What the request is about is of no use.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self { code: StatusCode::UNPROCESSABLE_ENTITY, reason: "Invalid", message: message.into() }
    }

    /// The launcher or its machine failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: StatusCode::INTERNAL_SERVER_ERROR, reason: "InternalError", message: message.into() }
    }

    /// What was asked did not answer in time.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self { code: StatusCode::GATEWAY_TIMEOUT, reason: "Timeout", message: message.into() }
    }

    /// It may work later.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: StatusCode::SERVICE_UNAVAILABLE, reason: "ServiceUnavailable", message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(message) => Self::internal(message),
            Error::Unsupported(message) => {
                Self { code: StatusCode::NOT_IMPLEMENTED, reason: "NotImplemented", message }
            }
            Error::Socket(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                super::not_running()
            }
            Error::Silent(_) => Self::timeout(error.to_string()),
            Error::Broken(_) => Self::unavailable(error.to_string()),
            Error::Socket(_)
            | Error::Answer(_)
            | Error::OtherMachine(_)
            | Error::Network(_)
            | Error::Disk { .. } => Self::internal(chain(&error)),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        (self.code, Json(body)).into_response()
    }
}
