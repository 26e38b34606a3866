//! `kubectl drain` of a node with machines that have connections.

use std::time::Duration;

use podvirt_e2e::cluster::{Cluster, Flat, Manifest, Security};

use crate::moving::{Machine, flat};
use crate::stream::{Pace, Stream};

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

/// Moves them by a drain, each with two streams that go on meanwhile.
fn drain(subnet: u8, machines: &[&str]) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let mut network = Flat::new(&namespace, subnet).unwrap();
    network.join().unwrap();
    let mut machines: Vec<Machine<'_>> = {
        let _not_there = Cordoned::new(&cluster, "node2");
        for name in machines {
            let manifest = Manifest { name, ..Default::default() };
            namespace.apply(&flat(&manifest).machine()).unwrap();
        }
        machines.iter().map(|name| Machine::started(&namespace, name).with_own()).collect()
    };
    let held = network.held().unwrap();
    let [here, _] = network.addresses();
    let streams: Vec<Stream> = machines
        .iter_mut()
        .flat_map(|machine| {
            let inwards = Stream::to(machine.addresses()[0], Pace::Steady);
            [inwards, Stream::from(machine, here, Pace::Steady)]
        })
        .collect();
    let _drained = Cordoned::new(&cluster, "node1");
    let timeout = format!("--timeout={}s", DRAIN.as_secs());
    let args = ["drain", "node1", "--ignore-daemonsets", "--delete-emptydir-data", &timeout];
    println!("{}", cluster.kubectl(&args).unwrap());
    for machine in &mut machines {
        assert_eq!(machine.instance().status.node_name.as_deref(), Some("node2"));
        machine.runs_on_one_side();
        machine.is_reached();
    }
    Stream::all_go_on(&streams);
    let bytes: Vec<u64> = streams.into_iter().map(Stream::ends_whole).collect();
    println!("bytes of the streams: {bytes:?}");
    assert_eq!(network.held().unwrap(), held);
}

#[test]
fn long_a_drain_moves_two_machines() {
    drain(60, &["one", "two"]);
}

#[test]
fn long_a_drain_moves_five_machines() {
    drain(61, &["one", "two", "three", "four", "five"]);
}
