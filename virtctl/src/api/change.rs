//! Changes that are decided by what was read, and decided anew where another client has changed the object meanwhile.
//!
//! Each patch says which version of the object it is for (`metadata.resourceVersion`): the API server answers 409 when there is a
//! newer version, also where the steps would fit it by chance. At each conflict one client has won; the others read again after a
//! pause that is drawn at random, so that those that lost together do not meet again.

use std::time::Duration;

use podvirt_api::delay::drawn;
use serde_json::{Value, json};

use super::Cluster;
use super::objects::Resource;
use crate::explain::ApiError;

/// How often an object is read and changed, the first time included.
const MAX_ATTEMPTS: u32 = 8;
/// Longest pause behind the first attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause behind any.
const MAX_PAUSE: Duration = Duration::from_secs(3);

/// Why an object is not changed.
#[derive(Debug)]
pub(crate) enum ChangeError {
    /// It cannot be read.
    Read(ApiError),
    /// It cannot be written.
    Write(ApiError),
    /// It is not to be changed as it is.
    Refused(anyhow::Error),
}

impl ChangeError {
    /// Whether there is no such object.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, ChangeError::Read(error) | ChangeError::Write(error) if error.is_not_found())
    }

    /// The error for the user; `what` names the object.
    pub(crate) fn explain(self, what: &str) -> anyhow::Error {
        match self {
            ChangeError::Read(error) => error.explain_plain(&format!("read {what}")),
            ChangeError::Write(error) => error.explain_plain(&format!("change {what}")),
            ChangeError::Refused(error) => error,
        }
    }
}

impl Cluster {
    /// Changes an object by the steps of a JSON patch (RFC 6902) that `decide` has for the object as it was read; without steps
    /// nothing is sent.
    ///
    /// # Errors
    /// [`ChangeError`]; a conflict after the last attempt is one of writing.
    pub(crate) async fn change(
        &self,
        kind: Resource,
        namespace: &str,
        name: &str,
        mut decide: impl FnMut(&Value) -> anyhow::Result<Vec<Value>>,
    ) -> Result<(), ChangeError> {
        for failures in 0.. {
            let object = self.object(kind, namespace, name).await.map_err(ChangeError::Read)?;
            let mut steps = decide(&object).map_err(ChangeError::Refused)?;
            if steps.is_empty() {
                break;
            }
            if let Some(version) = object["metadata"]["resourceVersion"].as_str() {
                steps.push(json!({"op": "add", "path": "/metadata/resourceVersion", "value": version}));
            }
            match self.patch(kind, namespace, name, &steps).await {
                Ok(_) => break,
                Err(error) if error.code() == Some(409) && failures + 1 < MAX_ATTEMPTS => {
                    tokio::time::sleep(drawn(FIRST_PAUSE, MAX_PAUSE, failures)).await;
                }
                Err(error) => return Err(ChangeError::Write(error)),
            }
        }
        Ok(())
    }
}
