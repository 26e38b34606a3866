//! The guest's device: subsets of features, link MTUs, and a frontend that goes and comes back.

use std::io::Write;
use std::net::TcpStream;

use frontend_double::feature;
use netd::counters::Reason;

use crate::bed::{Bed, Setup, content, eventually, exchange, read_exactly, transfer, with_bed};

/// TCP each way, opened by each side, and datagrams up to the largest.
fn everything(bed: &Bed) {
    for family in bed.families() {
        for (guest, client) in connections(bed, family) {
            exchange(&guest, &client, 2 << 20);
        }
        let server = bed.client.udp(family.client(5000));
        let guest = bed.guest.udp(family.guest(6000));
        let mut buffer = vec![0; 1 << 16];
        for len in [0, 1200, 1472, 9000, 65_507] {
            guest.send_to(&content(1, len), family.client(5000)).unwrap();
            let (n, from) = server.recv_from(&mut buffer).unwrap();
            assert!(buffer[..n] == content(1, len), "{len} bytes");
            server.send_to(&content(2, len), from).unwrap();
            let n = guest.recv(&mut buffer).unwrap();
            assert!(buffer[..n] == content(2, len), "{len} bytes");
        }
    }
    assert_eq!(bed.netd.dropped(Reason::TooLarge), 0);
    assert_eq!(bed.netd.dropped(Reason::Checksum), 0);
}

/// Two connections, opened by the guest and by the client; the guest's end first.
fn connections(bed: &Bed, family: crate::bed::Family) -> [(TcpStream, TcpStream); 2] {
    let at_client = bed.client.listen(family.client(7000));
    let at_guest = bed.guest.listen(family.any(7000));
    let out = bed.guest.connect(family.client(7000)).unwrap();
    let into = bed.client.connect(family.pod(7000)).unwrap();
    [(out, at_client.accept().0), (at_guest.accept().0, into)]
}

fn with_features(features: u64) {
    with_bed(Setup { features, ..Setup::default() }, |bed| everything(bed));
}

const GUEST_OFFLOADS: u64 = feature::GUEST_TSO4 | feature::GUEST_TSO6;
const HOST_OFFLOADS: u64 = feature::HOST_TSO4 | feature::HOST_TSO6;

#[test]
fn without_mergeable_buffers() {
    with_features(feature::ALL & !feature::MRG_RXBUF);
}

#[test]
fn with_the_legacy_interfaces_header() {
    with_features(feature::ALL & !feature::MRG_RXBUF & !feature::VERSION_1);
}

#[test]
fn with_nothing_that_the_legacy_interface_leaves_open() {
    with_features(feature::PROTOCOL_FEATURES);
}

#[test]
fn without_large_frames_to_the_guest() {
    with_features(feature::ALL & !GUEST_OFFLOADS);
}

#[test]
fn without_large_frames_to_the_guest_nor_mergeable_buffers() {
    with_features(feature::ALL & !GUEST_OFFLOADS & !feature::MRG_RXBUF);
}

#[test]
fn without_partial_checksums_to_the_guest() {
    with_features(feature::ALL & !GUEST_OFFLOADS & !feature::GUEST_CSUM);
}

#[test]
fn without_offloads_of_what_the_guest_sends() {
    with_features(feature::ALL & !HOST_OFFLOADS & !feature::CSUM);
}

#[test]
fn without_event_indexes() {
    with_features(feature::ALL & !feature::EVENT_IDX);
}

#[test]
fn without_indirect_descriptors() {
    with_features(feature::ALL & !feature::INDIRECT_DESC);
}

#[test]
fn without_any_feature() {
    with_features(0);
}

#[test]
fn with_the_smallest_mtu_of_ipv6() {
    with_bed(Setup { mtu: 1280, ..Setup::default() }, |bed| everything(bed));
}

#[test]
fn with_jumbo_frames() {
    with_bed(Setup { mtu: 9000, ..Setup::default() }, |bed| everything(bed));
}

/// Each client sends to its guest while `interrupt` runs. (The guest does not: with its tap it loses what it has
/// sent, which here is a network that loses whole trains, not a device that is exchanged.)
fn while_data_flows(open: &[(TcpStream, TcpStream)], len: usize, interrupt: impl FnOnce()) {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            open.iter().map(|(guest, client)| scope.spawn(|| transfer(client, guest, 1, len))).collect();
        interrupt();
        for transfer in running {
            transfer.join().unwrap();
        }
    });
}

#[test]
fn connections_survive_new_devices_while_data_flows() {
    with_bed(Setup::default(), |bed| {
        let open: Vec<_> = bed.families().into_iter().flat_map(|family| connections(bed, family)).collect();
        while_data_flows(&open, 8 << 20, || {
            for round in 1..4u64 {
                let moved = || bed.netd.counters().tcp_bytes_to_guest.get();
                eventually("a part of the data", || (moved() > round << 22).then_some(()));
                bed.unplug();
                bed.plug();
            }
        });
        for (guest, client) in &open {
            exchange(guest, client, 2 << 20);
        }
        assert_eq!(bed.netd.counters().frontend_connections.get(), 4);
        assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
    });
}

#[test]
fn rings_go_on_where_a_lost_connection_left_them() {
    with_bed(Setup::default(), |bed| {
        let open: Vec<_> = bed.families().into_iter().flat_map(|family| connections(bed, family)).collect();
        for _ in 0..3 {
            while_data_flows(&open, 4 << 20, || bed.reconnect());
            for (guest, client) in &open {
                transfer(guest, client, 2, 1 << 20);
            }
        }
        assert_eq!(bed.netd.counters().frontend_connections.get(), 4);
        assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
        assert_eq!(bed.netd.counters().ring_errors.get(), 0);
    });
}

#[test]
fn what_comes_while_there_is_no_device_waits_for_one() {
    with_bed(Setup::default(), |bed| {
        let [v4, v6] = bed.families();
        let listeners = [v4, v6].map(|f| (f, bed.guest.listen(f.any(7000))));
        let (_, open) = &listeners[0];
        let mut old = bed.client.connect(v4.pod(7000)).unwrap();
        let (old_guest, _) = open.accept();
        bed.unplug();
        eventually("the end", || (!bed.netd.status().frontend_connected).then_some(()));
        assert!(bed.netd.status().running_rings.is_empty());
        old.write_all(&content(1, 100_000)).unwrap();
        let fresh: Vec<_> = listeners
            .iter()
            .map(|(family, listener)| {
                let mut client = bed.client.connect(family.pod(7000)).unwrap();
                client.write_all(&content(2, 100_000)).unwrap();
                (client, listener)
            })
            .collect();
        bed.plug();
        read_exactly(&old_guest, &content(1, 100_000));
        for (client, listener) in &fresh {
            let (guest, _) = listener.accept();
            read_exactly(&guest, &content(2, 100_000));
            transfer(&guest, client, 3, 100_000);
        }
    });
}
