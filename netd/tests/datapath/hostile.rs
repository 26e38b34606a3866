//! A guest that means harm: it cannot stop netd, and a device that it has broken works again once it is reset.

use etherparse::{EtherType, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, PacketBuilder};
use frontend_double::{Descriptor, HEADER, INDIRECT, NEXT, RX, TX, WRITE};
use netd::counters::Reason;

use crate::bed::raw::{CLIENT_V4, CLIENT_V6, GUEST_V4, GUEST_V6, Raw};
use crate::bed::{GUEST_MAC, MAC, Random, Setup, content, eventually, exchange, with_bed, with_pod};

/// Ethernet frames of an honest guest, one of each sort.
fn honest() -> Vec<Vec<u8>> {
    let v4 = || PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0).ipv4(GUEST_V4.octets(), CLIENT_V4.octets(), 64);
    let v6 = || PacketBuilder::ethernet2(GUEST_MAC.0, MAC.0).ipv6(GUEST_V6.octets(), CLIENT_V6.octets(), 64);
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let mut add = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = Vec::new();
        write(&mut frame);
        frames.push(frame);
    };
    let data = content(1, 100);
    add(&|f| v4().udp(6000, 5000).write(f, &data).unwrap());
    add(&|f| v6().udp(6000, 5000).write(f, &data).unwrap());
    add(&|f| v4().icmpv4_echo_request(7, 1).write(f, &data).unwrap());
    add(&|f| v6().icmpv6_echo_request(7, 1).write(f, &data).unwrap());
    let syn = etherparse::TcpOptionElement::MaximumSegmentSize(1460);
    let options = [syn, etherparse::TcpOptionElement::WindowScale(7)];
    add(&|f| v4().tcp(6000, 9, 1, 1000).syn().options(&options).unwrap().write(f, &[]).unwrap());
    add(&|f| v6().tcp(6000, 9, 1, 1000).syn().options(&options).unwrap().write(f, &[]).unwrap());
    add(&|f| v4().tcp(6001, 9, 1, 1000).ack(5).psh().write(f, &data).unwrap());
    add(&|f| v6().tcp(6001, 9, 1, 1000).ack(5).fin().write(f, &data).unwrap());
    add(&|f| v4().tcp(6001, 9, 1, 1000).rst().write(f, &[]).unwrap());
    // Services: DHCP, DHCPv6, ARP, neighbour solicitation.
    let dhcp = [&[1, 1, 6, 0][..], &[0; 232], &[99, 130, 83, 99, 53, 1, 1, 55, 3, 1, 3, 6, 255]].concat();
    add(&|f| v4().udp(68, 67).write(f, &dhcp).unwrap());
    let dhcp6 = [1, 0, 0, 1, 0, 1, 0, 10, 0, 3, 0, 1, 0x52, 0x54, 0, 0x11, 0x22, 0x33, 0, 3, 0, 12];
    let dhcp6 = [&dhcp6[..], &[0; 12]].concat();
    add(&|f| v6().udp(546, 547).write(f, &dhcp6).unwrap());
    let ethernet = [&MAC.0[..], &GUEST_MAC.0].concat();
    let request = [0, 1, 8, 0, 6, 4, 0, 1];
    let arp = [&request[..], &GUEST_MAC.0, &GUEST_V4.octets(), &[0; 6], &CLIENT_V4.octets()].concat();
    frames.push([&ethernet[..], &[8, 6], &arp].concat());
    let mut add = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = Vec::new();
        write(&mut frame);
        frames.push(frame);
    };
    let target = [&CLIENT_V6.octets()[..], &[1, 1], &GUEST_MAC.0].concat();
    add(&|f| v6().icmpv6_raw(135, 0, [0; 4]).write(f, &target).unwrap());
    add(&|f| v6().icmpv6_raw(133, 0, [0; 4]).write(f, &[]).unwrap());
    add(&|f| v4().icmpv4_raw(3, 3, [0; 4]).write(f, &data).unwrap());
    // Fragments: the first and the last of a datagram.
    let udp = [&[0x17, 0x70, 0x13, 0x88, 0, 96, 0, 0][..], &data[..80]].concat();
    for (offset, more) in [(0, true), (10, false)] {
        let mut header =
            Ipv4Header::new(80, 64, IpNumber::UDP, GUEST_V4.octets(), CLIENT_V4.octets()).unwrap();
        header.identification = 99;
        header.more_fragments = more;
        header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
        header.header_checksum = header.calc_header_checksum();
        frames.push([&ethernet[..], &[8, 0], &header.to_bytes(), &udp[..80]].concat());
        let fragment =
            Ipv6FragmentHeader::new(IpNumber::UDP, IpFragOffset::try_new(offset).unwrap(), more, 99);
        let ip = [&[0x60, 0, 0, 0, 0, 88, 44, 64][..], &GUEST_V6.octets(), &CLIENT_V6.octets()].concat();
        let kind = EtherType::IPV6.0.to_be_bytes();
        frames.push([&ethernet[..], &kind, &ip, &fragment.to_bytes(), &udp[..80]].concat());
    }
    // Options and extension headers.
    let hop_by_hop = [&[0x60, 0, 0, 0, 0, 24, 0, 64][..], &GUEST_V6.octets(), &CLIENT_V6.octets()].concat();
    let rest = [60, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0, 0x17, 0x70, 0x13, 0x88, 0, 8, 0, 0];
    frames.push([&ethernet[..], &[0x86, 0xdd], &hop_by_hop, &rest].concat());
    frames
}

