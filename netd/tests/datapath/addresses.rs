//! Which addresses the guest sees, which it may reach, and what becomes of those that overlap with its own.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use netd::counters::Reason;
use netd::net::Mode;

use crate::bed::{Bed, Setup, TIMEOUT, content, exchange, with_bed};

fn masquerade() -> Setup {
    Setup { mode: Mode::Masquerade, ..Setup::default() }
}

/// Sends a datagram and answers what the socket says of it.
fn answer(socket: &UdpSocket, to: SocketAddr) -> std::io::Result<Vec<u8>> {
    socket.connect(to)?;
    socket.send(b"question")?;
    let mut buffer = vec![0; 2048];
    let n = socket.recv(&mut buffer)?;
    buffer.truncate(n);
    Ok(buffer)
}

/// Answers one datagram with its own content.
fn echo(socket: &UdpSocket) -> SocketAddr {
    let mut buffer = [0; 2048];
    let (n, from) = socket.recv_from(&mut buffer).expect("no datagram came");
    socket.send_to(&buffer[..n], from).unwrap();
    from
}

#[test]
fn a_masqueraded_guest_works_both_ways() {
    with_bed(masquerade(), |bed| {
        for family in bed.families() {
            let listener = bed.client.listen(family.client(7000));
            let guest = bed.guest.connect(family.client(7000)).unwrap();
            let (client, from) = listener.accept();
            assert_eq!(from.ip(), family.pod);
            exchange(&guest, &client, 1 << 20);

            let listener = bed.guest.listen(family.any(80));
            let client = bed.client.connect(family.pod(8080)).unwrap();
            let (guest, from) = listener.accept();
            assert_eq!(from, client.local_addr().unwrap());
            assert_eq!(guest.local_addr().unwrap(), family.guest(80));
            exchange(&guest, &client, 1 << 20);

            let server = bed.client.udp(family.client(5000));
            let guest = bed.guest.udp(family.guest(6000));
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| echo(&server));
                assert_eq!(answer(&guest, family.client(5000)).unwrap(), b"question");
                assert_eq!(asked.join().unwrap(), family.pod(6000));
            });
            let server = bed.guest.udp(family.any(80));
            let client = bed.client.udp(family.client(5001));
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| echo(&server));
                assert_eq!(answer(&client, family.pod(8080)).unwrap(), b"question");
                assert_eq!(asked.join().unwrap(), family.client(5001));
            });
        }
    });
}

#[test]
fn the_pods_own_addresses_are_closed_to_the_guest() {
    with_bed(masquerade(), |bed| {
        let open: Vec<_> = ["0.0.0.0:9000", "[::]:9000"]
            .iter()
            .filter_map(|at| {
                // The second one may cover the first.
                let at: SocketAddr = at.parse().unwrap();
                at.is_ipv6().then(|| bed.pod.listen(at))
            })
            .collect();
        for family in bed.families() {
            for to in [family.pod, family.gateway] {
                let to = match to {
                    // A link-local address needs its interface.
                    IpAddr::V6(a) if a.is_unicast_link_local() => continue,
                    to => SocketAddr::new(to, 9000),
                };
                let error = bed.guest.connect(to).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{to}: {error}");
                let error = answer(&bed.guest.udp(family.guest(6000)), to).unwrap_err();
                assert!(
                    matches!(error.kind(), ErrorKind::HostUnreachable | ErrorKind::PermissionDenied),
                    "{to}: {error}"
                );
            }
        }
        assert!(bed.netd.dropped(Reason::Denied) >= 6);
        for listener in &open {
            assert!(!listener.has_one());
        }
    });
}

/// Lets the guest send to 127/8 by its device, which a guest can do that means harm.
fn martians(bed: &Bed) {
    bed.guest.sysctl("ipv4/conf/tap0/route_localnet", "1");
    bed.guest.ip("addr del 127.0.0.1/8 dev lo\nroute add 127.0.0.0/8 via 10.9.0.1 dev tap0 src 10.9.0.2\n");
    bed.guest.run(|| {
        // The table of local addresses comes first.
        let _ = std::process::Command::new("ip")
            .args(["route", "del", "local", "127.0.0.0/8", "dev", "lo", "table", "local"])
            .stderr(std::process::Stdio::null())
            .status();
    });
}

