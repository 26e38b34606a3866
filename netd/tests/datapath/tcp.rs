//! TCP: content, closing, refusals.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use etherparse::PacketBuilder;
use netd::control::{Control, FlowQuery};
use netd::counters::Reason;
use socket2::SockRef;

use crate::bed::{
    Bed, Family, GUEST_MAC, MAC, Raw, Setup, TIMEOUT, assert_refused_late, assert_reset, content, eventually,
    exchange, expect_end, read_exactly, read_to_end, transfer, with_bed, with_pod,
};

/// The side that opens a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Opener {
    Guest,
    Client,
}

const BOTH: [Opener; 2] = [Opener::Guest, Opener::Client];

/// A connection: the guest's end and the client's.
pub(crate) fn open(bed: &Bed, family: Family, by: Opener) -> (TcpStream, TcpStream) {
    match by {
        Opener::Guest => {
            let listener = bed.client.listen(family.client(7000));
            let guest = bed.guest.connect(family.client(7000)).unwrap();
            let (client, from) = listener.accept();
            assert_eq!(from.ip(), family.pod);
            (guest, client)
        }
        Opener::Client => {
            let listener = bed.guest.listen(family.any(7000));
            let client = bed.client.connect(family.pod(7000)).unwrap();
            let (guest, from) = listener.accept();
            assert_eq!(from, client.local_addr().unwrap());
            (guest, client)
        }
    }
}

/// Each family, opened by each side.
pub(crate) fn cases(bed: &Bed) -> impl Iterator<Item = (Family, Opener)> + use<> {
    bed.families().into_iter().flat_map(|family| BOTH.map(|by| (family, by)))
}

#[test]
fn content_of_any_length_passes_both_ways_unchanged() {
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            for len in [0, 1, 2 << 10, 5 << 10, 10 << 20] {
                eprintln!("{family:?}, opened by {by:?}, {len} bytes");
                let (guest, client) = open(bed, family, by);
                exchange(&guest, &client, len);
            }
        }
        let c = bed.netd.counters();
        assert_eq!((c.tcp_opened_by_guest.get(), c.tcp_opened_by_pod.get()), (10, 10));
        assert!(c.tcp_bytes_to_pod.get() >= 40 << 20);
        assert!(c.tcp_bytes_to_guest.get() >= 40 << 20);
    });
}

#[test]
fn content_passes_where_the_kernel_keeps_no_offset() {
    with_bed(Setup { peek_offset: false, ..Setup::default() }, |bed| {
        for (family, by) in cases(bed) {
            let (guest, client) = open(bed, family, by);
            exchange(&guest, &client, 10 << 20);
        }
        assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
    });
}

#[test]
fn a_direction_goes_on_when_the_other_has_ended() {
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            for guest_first in [true, false] {
                eprintln!("{family:?}, opened by {by:?}, the guest ends first: {guest_first}");
                let (guest, client) = open(bed, family, by);
                let (first, last) = if guest_first { (&guest, &client) } else { (&client, &guest) };
                transfer(first, last, 3, 100_000);
                first.shutdown(Shutdown::Write).unwrap();
                expect_end(last);
                transfer(last, first, 4, 3_000_000);
                last.shutdown(Shutdown::Write).unwrap();
                expect_end(first);
            }
        }
        // RFC 9293 3.6: what has ended in order was not reset.
        assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
    });
}

#[test]
fn a_request_with_its_end_is_answered() {
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            let (guest, mut client) = open(bed, family, by);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let request = read_to_end(&guest);
                    (&guest).write_all(&request).unwrap();
                    guest.shutdown(Shutdown::Write).unwrap();
                });
                let request = content(5, 2_000_000);
                client.write_all(&request).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                assert!(read_to_end(&client) == request);
            });
        }
    });
}

#[test]
fn a_refused_connection_is_refused_at_once() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let error = bed.guest.connect(family.client(9)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
        }
        assert!(bed.netd.counters().tcp_refused.get() >= 2);
    });
}

