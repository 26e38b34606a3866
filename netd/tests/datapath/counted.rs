//! What is counted: ordinary traffic moves every counter but those that tell of faults, loads and moves.

use netd::counters::Counters;

use crate::bed::{Setup, content, eventually, exchange, with_bed};

/// Counters that ordinary traffic may leave as they are.
const MAY_REST: [&str; 18] = [
    "guest_rx_empty",
    "tcp_resets",
    "tcp_retransmits",
    "tcp_openings_evicted",
    "datagram_flows_evicted",
    "ring_errors",
    "spins_found",
    "spins_in_vain",
    "pair_frames_passed",
    "pair_flows_moved",
    "migrations_out",
    "migrations_undone",
    "migrations_in",
    "migrations_failed",
    "migrated_connections_out",
    "migrated_connections_in",
    "updates",
    "tcp_refused",
];

#[test]
fn ordinary_traffic_moves_every_counter_of_traffic() {
    let (to_pod, to_guest) = (1_000, 2_500);
    with_bed(Setup::default(), move |bed| {
        let [v4, v6] = bed.families();
        for family in [v4, v6] {
            let server = bed.client.listen(family.client(7000));
            let guest = bed.guest.connect(family.client(7000)).unwrap();
            exchange(&guest, &server.accept().0, 10_000);
            let server = bed.guest.listen(family.any(7000));
            let client = bed.client.connect(family.pod(7000)).unwrap();
            exchange(&server.accept().0, &client, 10_000);
        }
        let (server, guest) = (bed.client.udp(v4.client(5000)), bed.guest.udp(v4.guest(6000)));
        let mut buffer = [0; 4096];
        guest.send_to(&content(1, to_pod), v4.client(5000)).unwrap();
        let (_, from) = server.recv_from(&mut buffer).unwrap();
        server.send_to(&content(2, to_guest), from).unwrap();
        assert_eq!(guest.recv(&mut buffer).unwrap(), to_guest);
        // A peer that does not hear.
        guest.send_to(b"anyone?", v4.client(9)).unwrap();
        let counters = bed.netd.counters();
        eventually("an error", || (counters.icmp_errors_to_guest.get() > 0).then_some(()));
        let ping = bed.guest.ping(v4.client(0));
        ping.send(&[8, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        let rest = |counters: &Counters| -> Vec<&'static str> {
            let still = counters.totals().into_iter().filter(|(_, _, value)| *value == 0);
            still.map(|(name, ..)| name).filter(|name| !MAY_REST.contains(name)).collect()
        };
        eventually("each counter of traffic", || rest(&counters).is_empty().then_some(()));
        assert_eq!(counters.udp_bytes_to_guest.get(), to_guest as u64);
        assert_eq!(counters.udp_bytes_to_pod.get(), to_pod as u64 + b"anyone?".len() as u64);
        let names: Vec<&str> = counters.totals().into_iter().map(|(name, ..)| name).collect();
        assert!(MAY_REST.iter().all(|name| names.contains(name)), "one of the list is gone");
    });
}