/// Writes the right IPv4 header checksum, where there is room for one.
fn repair(ethernet: &mut [u8]) {
    let Some(ip) = ethernet.get_mut(14..) else { return };
    let length = ip.first().map_or(0, |b| usize::from(b & 15) * 4);
    let Some(header) = ip.get_mut(..length).filter(|h| h.len() >= 20) else { return };
    header[10..12].fill(0);
    let words = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

/// Receives and forgets what netd sends.
fn drain(raw: &mut Raw) {
    while raw.double.recv(std::time::Duration::ZERO).unwrap().is_some() {}
}

#[test]
fn frames_that_are_not_whole_are_dropped_and_counted() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        for frame in honest() {
            for len in 0..frame.len() {
                raw.send(&frame[..len]);
            }
            drain(&mut raw);
        }
        raw.ping();
        assert!(pod.netd.dropped(Reason::Malformed) > 1000);
    });
}

#[test]
fn wrong_checksums_and_lengths_are_dropped_and_counted() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let server = pod.client.udp("[::]:5000".parse().unwrap());
        let frames = honest();
        let (v4, v6) = (&frames[0], &frames[1]);
        let with = |frame: &[u8], changes: &[(usize, u8)], repaired: bool| {
            let mut frame = frame.to_vec();
            for &(at, value) in changes {
                frame[at] = value;
            }
            if repaired {
                repair(&mut frame);
            }
            frame
        };
        let bad = [
            // IPv4 header checksum; UDP checksums; UDP over IPv6 without one (RFC 8200 8.1).
            (Reason::Checksum, with(v4, &[(24, 0), (25, 0)], false)),
            (Reason::Checksum, with(v4, &[(40, 1), (41, 1)], false)),
            (Reason::Checksum, with(v6, &[(60, 1), (61, 1)], false)),
            (Reason::Checksum, with(v6, &[(60, 0), (61, 0)], false)),
            // IP length beyond the frame, below the header; header length; version.
            (Reason::Malformed, with(v4, &[(16, 0xff), (17, 0xff)], true)),
            (Reason::Malformed, with(v4, &[(16, 0), (17, 19)], true)),
            (Reason::Malformed, with(v4, &[(14, 0x44)], false)),
            (Reason::Malformed, with(v4, &[(14, 0x4f)], true)),
            (Reason::Malformed, with(v4, &[(14, 0x65)], true)),
            (Reason::Malformed, with(v6, &[(18, 0xff), (19, 0xff)], false)),
            (Reason::Malformed, with(v6, &[(18, 0), (19, 7)], false)),
            (Reason::Malformed, with(v6, &[(14, 0x45)], false)),
            // UDP length beyond the packet, below the header.
            (Reason::Malformed, with(v4, &[(38, 0xff), (39, 0xff)], false)),
            (Reason::Malformed, with(v4, &[(38, 0), (39, 7)], false)),
            // Protocols that netd does not carry.
            (Reason::UnknownProtocol, with(v4, &[(23, 250)], true)),
            (Reason::UnknownProtocol, with(v6, &[(20, 250)], false)),
            (Reason::UnknownProtocol, with(v4, &[(12, 0x88), (13, 0xcc)], false)),
        ];
        for (i, (reason, frame)) in bad.iter().enumerate() {
            let before: Vec<u64> = Reason::ALL.iter().map(|r| pod.netd.dropped(*r)).collect();
            let expected: Vec<u64> =
                Reason::ALL.iter().zip(&before).map(|(r, n)| n + u64::from(r == reason)).collect();
            raw.send(frame);
            let after = eventually("a drop", || {
                let after: Vec<u64> = Reason::ALL.iter().map(|r| pod.netd.dropped(*r)).collect();
                (after != before).then_some(after)
            });
            assert_eq!(after, expected, "frame {i}: {reason:?}");
        }
        // A frame that is longer than its packet is padded, and right.
        raw.send(&[&v4[..], &[0xee; 50]].concat());
        let mut buffer = [0; 2048];
        let n = server.recv(&mut buffer).unwrap();
        assert!(buffer[..n] == content(1, 100));
        server.set_nonblocking(true).unwrap();
        assert!(server.recv(&mut buffer).is_err());
        raw.ping();
    });
}

