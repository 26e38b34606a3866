//! Why a machine does not move, or a migration is not ended.

use podvirt_api::names::annotation::FORCE_MIGRATION_FAILURE;
use podvirt_api::storage;

use super::disks::DisksError;
use super::moved::MovedError;
use super::word::WordError;
use crate::hypervisor::HypervisorError;
use crate::pod::backup::UnderWay;
use crate::pod::described::DescribeError;
use crate::pod::freeze::FreezeError;
use crate::pod::nics::NicError;
use crate::pod::volumes::VolumeError;

/// Why what was asked of a migration is refused, or not done.
#[derive(Debug, thiserror::Error)]
pub(in crate::pod) enum MigrationError {
    /// A part of the request cannot be read.
    #[error("{part}")]
    Unreadable {
        /// The part.
        part: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// A UID that cannot be a part of a socket's name.
    #[error("options.migrationUid: '{0}' is no UID of a migration")]
    Uid(String),
    /// Upstream's tests look for these words.
    #[error("Failed migration to satisfy functional test condition {name}", name = FORCE_MIGRATION_FAILURE)]
    Forced,
    /// Another migration runs.
    #[error("migration {0} runs; one at a time")]
    Busy(String),
    /// The machine is gone.
    #[error("the machine has ended: {0}")]
    Ended(String),
    /// There is none.
    #[error("no machine runs here")]
    NoMachine,
    /// The machine is about to be gone.
    #[error("the machine is being ended")]
    Ending,
    /// There is nothing to be aborted.
    #[error("no migration runs")]
    NoMigration,
    /// A backup runs.
    #[error(transparent)]
    BackedUp(#[from] UnderWay),
    /// virt-controller has not said what becomes of the volumes.
    #[error(transparent)]
    Unjudged(#[from] storage::Obstacle),
    /// A volume that moves to another claim.
    #[error(transparent)]
    Moved(#[from] MovedError),
    /// A disk.
    #[error(transparent)]
    Disks(#[from] DisksError),
    /// An interface that the guest has not let go of.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A volume that the guest has not let go of.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The guest is frozen.
    #[error(transparent)]
    Frozen(#[from] FreezeError),
    /// The hypervisor refuses.
    #[error(transparent)]
    Refused(#[from] HypervisorError),
    /// It is not known what the machine has.
    #[error(transparent)]
    Undescribed(#[from] DescribeError),
    /// The launchers do not agree.
    #[error(transparent)]
    Word(#[from] WordError),
    /// A link does not come up again.
    #[error("the link of interface {interface} stays down")]
    Link {
        /// The interface.
        interface: String,
        /// Why.
        source: HypervisorError,
    },
}