#[test]
fn the_pods_loopback_is_closed_to_the_guest() {
    with_bed(Setup::default(), |bed| {
        martians(bed);
        let listener = bed.pod.listen("127.0.0.1:9000".parse().unwrap());
        let error = bed.guest.connect("127.0.0.1:9000".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        assert_eq!(bed.netd.dropped(Reason::Denied), 1);
        assert!(!listener.has_one());
    });
}

#[test]
fn a_loopback_that_is_opened_leads_to_the_pods_loopback_only() {
    with_bed(Setup::default(), |bed| {
        let mut link = (*bed.netd.status().link).clone();
        link.v4.as_mut().unwrap().loopback = Some([192, 0, 2, 99].into());
        link.v6.as_mut().unwrap().loopback = Some("2001:db8::99".parse().unwrap());
        netd::control::Control::set_link(&bed.netd.control, link.into());
        for (at, to) in [("127.0.0.1:9000", "192.0.2.99:9000"), ("[::1]:9000", "[2001:db8::99]:9000")] {
            let listener = bed.pod.listen(at.parse().unwrap());
            let guest = bed.guest.connect(to.parse().unwrap()).unwrap();
            exchange(&guest, &listener.accept().0, 5000);
            let server = bed.pod.udp(at.parse().unwrap());
            let guest = bed.guest.udp(if at.starts_with('[') {
                "[fd00:9::2]:6000".parse().unwrap()
            } else {
                "10.9.0.2:6000".parse().unwrap()
            });
            std::thread::scope(|scope| {
                scope.spawn(|| echo(&server));
                assert_eq!(answer(&guest, to.parse().unwrap()).unwrap(), b"question");
            });
        }
    });
}

#[test]
fn clients_in_the_pod_are_seen_as_the_gateway_and_told_apart() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let local: IpAddr =
                if family.pod.is_ipv4() { [127, 0, 0, 1].into() } else { "::1".parse().unwrap() };
            let listener = bed.guest.listen(family.any(7000));
            // The same source port three times; for IPv4 the client is the gateway itself.
            let at = |ip: IpAddr| SocketAddr::new(ip, 5555);
            let ends: Vec<_> = [local, family.pod]
                .iter()
                .map(|&ip| {
                    let s = bed.pod.connect_from(at(ip), SocketAddr::new(ip, 7000)).unwrap();
                    let (guest, from) = listener.accept();
                    assert_eq!(from.ip(), family.gateway);
                    (s, guest, from.port())
                })
                .collect();
            let far = bed.client.connect_from(at(family.client), family.pod(7000)).unwrap();
            let (guest, from) = listener.accept();
            assert_eq!(from.ip(), family.client);
            let mut ports: Vec<_> = ends.iter().map(|e| e.2).collect();
            assert!(ports.contains(&5555), "a port that is free is kept: {ports:?}");
            if family.client == family.gateway {
                ports.push(from.port());
            }
            let count = ports.len();
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), count, "{ports:?}");
            for (near, guest, _) in &ends {
                exchange(near, guest, 100_000);
            }
            exchange(&far, &guest, 100_000);
        }
        assert_eq!(bed.netd.dropped(Reason::TupleCollision), 0);
    });
}

#[test]
fn datagrams_of_clients_in_the_pod_are_told_apart() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let local: IpAddr =
                if family.pod.is_ipv4() { [127, 0, 0, 1].into() } else { "::1".parse().unwrap() };
            let server = bed.guest.udp(family.any(7000));
            let clients: Vec<_> = [local, family.pod]
                .map(|ip| {
                    let s = bed.pod.udp(SocketAddr::new(ip, 5555));
                    s.connect(SocketAddr::new(ip, 7000)).unwrap();
                    s
                })
                .into();
            for round in 0..3 {
                for (i, client) in (0..).zip(&clients) {
                    eprintln!("{family:?}, round {round}, client {i}");
                    let (question, answer) = (content(10 * round + i, 200), content(1000 + i, 300));
                    client.send(&question).unwrap();
                    let mut buffer = [0; 2048];
                    let (n, from) = server.recv_from(&mut buffer).unwrap();
                    assert!(buffer[..n] == question);
                    assert_eq!(from.ip(), family.gateway);
                    server.send_to(&answer, from).unwrap();
                    let n = client.recv(&mut buffer).unwrap();
                    assert!(buffer[..n] == answer);
                    // Not at the other one.
                    let other = &clients[1 - i as usize];
                    other.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                    assert!(other.recv(&mut buffer).is_err());
                    other.set_read_timeout(Some(TIMEOUT)).unwrap();
                }
            }
        }
    });
}
