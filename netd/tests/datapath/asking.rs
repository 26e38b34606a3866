//! Listed ports on which the guest does not listen: they are refused, not accepted and reset.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};

use etherparse::{PacketBuilder, PacketHeaders, TransportHeader};
use frontend_double::{Double, HEADER};
use netd::control::Control;

use crate::bed::raw::{CLIENT_V4, GUEST_V4};
use crate::bed::{
    Bed, GUEST_MAC, Listener, MAC, Namespace, Setup, TIMEOUT, assert_refused_late, eventually, exchange, tcp,
    udp, with_bed, with_pod,
};
use crate::silence::assert_no_answer;
use crate::update::Process;

fn asking() -> Setup {
    let ports = vec![tcp(7000, 7000), tcp(7001, 7001), tcp(8080, 80), udp(7000, 7000)];
    Setup { ports, ask_guest: true, ..Setup::default() }
}

/// Waits until connections to `to` are refused by the pod itself.
fn refused(client: &Namespace, to: SocketAddr) {
    eventually("a refusal", || match client.connect(to) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Some(()),
        // It was accepted, and reset in that moment or in the next.
        accepted => {
            assert_refused_late(accepted);
            None
        }
    });
}

/// Connects, once that is not refused, and has the guest accept. What the pod took earlier, and its client gave up, may be
/// at the guest's listener before.
fn connected(bed: &Bed, listener: &Listener, to: SocketAddr) -> (TcpStream, TcpStream) {
    let client = eventually("a connection", || bed.client.connect(to).ok());
    let guest = accepted(listener, &client);
    (client, guest)
}

/// The guest's end of the client's connection.
fn accepted(listener: &Listener, client: &TcpStream) -> TcpStream {
    let own = client.local_addr().unwrap().port();
    eventually("the client at the guest", || {
        let (guest, from) = listener.accept();
        (from.port() == own).then_some(guest)
    })
}

fn served(bed: &Bed, listener: &Listener, to: SocketAddr) {
    let (client, guest) = connected(bed, listener, to);
    exchange(&client, &guest, 10_000);
}

#[test]
fn a_port_is_refused_until_the_guest_listens_and_again_when_it_does_not() {
    with_bed(asking(), |bed| {
        for family in bed.families() {
            refused(&bed.client, family.pod(7000));
            refused(&bed.client, family.pod(8080));
            let listener = bed.guest.listen(family.any(80));
            served(bed, &listener, family.pod(8080));
            refused(&bed.client, family.pod(7001));
            drop(listener);
            // The first client finds it out for the others.
            refused(&bed.client, family.pod(8080));
        }
        let shut: Vec<_> = bed.netd.control.ports().iter().map(|p| (p.rule.pod, p.shut)).collect();
        assert_eq!(shut, [(7000, true), (7001, true), (8080, true), (7000, false)]);
        assert_eq!(bed.netd.status().listeners, 1);
    });
}

#[test]
fn a_service_of_one_family_keeps_the_port_open() {
    with_bed(asking(), |bed| {
        for family in bed.families() {
            refused(&bed.client, family.pod(7000));
            // Not the wildcard address, which may be of both.
            let listener = bed.guest.listen(family.guest(7000));
            for _ in 0..3 {
                served(bed, &listener, family.pod(7000));
            }
        }
    });
}

