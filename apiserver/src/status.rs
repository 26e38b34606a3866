//! Kubernetes' `Status`: how every error of the aggregated API is told.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;

/// Group of the objects that errors are about.
const GROUP: &str = "kubevirt.io";

/// What the API server says of a JSON patch that does not apply.
const NOT_APPLIED: &str = "the server rejected our request due to an error in our request";

/// What a `Status` is about, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Details {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Its kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Single reasons with their fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Kind of reason, e.g. `FieldValueInvalid`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Path of the field.
    pub field: String,
}

/// A failure as Kubernetes' clients read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    /// For people.
    pub message: String,
    /// One of Kubernetes' reasons.
    pub reason: String,
    /// The object and the single reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Details>>,
    /// HTTP status.
    pub code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Empty {}

impl Status {
    /// A failure.
    pub fn new(code: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Status {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: "Failure",
            message: message.into(),
            reason: reason.to_owned(),
            details: None,
            code: code.as_u16(),
        }
    }

    /// 400: the request cannot be read.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401: the user is not authenticated.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", message)
    }

    /// 403: the user may not.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 404: no such object. `kind` in small letters, as upstream writes it here.
    pub fn not_found(kind: &str, name: &str) -> Self {
        let message = format!("{kind}.{GROUP} \"{name}\" not found");
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(kind, name)
    }

    /// 404: no such path.
    pub fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    /// 405: the path is there, the method is not.
    pub fn method_not_allowed(method: &http::Method, allowed: &http::Method) -> Self {
        let message = format!("{method} is not allowed here; {allowed} is");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
    }

    /// 408: the request's body did not come in time, or there was no place for it.
    pub fn too_slow(limit: Duration) -> Self {
        let message =
            format!("the body was not here, or had no place in memory, within {} s", limit.as_secs());
        Self::new(StatusCode::REQUEST_TIMEOUT, "Timeout", message)
    }

    /// 413: the request's body is longer than `max` bytes.
    pub fn too_large(max: usize) -> Self {
        let message = format!("the body is too long; at most {max} bytes are allowed");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// 409: the object is in a state in which this cannot be done.
    pub fn conflict(kind: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {kind}.{GROUP} \"{name}\": {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(kind, name)
    }

    /// 429: the caller has as much of it as it may.
    pub fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    /// 500: something that should work did not.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = format!("Internal error occurred: {}", message.into());
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 501: upstream has it, podvirt does not.
    pub fn not_supported(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            "NotImplemented",
            format!("{what} is not supported by podvirt"),
        )
    }

    /// 503: a part of podvirt that is needed is not there now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    fn about(mut self, kind: &str, name: &str) -> Self {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: GROUP.to_owned(),
            kind: kind.to_owned(),
            causes: Vec::new(),
        }));
        self
    }

    /// Whether the API server refused a patch because the object had changed since it was read.
    ///
    /// A failed `test` of a JSON patch gives 422, as a refusal of the patched object does; only the first is about no
    /// object and says [`NOT_APPLIED`].
    pub fn is_outdated(error: &kube::Error) -> bool {
        let kube::Error::Api(status) = error else { return false };
        status.code == 409 || status.code == 422 && status.message == NOT_APPLIED
    }
}

/// What the API server says is handed on; a server that cannot be asked is told as such.
impl From<kube::Error> for Status {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Status::new(code, &status.reason, status.message)
            }
            other => {
                tracing::warn!(error = &other as &dyn std::error::Error, "the API server cannot be asked");
                Status::unavailable("the API server cannot be asked now")
            }
        }
    }
}

impl IntoResponse for Status {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (code, Json(self)).into_response()
    }
}
