//! Facts about reassembly; etherparse builds the packets, a fragmenter of the tests' own cuts them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::{Expired, Limits, Outcome, Reassembler, TIMEOUT, is_fragment, split, split_frame};
use crate::counters::Reason;
use crate::time::Time;

const LIMITS: Limits = Limits { max_datagrams: 8, max_bytes: 300_000 };
const FRAGMENT: Outcome = Outcome::Dropped(Reason::Fragment);

fn udp_packet(v6: bool, len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
    let builder = if v6 {
        let (from, to): (Ipv6Addr, Ipv6Addr) = ("fd00:9::2".parse().unwrap(), "fd00::1".parse().unwrap());
        PacketBuilder::ipv6(from.octets(), to.octets(), 64)
    } else {
        PacketBuilder::ipv4([10, 9, 0, 2], [192, 0, 2, 1], 64)
    };
    let mut packet = vec![];
    builder.udp(4000, 53).write(&mut packet, &payload).unwrap();
    // etherparse sets the don't-fragment bit.
    if !v6 {
        packet[6] = 0;
        seal(&mut packet);
    }
    packet
}

/// Writes the IPv4 header checksum, one's complement by hand.
fn seal(packet: &mut [u8]) {
    let len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let mut sum: u32 = packet[..len].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn header_len(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 6 { 40 } else { usize::from(packet[0] & 15) * 4 }
}

/// The fragment of `packet` with the given part of its payload.
fn fragment(packet: &[u8], id: u16, offset: usize, content: &[u8], more: bool) -> Vec<u8> {
    let (header, _) = packet.split_at(header_len(packet));
    let position = u16::try_from(offset / 8).unwrap();
    let mut f = header.to_vec();
    if packet[0] >> 4 == 6 {
        f[4..6].copy_from_slice(&u16::try_from(content.len() + 8).unwrap().to_be_bytes());
        f.extend_from_slice(&[header[6], 0]);
        f[6] = 44;
        f.extend_from_slice(&(position << 3 | u16::from(more)).to_be_bytes());
        f.extend_from_slice(&[0, 0]);
        f.extend_from_slice(&id.to_be_bytes());
        f.extend_from_slice(content);
    } else {
        f.extend_from_slice(content);
        let len = u16::try_from(f.len()).unwrap();
        f[2..4].copy_from_slice(&len.to_be_bytes());
        f[4..6].copy_from_slice(&id.to_be_bytes());
        f[6..8].copy_from_slice(&(position | u16::from(more) << 13).to_be_bytes());
        seal(&mut f);
    }
    f
}

/// Fragments of `packet`, cut at these offsets.
fn cut(packet: &[u8], id: u16, cuts: &[usize]) -> Vec<Vec<u8>> {
    let payload = &packet[header_len(packet)..];
    let mut ends: Vec<usize> = cuts.iter().map(|c| c * 8).filter(|c| *c > 0 && *c < payload.len()).collect();
    ends.push(payload.len());
    ends.sort_unstable();
    ends.dedup();
    let mut start = 0;
    let piece = |end: &usize| {
        let f = fragment(packet, id, start, &payload[start..*end], *end < payload.len());
        start = *end;
        f
    };
    ends.iter().map(piece).collect()
}

/// The packet as the fragments will give it back: with their identification.
fn named(mut packet: Vec<u8>, id: u16) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        seal(&mut packet);
    }
    packet
}

#[test]
fn whole_packets_are_no_fragments() {
    let mut r = Reassembler::new(LIMITS);
    for v6 in [false, true] {
        let packet = udp_packet(v6, 100);
        assert!(!is_fragment(&packet));
        assert_eq!(r.push(Time::ZERO, &packet), Outcome::NotFragment);
        let fragment = &cut(&packet, 1, &[2])[1];
        assert!(is_fragment(fragment));
        let first = &cut(&packet, 1, &[2])[0];
        assert!(is_fragment(first));
    }
    let mut unfragmentable = udp_packet(false, 9);
    unfragmentable[6] = 0x40;
    assert!(!is_fragment(&unfragmentable));
}

