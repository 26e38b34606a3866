//! Datagrams for the guest that are longer than its MTU: all of their fragments come, or none does.

use std::collections::BTreeMap;
use std::time::Duration;

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, NetHeaders, PacketHeaders};
use frontend_double::{HEADER, Options};
use netd::counters::Reason;

use crate::bed::raw::{CLIENT_V4, GUEST_V4};
use crate::bed::{GUEST_MAC, MAC, Raw, Setup, TIMEOUT, content, eventually, with_pod};

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

/// Takes fragments for as long as some come within `timeout`; how many.
fn take(raw: &mut Raw, came: &mut Came, timeout: Duration, most: usize) -> usize {
    let mut count = 0;
    while count < most
        && let Some(frame) = raw.double.recv(timeout).unwrap()
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
        assert_eq!(take(&mut raw, &mut came, TIMEOUT, all), all, "fragments were lost");
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
        assert_eq!(take(&mut raw, &mut came, TIMEOUT, all), all, "fragments were lost");
        assert_eq!(came.len(), 1, "fragments of the other datagram came");
        assert!(came.values().all(|pieces| whole(pieces) == content(2, SMALLER)));
        assert_eq!(pod.netd.dropped(Reason::NoRxBuffer), 1);
        // Other frames have their places.
        raw.ping();
    });
}

/// Pings the client by a message of so many bytes, which the guest cuts into fewer pieces than its MTU asks for: netd takes
/// only so many of one packet.
fn ping(raw: &mut Raw, sequence: u8, len: usize) {
    const SENT: usize = 1400;
    let mut message = [&[8, 0, 0, 0, 0, 9, 0, sequence][..], &content(3, len - 8)].concat();
    let words = message.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)])));
    let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let last = (len - 1) / SENT;
    for (at, piece) in message.chunks(SENT).enumerate() {
        let (from, to) = (GUEST_V4.octets(), CLIENT_V4.octets());
        let mut header = Ipv4Header::new(piece.len() as u16, 64, IpNumber::ICMP, from, to).unwrap();
        header.identification = sequence.into();
        header.more_fragments = at < last;
        header.fragment_offset = IpFragOffset::try_new((at * SENT / 8) as u16).unwrap();
        header.header_checksum = header.calc_header_checksum();
        raw.send(&[&MAC.0[..], &GUEST_MAC.0, &[8, 0], &header.to_bytes(), piece].concat());
    }
}

#[test]
fn of_an_echo_reply_that_is_dropped_no_fragment_comes_and_it_counts_once() {
    // More fragments than may wait for the ring, and fewer.
    const LARGE: usize = 50_000;
    const SMALLER: usize = 20_000;
    with_pod(small(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        raw.ping();
        ping(&mut raw, 1, LARGE);
        eventually("the drop", || (pod.netd.dropped(Reason::NoRxBuffer) > 0).then_some(()));
        ping(&mut raw, 2, SMALLER);
        let mut came = Came::new();
        let all = SMALLER.div_ceil(PIECE);
        assert_eq!(take(&mut raw, &mut came, TIMEOUT, all), all, "fragments were lost");
        assert_eq!(came.len(), 1, "fragments of the other reply came");
        assert_eq!(came.values().flat_map(|pieces| pieces.values()).map(Vec::len).sum::<usize>(), SMALLER);
        assert_eq!(pod.netd.dropped(Reason::NoRxBuffer), 1);
    });
}
