//! What several daemons must read alike of a migration: whether it is over, where the machine's pod is, what an
//! eviction does, and how a machine is migrated.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::names::condition;
use crate::policy::MigrationPolicySpec;
use crate::v1::{
    EvictionStrategy, KubeVirtConfiguration, MigrationConfiguration, VirtualMachineInstance,
    VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationPhase as Phase,
    VirtualMachineInstanceMigrationState as State,
};

/// Migrations of a cluster at a time when nothing says how many (upstream's default).
pub const PARALLEL_PER_CLUSTER: u32 = 5;
/// Migrations away from a node at a time when nothing says how many (upstream's default).
pub const PARALLEL_OUTBOUND_PER_NODE: u32 = 2;
/// Seconds that a migration has for each GiB of its guest (upstream's default).
pub const COMPLETION_TIMEOUT_PER_GIB: i64 = 150;
/// Seconds without progress after which a migration has failed (upstream's default).
pub const PROGRESS_TIMEOUT: i64 = 150;
/// Taint of a node that its machines are to leave (upstream's default).
pub const DRAIN_TAINT: &str = "kubevirt.io/drain";

/// Whether nothing happens to a migration in this phase any more.
pub fn is_final(migration: &VirtualMachineInstanceMigration) -> bool {
    matches!(migration.status.phase, Some(Phase::Succeeded | Phase::Failed))
}

/// Whether a machine's migration is under way: handed to the nodes, and not ended.
pub fn is_under_way(state: &State) -> bool {
    state.migration_uid.is_some() && !has_ended(state)
}

/// Whether a machine's last migration has ended, either way.
pub fn has_ended(state: &State) -> bool {
    state.completed == Some(true) || state.failed == Some(true)
}

/// When a machine's last migration ended, either way.
pub fn ended_at(state: &State) -> Option<Timestamp> {
    state.end_timestamp.clone().flatten().map(|at| at.0)
}

/// Whether the guest was seen running at the target of the machine's last migration.
pub fn is_at_target(state: &State) -> bool {
    state.failed != Some(true) && state.target_node_domain_ready_timestamp.clone().flatten().is_some()
}

/// Name of the pod that the machine's status says it runs in, as far as its last migration tells.
pub fn pod_by_migration(vmi: &VirtualMachineInstance) -> Option<&str> {
    let state = vmi.status.migration_state.as_ref()?;
    let moved = vmi.status.node_name.is_some()
        && vmi.status.node_name == state.target_node
        && state.target_node != state.source_node;
    let pod = if moved { &state.target_pod } else { &state.source_pod };
    pod.as_deref().filter(|name| !name.is_empty())
}