#[test]
fn an_unreachable_destination_is_an_error_and_not_a_timeout() {
    with_bed(Setup::default(), |bed| {
        // Without a route in the pod.
        bed.pod.ip("route del default via 10.9.0.1\nroute del default via fd00:9::1\n");
        for to in ["198.51.100.1:80", "[2001:db8:1::1]:80"] {
            let error = bed.guest.connect(to.parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{to}: {error}");
        }
        // A router says so.
        bed.pod.ip("route add default via 10.9.0.1\nroute add default via fd00:9::1\n");
        bed.client.sysctl("ipv4/ip_forward", "1");
        bed.client.sysctl("ipv6/conf/all/forwarding", "1");
        bed.client.ip("route add unreachable 198.51.100.0/24\nroute add unreachable 2001:db8:1::/64\n");
        // ICMPv6 knows no unreachable host but by an unreachable address: Linux's router says "no route".
        for (to, kind) in [
            ("198.51.100.2:80", ErrorKind::HostUnreachable),
            ("[2001:db8:1::2]:80", ErrorKind::NetworkUnreachable),
        ] {
            let error = bed.guest.connect(to.parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), kind, "{to}: {error}");
        }
        // No host has the address.
        for family in ["ipv4", "ipv6"] {
            bed.pod.sysctl(&format!("{family}/neigh/eth0/mcast_solicit"), "1");
            bed.pod.sysctl(&format!("{family}/neigh/eth0/retrans_time_ms"), "100");
        }
        for to in ["10.9.0.77:80", "[fd00:9::77]:80"] {
            let error = bed.guest.connect(to.parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::HostUnreachable, "{to}: {error}");
        }
    });
}

#[test]
fn a_closed_port_of_the_guest_resets_the_client() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            assert_refused_late(bed.client.connect(family.pod(7000)));
        }
    });
}

#[test]
fn a_guest_that_does_not_acknowledge_is_told_again() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let mut client = pod.client.connect("10.9.0.2:7000".parse().unwrap()).unwrap();
        client.write_all(b"hello").unwrap();
        let sent_again = || pod.netd.counters().tcp_retransmits.get();
        // The first SYN is left alone, the second one answered.
        let (first, _) = raw.expect_tcp();
        assert!(first.syn && !first.ack);
        let (syn, _) = raw.expect_tcp();
        assert_eq!((syn.syn, syn.sequence_number), (true, first.sequence_number));
        let mut answer = Vec::new();
        PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0)
            .ipv4([10, 9, 0, 2], [10, 9, 0, 1], 64)
            .tcp(7000, syn.source_port, 1000, 5000)
            .syn()
            .ack(syn.sequence_number + 1)
            .write(&mut answer, &[])
            .unwrap();
        raw.send(&answer);
        // The data comes again.
        for _ in 0..2 {
            let (data, _) = std::iter::repeat_with(|| raw.expect_tcp()).find(|t| !t.1.is_empty()).unwrap();
            assert_eq!(data.sequence_number, syn.sequence_number + 1);
        }
        eventually("a count of both", || (sent_again() >= 2).then_some(()));
    });
}

#[test]
fn a_port_can_lead_to_another_one_of_the_guest() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let listener = bed.guest.listen(family.any(80));
            let client = bed.client.connect(family.pod(8080)).unwrap();
            exchange(&listener.accept().0, &client, 5000);
        }
    });
}

#[test]
fn a_reset_in_the_middle_reaches_the_other_end() {
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            for guest_resets in [true, false] {
                eprintln!("{family:?}, opened by {by:?}, the guest resets: {guest_resets}");
                let (guest, client) = open(bed, family, by);
                let (resets, suffers) = if guest_resets { (guest, client) } else { (client, guest) };
                transfer(&resets, &suffers, 6, 1 << 20);
                // More is on its way to it, and it was sent something that is not read.
                (&suffers).write_all(&content(7, 50_000)).unwrap();
                SockRef::from(&resets).set_linger(Some(Duration::ZERO)).unwrap();
                drop(resets);
                assert_reset(&suffers);
            }
        }
    });
}

