//! What the link of each pod closes to the guest: the pod's own addresses, and what its policy denies.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

use super::place::families;
use super::{Place, ping_pong};
use crate::bed::{Family, Namespace, TIMEOUT, assert_reset, eventually, with_place};

/// A service of the pod that is meant for others in the pod.
const SERVICE: u16 = 9000;
/// Addresses of the pod that the guest does not have: more of its interface, and those of another one.
const MORE: [&str; 4] = ["10.9.0.20", "fd00:9::20", "10.8.0.2", "fd00:8::2"];

fn add_addresses(pod: &Namespace) {
    pod.ip("link add net1 type veth peer name net1-peer\nlink set net1 up\nlink set net1-peer up\n\
         addr add 10.9.0.20/24 dev eth0\naddr add fd00:9::20/64 dev eth0 nodad\n\
         addr add 10.8.0.2/24 dev net1\naddr add fd00:8::2/64 dev net1 nodad\n");
}

fn more() -> impl Iterator<Item = (Family, SocketAddr)> {
    let families = families();
    MORE.into_iter().map(move |text| {
        let to = SocketAddr::new(text.parse().unwrap(), SERVICE);
        (families[usize::from(to.is_ipv6())], to)
    })
}

/// Each way to the pod's addresses is closed, and counted.
fn assert_closed(place: &Place) {
    let pod = &place.pods[place.at];
    let listeners = families().map(|family| pod.listen(family.any(SERVICE)));
    // Of both families.
    let server = pod.udp(families()[1].any(SERVICE));
    for (family, to) in more() {
        let before = place.process.dropped("denied");
        let error = place.guest.connect(to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}: {error}");
        let socket = place.guest.udp(family.guest(6000));
        socket.connect(to).unwrap();
        socket.send(b"question").unwrap();
        let kind = socket.recv(&mut [0; 64]).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::HostUnreachable | ErrorKind::PermissionDenied), "{to}: {kind:?}");
        let ping = place.guest.ping(to);
        ping.send(&[if to.is_ipv4() { 8 } else { 128 }, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        eventually("all three to be counted", || {
            (place.process.dropped("denied") >= before + 3).then_some(())
        });
    }
    assert!(listeners.iter().all(|listener| !listener.has_one()));
    server.set_nonblocking(true).unwrap();
    assert_eq!(server.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn no_address_of_the_pod_can_be_reached_those_that_come_later_and_those_of_another_pod_included() {
    with_place(|place| {
        // While netd runs.
        add_addresses(&place.pods[0]);
        for (_, to) in more() {
            eprintln!("{to}");
            let listener = place.pods[0].listen(to);
            let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
            eventually("the address to be closed", || place.guest.connect(to).err().filter(refused));
            // Those that came before it was.
            while listener.has_one() {}
        }
        assert_closed(place);
        // Before it starts.
        add_addresses(&place.pods[1]);
        let moved = place.migrate();
        assert_closed(place);
        place.end(moved);
        assert_closed(place);
    });
}

/// The guest asks and is answered; where from, as the world sees it.
fn asks(guest: &UdpSocket, server: &UdpSocket, to: SocketAddr) -> SocketAddr {
    guest.send_to(b"question", to).unwrap();
    let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
    server.send_to(b"answer", from).unwrap();
    assert_eq!(guest.recv_from(&mut [0; 16]).unwrap(), (6, to));
    from
}

#[test]
fn what_the_targets_policy_denies_ends_there_at_both_ends_and_the_rest_goes_on() {
    with_place(|place| {
        let families = families();
        // The guest opens two of each kind in each family; the world opens one by a port that the policy denies to the
        // guest as a destination.
        let port = |n: u16| families.map(|family| family.client(n));
        let connections = [7000, 7001].map(|n| {
            port(n).map(|to| {
                let listener = place.world.listen(to);
                (place.guest.connect(to).unwrap(), listener.accept().0)
            })
        });
        let datagrams = [5000, 5001].map(|n| {
            families.map(|family| {
                let (guest, server) = (place.guest.udp(family.guest(n)), place.world.udp(family.client(n)));
                asks(&guest, &server, family.client(n));
                (guest, server)
            })
        });
        let inbound = families.map(|family| {
            let listener = place.guest.listen(family.any(7001));
            let world = place.world.connect_from(family.client(7001), family.pod(7001)).unwrap();
            (listener.accept().0, world)
        });
        let moved = place.migrate_with("egress: {rules: [{action: deny, ports: [7001, 5001]}]}");
        assert_eq!(place.process.dropped("egress_denied"), 4, "judged before the guest says anything");
        let [go_on, end] = connections;
        for (guest, world) in &end {
            assert_reset(guest);
            assert_reset(world);
        }
        for (guest, world) in go_on.iter().chain(&inbound) {
            ping_pong(guest, world);
        }
        for (family, (guest, server)) in families.iter().zip(&datagrams[0]) {
            asks(guest, server, family.client(5000));
        }
        for (family, (guest, _)) in families.iter().zip(&datagrams[1]) {
            guest.connect(family.client(5001)).unwrap();
            guest.send(b"question").unwrap();
            let kind = guest.recv(&mut [0; 16]).unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::HostUnreachable | ErrorKind::PermissionDenied), "{kind:?}");
        }
        eventually("all that go on", || {
            (place.process.counter("migrated_connections_in") == 4).then_some(())
        });
        for reason in ["migration_target", "migration_release"] {
            assert_eq!(place.process.dropped(reason), 0, "{reason}");
        }
        place.end(moved);
    });
}

/// The time to live of the next IPv4 packet of a protocol that the world gets and `wanted` holds of.
pub(crate) fn ttl(raw: &Socket, wanted: impl Fn(&[u8]) -> bool) -> u8 {
    let mut packet = [0; 256];
    loop {
        let n = (&*raw).read(&mut packet).unwrap();
        if wanted(&packet[20..n]) {
            return packet[8];
        }
    }
}

#[test]
fn what_the_guest_wants_of_its_datagrams_is_wanted_of_the_new_sockets() {
    with_place(|place| {
        let family = families()[0];
        let raw = |protocol| {
            let socket = place.world.run(|| Socket::new(Domain::IPV4, Type::RAW, Some(protocol)).unwrap());
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        };
        let (datagrams, echoes) = (raw(Protocol::UDP), raw(Protocol::ICMPV4));
        let server = place.world.udp(family.client(5000));
        let guest = place.guest.udp(family.guest(5000));
        guest.set_ttl(7).unwrap();
        let ping = place.guest.ping(family.client(0));
        ping.set_ttl_v4(9).unwrap();
        let id = ping.local_addr().unwrap().as_socket().unwrap().port();
        let look = |place: &Place| {
            asks(&guest, &server, family.client(5000));
            let sent = |payload: &[u8]| payload[2..4] == 5000u16.to_be_bytes();
            assert_eq!(ttl(&datagrams, sent), 7, "in pod {}", place.at);
            ping.send(&[8, 0, 0, 0, 0, 0, 0, 1]).unwrap();
            let asked = |payload: &[u8]| payload[0] == 8 && payload[4..6] == id.to_be_bytes();
            assert_eq!(ttl(&echoes, asked), 9, "in pod {}", place.at);
        };
        look(place);
        for _ in 0..2 {
            let moved = place.migrate();
            place.end(moved);
            look(place);
        }
    });
}
