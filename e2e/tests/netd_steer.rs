//! All ports for two sockets: the node agent steers, netd serves, and neither needs the other's life.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails it")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use podvirt_e2e::{Backend, BackendOptions, Bed, Boot, Family, Guest, NetOptions, Pod, Vhost, until};
use virt_handler::ports::{Namespace, Report, Steering};

/// Two looks at what listens, with room for a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// How long an answer is waited for that does not come.
const PATIENCE: Duration = Duration::from_millis(500);

fn options() -> BackendOptions {
    let arguments = "-t all,~8003 -u all --steering /w/ports.sock".split_whitespace().map(str::to_owned);
    BackendOptions { arguments: arguments.collect(), ..Default::default() }
}

fn steer(pod: &Pod) -> Steering {
    let netns = Namespace::open(&Path::new("/run/netns").join(pod.net.pod.name())).unwrap();
    Steering::start(netns, pod.path("ports.sock")).unwrap()
}

fn attached(steering: &Steering) -> Report {
    until("steering", SOON, || Ok(Some(steering.report()).filter(|r| r.attached))).unwrap()
}

/// The error of a connection to `to`; none when it is made. netd's sockets drop SYNs while no guest runs (`TimedOut`); the kernel
/// refuses a port without a socket (`ConnectionRefused`).
fn failure(pod: &Pod, to: SocketAddr) -> Option<ErrorKind> {
    let connected = pod.net.client.enter(|| Ok(TcpStream::connect_timeout(&to, PATIENCE))).unwrap();
    connected.err().map(|e| e.kind())
}

fn leads_to_netd(pod: &Pod, to: SocketAddr) -> bool {
    failure(pod, to) == Some(ErrorKind::TimedOut)
}

/// A listener comes to port 7777 of the pod, and soon has it.
fn late_listener(pod: &Pod) -> TcpListener {
    let late = pod.net.pod.enter(|| Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, 7777))?)).unwrap();
    late.set_nonblocking(true).unwrap();
    until("the late listener's port", SOON, || {
        drop(pod.net.connect(Family::V4.pod(7777)));
        match late.accept() {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            other => Ok(Some(other?)),
        }
    })
    .unwrap();
    late
}

/// Every datagram to `theirs`, on port 9002 since before the agent came, arrives, until the agent has seen a listener
/// twice that came after it.
fn udp_stays_closed(pod: &Pod, theirs: &UdpSocket) {
    let bind = |port| move || Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?);
    let late = pod.net.pod.enter(bind(9003)).unwrap();
    late.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(SOON)).unwrap();
    let client = pod.net.client.enter(bind(0)).unwrap();
    let mut bytes = [0; 16];
    until("the late UDP listener's port", SOON, || {
        client.send_to(b"theirs", Family::V6.pod(9002))?;
        assert_eq!(theirs.recv(&mut bytes).unwrap(), 6);
        client.send_to(b"late", Family::V6.pod(9003))?;
        match late.recv(&mut bytes) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            other => Ok(Some(other?)),
        }
    })
    .unwrap();
}

#[test]
fn every_port_leads_to_the_guest_but_for_those_of_others() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let tcp = pod.net.pod.enter(|| Ok(TcpListener::bind((Ipv6Addr::UNSPECIFIED, 9001))?)).unwrap();
    let udp = pod.net.pod.enter(|| Ok(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 9002))?)).unwrap();
    let running = Backend::Netd.start(&pod, &options()).unwrap();
    let steering = steer(&pod);
    let report = attached(&steering);
    assert!(report.closed_tcp > 15 && report.closed_udp > 28_000, "{report:?}");
    udp_stays_closed(&pod, &udp);
    let guest = Guest::boot(Boot::Uml, &pod, &Vhost::default()).unwrap();
    let mut bed = Bed { backend: Backend::Netd, guest, running, pod };

    // Low, high and ephemeral ports, both families and protocols, without a listener for each.
    for (family, port) in [(Family::V4, 1), (Family::V6, 80), (Family::V4, 40_000), (Family::V6, 65_535)] {
        bed.tcp_in(family.pod(port), port, 5000).unwrap();
    }
    for (family, port) in [(Family::V4, 53), (Family::V6, 500), (Family::V4, 65_535)] {
        bed.udp_in(family.pod(port), port, 500).unwrap();
    }
    let listeners = bed.running.ask("status").unwrap()["listeners"].as_u64().unwrap();
    assert_eq!(listeners, 2);

    // What others listen on is theirs, what is closed is refused.
    drop(bed.pod.net.connect(Family::V6.pod(9001)).unwrap());
    tcp.accept().unwrap();
    for port in [8003, 15001] {
        let error = bed.pod.net.connect(Family::V4.pod(port)).unwrap_err();
        assert!(format!("{error:#}").contains("refused"), "{port}: {error:#}");
    }

    // One that comes later has its port soon.
    drop(late_listener(&bed.pod));

    // The agent's end changes nothing; its successor goes on with what netd holds.
    steering.end();
    bed.tcp_in(Family::V4.pod(81), 81, 5000).unwrap();
    bed.udp_in(Family::V6.pod(82), 82, 500).unwrap();
    let steering = steer(&bed.pod);
    // Asked of the agent: a connection that is refused leaves the guest's server waiting.
    until("the late listener's port is open again", SOON, || {
        let now = steering.report();
        Ok((now.attached && now.closed_tcp == report.closed_tcp).then_some(()))
    })
    .unwrap();
    bed.tcp_in(Family::V4.pod(7777), 7777, 500).unwrap();
    drop(bed.pod.net.connect(Family::V4.pod(9001)).unwrap());
    tcp.accept().unwrap();
}