/// Whether the machine can be migrated as its condition has it; if not, why.
///
/// # Errors
///
/// It cannot, or that is not known yet.
pub fn migratable(vmi: &VirtualMachineInstance) -> Result<(), String> {
    let found = vmi.status.conditions.iter().find(|c| c.r#type.as_str() == condition::LIVE_MIGRATABLE);
    match found {
        Some(c) if c.status == condition::TRUE => Ok(()),
        Some(c) => Err(c.message.clone().or_else(|| c.reason.clone()).unwrap_or_default()),
        None => Err("whether it can is not known yet".to_owned()),
    }
}

/// What an eviction of the machine's pod does: as the machine says, else as the cluster does, else nothing.
pub fn eviction_strategy(vmi: &VirtualMachineInstance, config: &KubeVirtConfiguration) -> EvictionStrategy {
    let given = [&vmi.spec.eviction_strategy, &config.eviction_strategy];
    let chosen = given.into_iter().flatten().find(|strategy| !strategy.is_empty());
    chosen.cloned().unwrap_or(EvictionStrategy::None)
}

/// How migrations go in this cluster, with every value that something carries out. Whether a guest may be disrupted is
/// left open where neither says: then it may where it may be moved by post-copy.
pub fn defaults(config: &KubeVirtConfiguration) -> MigrationConfiguration {
    let given = config.migrations.clone().unwrap_or_default();
    MigrationConfiguration {
        node_drain_taint_key: given.node_drain_taint_key.or_else(|| Some(DRAIN_TAINT.into())),
        parallel_outbound_migrations_per_node: given
            .parallel_outbound_migrations_per_node
            .or(Some(PARALLEL_OUTBOUND_PER_NODE)),
        parallel_migrations_per_cluster: given.parallel_migrations_per_cluster.or(Some(PARALLEL_PER_CLUSTER)),
        allow_auto_converge: given.allow_auto_converge.or(Some(false)),
        bandwidth_per_migration: given.bandwidth_per_migration.or_else(|| Some(Quantity("0".into()))),
        completion_timeout_per_gi_b: given.completion_timeout_per_gi_b.or(Some(COMPLETION_TIMEOUT_PER_GIB)),
        progress_timeout: given.progress_timeout.or(Some(PROGRESS_TIMEOUT)),
        allow_post_copy: given.allow_post_copy.or(Some(false)),
        allow_workload_disruption: given.allow_workload_disruption,
        ..MigrationConfiguration::default()
    }
}

/// How one machine is migrated: the cluster's way with a policy laid over it.
pub fn merged(
    config: &KubeVirtConfiguration,
    policy: Option<&MigrationPolicySpec>,
) -> MigrationConfiguration {
    let mut merged = defaults(config);
    let Some(policy) = policy else { return merged };
    let set = |into: &mut Option<bool>, value: Option<bool>| *into = value.or(*into);
    set(&mut merged.allow_auto_converge, policy.allow_auto_converge);
    set(&mut merged.allow_post_copy, policy.allow_post_copy);
    set(&mut merged.allow_workload_disruption, policy.allow_workload_disruption);
    if let Some(bandwidth) = &policy.bandwidth_per_migration {
        merged.bandwidth_per_migration = Some(bandwidth.clone());
    }
    if let Some(timeout) = policy.completion_timeout_per_gib {
        merged.completion_timeout_per_gi_b = Some(timeout);
    }
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vmi(status: Value) -> VirtualMachineInstance {
        serde_json::from_value(
            json!({"metadata": {"name": "web"}, "spec": {"domain": {"devices": {}}}, "status": status}),
        )
        .unwrap()
    }

    #[test]
    fn the_pod_follows_the_node_that_the_machine_is_on() {
        let at = |node: &str| {
            vmi(
                json!({"nodeName": node, "migrationState": {"migrationUid": "j", "sourceNode": "n1", "sourcePod": "a",
                "targetNode": "n2", "targetPod": "b"}}),
            )
        };
        assert_eq!(pod_by_migration(&at("n1")), Some("a"));
        assert_eq!(pod_by_migration(&at("n2")), Some("b"));
        assert_eq!(pod_by_migration(&vmi(json!({"nodeName": "n1"}))), None);
    }

    #[test]
    fn a_strategy_is_the_machines_then_the_clusters() {
        let cluster = KubeVirtConfiguration {
            eviction_strategy: Some(EvictionStrategy::External),
            ..KubeVirtConfiguration::default()
        };
        let mut machine = vmi(json!({}));
        assert_eq!(eviction_strategy(&machine, &KubeVirtConfiguration::default()), EvictionStrategy::None);
        assert_eq!(eviction_strategy(&machine, &cluster), EvictionStrategy::External);
        machine.spec.eviction_strategy = Some(EvictionStrategy::LiveMigrate);
        assert_eq!(eviction_strategy(&machine, &cluster), EvictionStrategy::LiveMigrate);
    }

    #[test]
    fn a_policy_goes_before_the_cluster_and_the_cluster_before_defaults() {
        let config: KubeVirtConfiguration = serde_json::from_value(json!({"migrations": {
            "completionTimeoutPerGiB": 10, "progressTimeout": 20, "allowAutoConverge": true}}))
        .unwrap();
        let policy: MigrationPolicySpec = serde_json::from_value(json!({"completionTimeoutPerGiB": 11,
            "bandwidthPerMigration": "8Mi", "allowAutoConverge": false, "allowPostCopy": true}))
        .unwrap();
        let merged = merged(&config, Some(&policy));
        assert_eq!(merged.completion_timeout_per_gi_b, Some(11));
        assert_eq!(merged.progress_timeout, Some(20));
        assert_eq!(merged.bandwidth_per_migration, Some(Quantity("8Mi".into())));
        assert_eq!((merged.allow_auto_converge, merged.allow_post_copy), (Some(false), Some(true)));
        assert_eq!(merged.allow_workload_disruption, None);
        let plain = super::merged(&KubeVirtConfiguration::default(), None);
        assert_eq!(plain.parallel_migrations_per_cluster, Some(5));
        assert_eq!(plain.parallel_outbound_migrations_per_node, Some(2));
    }
}
