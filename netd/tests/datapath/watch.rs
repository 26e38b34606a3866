//! What an operator who watches is shown: frames of the link, rows of the flow table.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use netd::control::{Control, FlowInfo, FlowQuery};
use netd::tap::{self, Direction, MAX_SNAPLEN, Packet};

use crate::bed::{Bed, Family, Setup, content, eventually, transfer, with_bed};

/// Every frame that passes while `run` does and `filter` lets through.
fn captured(bed: &Bed, filter: &str, segment: bool, run: impl FnOnce()) -> Vec<Packet> {
    let (id, snaplen, buffer_bytes) = (7, MAX_SNAPLEN, 256 << 20);
    let filter = filter.parse().unwrap();
    let (end, mut reader) = tap::tap(tap::Settings { id, filter, snaplen, segment, buffer_bytes });
    assert!(bed.netd.control.tap(end));
    // The worker has the tap once it has answered something else.
    bed.netd.status();
    run();
    bed.netd.control.untap(id);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let packets = runtime.block_on(async {
        let mut all = Vec::new();
        loop {
            match reader.read(1000).await {
                some if some.is_empty() => return all,
                some => all.extend(some),
            }
        }
    });
    assert_eq!(reader.dropped(), 0);
    packets
}

/// The payload of a TCP frame with right checksums, its first sequence number and whether it is a SYN.
fn tcp(frame: &[u8]) -> (u32, bool, Vec<u8>) {
    let p = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(t)) = &p.transport else { panic!("no TCP") };
    let expected = match p.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let h = ip.header();
            assert_eq!(h.to_header().calc_header_checksum(), h.header_checksum());
            t.calc_checksum_ipv4(h.source(), h.destination()).unwrap()
        }
        NetSlice::Ipv6(ip) => {
            let h = ip.header().to_header();
            t.calc_checksum_ipv6(h.source, h.destination).unwrap()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(t.checksum(), expected);
    (t.sequence_number(), t.syn(), t.payload().to_vec())
}

/// What one side said in order, put together from its frames.
fn stream(packets: &[Packet], direction: Direction) -> Vec<u8> {
    let mut parts = BTreeMap::new();
    let mut first = None;
    for p in packets.iter().filter(|p| p.direction == direction) {
        assert_eq!(p.data.len(), p.len as usize);
        let (seq, syn, payload) = tcp(&p.data);
        if syn {
            first = Some(seq.wrapping_add(1));
        }
        let at = seq.wrapping_sub(first.expect("the SYN comes first"));
        let known: &mut Vec<u8> = parts.entry(at).or_default();
        if payload.len() > known.len() {
            *known = payload;
        }
    }
    let mut all = Vec::new();
    for (at, payload) in parts {
        // A keepalive or a window probe stands in front of what is next.
        if at as usize <= all.len() {
            let known = all.len() - at as usize;
            all.extend_from_slice(payload.get(known..).unwrap_or_default());
        }
    }
    all
}

#[test]
fn a_capture_has_every_byte_of_both_directions_with_right_checksums() {
    const LEN: usize = 1 << 20;
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            for segment in [false, true] {
                let filter = "tcp port 7000 and not arp";
                let packets = captured(bed, filter, segment, || {
                    let listener = bed.client.listen(family.client(7000));
                    let guest = bed.guest.connect(family.client(7000)).unwrap();
                    let (client, _) = listener.accept();
                    transfer(&guest, &client, 1, LEN);
                    transfer(&client, &guest, 2, LEN);
                });
                assert!(stream(&packets, Direction::Outbound) == content(1, LEN), "{family:?} {segment}");
                assert!(stream(&packets, Direction::Inbound) == content(2, LEN), "{family:?} {segment}");
                let largest = packets.iter().map(|p| p.len).max().unwrap();
                if segment {
                    assert!(largest <= 1514, "{largest}");
                    assert!(packets.iter().all(|p| p.gso_size == 0));
                } else {
                    assert!(packets.iter().any(|p| p.gso_size > 0 && p.len > 1514), "{largest}");
                }
            }
        }
    });
}

#[test]
fn frames_that_are_dropped_are_seen_and_a_filter_keeps_others_away() {
    with_bed(Setup::default(), |bed| {
        let family: Family = bed.families()[0];
        let packets = captured(bed, "udp dst port 9 or icmp or icmp6", false, || {
            // No socket listens there: the answer is an error of the pod's network.
            let socket = bed.guest.udp(family.any(0));
            socket.connect(family.client(9)).unwrap();
            socket.send(b"question").unwrap();
            assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        });
        let out = packets.iter().filter(|p| p.direction == Direction::Outbound).count();
        let back = packets.iter().filter(|p| p.direction == Direction::Inbound).count();
        assert!(out >= 1 && back >= 1, "{out} {back}");
    });
}

#[test]
fn a_flow_tells_its_round_trips_and_what_waits() {
    with_bed(Setup::default(), |bed| {
        let family = bed.families()[0];
        let listener = bed.guest.listen(family.any(7000));
        let client = bed.client.connect(family.pod(7000)).unwrap();
        let (guest, _) = listener.accept();
        transfer(&guest, &client, 1, 100_000);
        transfer(&client, &guest, 2, 300_000);
        let flow = |query: FlowQuery| -> Option<FlowInfo> {
            let flows = bed.netd.control.flows(query);
            assert!(flows.len() <= 1, "{flows:?}");
            flows.into_iter().next()
        };
        let own = || FlowQuery {
            pod_peer: Some(client.local_addr().unwrap()),
            states: vec!["established".into()],
            sockets: true,
            ..FlowQuery::default()
        };
        let row = eventually("an acknowledged flow", || {
            flow(own()).filter(|f| f.tcp.is_some_and(|t| t.in_flight == 0))
        });
        assert_eq!((row.bytes_to_pod, row.bytes_to_guest, row.from_guest), (100_000, 300_000, false));
        let tcp = row.tcp.unwrap();
        assert!(tcp.guest_rtt.is_some_and(|rtt| rtt < Duration::from_secs(10)), "{tcp:?}");
        assert!(tcp.guest_window > 0 && tcp.pod_window > 0, "{tcp:?}");
        let socket = tcp.socket.unwrap();
        assert!(socket.rtt > Duration::ZERO, "{socket:?}");
        eventually("empty queues", || {
            let s = flow(own())?.tcp?.socket?;
            (s.send_queue == 0 && s.receive_queue == 0).then_some(())
        });
        assert!(flow(FlowQuery { ports: vec![7001], ..own() }).is_none());
        let states = bed.netd.status().tcp_states;
        assert_eq!(states, [("ESTABLISHED", 1)]);
    });
}