#[test]
fn garbage_is_dropped_and_counted() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let mut random = Random::new(1);
        for _ in 0..5000 {
            let len = HEADER + random.below(200) as usize;
            let frame = content(random.next(), len);
            raw.send_raw(&frame);
            drain(&mut raw);
        }
        raw.ping();
        let dropped: u64 = Reason::ALL.iter().map(|r| pod.netd.dropped(*r)).sum();
        assert!(dropped >= 4990, "{dropped}");
    });
}

#[test]
fn changed_frames_of_every_sort_do_no_harm() {
    const FRAMES: u64 = 40_000;
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        raw.ping();
        let honest = honest();
        let mut random = Random::new(2);
        for i in 0..FRAMES {
            let mut frame = random.of(&honest).clone();
            for _ in 0..=random.below(4) {
                let at = random.below(frame.len() as u64) as usize;
                match random.below(6) {
                    0 => frame[at] = random.next() as u8,
                    1 => frame[at] ^= 1 << random.below(8),
                    2 => frame[at] = *random.of(&[0, 1, 0x7f, 0x80, 0xff]),
                    3 => frame.truncate(at.max(1)),
                    4 => frame.extend(content(random.next(), random.below(64) as usize)),
                    // Part of another one.
                    _ => {
                        let other = random.of(&honest);
                        frame.truncate(at.max(1));
                        frame.extend(other.iter().skip(at));
                    }
                }
            }
            // Most reach what lies behind the checksums and the check of the source.
            if random.below(8) != 0 {
                repair(&mut frame);
                let n = frame.len().min(12);
                frame[..n].copy_from_slice(&[&MAC.0[..], &GUEST_MAC.0].concat()[..n]);
            }
            let mut header = [0; HEADER];
            match random.below(8) {
                0 => {}
                1 => header[..10].copy_from_slice(&content(random.next(), 10)),
                2 => header[..10].copy_from_slice(&[1, 1, 54, 0, 40, 0, 34, 0, 16, 0]),
                // The checksum is vouched for.
                _ => header[0] = 2,
            }
            raw.send_raw(&[&header[..], &frame].concat());
            if i % 16 == 0 {
                drain(&mut raw);
            }
            if i % 4000 == 0 {
                raw.ping();
            }
        }
        raw.ping();
        // The others had a virtio header that makes no sense.
        assert!(pod.netd.counters().guest_tx_frames.get() >= FRAMES / 2);
        for reason in [Reason::Malformed, Reason::UnknownProtocol, Reason::Spoofed, Reason::Checksum] {
            assert!(pod.netd.dropped(reason) > 0, "{reason:?}");
        }
        assert_eq!(pod.netd.dropped(Reason::BadChain), 0);
    });
}