#[test]
fn steered_connections_and_ports_outlive_an_update() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let running = Backend::Netd.start(&pod, &options()).unwrap();
    let steering = steer(&pod);
    attached(&steering);
    let guest = Guest::boot(Boot::Uml, &pod, &Vhost::default()).unwrap();
    let mut bed = Bed { backend: Backend::Netd, guest, running, pod };
    let port = 40_000;
    bed.guest.serve(port, &format!("socat TCP6-LISTEN:{port},reuseaddr,fork,ipv6only=0 PIPE")).unwrap();
    let mut open: Vec<_> = Family::BOTH.map(|f| bed.pod.net.connect(f.pod(port)).unwrap()).into();
    let mut echo = |round: u8| {
        for stream in &mut open {
            stream.write_all(&[round]).unwrap();
            let mut back = [!round];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(back, [round]);
        }
    };
    echo(0);
    for generation in 1..=2 {
        bed.update(generation).unwrap();
        echo(generation as u8);
        let listeners = bed.running.ask("status").unwrap()["listeners"].as_u64();
        assert_eq!(listeners, Some(2), "not steered any more");
        // Any port as before, without a listener of its own.
        for family in Family::BOTH {
            bed.tcp_in(family.pod(80 + generation as u16), 80 + generation as u16, 5000).unwrap();
            bed.udp_in(family.pod(500), 500, 500).unwrap();
        }
        let error = bed.pod.net.connect(Family::V4.pod(8003)).unwrap_err();
        assert!(format!("{error:#}").contains("refused"), "{error:#}");
        assert_eq!(attached(&steering).error, None);
    }
    // The connection with the agent has moved as well: the agent hears of listeners that come later.
    let _late = late_listener(&bed.pod);
    assert_eq!(bed.running.counter("tcp_resets").unwrap(), 0);
    echo(3);
    // And another agent finds what the new netd holds.
    steering.end();
    let steering = steer(&bed.pod);
    attached(&steering);
    bed.tcp_in(Family::V6.pod(90), 90, 500).unwrap();
}

#[test]
fn a_new_netd_is_steered_to_as_the_one_before() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let running = Backend::Netd.start(&pod, &options()).unwrap();
    let steering = steer(&pod);
    attached(&steering);
    assert!(leads_to_netd(&pod, Family::V4.pod(4000)));
    drop(running);
    // No process holds the sockets any more: the lookup goes on as without the program.
    let refused = || failure(&pod, Family::V4.pod(4000)) == Some(ErrorKind::ConnectionRefused);
    until("refusal", SOON, || Ok(refused().then_some(()))).unwrap();
    let _running = Backend::Netd.start(&pod, &options()).unwrap();
    let new = || leads_to_netd(&pod, Family::V6.pod(4000));
    until("the new netd's ports", SOON, || Ok(new().then_some(()))).unwrap();
    assert_eq!(attached(&steering).error, None);
}

#[test]
fn without_an_agent_all_ports_have_listeners() {
    let pod = Pod::new(NetOptions::default()).unwrap();
    let running = Backend::Netd.start(&pod, &options()).unwrap();
    let listeners = |n: u64| {
        let status = running.ask("status")?;
        Ok(status["listeners"].as_u64().filter(|have| (*have > 1000) == (n > 1000)))
    };
    until("listeners", SOON, || listeners(u64::MAX)).unwrap();
    assert!(leads_to_netd(&pod, Family::V4.pod(4000)));
    // When one comes they are closed again.
    let steering = steer(&pod);
    attached(&steering);
    until("no listeners", SOON, || listeners(2)).unwrap();
    assert!(leads_to_netd(&pod, Family::V4.pod(4000)));
}

#[test]
fn the_ports_of_the_node_are_not_steered() {
    let own = Namespace::open(Path::new("/proc/self/ns/net")).unwrap_err();
    assert!(own.to_string().contains("the node's own network namespace"), "{own}");
}
