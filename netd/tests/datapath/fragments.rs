//! Datagrams for the guest that are longer than its MTU: all of their fragments come, or none does.

use std::collections::BTreeMap;
use std::time::Duration;

use etherparse::{NetHeaders, PacketHeaders};
use frontend_double::{HEADER, Options};
use netd::counters::Reason;

use crate::bed::{PATIENCE, Raw, Setup, content, eventually, with_pod};

/// An MTU that makes a ring full of the fragments of one datagram.
const MTU: u16 = 300;
/// Bytes of payload in a fragment: what the MTU leaves beside a header of 20 bytes.
const PIECE: usize = 280;
/// Header of UDP, which the first fragment has.
const UDP: usize = 8;

fn small() -> Setup {
    Setup { mtu: MTU, ..Setup::default() }
}

fn pieces(len: usize) -> usize {
    (len + UDP).div_ceil(PIECE)
}

/// What came of each datagram, by the name that its fragments have: offset and bytes.
type Came = BTreeMap<u16, BTreeMap<usize, Vec<u8>>>;

/// Takes fragments for as long as some come within `patience`; how many.
fn take(raw: &mut Raw, came: &mut Came, patience: Duration, most: usize) -> usize {
    let mut count = 0;
    while count < most
        && let Some(frame) = raw.double.recv(patience).unwrap()
    {
        let Ok(packet) = PacketHeaders::from_ethernet_slice(&frame[HEADER..]) else { continue };
        let Some(NetHeaders::Ipv4(ip, _)) = packet.net.filter(NetHeaders::is_ipv4) else { continue };
        if !ip.is_fragmenting_payload() {
            continue;
        }
        let offset = usize::from(ip.fragment_offset.value()) * 8;
        // The end of the frame may be padding.
        let len = usize::from(ip.total_len) - 20;
        let at = HEADER + 14 + 20;
        let piece = frame[at..at + len].to_vec();
        assert!(came.entry(ip.identification).or_default().insert(offset, piece).is_none(), "twice");
        count += 1;
    }
    count
}

/// The payload of a datagram whose fragments are all there.
fn whole(pieces: &BTreeMap<usize, Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (offset, piece) in pieces {
        assert_eq!(*offset, bytes.len(), "a fragment is not there");
        bytes.extend(piece);
    }
    bytes.split_off(UDP)
}

#[test]
fn datagrams_of_more_fragments_than_a_ring_has_buffers_all_come_whole() {
    const DATAGRAMS: usize = 4;
    const LEN: usize = 50_000;
    with_pod(small(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        raw.ping();
        let [v4, _] = pod.families();
        let client = pod.client.udp(v4.client(5000));
        for i in 0..DATAGRAMS {
            client.send_to(&content(i as u64, LEN), v4.pod(7000)).unwrap();
        }
        // The guest takes nothing until netd has found its ring full.
        let counters = pod.netd.counters();
        eventually("a full ring", || (counters.guest_rx_empty.get() > 0).then_some(()));
        let mut came = Came::new();
        let all = DATAGRAMS * pieces(LEN);
        assert_eq!(take(&mut raw, &mut came, PATIENCE, all), all, "fragments were lost");
        let mut got: Vec<_> = came.values().map(whole).collect();
        for i in 0..DATAGRAMS {
            let at = got.iter().position(|bytes| *bytes == content(i as u64, LEN));
            got.swap_remove(at.expect("a datagram differs"));
        }
        assert_eq!(counters.udp_datagrams_to_guest.get(), DATAGRAMS as u64);
        assert_eq!(counters.dropped(Reason::NoRxBuffer), 0);
    });
}

#[test]
fn of_a_datagram_that_is_dropped_no_fragment_comes_and_it_counts_once() {
    // More fragments than wait for a ring of 16 buffers, and fewer.
    const LARGE: usize = 50_000;
    const SMALLER: usize = 20_000;
    with_pod(small(), |pod| {
        let mut raw = Raw::plug_as(&pod.netd, &Options { queue_size: 16, ..Options::default() });
        raw.ping();
        let [v4, _] = pod.families();
        let client = pod.client.udp(v4.client(5000));
        client.send_to(&content(1, LARGE), v4.pod(7000)).unwrap();
        eventually("the drop", || (pod.netd.dropped(Reason::NoRxBuffer) > 0).then_some(()));
        client.send_to(&content(2, SMALLER), v4.pod(7000)).unwrap();
        let mut came = Came::new();
        let all = pieces(SMALLER);
        assert_eq!(take(&mut raw, &mut came, PATIENCE, all), all, "fragments were lost");
        assert_eq!(came.len(), 1, "fragments of the other datagram came");
        assert!(came.values().all(|pieces| whole(pieces) == content(2, SMALLER)));
        assert_eq!(pod.netd.dropped(Reason::NoRxBuffer), 1);
        // Other frames have their places.
        raw.ping();
    });
}
