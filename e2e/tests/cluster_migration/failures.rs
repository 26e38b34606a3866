//! Migrations that come to nothing: the machine runs at one place, and nothing of them is left.

use podvirt_api::v1::{
    MigrationAbortStatus, VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase,
};
use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, Node, SOON, Security};

use crate::moving::{Connection, MOVE, Machine, Slowly, node};

/// Begins a slow migration of a new machine with an open connection, has `harm` done to it, and wants everything as it
/// was; then it moves after all.
fn survives(harm: impl FnOnce(&Namespace<'_>, &mut Machine<'_>, &str)) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut machine = Machine::start(&namespace, &Manifest { name: "vm", ..Default::default() });
    let address = machine.addresses()[0];
    let mut connection = namespace.until("a greeting", SOON, || Ok(Connection::to(address).ok())).unwrap();
    let slowly = Slowly::new(&namespace);
    let source = machine.pod();
    let migration = machine.migrate();
    let state = machine.wait_under_way(&migration);
    connection.echoes();
    harm(&namespace, &mut machine, &migration);
    machine.has_stayed(&migration, &source, &state.target_pod.unwrap());
    connection.echoes();
    drop(slowly);

    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    machine.is_reached();
}

/// Kills virt-handler there; the kubelet starts another.
pub(crate) fn kill_handler(node: &Node<'_>) {
    node.run(&["sh", "-c", "kill -9 $(pgrep -x virt-handler)"]).unwrap();
}

#[test]
fn a_migration_is_aborted_by_virtctl() {
    survives(|namespace, _, migration| {
        let said = namespace.virtctl(&["migrate-cancel", "vm"]).unwrap();
        assert!(said.contains("VM vm was scheduled to migrate-cancel"), "{said}");
        namespace.wait_gone::<Migration>(migration, SOON).unwrap();
        let instance: VirtualMachineInstance = namespace.wait("vm", "the instance", SOON, |_| true).unwrap();
        let state = instance.status.migration_state.unwrap();
        assert_eq!(state.abort_status, Some(MigrationAbortStatus::Succeeded), "{state:?}");
    });
}

#[test]
fn long_the_target_pod_is_deleted_under_way() {
    survives(|namespace, machine, _| {
        let target = machine.instance().status.migration_state.unwrap().target_pod.unwrap();
        namespace.kubectl(&["delete", "pod", &target, "--wait=false"]).unwrap();
    });
}

#[test]
fn long_the_handler_of_the_source_is_killed_under_way() {
    survives(|_, machine, _| kill_handler(&machine.node()));
}

#[test]
fn long_the_handler_of_the_target_is_killed_under_way() {
    survives(|namespace, machine, _| {
        let target = machine.instance().status.migration_state.unwrap().target_node.unwrap();
        kill_handler(&node(namespace.cluster(), &target));
    });
}

#[test]
fn long_the_network_between_the_nodes_is_cut_under_way() {
    survives(|namespace, machine, migration| {
        let target = machine.instance().status.migration_state.unwrap().target_node.unwrap();
        let cut = node(namespace.cluster(), &target).partition().unwrap();
        assert_eq!(machine.wait_over(migration, MOVE), Phase::Failed);
        // Not by its console, which may lead through the node that is cut off.
        let address = machine.instance().status.interfaces[0].ip_addresses[0].parse().unwrap();
        namespace.until("a greeting", SOON, || Ok(Connection::to(address).ok())).unwrap().echoes();
        cut.repair().unwrap();
    });
}
