//! A guest with two processors and two queue pairs, whose driver takes pairs into use and out of it again.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use podvirt_e2e::{Backend, BackendOptions, Bed, Boot, Family, NetOptions, PEER, PORT, Vhost, peer, until};

/// Connections of each family, opened by each side.
const CONNECTIONS: usize = 3;
/// Changes of the number of pairs while data flows.
const CHANGES: usize = 6;
const LIMIT: Duration = Duration::from_secs(60);

/// Sends random bytes on each connection, and reads them back from the guest's echo.
fn echo(streams: Vec<TcpStream>, bytes: usize) -> Vec<JoinHandle<()>> {
    let one = |mut stream: TcpStream| {
        move || {
            let data = peer::random(bytes).unwrap();
            let mut writer = stream.try_clone().unwrap();
            let sent = data.clone();
            let writer = thread::spawn(move || writer.write_all(&sent).unwrap());
            let mut back = vec![0; bytes];
            stream.read_exact(&mut back).unwrap();
            writer.join().unwrap();
            assert!(back == data, "came back damaged");
        }
    };
    streams.into_iter().map(|stream| thread::spawn(one(stream))).collect()
}

/// Waits for echoes; if one fails, tells what netd knows.
fn join(bed: &Bed, running: Vec<JoinHandle<()>>) {
    let failed = running.into_iter().filter_map(|r| r.join().err()).count();
    let told = || ["status", "flows", "counters"].map(|what| bed.running.netctl(&[what]));
    assert!(failed == 0, "{failed} echoes failed: {:#?}", told());
}

/// Connections to echoes of the guest, opened by the client and by the guest.
fn connect(bed: &mut Bed) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for family in Family::BOTH {
        let address = bed.peer(family, PEER);
        let listener = bed.pod.net.listen(address).unwrap();
        for _ in 0..CONNECTIONS {
            streams.push(bed.pod.net.connect(family.pod(PORT)).unwrap());
            bed.guest.sh(&format!("socat EXEC:cat {}:{address} & :", family.word("TCP"))).unwrap();
            streams.push(peer::accept(&listener).unwrap());
        }
    }
    streams
}

fn wait_for_rings(bed: &Bed, rings: &[u64]) {
    until("rings", LIMIT, || {
        let status = bed.running.ask("status")?;
        let running: Option<Vec<u64>> = status["running_rings"]
            .as_array()
            .map(|a| a.iter().filter_map(serde_json::Value::as_u64).collect());
        Ok((running.as_deref() == Some(rings)).then_some(()))
    })
    .unwrap();
}

fn combined(bed: &mut Bed, pairs: u64) {
    bed.guest.sh(&format!("ethtool -L eth0 combined {pairs}")).unwrap();
    wait_for_rings(bed, &(0..2 * pairs).collect::<Vec<_>>());
}

#[test]
fn a_guest_with_two_processors_uses_two_pairs_or_one_while_data_flows() {
    let options = BackendOptions {
        tcp: vec![PORT],
        udp: vec![PORT],
        // More than the frontend wants.
        arguments: vec!["--queue-pairs".into(), "4".into()],
        ..Default::default()
    };
    let vhost = Vhost { queue_pairs: 2, ..Default::default() };
    let mut bed = Bed::new(Backend::Netd, Boot::Qemu, NetOptions::default(), &options, &vhost).unwrap();
    let features = bed.running.ask("status").unwrap()["features"].to_string();
    assert!(features.contains("MQ"), "{features}");
    combined(&mut bed, 2);
    bed.works().unwrap();

    bed.guest.serve(PORT, &format!("socat TCP6-LISTEN:{PORT},fork,reuseaddr,ipv6only=0 EXEC:cat")).unwrap();
    let running = echo(connect(&mut bed), 1 << 20);
    join(&bed, running);

    let running = echo(connect(&mut bed), 4 << 20);
    for change in 0..CHANGES {
        combined(&mut bed, 1 + change as u64 % 2);
    }
    assert!(running.iter().any(|r| !r.is_finished()), "all done before the last change");
    combined(&mut bed, 1);
    join(&bed, running);
    let counter = |name: &str| bed.running.counter(name).unwrap();
    eprintln!("passed {}, moved {}", counter("pair_frames_passed"), counter("pair_flows_moved"));
    assert!(counter("pair_flows_moved") > 0);
    for name in ["ring_errors", "tcp_resets", "dropped.pair_backlog", "dropped.bad_chain"] {
        assert_eq!(counter(name), 0, "{name}");
    }
    bed.guest.unserve(PORT).unwrap();
    bed.works().unwrap();

    // The guest starts again with the same frontend.
    bed.guest.reboot().unwrap();
    combined(&mut bed, 2);
    bed.works().unwrap();
}