#[test]
fn bad_chains_to_send_are_given_back_and_counted() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let start = raw.double.mem().start();
        let ring = raw.double.ring(TX);
        let size = ring.size();
        // Kept for loops; never given back to the honest side.
        let (a, b) = (ring.reserve().unwrap(), ring.reserve().unwrap());
        let table = start + (32 << 20);
        for i in 0..64u16 {
            // An indirect table that never ends, and of which each entry is a table.
            let at = table + 16 * u64::from(i);
            let entry = Descriptor { addr: start, len: 64, flags: NEXT, next: (i + 1) % 64 };
            ring.write_descriptor_at(at, entry);
            let entry = Descriptor { addr: table, len: 1024, flags: INDIRECT, next: 0 };
            ring.write_descriptor_at(at + 4096, entry);
        }
        let plain = |addr, len, flags, next| Descriptor { addr, len, flags, next };
        let chains = [
            // Outside of memory, at its edges, around the end of the address space.
            plain(0x10, 100, 0, 0),
            plain(start - 1, 100, 0, 0),
            plain(start, u32::MAX, 0, 0),
            plain(u64::MAX, 100, 0, 0),
            plain(u64::MAX - 50, 100, 0, 0),
            plain(0, u32::MAX, 0, 0),
            // To itself, around a circle, out of the table.
            plain(start, 100, NEXT, a),
            plain(start, 100, NEXT, b),
            plain(start, 100, NEXT, size),
            plain(start, 100, NEXT, u16::MAX),
            // Nothing, less than a header, for writing only.
            plain(start, 0, 0, 0),
            plain(start, 100, WRITE, 0),
            plain(start, 100, WRITE | NEXT, a),
            // Tables: of a length that is none, empty, outside, endless, of tables, with more behind.
            plain(table, 17, INDIRECT, 0),
            plain(table, 0, INDIRECT, 0),
            plain(0x10, 1024, INDIRECT, 0),
            plain(table, !15, INDIRECT, 0),
            plain(table, 1024, INDIRECT, 0),
            plain(table + 4096, 1024, INDIRECT, 0),
            plain(table, 1024, INDIRECT | NEXT, b),
            plain(table, 1024, INDIRECT | WRITE, 0),
        ];
        for chain in chains {
            let before = pod.netd.dropped(Reason::BadChain);
            let ring = raw.double.ring(TX);
            ring.write_descriptor(b, plain(start, 100, NEXT, a));
            ring.write_descriptor(a, chain);
            ring.offer_raw(a);
            ring.publish();
            let bad = || pod.netd.dropped(Reason::BadChain) + pod.netd.dropped(Reason::Malformed);
            eventually("a drop", || (bad() > before).then_some(()));
            raw.ping();
        }
        assert_eq!(pod.netd.counters().ring_errors.get(), 0);
    });
}

#[test]
fn a_frame_shorter_than_its_virtio_header_is_dropped() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let start = raw.double.mem().start();
        for len in 1..(HEADER as u32) {
            let before = pod.netd.dropped(Reason::Malformed);
            let ring = raw.double.ring(TX);
            let index = ring.reserve().unwrap();
            ring.write_descriptor(index, Descriptor { addr: start, len, flags: 0, next: 0 });
            ring.offer_raw(index);
            ring.publish();
            eventually("a drop", || (pod.netd.dropped(Reason::Malformed) > before).then_some(()));
        }
        raw.ping();
    });
}