/// What comes until the connection breaks by a reset; an orderly end fails.
fn read_to_reset(mut from: &TcpStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match from.read(&mut buffer) {
            Ok(0) => panic!("the connection ended in order after {} bytes", all.len()),
            Ok(n) => all.extend(&buffer[..n]),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}");
                return all;
            }
        }
    }
}

/// The peer answers, does not read what the guest has sent, and closes once the pod has the answer: its kernel resets.
fn answer_early(guest: &TcpStream, client: TcpStream, answer: &[u8]) {
    (&*guest).write_all(&content(10, 20_000)).unwrap();
    read_exactly(&client, &content(10, 20_000)[..10]);
    (&client).write_all(answer).unwrap();
    eventually("an acknowledgement of all", || {
        let info = netd::sys::tcp_info(client.as_fd()).unwrap();
        (info.unacked == 0 && info.notsent_bytes == 0).then_some(())
    });
    drop(client);
}

#[test]
fn what_a_peer_has_sent_before_it_resets_arrives_before_the_reset() {
    for peek_offset in [true, false] {
        with_bed(Setup { peek_offset, ..Setup::default() }, |bed| {
            for (family, by) in cases(bed) {
                for len in [100, 300_000] {
                    eprintln!("{family:?}, opened by {by:?}, {len} bytes");
                    let (guest, client) = open(bed, family, by);
                    let answer = content(11, len);
                    std::thread::scope(|scope| {
                        scope.spawn(|| answer_early(&guest, client, &answer));
                        assert!(read_to_reset(&guest) == answer);
                    });
                }
            }
        });
    }
}

#[test]
fn a_guest_whose_window_was_closed_reads_all_that_came_before_the_reset() {
    with_bed(Setup::default(), |bed| {
        // The rest waits in the pod's socket.
        bed.guest.sysctl("ipv4/tcp_rmem", "4096 8192 8192");
        for (family, by) in cases(bed) {
            let (guest, client) = open(bed, family, by);
            let answer = content(12, 50_000);
            answer_early(&guest, client, &answer);
            std::thread::sleep(Duration::from_millis(200));
            assert!(read_to_reset(&guest) == answer);
        }
    });
}

#[test]
fn a_reset_of_either_side_counts_once() {
    with_bed(Setup::default(), |bed| {
        let resets = || bed.netd.counters().tcp_resets.get();
        let mut expected = 0;
        for (family, by) in cases(bed) {
            for guest_resets in [true, false] {
                let (guest, client) = open(bed, family, by);
                let (resetter, other) = if guest_resets { (guest, client) } else { (client, guest) };
                SockRef::from(&resetter).set_linger(Some(Duration::ZERO)).unwrap();
                drop(resetter);
                assert_reset(&other);
                expected += 1;
                eventually("its count", || (resets() == expected).then_some(()));
            }
            // Refused by the guest's kernel: never open.
            assert_refused_late(bed.client.connect(family.pod(7001)));
        }
        eventually("no flow", || bed.netd.control.flows(FlowQuery::default()).is_empty().then_some(()));
        assert_eq!(resets(), expected);
    });
}

#[test]
fn who_closes_with_unread_data_resets_the_other_end() {
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            for guest_closes in [true, false] {
                eprintln!("{family:?}, opened by {by:?}, the guest closes: {guest_closes}");
                let (guest, client) = open(bed, family, by);
                let (closes, suffers) = if guest_closes { (guest, client) } else { (client, guest) };
                (&suffers).write_all(&content(8, 20_000)).unwrap();
                // It has some of it for sure.
                read_exactly(&closes, &content(8, 20_000)[..10]);
                drop(closes);
                assert_reset(&suffers);
            }
        }
    });
}

