use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::wire::fold;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A whole frame: TCP or UDP over IPv4 or IPv6, with right checksums.
fn frame(v4: bool, tcp: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let six = |n: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n];
    let eth = PacketBuilder::ethernet2(A, B);
    let ip = if v4 { eth.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64) } else { eth.ipv6(six(1), six(2), 64) };
    match tcp {
        true => ip.tcp(80, 4000, 0xffff_fff0, 65_535).ack(7).psh().fin().write(&mut out, payload).unwrap(),
        false => ip.udp(53, 4000).write(&mut out, payload).unwrap(),
    }
    out
}

/// Whether every checksum of a frame is right, by another implementation.
fn is_right(frame: &[u8]) -> bool {
    let p = SlicedPacket::from_ethernet(frame).unwrap();
    match (p.net.unwrap(), p.transport.unwrap()) {
        (NetSlice::Ipv4(ip), transport) => {
            let header = ip.header();
            let ok = header.to_header().calc_header_checksum() == header.header_checksum();
            ok && match transport {
                TransportSlice::Tcp(t) => {
                    let expected = t.calc_checksum_ipv4(header.source(), header.destination()).unwrap();
                    t.checksum() == expected
                }
                TransportSlice::Udp(u) => {
                    let h = u.to_header();
                    let expected = h.calc_checksum_ipv4(&header.to_header(), u.payload()).unwrap();
                    u.checksum() == expected
                }
                _ => false,
            }
        }
        (NetSlice::Ipv6(ip), transport) => {
            let header = ip.header().to_header();
            match transport {
                TransportSlice::Tcp(t) => {
                    t.checksum() == t.calc_checksum_ipv6(header.source, header.destination).unwrap()
                }
                TransportSlice::Udp(u) => {
                    u.checksum() == u.to_header().calc_checksum_ipv6(&header, u.payload()).unwrap()
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// What a guest with checksum offload puts into its ring: the pseudo header's sum in the field.
fn offloaded(v4: bool, tcp: bool, payload: &[u8], gso_size: u16) -> (Vec<u8>, VnetHeader) {
    let mut bytes = frame(v4, tcp, payload);
    let start = 14 + if v4 { 20 } else { 40 };
    let offset = if tcp { 16 } else { 6 };
    let headers = Headers::parse(&bytes, bytes.len());
    let ends = headers.ip.unwrap();
    let len = bytes.len() - start;
    let pseudo = crate::wire::pseudo_header(ends.src, ends.dst, headers.protocol.unwrap(), len);
    bytes[start + offset..start + offset + 2].copy_from_slice(&fold(pseudo).to_be_bytes());
    let gso = match (gso_size > 0, v4) {
        (false, _) => GsoType::None,
        (true, true) => GsoType::TcpV4,
        (true, false) => GsoType::TcpV6,
    };
    let vnet = VnetHeader {
        needs_csum: true,
        gso,
        gso_size,
        csum_start: start as u16,
        csum_offset: offset as u16,
        ..VnetHeader::PLAIN
    };
    (bytes, vnet)
}

fn settings(segment: bool) -> Settings {
    Settings { id: 1, filter: Filter::default(), snaplen: MAX_SNAPLEN, segment, buffer_bytes: 1 << 20 }
}

/// Offers frames, in slices of odd lengths, and gives what the reader gets.
fn tapped(settings: Settings, frames: &[(Vec<u8>, VnetHeader)]) -> (Vec<Packet>, Reader) {
    let (end, mut reader) = tap(settings);
    let taps = Taps::add(None, end).unwrap();
    for (bytes, vnet) in frames {
        let whole = [vnet.to_bytes().as_slice(), bytes].concat();
        let total = whole.len();
        let owned = Iovs::from_owned(whole);
        let mut slices = Iovs::new();
        let mut at = 0;
        while at < total {
            at += slices.append(&owned, at, 37);
        }
        taps.offer(Direction::Outbound, &slices, 0, total, vnet);
    }
    drop(taps);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let packets = runtime.block_on(async {
        let mut all = Vec::new();
        loop {
            let some = reader.read(16).await;
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    });
    (packets, reader)
}

#[test]
fn checksums_left_to_the_device_are_completed() {
    for (v4, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
        for payload in [&b""[..], b"x", b"odd number of bytes", &[0xff; 1400]] {
            let (bytes, vnet) = offloaded(v4, tcp, payload, 0);
            assert!(!is_right(&bytes));
            let (packets, _) = tapped(settings(false), &[(bytes, vnet)]);
            assert_eq!(packets[0].data, frame(v4, tcp, payload), "{v4} {tcp}");
            assert!(is_right(&packets[0].data));
            assert_eq!((packets[0].len as usize, packets[0].gso_size), (packets[0].data.len(), 0));
        }
    }
}

#[test]
fn a_udp_checksum_of_zero_is_shown_as_its_complement() {
    // The last word is chosen so that the sum comes out as zero.
    let (bytes, _) = offloaded(true, false, &[0, 0], 0);
    let rest = fold(crate::wire::sum(&bytes[34..], 0));
    let (bytes, vnet) = offloaded(true, false, &(!rest).to_be_bytes(), 0);
    let (packets, _) = tapped(settings(false), &[(bytes, vnet)]);
    assert_eq!(packets[0].data[40..42], [0xff, 0xff]);
}

#[test]
fn a_large_frame_is_shown_whole_with_its_checksum_or_as_segments() {
    let payload: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
    for v4 in [true, false] {
        let input = [offloaded(v4, true, &payload, 1448)];
        let (packets, _) = tapped(settings(false), &input);
        assert_eq!((packets.len(), packets[0].gso_size), (1, 1448));
        assert!(is_right(&packets[0].data));

        let (packets, reader) = tapped(settings(true), &input);
        assert_eq!(packets.len(), 7);
        assert_eq!(reader.matched(), 1);
        let mut joined = Vec::new();
        for (i, p) in packets.iter().enumerate() {
            assert!(is_right(&p.data), "segment {i}");
            let sliced = SlicedPacket::from_ethernet(&p.data).unwrap();
            let Some(TransportSlice::Tcp(t)) = sliced.transport else { panic!("no TCP") };
            assert_eq!(t.sequence_number(), 0xffff_fff0u32.wrapping_add(1448 * i as u32));
            assert_eq!((t.fin(), t.psh(), t.ack()), (i == 6, i == 6, true));
            if let Some(NetSlice::Ipv4(ip)) = sliced.net {
                assert_eq!(ip.header().identification(), i as u16);
            }
            joined.extend_from_slice(t.payload());
        }
        assert_eq!(joined, payload);
    }
}

#[test]
fn a_snap_length_cuts_what_is_kept_and_nothing_else() {
    let payload = vec![3; 5000];
    let (whole, _) = tapped(settings(false), &[offloaded(true, true, &payload, 1000)]);
    let short = |segment| Settings { snaplen: 60, ..settings(segment) };
    let (cut, _) = tapped(short(false), &[offloaded(true, true, &payload, 1000)]);
    assert_eq!((cut[0].data.as_slice(), cut[0].len), (&whole[0].data[..60], whole[0].len));
    let (cut, _) = tapped(short(true), &[offloaded(true, true, &payload, 1000)]);
    assert_eq!(cut.iter().map(|p| (p.data.len(), p.len)).collect::<Vec<_>>(), [(60, 1054); 5]);
}

#[test]
fn a_frame_that_claims_tiny_segments_is_shown_whole() {
    for (len, size, shown) in
        [(65_000, 1, 1), (65_000, 500, 1), (65_000, 508, 128), (128, 1, 128), (129, 1, 1)]
    {
        let (packets, _) = tapped(settings(true), &[offloaded(true, true, &vec![3; len], size)]);
        assert_eq!(packets.len(), shown, "{len} bytes by {size}");
        assert_eq!(packets.iter().map(|p| p.data.len() - 54).sum::<usize>(), len);
    }
}

#[test]
fn a_full_queue_drops_and_counts_and_what_is_read_makes_room() {
    let one = offloaded(true, false, &[0; 100], 0);
    let room = cost(one.0.len());
    let limited = Settings { buffer_bytes: 3 * room, ..settings(false) };
    let (packets, reader) = tapped(limited, &vec![one; 10]);
    assert_eq!((packets.len(), reader.matched(), reader.dropped()), (3, 10, 7));
    assert_eq!(reader.shared.queued_bytes.load(Relaxed), 0);
}

#[test]
fn only_what_the_filter_lets_through_is_copied() {
    let filtered = Settings { filter: "udp and outbound".parse().unwrap(), ..settings(false) };
    let frames = [offloaded(true, true, b"tcp", 0), offloaded(false, false, b"udp", 0)];
    let (packets, reader) = tapped(filtered, &frames);
    assert_eq!((packets.len(), reader.matched()), (1, 1));
    assert_eq!(packets[0].data[12..14], [0x86, 0xdd]);
}

#[test]
fn a_tap_that_is_forgotten_ends_its_reader() {
    let (first, mut reader) = tap(settings(false));
    let (second, _other) = tap(Settings { id: 2, ..settings(false) });
    let taps = Taps::add(Taps::add(None, first), second);
    let taps = Taps::remove(taps, 1);
    assert!(taps.is_some());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(reader.read(1)), []);
    assert!(Taps::remove(taps, 2).is_none());
}

proptest! {
    #[test]
    fn no_frame_of_the_guest_makes_a_tap_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        header in any::<[u8; VNET_LEN]>(),
        segment in any::<bool>(),
    ) {
        if let Some(vnet) = VnetHeader::parse(&header) {
            let (packets, _) = tapped(settings(segment), &[(bytes, vnet)]);
            prop_assert!(!packets.is_empty());
        }
    }
}
