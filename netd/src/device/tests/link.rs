//! What the link at the target closes to the guest.

use rtnetlink::LinkUnspec;

use super::*;
use crate::control::Control;
use crate::pod::testns::{add_address, add_interface, in_netns};

#[test]
fn what_the_link_at_the_target_closes_does_not_go_on() {
    let open = |at: [u8; 4]| {
        let mut link = test_link();
        link.v4.as_mut().unwrap().loopback = Some(at.into());
        link
    };
    let bytes = source().0.save().unwrap();
    // 127.0.0.1 is not open, or another address stands for it: the flow of datagrams would be no other's here.
    let deny = Egress { default: Action::Deny, ..Egress::default() };
    let denies = Link { egress: Arc::new(deny), ..open([127, 0, 0, 1]) };
    let closed = [
        (test_link(), Reason::Denied),
        (open([192, 0, 2, 1]), Reason::Denied),
        (denies, Reason::EgressDenied),
    ];
    for (link, reason) in closed {
        let new = workers_at(link, 1, None);
        new.load(&bytes).unwrap();
        assert!(new.flows().iter().all(|f| f.0 == FlowKind::Tcp), "{reason:?}");
        assert_eq!(new.0.workers().counters().dropped(reason), 1);
    }
    let new = workers_at(open([127, 0, 0, 1]), 1, None);
    new.load(&bytes).unwrap();
    assert_eq!(new.flows().len(), 2);
}

#[test]
fn a_flow_to_the_pods_loopback_does_not_go_on_where_its_address_leads_elsewhere() {
    let open = || {
        let mut link = test_link();
        link.v4.as_mut().unwrap().loopback = Some([192, 0, 2, 1].into());
        link
    };
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    let mut old = inherited(udp.local_addr().unwrap(), near);
    old.workers[0].udp[0].key.1.set_ip([192, 0, 2, 1].into());
    let source = workers_at(open(), 1, Some(old));
    source.0.workers().thaw();
    let bytes = source.save().unwrap();
    // There the address is that of a host of the world.
    for (link, goes_on) in [(open(), true), (test_link(), false)] {
        let new = workers_at(link, 1, None);
        new.load(&bytes).unwrap();
        assert_eq!(new.flows().iter().any(|f| f.0 == FlowKind::Udp), goes_on);
        assert_eq!(new.0.workers().counters().dropped(Reason::Denied), u64::from(!goes_on));
    }
}

/// Runs `test` in a pod: with a loopback, the link's own address, and one of the kind that clouds' services have.
fn in_pod(test: impl FnOnce() + Send + 'static) {
    in_netns(|handle| async move {
        handle.link().set(LinkUnspec::new_with_index(1).up().build()).execute().await.unwrap();
        let index = add_interface(&handle, "eth0", [2, 0, 0, 0, 0, 1], 1500).await;
        for address in ["10.9.0.2/24", "169.254.0.1/16"] {
            add_address(&handle, index, address).await;
        }
        test();
    });
}

/// A flow of the guest's to a peer, by the first socket.
fn flow_to(peer: &str) -> state::UdpFlow {
    let peer = peer.parse().unwrap();
    let key = ("10.9.0.2:6000".parse().unwrap(), peer);
    state::UdpFlow { key, pod_peer: peer, ..inherited_udp(Fd(0)) }
}

/// A worker's state with one flow of datagrams and the socket that it names.
fn with_udp(flow: &state::UdpFlow, kind: bool, local: &str, peer: Option<&str>) -> Vec<u8> {
    let peer = peer.map(|peer| peer.parse().unwrap());
    stream(|to| {
        put(to, tag::SOCKET, &Socket::sample(kind, local.parse().unwrap(), peer));
        put(to, tag::WORKER, &WorkerState::default());
        put(to, tag::UDP, flow);
    })
}

