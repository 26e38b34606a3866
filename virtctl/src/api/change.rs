//! Changes that are decided by what was read, and decided anew where another client has changed the object meanwhile.
//!
//! Each patch says which version of the object it is for (`metadata.resourceVersion`): the API server answers 409 when there is a
//! newer version, also where the steps would fit it by chance. At each conflict one client has won; the others read again after a
//! pause that is drawn at random, so that those that lost together do not meet again.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use serde_json::{Value, json};

use super::Cluster;
use super::objects::Resource;
use crate::explain::ApiError;

/// How often an object is read and changed, the first time included.
const MAX_ATTEMPTS: u32 = 8;
/// Longest pause behind the first attempt; each pause is at most twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

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
        for attempt in 1.. {
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
                Err(error) if error.code() == Some(409) && attempt < MAX_ATTEMPTS => {
                    tokio::time::sleep(pause(attempt, RandomState::new().build_hasher().finish())).await;
                }
                Err(error) => return Err(ChangeError::Write(error)),
            }
        }
        Ok(())
    }
}

/// The pause behind an attempt, from half of the longest one to all of it.
fn pause(attempt: u32, random: u64) -> Duration {
    let longest = FIRST_PAUSE * (1 << attempt.clamp(1, MAX_ATTEMPTS).saturating_sub(1));
    let half = longest / 2;
    half + Duration::from_micros(random % (u64::try_from(half.as_micros()).unwrap_or(u64::MAX) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        let range = |attempt| (pause(attempt, 0).as_millis(), pause(attempt, 10_000).as_millis());
        assert_eq!(range(1), (10, 20));
        assert_eq!(pause(4, 0).as_millis(), 80);
        assert!(pause(u32::MAX, u64::MAX) <= Duration::from_secs(3));
    }
}
