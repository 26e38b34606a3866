//! `kubectl drain` of a node with machines.

use std::time::Duration;

use podvirt_e2e::cluster::{Cluster, Manifest, Security};

use crate::moving::Machine;

/// Five machines, two at a time, and all that waits for them.
const DRAIN: Duration = Duration::from_secs(420);

/// A node that takes no new pods, until this is dropped.
struct Cordoned<'c>(&'c Cluster, &'static str);

impl<'c> Cordoned<'c> {
    fn new(cluster: &'c Cluster, node: &'static str) -> Cordoned<'c> {
        cluster.kubectl(&["cordon", node]).unwrap();
        Cordoned(cluster, node)
    }
}

impl Drop for Cordoned<'_> {
    fn drop(&mut self) {
        drop(self.0.kubectl(&["uncordon", self.1]));
    }
}

fn drain(machines: &[&str]) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut machines: Vec<Machine<'_>> = {
        let _not_there = Cordoned::new(&cluster, "node2");
        for name in machines {
            let spec = "evictionStrategy: LiveMigrate";
            namespace.apply(&Manifest { name, spec, ..Default::default() }.machine()).unwrap();
        }
        machines.iter().map(|name| Machine::started(&namespace, name)).collect()
    };
    let _drained = Cordoned::new(&cluster, "node1");
    let timeout = format!("--timeout={}s", DRAIN.as_secs());
    let args = ["drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", &timeout];
    println!("{}", cluster.kubectl(&args).unwrap());
    for machine in &mut machines {
        assert_eq!(machine.instance().status.node_name.as_deref(), Some("node2"));
        machine.runs_on_one_side();
        machine.is_reached();
    }
}

#[test]
fn a_drain_moves_two_machines() {
    drain(&["one", "two"]);
}

#[test]
fn long_a_drain_moves_five_machines() {
    drain(&["one", "two", "three", "four", "five"]);
}