#[test]
fn overlaps_give_the_datagram_up_for_good() {
    for v6 in [false, true] {
        let mut r = Reassembler::new(LIMITS);
        let packet = udp_packet(v6, 100);
        let payload = &packet[header_len(&packet)..];
        let parts = cut(&packet, 1, &[3, 6]);
        assert_eq!(r.push(Time::ZERO, &parts[1]), Outcome::Incomplete);
        assert_eq!(r.push(Time::ZERO, &parts[1]), Outcome::Incomplete, "a duplicate does no harm");
        let mut evil = payload[24..48].to_vec();
        evil[0] ^= 1;
        for overlap in [
            fragment(&packet, 1, 24, &evil, true),
            fragment(&packet, 1, 16, &payload[16..32], true),
            fragment(&packet, 1, 40, &payload[40..56], true),
            fragment(&packet, 1, 32, &payload[32..40], true),
            fragment(&packet, 1, 0, &payload[..64], true),
        ] {
            let mut r = Reassembler::new(LIMITS);
            assert_eq!(r.push(Time::ZERO, &parts[1]), Outcome::Incomplete);
            assert_eq!(r.push(Time::ZERO, &overlap), FRAGMENT);
            for part in &parts {
                assert_eq!(r.push(Time::ZERO, part), FRAGMENT, "what comes later is not wanted either");
            }
            let later = Time::ZERO + TIMEOUT;
            assert_eq!(r.expire(later), [], "and no error is sent for it");
            assert_eq!(r.usage(), (0, 0));
            assert_eq!(r.push(later, &parts[0]), Outcome::Incomplete);
        }
        assert_eq!(r.push(Time::ZERO, &parts[0]), Outcome::Incomplete);
        assert_eq!(r.push(Time::ZERO, &parts[2]), Outcome::Whole(named(packet, 1)));
        assert_eq!(r.usage(), (0, 0));
    }
}

#[test]
fn pieces_that_fit_no_datagram_are_refused() {
    for v6 in [false, true] {
        let packet = udp_packet(v6, 100);
        let bytes = [0; 2000];
        for (why, first, second) in [
            ("empty", fragment(&packet, 1, 8, &[], true), None),
            ("not a multiple of eight", fragment(&packet, 1, 0, &bytes[..12], true), None),
            ("beyond 64 KiB", fragment(&packet, 1, 65528, &bytes[..16], false), None),
            ("beyond 64 KiB with its header", fragment(&packet, 1, 65496, &bytes[..40 + 40], true), None),
            (
                "behind the end",
                fragment(&packet, 1, 8, &bytes[..9], false),
                Some(fragment(&packet, 1, 24, &bytes[..8], true)),
            ),
            (
                "an end before what came",
                fragment(&packet, 1, 24, &bytes[..8], true),
                Some(fragment(&packet, 1, 8, &bytes[..9], false)),
            ),
            (
                "two ends",
                fragment(&packet, 1, 8, &bytes[..9], false),
                Some(fragment(&packet, 1, 24, &bytes[..9], false)),
            ),
        ] {
            let mut r = Reassembler::new(LIMITS);
            let mut outcome = r.push(Time::ZERO, &first);
            if let Some(second) = second {
                assert_eq!(outcome, Outcome::Incomplete, "{why}");
                outcome = r.push(Time::ZERO, &second);
            }
            assert_eq!(outcome, FRAGMENT, "{why}, IPv6: {v6}");
        }
    }
}

#[test]
fn broken_headers_have_their_own_reasons() {
    let mut r = Reassembler::new(LIMITS);
    let mut f = cut(&udp_packet(false, 100), 1, &[2]).remove(0);
    f[8] ^= 1;
    assert_eq!(r.push(Time::ZERO, &f), Outcome::Dropped(Reason::Checksum));
    for packet in [&f[..19], &[], &[0x50; 40], &[0x60; 30]] {
        assert_eq!(r.push(Time::ZERO, packet), Outcome::Dropped(Reason::Malformed));
    }
    let f = cut(&udp_packet(true, 100), 1, &[2]).remove(0);
    for len in 0..f.len() {
        assert_eq!(r.push(Time::ZERO, &f[..len]), Outcome::Dropped(Reason::Malformed), "{len}");
    }
    assert_eq!(r.usage(), (0, 0));
}

#[test]
fn the_only_fragment_of_a_datagram_is_whole_by_itself() {
    let packet = udp_packet(true, 100);
    let mut r = Reassembler::new(LIMITS);
    assert_eq!(r.push(Time::ZERO, &cut(&packet, 1, &[2])[0]), Outcome::Incomplete);
    let atomic = cut(&packet, 1, &[]).remove(0);
    assert_eq!(r.push(Time::ZERO, &atomic), Outcome::Whole(packet.clone()));
    assert_eq!(r.push(Time::ZERO, &cut(&packet, 1, &[2])[1]), Outcome::Whole(packet));
}

