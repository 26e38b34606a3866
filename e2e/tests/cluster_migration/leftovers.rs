//! What a migration must not leave: listeners of virt-handler, ports on the nodes' bridge, leases, repair that is armed.

use std::collections::BTreeSet;

use kube::ResourceExt;
use podvirt_e2e::cluster::{Cluster, Flat, Namespace, Node, SOON};

use crate::moving::{MOVE, Machine};

/// What there is on the nodes beside a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct There {
    /// TCP ports of virt-handler, both nodes'.
    listening: [BTreeSet<String>; 2],
    /// Ports of the segment's bridges; a machine that moves takes its along.
    ports: u32,
    /// Addresses.
    held: BTreeSet<String>,
}

impl There {
    fn now(cluster: &Cluster, network: &Flat<'_>) -> anyhow::Result<There> {
        let nodes = [cluster.node(1), cluster.node(2)];
        let ports = |node: &Node<'_>| -> anyhow::Result<u32> {
            Ok(node.run(&["sh", "-c", "ip -o link show master br1 | wc -l"])?.trim().parse()?)
        };
        Ok(There {
            listening: [listening(&nodes[0])?, listening(&nodes[1])?],
            ports: ports(&nodes[0])? + ports(&nodes[1])?,
            held: network.held()?,
        })
    }
}

fn listening(node: &Node<'_>) -> anyhow::Result<BTreeSet<String>> {
    let command = "nsenter -t $(pgrep -xo virt-handler) -n ss -Htln | awk '{print $4}'";
    Ok(node.run(&["sh", "-c", command])?.lines().map(str::to_owned).collect())
}

/// What was there before.
pub(crate) struct Leftovers<'n> {
    namespace: &'n Namespace<'n>,
    before: There,
}

impl<'n> Leftovers<'n> {
    pub(crate) fn before(namespace: &'n Namespace<'n>, network: &Flat<'n>) -> Leftovers<'n> {
        Leftovers { namespace, before: There::now(namespace.cluster(), network).unwrap() }
    }

    /// Waits until there is no more.
    pub(crate) fn none(&self, network: &Flat<'n>) {
        let mut seen = None;
        let same = self.namespace.until("nodes without leftovers", SOON, || {
            // A handler may be just starting.
            seen = There::now(self.namespace.cluster(), network).ok();
            Ok((seen.as_ref() == Some(&self.before)).then_some(()))
        });
        assert!(same.is_ok(), "{seen:#?}, before {:#?}: {same:?}", self.before);
    }

    /// Waits until virt-handler no longer offers to repair connections: it does so for a minute afterwards.
    pub(crate) fn disarmed(&self, machine: &Machine<'_>) {
        let pod = machine.pod().name_any();
        let command = "ss -Hx state established | grep -cE '[.](move|repair) ' || true";
        let unarmed = || {
            let count =
                self.namespace.kubectl(&["exec", &pod, "-c", "compute", "--", "sh", "-c", command])?;
            Ok((count.trim() == "0").then_some(()))
        };
        self.namespace.until("an end of repair", MOVE, unarmed).unwrap();
    }
}
