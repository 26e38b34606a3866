//! Datagrams in pieces: a fragmenter without honour, against a model that keeps the bytes.
//!
//! Up to four datagrams are on their way at once, of either family. Their fragments come in any order, twice, with
//! other content, with other lengths, or late. A datagram that comes whole must have exactly the content it was cut
//! from, unless something else was told under its name.

use std::time::Duration;

use super::Bytes;
use crate::frag::{Limits, Outcome, Reassembler, is_fragment, split};
use crate::time::Time;
use crate::wire::{Ip, fold, sum};

const STEPS: usize = 200;
const DATAGRAMS: usize = 4;
/// Where the payload of any fragment begins at the latest.
const HEADERS: usize = 48;
const LIMITS: Limits = Limits { max_datagrams: 3, max_bytes: 40_000 };

struct Datagram {
    packet: Vec<u8>,
    pieces: Vec<Vec<u8>>,
    /// Something was told under its name that is not of it.
    spoiled: bool,
}

/// Runs one input.
pub fn fragments(data: &[u8]) {
    let mut b = Bytes::new(data);
    let mut datagrams: Vec<Datagram> = (0..DATAGRAMS).map(|i| datagram(&mut b, i as u32 + 1)).collect();
    let mut reassembler = Reassembler::new(LIMITS);
    let mut now = Time::ZERO;
    for _ in 0..STEPS {
        if b.is_empty() {
            break;
        }
        let action = b.u8();
        let which = usize::from(action) % DATAGRAMS;
        let d = &mut datagrams[which];
        let mut piece = d.pieces[b.below(d.pieces.len())].clone();
        match action / 4 % 16 {
            14 => {
                now = now + Duration::from_millis(u64::from(b.u16()));
                for expired in reassembler.expire(now) {
                    if let Some(first) = expired.first {
                        Ip::parse(&first, first.len()).expect("the headers of a first fragment");
                    }
                }
                assert!(reassembler.poll_at().is_none_or(|at| at > now));
                continue;
            }
            15 => {
                // Any bytes, under a name of their own or not.
                let len = usize::from(b.u8());
                piece.truncate(if b.one_in(2) { 48 } else { 0 });
                piece.extend(b.take(len));
                datagrams.iter_mut().for_each(|d| d.spoiled = true);
            }
            n @ 10..=13 => {
                let at = usize::from(b.u16()) % piece.len();
                piece[at] ^= 1 << (b.u8() % 8);
                if n > 11 {
                    piece.truncate(at);
                }
                seal(&mut piece);
                // In the headers it may have become one of another datagram.
                d.spoiled = true;
                if at < HEADERS {
                    datagrams.iter_mut().for_each(|d| d.spoiled = true);
                }
            }
            _ => {}
        }
        let outcome = reassembler.push(now, &piece);
        let (count, bytes) = reassembler.usage();
        assert!(
            count <= LIMITS.max_datagrams && bytes <= LIMITS.max_bytes,
            "{count} datagrams, {bytes} bytes"
        );
        assert!(count > 0 || bytes == 0, "{bytes} bytes for nothing");
        if let Outcome::Whole(whole) = outcome {
            let ip = Ip::parse(&whole, whole.len());
            assert!(ip.is_err() || ip.is_ok_and(|ip| ip.header_len + ip.payload_len == whole.len()));
            if let Some(d) = datagrams.get(which).filter(|d| !d.spoiled) {
                assert!(whole == d.packet, "not what was cut");
            }
        }
    }
    // Without anything in the way, each comes whole.
    for (i, d) in datagrams.iter().enumerate() {
        let mut alone = Reassembler::new(Limits { max_datagrams: 1, max_bytes: 1 << 20 });
        let mut outcomes: Vec<_> = d.pieces.iter().map(|p| alone.push(now, p)).collect();
        let last = outcomes.pop().unwrap();
        assert!(outcomes.iter().all(|o| *o == Outcome::Incomplete), "datagram {i}: {outcomes:?}");
        match last {
            Outcome::NotFragment => assert_eq!(d.pieces, std::slice::from_ref(&d.packet)),
            Outcome::Whole(whole) => assert!(whole == d.packet, "datagram {i} is not what was cut"),
            other => panic!("datagram {i}: {other:?}"),
        }
        assert_eq!(alone.usage(), (0, 0));
    }
}

/// A packet, and what netd itself cuts it to.
fn datagram(b: &mut Bytes<'_>, id: u32) -> Datagram {
    let v6 = b.u8() & 1 != 0;
    let len = usize::from(b.u16() % 6000);
    let mtu = if v6 { 1280 } else { 68 + b.u16() % 1432 };
    let payload = (0..len).map(|i| (i * 7 + id as usize) as u8);
    let mut packet = if v6 {
        let mut p = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
        p.extend([0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        p.extend([0xfd, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        p
    } else {
        vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 192, 0, 2, 9]
    };
    packet.extend(payload);
    if v6 {
        packet[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    } else {
        let total = packet.len() as u16;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
    }
    seal(&mut packet);
    let pieces = split(&packet, mtu, id).expect("a packet that can be cut");
    if pieces.len() > 1 {
        assert!(pieces.iter().all(|p| p.len() <= usize::from(mtu) && is_fragment(p)));
        if !v6 {
            // The name of the datagram is in each of its fragments, and stays.
            packet[4..6].copy_from_slice(&(id as u16).to_be_bytes());
            seal(&mut packet);
        }
    }
    Datagram { packet, pieces, spoiled: false }
}

/// Writes the checksum of an IPv4 header.
fn seal(packet: &mut [u8]) {
    let len = packet.first().map_or(0, |b| usize::from(b & 15) * 4);
    if packet.first().is_none_or(|b| b >> 4 != 4) || len < 20 || packet.len() < len {
        return;
    }
    packet[10..12].fill(0);
    let sum = !fold(sum(&packet[..len], 0));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}
