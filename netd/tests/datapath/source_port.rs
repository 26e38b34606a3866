//! The pod's source port for connections of the guest.

use std::net::SocketAddr;

use crate::bed::{Bed, Family, Setup, exchange, with_bed};

/// Of Istio's presets.
const RESERVED: u16 = 15_001;

/// A connection of the guest from `port` to the client's port `to` works; the port that the client sees.
fn seen(bed: &Bed, family: Family, port: u16, to: u16) -> u16 {
    let listener = bed.client.listen(family.client(to));
    let guest = bed.guest.connect_from(family.any(port), family.client(to)).unwrap();
    let (client, from): (_, SocketAddr) = listener.accept();
    assert_eq!(from.ip(), family.pod);
    exchange(&guest, &client, 1000);
    from.port()
}

#[test]
fn a_connection_comes_from_the_guests_own_port() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            // Below 1024, between, and of those that the pod's kernel chooses from.
            for port in [800, 1023, 20_000, 40_000, 65_000] {
                assert_eq!(seen(bed, family, port, 7100), port);
                assert_eq!(seen(bed, family, port, 7101), port, "the same port to another peer");
            }
        }
    });
}

#[test]
fn a_port_that_is_not_free_is_replaced() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let taken = bed.pod.listen(family.any(20_001));
            // That listener's, one of netd's own, and a mesh's, whose proxy may come at any time.
            for port in [20_001, 7000, RESERVED] {
                assert_ne!(seen(bed, family, port, 7100), port);
            }
            bed.pod.listen(family.any(RESERVED));
            drop(taken);
        }
    });
}

#[test]
fn the_pods_other_programs_still_connect_from_the_ports_that_the_guest_uses() {
    with_bed(Setup::default(), |bed| {
        let family = bed.families()[0];
        let listeners = [7100, 7101].map(|to| bed.client.listen(family.client(to)));
        bed.pod.sysctl("ipv4/ip_local_port_range", "40000 40001");
        let guests = [40_000, 40_001].map(|port| {
            let guest = bed.guest.connect_from(family.any(port), family.client(7100)).unwrap();
            let (client, from) = listeners[0].accept();
            assert_eq!(from.port(), port);
            (guest, client)
        });
        // There is no other port.
        let own = bed.pod.connect(family.client(7101)).unwrap();
        exchange(&own, &listeners[1].accept().0, 1000);
        guests.iter().for_each(|(guest, client)| exchange(guest, client, 1000));
    });
}
