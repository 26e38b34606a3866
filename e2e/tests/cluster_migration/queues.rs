//! Machines whose interface has a queue pair for each processor, and the metrics of their netd.

use std::io::{Read, Write, copy, repeat, sink};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use podvirt_e2e::cluster::{Cluster, Manifest, Namespace, SOON, Security};

use super::moving::Machine;

/// Bytes of a transfer.
const BULK: u64 = 8 << 20;
/// Transfers at a time, so that more than one pair has a part in them.
const AT_A_TIME: usize = 4;
/// Where the machine's netd serves metrics.
const METRICS: u16 = 9100;

/// The guest uses as many pairs as it has processors.
fn has_pairs(machine: &mut Machine<'_>, pairs: u32) {
    // Linux takes as many into use as there are, and then the command has nothing to do.
    machine.sh(&format!("ethtool -L eth0 combined {pairs} || :"));
    let told = machine.sh("ethtool -l eth0 | awk '/^Combined/ {print $2}'");
    assert_eq!(told.split_whitespace().collect::<Vec<_>>(), [pairs.to_string(), pairs.to_string()]);
}

/// Data goes through both ways, on several connections at a time: what is sent into the guest comes back.
fn moves_bulk(machine: &mut Machine<'_>, cluster: &Cluster) {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let (here, port) = (cluster.address(), listener.local_addr().unwrap().port());
    let served = thread::spawn(move || {
        let serve = |_| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut back = stream.try_clone().unwrap();
            thread::spawn(move || copy(&mut repeat(7).take(BULK), &mut stream).unwrap());
            thread::spawn(move || copy(&mut (&mut back).take(BULK), &mut sink()).unwrap())
        };
        let all: Vec<_> = (0..AT_A_TIME).map(serve).collect();
        all.into_iter().map(|transfer| transfer.join().unwrap()).collect::<Vec<u64>>()
    });
    machine.sh(&format!("for i in $(seq {AT_A_TIME}); do socat TCP:{here}:{port} EXEC:cat & done; wait"));
    assert_eq!(served.join().unwrap(), [BULK; AT_A_TIME]);
}

/// netd tells numbers at the pod's port.
fn metrics_answer(machine: &Machine<'_>, namespace: &Namespace<'_>) {
    for address in machine.addresses() {
        let ask = || {
            let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, METRICS), SOON).ok()?;
            stream.set_read_timeout(Some(SOON)).ok()?;
            stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            Some(text)
        };
        let text = namespace.until("netd's metrics", SOON, || Ok(ask())).unwrap();
        assert!(text.contains("netd_uptime_seconds"), "{text}");
    }
}

fn a_machine_moves_with_its_pairs(pairs: u32) {
    let cluster = Cluster::get().unwrap();
    let namespace = cluster.namespace(Security::Restricted).unwrap();
    let domain = format!("cpu: {{cores: {pairs}}}");
    let mut machine = Machine::start(
        &namespace,
        &Manifest {
            name: "vm",
            annotations: "podvirt.io/netd-metrics-port: '9100'",
            domain: &domain,
            devices: "networkInterfaceMultiqueue: true",
            ..Default::default()
        },
    );
    has_pairs(&mut machine, pairs);
    moves_bulk(&mut machine, &cluster);
    metrics_answer(&machine, &namespace);
    let source = machine.pod();
    let migration = machine.migrate();
    machine.has_moved(&migration, &source);
    machine.is_reached();
    has_pairs(&mut machine, pairs);
    moves_bulk(&mut machine, &cluster);
    metrics_answer(&machine, &namespace);
}

#[test]
fn a_machine_of_two_processors_moves_with_its_two_pairs() {
    a_machine_moves_with_its_pairs(2);
}

#[test]
fn long_a_machine_of_four_processors_moves_with_its_four_pairs() {
    a_machine_moves_with_its_pairs(4);
}