#[test]
fn a_flow_has_no_socket_to_another_peer_than_its_own() {
    in_pod(|| {
        let own = Some("10.9.0.7:53");
        for (kind, peer, goes_on) in [
            (true, own, true),
            // The pod's loopback, another port, and a socket that is none of UDP.
            (true, Some("127.0.0.1:53"), false),
            (true, Some("10.9.0.7:54"), false),
            (false, None, false),
        ] {
            let new = workers_at(test_link(), 1, None);
            new.load(&with_udp(&flow_to("10.9.0.7:53"), kind, "0.0.0.0:0", peer)).unwrap();
            assert_eq!(new.flows().len(), usize::from(goes_on), "{peer:?}");
            assert_eq!(new.0.workers().counters().dropped(Reason::Denied), u64::from(!goes_on), "{peer:?}");
        }
        // An echo flow, and a connection that would speak by a socket of datagrams.
        let datagrams =
            Socket::sample(true, "0.0.0.0:0".parse().unwrap(), own.map(|peer| peer.parse().unwrap()));
        let guest: SocketAddr = "10.9.0.2:77".parse().unwrap();
        let session = Session::echo(&Timeouts::default(), Time::ZERO);
        let echo =
            state::EchoFlow { guest, socket: Fd(0), ttl: None, bytes_to_pod: 0, bytes_to_guest: 0, session };
        let tcp = inherited_tcp(guest, "10.9.0.7:53".parse().unwrap(), Time::ZERO);
        let bytes = stream(|to| {
            put(to, tag::SOCKET, &datagrams);
            put(to, tag::SOCKET, &datagrams);
            put(to, tag::WORKER, &WorkerState::default());
            put(to, tag::TCP, &state::TcpFlow { socket: Some(Fd(1)), ..tcp });
            put(to, tag::ECHO, &echo);
        });
        let new = workers_at(test_link(), 1, None);
        new.load(&bytes).unwrap();
        assert!(new.flows().iter().all(|f| f.0 == FlowKind::Tcp), "an echo flow has a socket of UDP");
        assert_eq!(new.0.workers().counters().dropped(Reason::Denied), 2);
    });
}

#[test]
fn a_flow_that_a_peer_is_said_to_have_begun_leads_nowhere_that_is_closed() {
    in_pod(|| {
        let egress = Egress { default: Action::Deny, ..Egress::default() };
        let denies = || Link { egress: Arc::new(egress.clone()), ..test_link() };
        let gateway = "10.9.0.1";
        for (link, seen, peer, reason) in [
            (test_link(), "10.9.0.7", "10.9.0.7", None),
            (test_link(), gateway, "127.0.0.1", Some(Reason::Denied)),
            (test_link(), "169.254.20.10", "169.254.20.10", Some(Reason::Denied)),
            (test_link(), "169.254.169.254", "169.254.169.254", Some(Reason::EgressDenied)),
            // Another name for it than the link has.
            (test_link(), "10.9.0.8", "10.9.0.7", Some(Reason::Denied)),
            (denies(), "10.9.0.7", "10.9.0.7", Some(Reason::EgressDenied)),
        ] {
            let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 5000);
            let key = ("10.9.0.2:7000".parse().unwrap(), at(seen));
            let flow = state::UdpFlow { key, pod_peer: at(peer), from_guest: false, ..inherited_udp(Fd(0)) };
            let new = workers_at(link, 1, None);
            new.load(&with_udp(&flow, true, "0.0.0.0:0", Some(&format!("{peer}:5000")))).unwrap();
            assert_eq!(new.flows().len(), usize::from(reason.is_none()), "{peer}");
            let counters = new.0.workers().counters();
            assert_eq!(
                reason.map_or(0, |reason| counters.dropped(reason)),
                u64::from(reason.is_some()),
                "{peer}"
            );
        }
    });
}

#[test]
fn no_port_is_bound_that_is_reserved_or_not_the_guests_own() {
    in_pod(|| {
        // `Ports::default` reserves those of Istio.
        let flow = flow_to("10.9.0.7:53");
        let new = workers_at(test_link(), 1, None);
        new.load(&with_udp(&flow, true, "0.0.0.0:15053", Some("10.9.0.7:53"))).unwrap();
        assert_eq!(new.flows().len(), 1);
        assert_ne!(local_of_udp(&new)[0].port(), 15_053);
        // An outlet that hears at port 40,053, for the guest's port 1 and for its own.
        let outlet = (1 << 18) + (1 << 17) + (1 << 16) + 40_053;
        for (guest, bound) in [("10.9.0.2:1", false), ("10.9.0.2:40053", true)] {
            let key = (guest.parse().unwrap(), flow.key.1);
            let shared =
                state::UdpFlow { key, socket: None, listener: Some(outlet), ..flow_to("10.9.0.7:53") };
            let new = workers_at(test_link(), 1, None);
            let bytes = stream(|to| {
                put(to, tag::WORKER, &WorkerState::default());
                put(to, tag::UDP, &shared);
            });
            new.load(&bytes).unwrap();
            // netd's socket shares its port with sockets alone that have SO_REUSEADDR, which this socket has not.
            assert_eq!(UdpSocket::bind("0.0.0.0:40053").is_err(), bound, "{guest}");
        }
    });
}
