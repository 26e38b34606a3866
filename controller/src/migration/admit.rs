//! Whose turn it is: migrations that wait, the limits, and what runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
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

/// A migration that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its UID.
    pub uid: String,
    /// Node that its machine is on.
    pub node: String,
    /// How urgent it is.
    pub urgency: Urgency,
    /// When it was made.
    pub since: Option<Timestamp>,
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

/// UIDs of the migrations that may start. `running`: the node that each running one leaves.
///
/// One whose node is full does not hold up those of other nodes.
pub fn admit(mut waiting: Vec<Waiting>, running: &[String], limits: Limits) -> BTreeSet<String> {
    waiting.sort_by(|a, b| (Reverse(a.urgency), a.since, &a.uid).cmp(&(Reverse(b.urgency), b.since, &b.uid)));
    let mut of_node: BTreeMap<&str, usize> = BTreeMap::new();
    for node in running {
        *of_node.entry(node).or_default() += 1;
    }
    let mut all = running.len();
    let mut admitted = BTreeSet::new();
    for one in &waiting {
        let of_node = of_node.entry(&one.node).or_default();
        if all < limits.cluster && *of_node < limits.node {
            all += 1;
            *of_node += 1;
            admitted.insert(one.uid.clone());
        }
    }
    admitted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiting(uid: &str, node: &str, urgency: Urgency, second: i64) -> Waiting {
        let since = Timestamp::from_second(second).ok();
        Waiting { uid: uid.into(), node: node.into(), urgency, since }
    }

    fn admitted(waiting: Vec<Waiting>, running: &[&str], cluster: usize, node: usize) -> Vec<String> {
        let running: Vec<String> = running.iter().map(ToString::to_string).collect();
        admit(waiting, &running, Limits { cluster, node }).into_iter().collect()
    }

    #[test]
    fn the_most_urgent_then_the_oldest_go_first() {
        let all = vec![
            waiting("late", "a", Urgency::User, 2),
            waiting("early", "b", Urgency::User, 1),
            waiting("upkeep", "c", Urgency::Maintenance, 0),
            waiting("drain", "d", Urgency::Critical, 9),
        ];
        assert_eq!(admitted(all.clone(), &[], 1, 2), ["drain"]);
        assert_eq!(admitted(all.clone(), &[], 2, 2), ["drain", "early"]);
        assert_eq!(admitted(all.clone(), &["x"], 3, 2), ["drain", "early"]);
        assert_eq!(admitted(all, &["x", "y"], 2, 2), [""; 0]);
    }

    #[test]
    fn a_node_that_is_full_holds_up_only_its_own() {
        let all = vec![
            waiting("1", "a", Urgency::Critical, 1),
            waiting("2", "a", Urgency::Critical, 2),
            waiting("3", "b", Urgency::Maintenance, 3),
        ];
        assert_eq!(admitted(all.clone(), &["a"], 5, 2), ["1", "3"]);
        assert_eq!(admitted(all, &["a", "a"], 5, 2), ["3"]);
    }

    proptest! {
        #[test]
        fn limits_hold_and_room_is_used(
            nodes in proptest::collection::vec(0_u8..4, 0..12),
            running in proptest::collection::vec(0_u8..4, 0..6),
            cluster in 0_usize..8,
            node in 0_usize..4,
        ) {
            let name = |n: &u8| format!("n{n}");
            let all: Vec<_> =
                nodes.iter().enumerate().map(|(i, n)| waiting(&format!("{i:02}"), &name(n), Urgency::User, 0)).collect();
            let running: Vec<String> = running.iter().map(name).collect();
            let limits = Limits { cluster, node };
            let started = admit(all.clone(), &running, limits);
            let after: Vec<&str> = running
                .iter()
                .map(String::as_str)
                .chain(all.iter().filter(|w| started.contains(&w.uid)).map(|w| w.node.as_str()))
                .collect();
            prop_assert!(started.is_empty() || after.len() <= cluster);
            for one in &all {
                let here = after.iter().filter(|n| **n == one.node).count();
                if started.contains(&one.uid) {
                    prop_assert!(here <= node);
                } else {
                    prop_assert!(after.len() >= cluster || here >= node, "there was room");
                }
            }
        }
    }
}
