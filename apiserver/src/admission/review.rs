//! `AdmissionReview` of `admission.k8s.io/v1`: the parts that are read and written here.

use base64::Engine;
use podvirt_api::problem::Problems;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::status::Cause;

/// Version of the protocol.
const API_VERSION: &str = "admission.k8s.io/v1";

/// What the API server sends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Review {
    /// Version of the protocol.
    pub api_version: String,
    /// `AdmissionReview`.
    pub kind: String,
    /// The request.
    pub request: Option<Request>,
}

/// Why a document is no review that virt-api can answer.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The document is of another version or kind.
    #[error("{version} {kind} is not allowed; {API_VERSION} AdmissionReview is")]
    Kind {
        /// `apiVersion` of the document.
        version: String,
        /// `kind` of the document.
        kind: String,
    },
    /// The review has no request.
    #[error("the AdmissionReview has no request")]
    Empty,
}

impl Review {
    /// The request, when this is a review of a version that is known.
    ///
    /// # Errors
    ///
    /// The document is something else, or has no request.
    pub fn into_request(self) -> Result<Request, ReviewError> {
        if self.kind != "AdmissionReview" || self.api_version != API_VERSION {
            return Err(ReviewError::Kind { version: self.api_version, kind: self.kind });
        }
        self.request.ok_or(ReviewError::Empty)
    }
}

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// Identity of the request.
    pub uid: String,
    /// `CREATE`, `UPDATE`.
    pub operation: String,
    /// Kind of the object.
    pub kind: Kind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object; empty while it is generated.
    pub name: String,
    /// The user who asks.
    pub user_info: UserInfo,
    /// Whether nothing is to be stored.
    pub dry_run: bool,
    /// The object as it shall be.
    pub object: Value,
    /// The object as it is.
    pub old_object: Value,
}

/// Kind of an object. Its group and version are in the request as well, and no webhook needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Kind {
    /// As in its manifest.
    pub kind: String,
}

/// The user who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserInfo {
    /// Name.
    pub username: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    uid: String,
    /// Whether the object may be stored.
    pub allowed: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Refusal>,
    /// What the user should know although the object may be stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    /// A JSON patch (RFC 6902) in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}

/// Why an object may not be stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// All problems in one text.
    pub message: String,
    /// Kubernetes' reason.
    pub reason: &'static str,
    /// HTTP status.
    pub code: u16,
    /// The problems one by one.
    pub details: Causes,
}

/// Problems one by one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Causes {
    /// Each with its field.
    pub causes: Vec<Cause>,
}

impl Response {
    /// The object may be stored as it is.
    pub fn allowed(uid: &str) -> Self {
        Response {
            uid: uid.to_owned(),
            allowed: true,
            status: None,
            warnings: Vec::new(),
            patch_type: None,
            patch: None,
        }
    }

    /// The object may be stored with the changes from `old` to `new`.
    pub fn patched(uid: &str, old: &Value, new: &Value) -> Self {
        let patch = json_patch::diff(old, new);
        let mut response = Self::allowed(uid);
        if !patch.0.is_empty()
            && let Ok(text) = serde_json::to_vec(&patch)
        {
            response.patch_type = Some("JSONPatch");
            response.patch = Some(base64::engine::general_purpose::STANDARD.encode(text));
        }
        response
    }

    /// The answer, with warnings for the client's user; the API server hands on as much as it takes.
    #[must_use]
    pub fn warning(self, warnings: Vec<String>) -> Self {
        Response { warnings, ..self }
    }

    /// The object may not be stored.
    pub fn refused(uid: &str, problems: &Problems) -> Self {
        let causes = problems
            .0
            .iter()
            .map(|problem| Cause {
                // The names of the reasons are their JSON form.
                reason: serde_json::to_value(problem.reason)
                    .ok()
                    .and_then(|name| name.as_str().map(ToOwned::to_owned))
                    .unwrap_or_default(),
                message: problem.message.clone(),
                field: problem.field.clone(),
            })
            .collect();
        let texts: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
        let refusal =
            Refusal { message: texts.join("; "), reason: "Invalid", code: 422, details: Causes { causes } };
        Response { allowed: false, status: Some(refusal), ..Self::allowed(uid) }
    }

    /// It may not be now: the caller may ask again later (RFC 6585, section 4).
    pub fn later(uid: &str, message: String) -> Self {
        let refusal =
            Refusal { message, reason: "TooManyRequests", code: 429, details: Causes { causes: Vec::new() } };
        Response { allowed: false, status: Some(refusal), ..Self::allowed(uid) }
    }

    /// It cannot be judged now.
    pub fn failed(uid: &str, message: String) -> Self {
        let refusal =
            Refusal { message, reason: "InternalError", code: 500, details: Causes { causes: Vec::new() } };
        Response { allowed: false, status: Some(refusal), ..Self::allowed(uid) }
    }

    /// The answer as a whole `AdmissionReview`.
    pub fn into_review(self) -> Value {
        serde_json::json!({ "apiVersion": API_VERSION, "kind": "AdmissionReview", "response": self })
    }
}
