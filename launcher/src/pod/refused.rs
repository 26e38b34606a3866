//! Why an order of virt-handler's is not carried out.

use std::time::Duration;

use podvirt_api::ParseError;
use podvirt_api::problem::Problems;

use super::agent::AgentError;
use super::backup::{BackupError, Unknown};
use super::dump::DumpError;
use super::freeze::FreezeError;
use super::growth::GrowthError;
use super::migration::MigrationError;
use super::nics::NicError;
use super::statistics::StatisticsError;
use super::volumes::VolumeError;
use crate::hypervisor::HypervisorError;

/// Why an order is not carried out. It is told with its sources, in one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    /// A part of the request cannot be read.
    #[error("{part}")]
    Unreadable {
        /// The part.
        part: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// It is for another launcher.
    #[error("metadata.uid: '{theirs}' is another machine; this launcher is for '{ours}'")]
    OtherMachine {
        /// UID of the request's VMI.
        theirs: String,
        /// UID of this launcher's VMI.
        ours: String,
    },
    /// The VMI is none.
    #[error(transparent)]
    Manifest(#[from] ParseError),
    /// The VMI cannot be carried out.
    #[error(transparent)]
    Invalid(#[from] Problems),
    /// The machine is gone.
    #[error("the machine has ended: {0}")]
    Ended(String),
    /// The machine is about to be gone.
    #[error("the machine is being ended")]
    Ending,
    /// The launcher is about to be gone.
    #[error("the launcher is ending")]
    LauncherEnds,
    /// The machine is not started where it is to arrive.
    #[error("the machine is to come from another node; it is not started here")]
    Awaited,
    /// The machine does not arrive where it was started.
    #[error("a machine runs here that was started here")]
    StartedHere,
    /// An attempt to start the machine has failed, for this reason.
    #[error("{0}")]
    NotStarted(String),
    /// An interface's cable is neither plugged nor pulled.
    #[error("interface {interface}")]
    Link {
        /// The interface.
        interface: String,
        /// Why.
        source: HypervisorError,
    },
    /// The program in the guest runs for too long.
    #[error("the program did not end within {} s", .0.as_secs())]
    Runs(Duration),
    /// The answer cannot be written.
    #[error(transparent)]
    Answer(serde_json::Error),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Nic(#[from] NicError),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Growth(#[from] GrowthError),
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    #[error(transparent)]
    Dump(#[from] DumpError),
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error(transparent)]
    Checkpoint(#[from] Unknown),
    #[error(transparent)]
    Migration(#[from] MigrationError),
    #[error(transparent)]
    Statistics(#[from] StatisticsError),
}

/// Reads a part of a request.
///
/// # Errors
///
/// It is no JSON of this form; the part is named.
pub(super) fn read<T: serde::de::DeserializeOwned>(part: &'static str, json: &[u8]) -> Result<T, OrderError> {
    serde_json::from_slice(json).map_err(|source| OrderError::Unreadable { part, source })
}