#[test]
fn bad_buffers_to_receive_do_no_harm() {
    with_pod(Setup::default(), |pod| {
        let start = Raw::plug(&pod.netd).double.mem().start();
        let bad = [
            Descriptor { addr: 0x10, len: 4096, flags: WRITE, next: 0 },
            Descriptor { addr: start, len: u32::MAX, flags: WRITE, next: 0 },
            Descriptor { addr: start, len: 4096, flags: 0, next: 0 },
            Descriptor { addr: start, len: 0, flags: WRITE, next: 0 },
            Descriptor { addr: start, len: 4096, flags: WRITE | NEXT, next: 7 },
            Descriptor { addr: start, len: 4096, flags: WRITE | NEXT, next: u16::MAX },
            Descriptor { addr: start, len: 4096, flags: INDIRECT, next: 0 },
            // Room for less than a header, a byte at a time.
            Descriptor { addr: start + (32 << 20), len: 1, flags: WRITE, next: 0 },
        ];
        for descriptor in bad {
            let mut raw = Raw::plug(&pod.netd);
            let ring = raw.double.ring(RX);
            for index in 0..ring.size() {
                ring.write_descriptor(index, descriptor);
            }
            let request = &honest()[2];
            let before = pod.netd.counters().guest_tx_frames.get();
            for _ in 0..600 {
                raw.send(request);
            }
            let all = || pod.netd.counters().guest_tx_frames.get() == before + 600;
            eventually("600 frames", || all().then_some(()));
            assert!(pod.netd.status().frontend_connected);
            drop(raw);
            Raw::plug(&pod.netd).ping();
        }
        assert!(pod.netd.dropped(Reason::BadChain) > 0);
    });
}

#[test]
fn an_index_that_jumps_breaks_its_ring_only_and_until_the_reset() {
    with_bed(Setup::default(), |bed| {
        let [v4, _] = bed.families();
        let server = bed.client.listen(v4.client(7000));
        let guest = bed.guest.connect(v4.client(7000)).unwrap();
        let (client, _) = server.accept();
        let udp = bed.client.udp(v4.client(5000));
        for (count, index) in (1..).zip([TX, RX, TX, RX]) {
            bed.unplug();
            let mut raw = Raw::plug(&bed.netd);
            raw.ping();
            let ring = raw.double.ring(index);
            let jump = ring.used_idx().wrapping_add(1000);
            ring.set_avail_idx(jump);
            ring.kick_now();
            if index == RX {
                // When the buffers that it knows of are used up netd looks for more.
                for _ in 0..raw.double.ring(RX).size() + 10 {
                    udp.send_to(b"hello", v4.pod(7000)).unwrap();
                }
            }
            eventually("VRING_ERR", || raw.double.ring(index).broken().then_some(()));
            assert!(!raw.double.ring(1 - index).broken());
            let status = bed.netd.status();
            assert!(status.frontend_connected);
            assert_eq!(status.running_rings, [1 - index as u32]);
            // Its kicks wake the worker no more.
            let counters = bed.netd.counters();
            let (kicks, turns) = (counters.guest_kicks.get(), counters.wakeups.get());
            raw.double.ring(index).kick_now();
            // Each question makes the worker look at its events, unless it has just looked.
            eventually("some turns", || {
                assert!(bed.netd.status().frontend_connected);
                (counters.wakeups.get() > turns + 3).then_some(())
            });
            assert_eq!(counters.guest_kicks.get(), kicks);
            assert_eq!(bed.netd.counters().ring_errors.get(), count);
            drop(raw);
            bed.plug();
            // A connection that was there before goes on.
            crate::bed::transfer(&guest, &client, count, 100_000);
            crate::bed::transfer(&client, &guest, count, 100_000);
        }
        exchange(&guest, &client, 1 << 20);
    });
}

#[test]
fn frames_in_pieces_are_joined() {
    with_pod(Setup::default(), |pod| {
        let mut raw = Raw::plug(&pod.netd);
        let server = pod.client.udp("[::]:5000".parse().unwrap());
        let mut buffer = [0; 2048];
        for frame in &honest()[..2] {
            let frame = [&[0; HEADER][..], frame].concat();
            for cut in 1..frame.len() {
                for indirect in [false, true] {
                    let cuts = [cut, cut + 1, cut + 7];
                    assert!(raw.double.send_parts(&frame, &cuts, indirect).unwrap());
                    let n = server.recv(&mut buffer).unwrap();
                    assert!(buffer[..n] == content(1, 100), "cut at {cut}, indirect: {indirect}");
                }
            }
        }
    });
}