#[test]
fn ports_that_lead_to_one_port_of_the_guest_are_refused_together() {
    with_bed(asking(), |bed| {
        let [v4, _] = bed.families();
        refused(&bed.client, v4.pod(8080));
        let control = &bed.netd.control;
        assert_eq!(control.add_ports(vec![tcp(8081, 80)])[0].error, None);
        let e = bed.client.connect(v4.pod(8081)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        let listener = bed.guest.listen(v4.any(80));
        for port in [8080, 8081] {
            served(bed, &listener, v4.pod(port));
        }
        control.remove_ports(vec![tcp(8080, 80), tcp(8081, 80), tcp(7000, 7000), tcp(7001, 7001)]);
        assert_eq!(control.ports().len(), 1);
    });
}

#[test]
fn a_port_that_is_not_asked_about_any_more_is_open() {
    let many = (20_000..20_254).map(|port| tcp(port, port));
    let ports: Vec<_> =
        [tcp(6000, 80), tcp(6001, 80)].into_iter().chain(many).chain([tcp(7000, 7000)]).collect();
    with_bed(Setup { ports, ..asking() }, |bed| {
        let [v4, _] = bed.families();
        refused(&bed.client, v4.pod(7000));
        // There is one port more than may be asked about.
        let control = &bed.netd.control;
        control.remove_ports(vec![tcp(6001, 80)]);
        assert_eq!(control.add_ports(vec![tcp(6002, 81)])[0].error, None);
        assert_refused_late(bed.client.connect(v4.pod(7000)));
    });
}

#[test]
fn connections_that_are_there_outlive_the_end_of_listening() {
    with_bed(asking(), |bed| {
        for family in bed.families() {
            refused(&bed.client, family.pod(7000));
            let listener = bed.guest.listen(family.any(7000));
            let (client, guest) = connected(bed, &listener, family.pod(7000));
            drop(listener);
            refused(&bed.client, family.pod(7000));
            exchange(&client, &guest, 100_000);
        }
    });
}

#[test]
fn questions_are_answered_by_any_pair() {
    with_bed(Setup { pairs: 2, ..asking() }, |bed| {
        for family in bed.families() {
            refused(&bed.client, family.pod(7000));
            let listener = bed.guest.listen(family.any(7000));
            served(bed, &listener, family.pod(7000));
            drop(listener);
            refused(&bed.client, family.pod(7000));
        }
    });
}

#[test]
fn a_port_that_is_refused_is_silent_without_a_device_and_the_next_guest_has_who_waits() {
    with_bed(asking(), |bed| {
        let [v4, v6] = bed.families();
        refused(&bed.client, v4.pod(7000));
        bed.unplug();
        eventually("silence", || bed.netd.status().silent.then_some(()));
        assert_no_answer(&bed.client, v4.pod(7000));
        let client = bed.client.tcp(v4.pod(7000));
        let waiting = std::thread::spawn(move || {
            let connected = client.connect_timeout(&v4.pod(7000).into(), TIMEOUT);
            connected.map(|()| TcpStream::from(client))
        });
        // The guest listens by both families: where the answer of one family is late, netd goes by the other's refusal.
        let listener = [v4, v6].map(|family| bed.guest.listen(family.any(7000)));
        bed.plug();
        let waiting = waiting.join().unwrap().unwrap();
        exchange(&waiting, &accepted(&listener[0], &waiting), 1_000_000);
    });
}

#[test]
fn a_port_that_is_refused_is_silent_while_the_guest_is_paused() {
    with_bed(asking(), |bed| {
        let [v4, v6] = bed.families();
        let listener = bed.guest.listen(v6.any(7000));
        served(bed, &listener, v6.pod(7000));
        refused(&bed.client, v4.pod(7001));
        let pump = bed.pump.as_mut().unwrap();
        pump.pause().unwrap();
        let positions = pump.double().unwrap().stop_rings().unwrap();
        // Still, for a while.
        let e = bed.client.connect(v4.pod(7001)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        eventually("silence", || bed.netd.status().silent.then_some(()));
        assert!(bed.netd.control.ports().iter().all(|p| !p.shut));
        for to in [v4.pod(7001), v6.pod(7000)] {
            assert_no_answer(&bed.client, to);
        }
        let pump = bed.pump.as_mut().unwrap();
        pump.double().unwrap().go_on(&positions).unwrap();
        pump.resume().unwrap();
        served(bed, &listener, v6.pod(7000));
        refused(&bed.client, v4.pod(7001));
    });
}

#[test]
fn a_client_of_a_port_that_was_refused_before_the_pause_has_its_stream_once() {
    with_bed(asking(), |bed| {
        let [v4, v6] = bed.families();
        refused(&bed.client, v4.pod(7001));
        let pump = bed.pump.as_mut().unwrap();
        pump.pause().unwrap();
        let positions = pump.double().unwrap().stop_rings().unwrap();
        eventually("silence", || bed.netd.status().silent.then_some(()));
        let client = bed.client.tcp(v4.pod(7001));
        let waiting = std::thread::spawn(move || {
            let connected = client.connect_timeout(&v4.pod(7001).into(), TIMEOUT);
            connected.map(|()| TcpStream::from(client))
        });
        let listener = [v4, v6].map(|family| bed.guest.listen(family.any(7001)));
        let pump = bed.pump.as_mut().unwrap();
        pump.double().unwrap().go_on(&positions).unwrap();
        pump.resume().unwrap();
        let waiting = waiting.join().unwrap().unwrap();
        // More than one read takes: the kernel keeps the offset of the next one, if the listener has said so.
        exchange(&waiting, &accepted(&listener[0], &waiting), 1_000_000);
    });
}

/// The next question about a port of IPv4, and the guest's answer to it: a RST or a SYN-ACK.
fn answer(double: &mut Double, port: u16, listens: bool) {
    let (from, seq) = eventually("a question", || {
        let frame = double.pairs()[0].recv(TIMEOUT).unwrap()?;
        let packet = PacketHeaders::from_ethernet_slice(&frame[HEADER..]).ok()?;
        match (packet.net, packet.transport) {
            (Some(etherparse::NetHeaders::Ipv4(..)), Some(TransportHeader::Tcp(tcp)))
                if tcp.destination_port == port && tcp.syn =>
            {
                Some((tcp.source_port, tcp.sequence_number))
            }
            _ => None,
        }
    });
    let mut frame = vec![0; HEADER];
    let tcp = PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
        .ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64)
        .tcp(port, from, 1, 1000)
        .ack(seq.wrapping_add(1));
    if listens { tcp.syn() } else { tcp.rst() }.write(&mut frame, &[]).unwrap();
    eventually("room in the ring", || double.pairs()[0].send(&frame).unwrap().then_some(()));
}

#[test]
fn what_is_refused_stays_so_over_an_update_and_opens_after_it() {
    with_pod(Setup { ports: Vec::new(), ..Setup::default() }, |pod| {
        let mut process = Process::start(pod, "{tcp: [7000], udp: none, ask_guest: true}");
        let mut double = process.plug();
        let [v4, _] = pod.families();
        answer(&mut double, 7000, false);
        // What is accepted until then waits for a guest that says nothing.
        eventually("a refusal", || {
            pod.client.connect(v4.pod(7000)).err().filter(|e| e.kind() == ErrorKind::ConnectionRefused)
        });
        process.update(pod);
        let e = pod.client.connect(v4.pod(7000)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ConnectionRefused);
        answer(&mut double, 7000, true);
        eventually("a connection", || pod.client.connect(v4.pod(7000)).ok());
    });
}

#[test]
fn a_guest_that_is_silent_has_its_ports_open() {
    with_pod(Setup { ports: Vec::new(), ..Setup::default() }, |pod| {
        let process = Process::start(pod, "{tcp: [7000], udp: none, ask_guest: true}");
        let mut double = process.plug();
        // Two questions, and no answer to either.
        let mut asked = 0;
        while asked < 2 {
            let frame = double.pairs()[0].recv(TIMEOUT).unwrap().expect("no question came");
            let packet = PacketHeaders::from_ethernet_slice(&frame[HEADER..]).unwrap();
            asked += usize::from(matches!(
                (packet.net, packet.transport),
                (Some(etherparse::NetHeaders::Ipv4(..)), Some(TransportHeader::Tcp(tcp))) if tcp.syn
            ));
        }
        pod.client.connect(pod.families()[0].pod(7000)).unwrap();
    });
}
