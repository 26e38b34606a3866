//! Destinations that the egress policy closes, with an honest guest that is told so.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use netd::control::Control;
use netd::counters::Reason;
use netd::egress::{Action, Egress, Rule};
use netd::flow::Kind;
use netd::net::Link;

use crate::bed::{Bed, Setup, TIMEOUT, exchange, with_bed};

/// Changes the link's policy and resolvers; what the guest does afterwards is judged by them.
fn police(bed: &Bed, egress: Egress, dns: &[&str]) {
    let dns = dns.iter().map(|a| a.parse().unwrap()).collect();
    let link = Link { egress: egress.into(), dns, ..(*bed.netd.status().link).clone() };
    bed.netd.control.set_link(link.into());
}

/// Sends a datagram and answers what the socket says of it.
fn refused(socket: &UdpSocket, to: SocketAddr) -> ErrorKind {
    socket.connect(to).unwrap();
    socket.send(b"question").unwrap();
    socket.recv(&mut [0; 64]).unwrap_err().kind()
}

#[test]
fn what_a_rule_denies_is_refused_at_once_and_counted() {
    with_bed(Setup::default(), |bed| {
        let deny = |kind, port: &str| Rule {
            action: Action::Deny,
            to: vec![],
            kind: Some(kind),
            ports: vec![port.parse().unwrap()],
        };
        let rules = vec![deny(Kind::Tcp, "7000"), deny(Kind::Udp, "5000-5001")];
        police(bed, Egress { rules, ..Egress::default() }, &[]);
        for (count, family) in (0..).zip(bed.families()) {
            let closed = bed.client.listen(family.client(7000));
            let error = bed.guest.connect(family.client(7000)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
            let socket = bed.guest.udp(family.guest(6000));
            let kind = refused(&socket, family.client(5000));
            // Linux says EHOSTUNREACH for IPv4 and EACCES for IPv6.
            assert!(matches!(kind, ErrorKind::HostUnreachable | ErrorKind::PermissionDenied), "{kind:?}");
            assert_eq!(bed.netd.dropped(Reason::EgressDenied), 2 * (count + 1));
            assert!(!closed.has_one());
            let open = bed.client.listen(family.client(7001));
            let guest = bed.guest.connect(family.client(7001)).unwrap();
            exchange(&guest, &open.accept().0, 10_000);
        }
    });
}

#[test]
fn flows_that_exist_go_on_when_the_policy_closes_their_destination() {
    with_bed(Setup::default(), |bed| {
        let [v4, _] = bed.families();
        let listener = bed.client.listen(v4.client(7000));
        let guest = bed.guest.connect(v4.client(7000)).unwrap();
        let (client, _) = listener.accept();
        let inbound = bed.guest.listen(v4.any(7000));
        police(bed, Egress { default: Action::Deny, ..Egress::default() }, &[]);
        exchange(&guest, &client, 10_000);
        assert!(bed.guest.connect(v4.client(7000)).is_err());
        // A client that comes in is answered.
        let client = bed.client.connect(v4.pod(7000)).unwrap();
        exchange(&inbound.accept().0, &client, 10_000);
    });
}

#[test]
fn a_metadata_service_is_closed_but_as_a_resolver_it_is_not() {
    with_bed(Setup::default(), |bed| {
        bed.client.ip("addr add 169.254.169.254/32 dev eth0\n");
        bed.pod.ip("route add 169.254.169.254/32 via 10.9.0.1\n");
        police(bed, Egress::default(), &["169.254.169.254"]);
        let credentials: SocketAddr = "169.254.169.254:80".parse().unwrap();
        let dns: SocketAddr = "169.254.169.254:53".parse().unwrap();
        let listener = bed.client.listen(credentials);
        assert_eq!(bed.guest.connect(credentials).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(!listener.has_one());
        let error = bed.guest.ping(credentials);
        error.set_read_timeout(Some(TIMEOUT)).unwrap();
        error.send(&[8, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        assert_eq!(
            error.recv(&mut [std::mem::MaybeUninit::uninit(); 64]).unwrap_err().kind(),
            ErrorKind::HostUnreachable
        );
        assert_eq!(bed.netd.dropped(Reason::EgressDenied), 2);

        let resolver = bed.client.listen(dns);
        let guest = bed.guest.connect(dns).unwrap();
        exchange(&guest, &resolver.accept().0, 1000);
        let server = bed.client.udp(dns);
        let socket = bed.guest.udp("10.9.0.2:6000".parse().unwrap());
        socket.send_to(b"name", dns).unwrap();
        let (_, from) = server.recv_from(&mut [0; 16]).unwrap();
        server.send_to(b"you", from).unwrap();
        assert_eq!(socket.recv_from(&mut [0; 16]).unwrap(), (3, dns));
    });
}