#[test]
fn headers_in_front_of_an_ipv6_fragment_header_stay() {
    let plain = udp_packet(true, 100);
    // A destination options header that holds padding.
    let mut packet = [&plain[..40], &[17, 0, 1, 4, 0, 0, 0, 0], &plain[40..]].concat();
    packet[6] = 60;
    packet[4..6].copy_from_slice(&116u16.to_be_bytes());
    let mut r = Reassembler::new(LIMITS);
    let mut outcome = Outcome::NotFragment;
    for f in cut(&plain, 9, &[4]) {
        let mut f = [&f[..40], &[44, 0, 1, 4, 0, 0, 0, 0], &f[40..]].concat();
        f[6] = 60;
        let len = u16::try_from(f.len() - 40).unwrap();
        f[4..6].copy_from_slice(&len.to_be_bytes());
        assert!(is_fragment(&f));
        outcome = r.push(Time::ZERO, &f);
    }
    assert_eq!(outcome, Outcome::Whole(packet));
}

#[test]
fn time_ends_what_does_not_become_whole() {
    for v6 in [false, true] {
        let packet = udp_packet(v6, 100);
        let parts = cut(&packet, 1, &[3, 6]);
        let mut r = Reassembler::new(LIMITS);
        assert_eq!(r.poll_at(), None);
        r.push(Time::from_millis(5), &parts[0]);
        r.push(Time::from_millis(9), &parts[2]);
        r.push(Time::from_millis(10), &cut(&packet, 2, &[3])[1]);
        let deadline = Time::from_millis(5) + TIMEOUT;
        assert_eq!(r.poll_at(), Some(deadline), "the first piece counts");
        assert_eq!(r.expire(Time::from_millis(4) + TIMEOUT), []);
        assert_eq!(r.expire(deadline), [Expired { first: Some(parts[0].clone()) }]);
        assert_eq!(r.poll_at(), Some(Time::from_millis(10) + TIMEOUT));
        assert_eq!(r.expire(deadline + Duration::from_secs(1)), [Expired { first: None }]);
        assert_eq!((r.poll_at(), r.usage()), (None, (0, 0)));
    }
}

#[test]
fn datagrams_and_bytes_are_limited() {
    let packet = udp_packet(false, 1400);
    let mut r = Reassembler::new(Limits { max_datagrams: 4, max_bytes: 1 << 20 });
    for id in 0..100 {
        let expected = if id < 4 { Outcome::Incomplete } else { FRAGMENT };
        assert_eq!(r.push(Time::ZERO, &cut(&packet, id, &[3])[0]), expected);
    }
    assert_eq!(r.usage().0, 4);
    let mut r = Reassembler::new(Limits { max_datagrams: 1000, max_bytes: 10_000 });
    let refused = (0..100).filter(|id| r.push(Time::ZERO, &cut(&packet, *id, &[100])[0]) == FRAGMENT).count();
    assert!(refused > 80 && refused < 100, "{refused}");
    assert!(r.usage().1 <= 10_000);
    let mut r = Reassembler::new(Limits { max_datagrams: 10, max_bytes: 1 << 20 });
    let tiny = |i: usize| fragment(&packet, 1, i * 8, &[0; 8], true);
    let kept = (1..8000).take_while(|i| r.push(Time::ZERO, &tiny(*i)) == Outcome::Incomplete).count();
    assert_eq!(kept, super::MAX_PIECES);
}

#[test]
fn datagrams_do_not_mix() {
    let (a, b) = (udp_packet(false, 100), udp_packet(false, 200));
    let mut other_protocol = b.clone();
    other_protocol[9] = 1;
    seal(&mut other_protocol);
    let mut other_source = b.clone();
    other_source[12..16].copy_from_slice(&Ipv4Addr::new(10, 9, 0, 3).octets());
    seal(&mut other_source);
    for (packet, id) in [(b, 2), (other_protocol, 1), (other_source, 1)] {
        let mut r = Reassembler::new(LIMITS);
        let (mine, theirs) = (cut(&a, 1, &[4]), cut(&packet, id, &[4]));
        assert_eq!(r.push(Time::ZERO, &mine[0]), Outcome::Incomplete);
        assert_eq!(r.push(Time::ZERO, &theirs[1]), Outcome::Incomplete);
        assert_eq!(r.push(Time::ZERO, &theirs[0]), Outcome::Whole(named(packet, id)));
        assert_eq!(r.push(Time::ZERO, &mine[1]), Outcome::Whole(named(a.clone(), 1)));
    }
}

