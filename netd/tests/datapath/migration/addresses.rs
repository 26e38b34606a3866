//! The target's pod has other addresses than the source's: the guest keeps those that it has.

use std::net::IpAddr;

use super::place::families;
use super::{Opener, Place, cases, open, ping_pong};
use crate::bed::{Family, assert_reset, exchange, with_place};

/// The pod's address behind a family.
fn elsewhere(family: Family) -> Family {
    let pod: IpAddr = if family.pod.is_ipv4() { "10.9.0.3" } else { "fd00:9::3" }.parse().unwrap();
    Family { pod, ..family }
}

/// Gives the second pod other addresses.
fn renumber(place: &Place) {
    place.pods[1].ip("addr del 10.9.0.2/24 dev eth0\naddr add 10.9.0.3/24 dev eth0\n\
         addr del fd00:9::2/64 dev eth0\naddr add fd00:9::3/64 dev eth0 nodad\n\
         route replace default via 10.9.0.1\nroute replace default via fd00:9::1\n");
}

#[test]
fn a_guest_keeps_its_addresses_in_a_pod_that_has_others() {
    with_place(|place| {
        renumber(place);
        let old: Vec<_> = cases().map(|(family, by)| open(place, family, by)).collect();
        // No helper repairs a connection whose address the new pod does not have.
        place.helper = None;
        let target = place.target();
        let moved = place.migrate_to(target, None);
        place.activation(place.at)();
        for (guest, world) in &old {
            assert_reset(guest);
            assert_reset(world);
        }
        place.end(moved);
        for (family, by) in cases() {
            let (guest, world) = open(place, elsewhere(family), by);
            assert_eq!(guest.local_addr().unwrap().ip(), family.guest, "{by:?}");
            let seen = world.peer_addr().unwrap();
            assert_eq!(seen.ip(), elsewhere(family).pod, "{by:?}");
            exchange(&guest, &world, 1 << 20);
        }
        // Back in the first pod the address is the pod's own again.
        let target = place.target();
        let moved = place.migrate_to(target, None);
        place.activation(place.at)();
        place.end(moved);
        for family in families() {
            let (guest, world) = open(place, family, Opener::World);
            ping_pong(&guest, &world);
        }
    });
}
