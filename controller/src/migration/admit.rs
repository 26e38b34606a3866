//! How urgent a migration is, and how many may run.

use kube::ResourceExt;
use podvirt_api::names::annotation;
use podvirt_api::v1::{MigrationConfiguration, MigrationPriority, VirtualMachineInstanceMigration};

/// How many migrations may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub cluster: usize,
    /// Away from one node.
    pub node: usize,
}

impl Limits {
    /// The limits of a configuration that has all its defaults.
    pub fn of(config: &MigrationConfiguration) -> Self {
        let count = |n: Option<u32>| n.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Limits {
            cluster: count(config.parallel_migrations_per_cluster),
            node: count(config.parallel_outbound_migrations_per_node),
        }
    }
}

/// How urgent a migration is, the least urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Upkeep that may wait.
    Maintenance,
    /// A user asked for it; also where nothing is said.
    User,
    /// The cluster needs it: a node is emptied.
    Critical,
}

impl Urgency {
    /// As the migration says.
    pub fn of(migration: &VirtualMachineInstanceMigration) -> Self {
        match migration.spec.priority {
            Some(MigrationPriority::Systemcritical) => Urgency::Critical,
            // An evacuation of an author that does not say how urgent it is.
            None if migration.annotations().contains_key(annotation::EVACUATION_MIGRATION) => {
                Urgency::Critical
            }
            Some(MigrationPriority::Systemmaintenance) => Urgency::Maintenance,
            Some(MigrationPriority::Usertriggered | MigrationPriority::Other(_)) | None => Urgency::User,
        }
    }

    /// Seconds after which a migration that waits looks again.
    pub fn retry_seconds(self) -> u64 {
        match self {
            Urgency::Critical => 1,
            Urgency::User => 3,
            Urgency::Maintenance => 5,
        }
    }
}