#[test]
fn packets_that_fit_are_not_split_and_those_that_cannot_be_are_refused() {
    let packet = udp_packet(false, 1000);
    assert_eq!(split(&packet, 1500, 1), Some(vec![packet.clone()]));
    assert_eq!(split(&packet, 27, 1), None);
    assert_eq!(split(&udp_packet(true, 1000), 55, 1), None);
    assert_eq!(split(&[0x20; 2000], 1500, 1), None);
    assert_eq!(split_frame(&[0; 13], 1500, 1), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_order_of_any_cut_gives_the_packet_back(
        v6 in any::<bool>(),
        len in 1..9000usize,
        cuts in prop::collection::vec(1..1100usize, 0..30),
        order in any::<u64>(),
        id in any::<u16>(),
    ) {
        let packet = udp_packet(v6, len);
        let mut parts = cut(&packet, id, &cuts);
        prop_assume!(v6 || parts.len() > 1);
        let count = parts.len();
        let mut r = Reassembler::new(LIMITS);
        let mut state = order;
        for left in (1..=count).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let part = parts.swap_remove((state >> 33) as usize % left);
            let outcome = r.push(Time::ZERO, &part);
            if left > 1 {
                prop_assert_eq!(outcome, Outcome::Incomplete);
            } else {
                prop_assert_eq!(outcome, Outcome::Whole(named(packet.clone(), id)));
            }
        }
        prop_assert_eq!(r.usage(), (0, 0));
    }

    #[test]
    fn what_is_split_fits_and_comes_together(
        v6 in any::<bool>(), len in 0..65_000usize, mtu in 600..9000u16, id in any::<u32>(),
    ) {
        let packet = udp_packet(v6, len);
        let frame = [&[7; 14], &packet[..]].concat();
        let frames = split_frame(&frame, mtu, id).unwrap();
        let mut r = Reassembler::new(Limits { max_datagrams: 1, max_bytes: 100_000 });
        let count = frames.len();
        for (i, f) in frames.iter().enumerate() {
            prop_assert_eq!(&f[..14], &[7; 14]);
            prop_assert!(f.len() <= usize::from(mtu) + 14);
            let outcome = r.push(Time::ZERO, &f[14..]);
            if count == 1 {
                prop_assert_eq!(outcome, Outcome::NotFragment);
                prop_assert_eq!(&f[14..], &packet[..]);
            } else if i + 1 < count {
                prop_assert_eq!(outcome, Outcome::Incomplete);
            } else {
                prop_assert_eq!(outcome, Outcome::Whole(named(packet.clone(), (id & 0xffff) as u16)));
            }
        }
    }

    #[test]
    fn hostile_fragments_stay_within_bounds(
        pieces in prop::collection::vec(
            (any::<bool>(), 0..4u16, 0..8192usize, 0..200usize, any::<bool>(), any::<u8>()), 0..200,
        ),
    ) {
        let limits = Limits { max_datagrams: 5, max_bytes: 6000 };
        let mut r = Reassembler::new(limits);
        let packets = [udp_packet(false, 8), udp_packet(true, 8)];
        for (i, (v6, id, position, len, more, flip)) in pieces.into_iter().enumerate() {
            let position = if flip % 2 == 0 { position % 8 } else { position };
            let mut f = fragment(&packets[usize::from(v6)], id, position * 8, &vec![flip; len], more);
            if flip > 200 {
                let at = usize::from(flip) % f.len();
                f[at] ^= flip;
            }
            r.push(Time::from_millis(i as u64 * 100), &f);
            is_fragment(&f);
            r.expire(Time::from_millis(i as u64 * 100));
            let (datagrams, bytes) = r.usage();
            prop_assert!(datagrams <= limits.max_datagrams && bytes <= limits.max_bytes);
        }
        r.expire(Time::from_millis(1 << 40));
        prop_assert_eq!(r.usage(), (0, 0));
    }

    #[test]
    fn no_bytes_whatsoever_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), v6 in any::<bool>(), mtu in any::<u16>(),
    ) {
        if let Some(b) = bytes.first_mut() {
            *b = if v6 { 0x60 } else { 0x45 };
        }
        if v6 && bytes.len() > 46 {
            bytes[4] = 0;
            bytes[6] = [0, 43, 44, 60][usize::from(bytes[6] % 4)];
        }
        is_fragment(&bytes);
        split(&bytes, mtu, 1);
        Reassembler::new(LIMITS).push(Time::ZERO, &bytes);
    }
}