#[test]
fn what_waits_when_both_ends_have_closed_still_goes_out() {
    with_bed(Setup::default(), |bed| {
        // What the guest sends waits in the pod's socket.
        bed.client.sysctl("ipv4/tcp_rmem", "4096 8192 8192");
        for (family, by) in cases(bed) {
            let (guest, client) = open(bed, family, by);
            client.shutdown(Shutdown::Write).unwrap();
            expect_end(&guest);
            let bytes = content(13, 20_000);
            (&guest).write_all(&bytes).unwrap();
            drop(guest);
            let flows = || bed.netd.control.flows(FlowQuery::default());
            eventually("netd is done", || flows().iter().all(|f| f.state == "TIME-WAIT").then_some(()));
            assert!(read_to_end(&client) == bytes);
        }
        assert_eq!(bed.netd.counters().tcp_resets.get(), 0);
    });
}

#[test]
fn nothing_is_lost_while_a_reader_rests() {
    with_bed(Setup::default(), |bed| {
        let bytes = content(9, 32 << 20);
        let connections: Vec<_> = cases(bed)
            .flat_map(|(family, by)| [true, false].map(|guest_reads| (open(bed, family, by), guest_reads)))
            .collect();
        std::thread::scope(|scope| {
            for ((guest, client), guest_reads) in &connections {
                let (writer, reader) = if *guest_reads { (client, guest) } else { (guest, client) };
                scope.spawn(|| rest_and_drain(writer, reader, &bytes));
            }
        });
    });
}

/// Writes until nothing at all has gone for more than two seconds, by when every window is closed; only then
/// reads.
fn rest_and_drain(mut writer: &TcpStream, reader: &TcpStream, bytes: &[u8]) {
    writer.set_write_timeout(Some(Duration::from_millis(2500))).unwrap();
    let mut sent = 0;
    let stopped = loop {
        match writer.write(&bytes[sent..]) {
            Ok(n) => sent += n,
            Err(e) => break e,
        }
        assert!(sent + (1 << 20) < bytes.len(), "nothing stops the writer");
    };
    assert_eq!(stopped.kind(), ErrorKind::WouldBlock, "{stopped}");
    let all = sent + (1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.set_write_timeout(Some(TIMEOUT)).unwrap();
            writer.write_all(&bytes[sent..all]).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        read_exactly(reader, &bytes[..all]);
        expect_end(reader);
    });
}

#[test]
fn five_hundred_connections_at_once_each_way() {
    const MANY: u64 = 500;
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            eprintln!("{family:?}, opened by {by:?}");
            let (listener, to, opener) = match by {
                Opener::Guest => (bed.client.listen(family.client(7000)), family.client(7000), &bed.guest),
                Opener::Client => (bed.guest.listen(family.any(7000)), family.pod(7000), &bed.client),
            };
            let (opened, accepted): (Vec<TcpStream>, Vec<TcpStream>) = std::thread::scope(|scope| {
                let opened = scope.spawn(|| (0..MANY).map(|_| opener.connect(to).unwrap()).collect());
                let accepted = (0..MANY).map(|_| listener.accept().0).collect();
                (opened.join().unwrap(), accepted)
            });
            // All at once, then all answers. Each tells its number: netd's ports are not the guest's.
            for (i, mut s) in (0..).zip(&opened) {
                s.write_all(&u64::to_be_bytes(i)).unwrap();
                s.write_all(&content(i, 4096)).unwrap();
            }
            let mut seen = vec![false; MANY as usize];
            for mut s in &accepted {
                let mut number = [0; 8];
                s.read_exact(&mut number).unwrap();
                let i = u64::from_be_bytes(number);
                assert!(!std::mem::replace(&mut seen[i as usize], true));
                read_exactly(s, &content(i, 4096));
                s.write_all(&content(MANY + i, 4096)).unwrap();
            }
            for (i, s) in (0..).zip(&opened) {
                read_exactly(s, &content(MANY + i, 4096));
            }
        }
        assert_eq!(bed.netd.dropped(Reason::FlowLimit), 0);
    });
}
