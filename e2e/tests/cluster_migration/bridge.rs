//! Guests that are hosts of their own on the segment: the segment finds them where they are.

use std::io::{Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use podvirt_e2e::cluster::{Cluster, Flat, Manifest, Namespace, SEGMENT, SOON, Security};
use serde_json::json;

use super::moving::{Connection, MOVE, Machine};

/// The standard plugin `bridge` on the segment; `check`: whether it lets pass frames of the pod's own address only.
fn standard(namespace: &Namespace<'_>, check: bool) {
    let config = json!({"type": "bridge", "bridge": SEGMENT, "macspoofchk": check});
    namespace.network("standard", &config).unwrap();
}

/// The port of the segment's switch at which it looks for a host; none where it has not heard of it.
fn port_of(mac: &str) -> Option<String> {
    let out = Command::new("bridge").args(["fdb", "show", "br", "br1"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with(mac))?;
    let mut words = line.split_whitespace();
    words.find(|word| *word == "dev")?;
    words.next().map(str::to_owned)
}

/// Moves a machine on `network` while a peer on the segment speaks with it, there and back.
fn moves_and_is_found(network: &str, subnet: u8, check: bool) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    // A network that silences targets, and the test's own place on the segment.
    let mut flat = Flat::new(&namespace, subnet).unwrap();
    standard(&namespace, check);
    flat.join().unwrap();
    let spec = format!(
        "networks: [{{name: default, pod: {{}}}}, {{name: segment, multus: {{networkName: {network}}}}}]"
    );
    let devices = "interfaces: [{name: default, masquerade: {}}, {name: segment, bridge: {}}]";
    let manifest = Manifest { name: "vm", spec: &spec, devices, ..Default::default() };
    let mut machine = Machine::start(&namespace, &manifest);
    let address = format!("172.30.{subnet}.1");
    machine.sh(&format!("ip link set eth1 up; ip addr add {address}/24 dev eth1"));
    let mac = machine.sh("cat /sys/class/net/eth1/address");
    machine.sh(&format!("ping -c 3 -W 10 172.30.{subnet}.250"));
    let ports: Vec<String> = (0..2)
        .map(|_| {
            // A peer that speaks without a pause; not one byte is lost, at the switch-over either.
            let mut stream = Connection::to(address.parse().unwrap()).unwrap().into_inner();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let ends = Arc::new(AtomicBool::new(false));
            let speaks = {
                let ends = ends.clone();
                std::thread::spawn(move || {
                    let mut count = 0u32;
                    while !ends.load(Ordering::Relaxed) {
                        let sent = format!("{count:08}");
                        stream.write_all(sent.as_bytes()).unwrap();
                        let mut back = [0; 8];
                        stream.read_exact(&mut back).unwrap();
                        assert_eq!(back, sent.as_bytes());
                        count += 1;
                    }
                    count
                })
            };
            let before = port_of(&mac);
            let source = machine.pod();
            let migration = machine.migrate();
            machine.has_moved_within(&migration, &source, MOVE);
            let after = namespace
                .until("the segment's switch at the new place", SOON, || {
                    Ok(port_of(&mac).filter(|port| Some(port) != before.as_ref()))
                })
                .unwrap();
            ends.store(true, Ordering::Relaxed);
            assert!(speaks.join().unwrap() > 0);
            after
        })
        .collect();
    assert_ne!(ports[0], ports[1]);
    // A new conversation, in both directions.
    Connection::to(address.parse().unwrap()).unwrap().echoes();
    assert_eq!(machine.sh("cat /sys/class/net/eth1/address"), mac);
    machine.sh(&format!("ping -c 3 -W 10 172.30.{subnet}.250"));
}

#[test]
fn long_a_guest_on_a_bridge_of_the_standard_plugin_moves_and_its_segment_finds_it() {
    moves_and_is_found("standard", 61, false);
}

#[test]
fn long_a_guest_whose_network_checks_addresses_moves_and_its_segment_finds_it() {
    moves_and_is_found("standard", 62, true);
}

#[test]
fn long_a_guest_on_a_bridge_of_podvirt_cni_moves_and_its_segment_finds_it() {
    moves_and_is_found("flat", 63, false);
}
