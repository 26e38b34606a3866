//! Why an attempt to bring an object where it belongs fails: what most controllers have in common.

use std::time::Duration;

use kube::runtime::reflector::store::WriterDropped;
use podvirt_daemon::patch;

use crate::attachments::reason_of;

/// Why an attempt failed.
pub(crate) trait Failure: std::error::Error + 'static {
    /// What failed, for the metric's label `result`.
    fn label(&self) -> &'static str;

    /// The longest time until the next attempt, where what hinders it may go without a word of it: of what was refused
    /// ([`REFUSED`]), unless an error says more.
    fn longest_retry(&self) -> Option<Duration> {
        (self.label() == REFUSED).then_some(FORBIDDEN_RETRY_DELAY)
    }
}

/// [`Failure::label`] of an action that the API server has refused.
pub(crate) const REFUSED: &str = "refused";

/// The longest time until an attempt that the API server has forbidden is made again: a quota may be raised meanwhile.
const FORBIDDEN_RETRY_DELAY: Duration = Duration::from_secs(30);

/// [`Failure::longest_retry`] of what the API server has answered.
pub(crate) fn retry_delay(error: &kube::Error) -> Option<Duration> {
    matches!(error, kube::Error::Api(status) if status.is_forbidden()).then_some(FORBIDDEN_RETRY_DELAY)
}

/// An attempt failed; it is made again, later each time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The caches ended.
    #[error("cache")]
    Cache(#[from] WriterDropped),
    /// The object could not be written.
    #[error("write")]
    Write(#[from] patch::Error),
    /// The API server could not be asked, or refused.
    #[error("API server")]
    Ask(#[from] kube::Error),
    /// What a decision rested on is not so any more.
    #[error("what was seen has changed")]
    Stale,
    /// An action was refused; people have been told.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// For people.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Ask(error) => reason_of(error),
            other => other.to_string(),
        }
    }

    /// Whether a look at the newer state is all that it takes.
    pub(crate) fn is_stale(&self) -> bool {
        matches!(self, Self::Stale) || matches!(self, Self::Write(error) if error.is_stale())
    }
}

impl Failure for Error {
    fn label(&self) -> &'static str {
        match self {
            Self::Write(_) | Self::Stale => "write",
            Self::Ask(_) | Self::Cache(_) => "read",
            Self::Refused(_) => REFUSED,
        }
    }
}

/// Whether a change was refused since what was seen is not so any more.
pub(crate) fn is_lost(status: &kube::core::Status) -> bool {
    status.is_not_found() || status.is_conflict() || is_failed_test(status)
}

/// Whether a test in a patch has failed: what was seen is not so any more. A refused object is invalid as well, and its
/// status names what is wrong.
pub(crate) fn is_failed_test(status: &kube::core::Status) -> bool {
    status.is_invalid() && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}
