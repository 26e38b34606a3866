//! Reading reviews within bounds.
//!
//! # Theory of operation
//!
//! Every pod of the cluster may reach the webhook's port, and the API server shows no certificate there. Its path tells its
//! reviews; a user may learn that path from an error of the API server's. So each step of a review is bounded before it begins:
//!
//! ```text
//!   connection   64, 16 of an address, one request at a time on each   (podvirt_daemon::http)
//!   body         MAX_REVIEW_BYTES, whole within BODY_TIMEOUT           64 bodies: 64 MiB
//!   turn         TURNS reviews in their read form
//!   tree         MAX_REVIEW_TREE_BYTES of memory
//!   objects      crate::customize bounds what follows from the review
//! ```
//!
//! A turn begins when the body is whole, so that a slow client holds up nobody, and ends with the answer. The text is gone when the
//! tree has been read, and the objects are taken out of the tree, not copied.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use futures::StreamExt;
use podvirt_api::budget::{self, BudgetError};
use serde_json::{Value, json};

/// Largest review, in bytes: a KubeVirt object has some KB, and a review has it twice.
const MAX_REVIEW_BYTES: usize = 1 << 20;
/// Largest tree that a review becomes, in bytes of memory.
const MAX_REVIEW_TREE_BYTES: usize = 8 << 20;
/// Longest time until a body is whole.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest text of a refusal, in bytes.
const MAX_REFUSAL_BYTES: usize = 16 << 10;

/// Why a review is not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    /// The body is too long.
    #[error("the review has more than {MAX_REVIEW_BYTES} bytes; at most these are allowed")]
    Length,
    /// The body does not come.
    #[error("the review is not whole within {} seconds", BODY_TIMEOUT.as_secs())]
    Late,
    /// The connection breaks off.
    #[error("the review breaks off")]
    Broken(#[source] axum::Error),
    /// The text is no JSON, or takes too much memory.
    #[error("the review cannot be read")]
    Unreadable(#[from] BudgetError),
    /// It is JSON, and no review.
    #[error("no AdmissionReview of admission.k8s.io/v1 with request.uid and request.operation")]
    Form,
}

/// A review's request, as far as it matters here.
#[derive(Debug)]
pub(super) struct Review {
    uid: String,
    /// CREATE, UPDATE, DELETE or CONNECT.
    pub(super) operation: String,
    /// The object as it shall be stored; `Null` at a deletion.
    pub(super) new: Value,
    /// The object as it is stored; `Null` at a creation.
    pub(super) old: Value,
}

/// Cuts a refusal to what is answered and logged of it.
pub(super) fn cut(mut why: String) -> String {
    why.truncate(why.floor_char_boundary(MAX_REFUSAL_BYTES));
    why
}

/// Reads a body that is short and whole in time.
pub(super) async fn read_body(body: Body) -> Result<Vec<u8>, ReviewError> {
    let size = body.size_hint();
    if size.lower() > MAX_REVIEW_BYTES as u64 {
        return Err(ReviewError::Length);
    }
    let declared = size.upper().and_then(|bytes| usize::try_from(bytes).ok());
    let mut text = Vec::with_capacity(declared.unwrap_or(MAX_REVIEW_BYTES).min(MAX_REVIEW_BYTES));
    let read = async {
        // Pieces are copied: each would keep the buffer alive in which it came.
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(ReviewError::Broken)?;
            if text.len() + piece.len() > MAX_REVIEW_BYTES {
                return Err(ReviewError::Length);
            }
            text.extend_from_slice(&piece);
        }
        Ok(text)
    };
    tokio::time::timeout(BODY_TIMEOUT, read).await.unwrap_or(Err(ReviewError::Late))
}

impl Review {
    /// Reads a review of bounded size in memory.
    pub(super) fn parse(text: Vec<u8>) -> Result<Self, ReviewError> {
        let mut review = budget::parse(&text, MAX_REVIEW_TREE_BYTES)?;
        drop(text);
        if review["apiVersion"] != "admission.k8s.io/v1" {
            return Err(ReviewError::Form);
        }
        let request = review.get_mut("request").ok_or(ReviewError::Form)?;
        let mut take = |name: &str| request.get_mut(name).map(Value::take).unwrap_or_default();
        let (new, old) = (take("object"), take("oldObject"));
        let text = |value: Value| match value {
            Value::String(text) => Ok(text),
            _ => Err(ReviewError::Form),
        };
        Ok(Self { uid: text(take("uid"))?, operation: text(take("operation"))?, new, old })
    }

    /// The answer: allowed, or refused with a reason.
    pub(super) fn answer(&self, refusal: Option<&str>) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": refusal.is_none()});
        if let Some(why) = refusal {
            response["status"] = json!({"message": why});
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}
