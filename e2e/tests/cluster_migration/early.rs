//! Migrations that are made before their machines run.

use kube::ResourceExt;
use podvirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration,
    VirtualMachineInstanceMigrationPhase as Phase,
};
use podvirt_e2e::cluster::{BOOT, Cluster, Manifest, SOON, Security};

use super::moving::MOVE;

/// A label of both nodes; takes it from them when it is dropped.
struct Label<'c>(&'c Cluster, String);

impl Label<'_> {
    fn set(&self) {
        let nodes = ["label", "nodes", "node1", "node2", "--overwrite"];
        self.0.kubectl(&[&nodes[..], &[&format!("{}=here", self.1)]].concat()).unwrap();
    }
}

impl Drop for Label<'_> {
    fn drop(&mut self) {
        drop(self.0.kubectl(&["label", "nodes", "node1", "node2", &format!("{}-", self.1)]));
    }
}

#[test]
fn a_migration_that_is_made_with_its_machine_waits_until_the_machine_runs() {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    // Until a node has the label, the machine cannot run.
    let label = Label(&cluster, format!("podvirt.io/test-{}", namespace.name()));
    let spec = format!("nodeSelector: {{{:?}: here}}", label.1);
    namespace.apply(&Manifest { name: "vm", spec: &spec, ..Default::default() }.instance()).unwrap();
    let migration = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceMigration, metadata: {name: early}, spec: {vmiName: vm}}";
    namespace.apply(migration).unwrap();
    let told = |migration: &Migration| {
        migration
            .status
            .conditions
            .iter()
            .any(|c| c.r#type.as_str() == "MachineNotRunning" && c.status == "True")
    };
    let waits: Migration =
        namespace.wait("early", "the migration says what it waits for", SOON, told).unwrap();
    assert_eq!(waits.status.phase, Some(Phase::Pending));
    let events = [
        "get",
        "events",
        "--field-selector",
        "involvedObject.name=early,reason=MachineNotRunning",
        "-o",
        "name",
    ];
    let event = || Ok((!namespace.kubectl(&events)?.is_empty()).then_some(()));
    namespace.until("the event that the migration waits", SOON, event).unwrap();

    label.set();
    let over =
        |migration: &Migration| matches!(migration.status.phase, Some(Phase::Succeeded | Phase::Failed));
    let ended: Migration = namespace.wait("early", "the end of the migration", BOOT + MOVE, over).unwrap();
    assert_eq!(ended.status.phase, Some(Phase::Succeeded), "{:?}", ended.status.conditions);
    assert!(!told(&ended), "it waits no more");
    let moved = |vmi: &VirtualMachineInstance| {
        let state = vmi.status.migration_state.as_ref();
        state.is_some_and(|state| {
            state.migration_uid == ended.uid() && vmi.status.node_name == state.target_node
        })
    };
    namespace.wait("vm", "the machine is on the other node", SOON, moved).unwrap();
}
