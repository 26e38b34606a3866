//! ARP, neighbour and router discovery, and whatever else reaches the services of the link, over time.

use std::net::IpAddr;
use std::time::Duration;

use super::Bytes;
use super::link::{GUEST_MAC, GUEST4, GUEST6, NETD_MAC, addresses, check_frame, link};
use crate::guest::frame::{self, MacPair};
use crate::guest::{Handled, Services};
use crate::time::Time;
use crate::wire::{ETH_LEN, MacAddr, protocol};

const STEPS: usize = 64;
/// Frames that one frame of the guest may cause.
const ANSWERS: usize = 2;

/// Runs one input.
pub fn neighbours(data: &[u8]) {
    let mut b = Bytes::new(data);
    let mut link = link(b.u8() & 1 != 0);
    let mut services = Services::new();
    let mut now = Time::ZERO;
    let mut out = Vec::new();
    for _ in 0..STEPS {
        if b.is_empty() {
            break;
        }
        match b.u8() % 8 {
            0 => services.link_up(now),
            1 => now = now + Duration::from_millis(u64::from(b.u16())),
            2 => {
                services.poll(now, &link, &mut out);
                assert!(out.len() <= 1);
                assert!(services.poll_at().is_none_or(|at| at > now), "due again at once");
            }
            3 => Services::solicit(&link, &mut out),
            4 => {
                let search = String::from_utf8_lossy(b.take(40)).into_owned();
                link.search = vec![search, "cluster.local".into()];
                link.mtu = 68 + b.u16() % 0xff00;
            }
            _ => {
                let Some(frame) = guest_frame(&mut b) else { continue };
                services.learn(&frame);
                let handled = services.handle(&frame, &link, now, &mut out);
                assert!(out.len() <= ANSWERS, "{} answers", out.len());
                assert!(handled == Handled::Consumed || out.is_empty(), "an answer to {handled:?}");
            }
        }
        assert!(services.seen().len() <= 16);
        for frame in out.drain(..) {
            check(&frame);
        }
    }
}

/// netd never says that the guest's address is its own.
fn check(frame: &[u8]) {
    let payload = &frame[ETH_LEN..];
    match check_frame(frame) {
        None => assert!(payload[14..18] != GUEST4.octets(), "ARP for the guest's own address"),
        Some(ip) => {
            assert!(frame.len() - ETH_LEN <= 1280, "longer than every link takes");
            assert!(ip.src != IpAddr::from(GUEST6) && ip.src != IpAddr::from(GUEST4), "in the guest's name");
            let message = &payload[ip.header_len..];
            // Neighbour advertisement.
            if ip.protocol == protocol::ICMPV6 && message[0] == 136 {
                assert!(message[8..24] != GUEST6.octets(), "the guest's address is advertised");
            }
        }
    }
}

fn guest_frame(b: &mut Bytes<'_>) -> Option<Vec<u8>> {
    let mac = if b.one_in(8) { MacAddr(*b.take(6).first_chunk()?) } else { GUEST_MAC };
    let ends = MacPair { from: mac, to: MacAddr::BROADCAST };
    let any = |b: &mut Bytes<'_>, v6| if b.one_in(6) { None } else { Some(b.pick(&addresses(v6))) };
    match b.u8() % 8 {
        // ARP, of which any byte may be another.
        0..=2 => {
            let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1 + b.u8() % 3];
            for mac in [mac, MacAddr([0; 6])] {
                arp.extend(mac.0);
                match any(b, false) {
                    Some(IpAddr::V4(a)) => arp.extend(a.octets()),
                    _ => arp.extend(b.u32().to_le_bytes()),
                }
            }
            if b.one_in(4) {
                let at = b.below(arp.len());
                arp[at] = b.u8();
            }
            arp.truncate(28usize.saturating_sub(usize::from(b.u8()).saturating_sub(0xf0)));
            Some([&MacAddr::BROADCAST.0[..], &mac.0, &[8, 6], &arp].concat())
        }
        // Neighbour and router discovery.
        3..=6 => {
            let Some(IpAddr::V6(from)) = any(b, true) else { return None };
            let Some(IpAddr::V6(to)) = any(b, true) else { return None };
            let kind = if b.one_in(8) { b.u8() } else { 133 + b.u8() % 5 };
            let mut message = vec![kind, if b.one_in(8) { b.u8() } else { 0 }, 0, 0, 0, 0, 0, 0];
            if matches!(kind, 135 | 136) {
                match any(b, true) {
                    Some(IpAddr::V6(a)) => message.extend(a.octets()),
                    _ => message.extend(b.take(16)),
                }
            }
            let len = usize::from(b.u8() % 64);
            message.extend(b.take(len));
            let hops = if b.one_in(8) { b.u8() } else { 255 };
            frame::icmp6(ends, (from, to), hops, message)
        }
        // Anything.
        _ => {
            let kind = b.pick(&[[8, 0], [8, 6], [0x86, 0xdd], [0x88, 0xcc]]);
            let len = usize::from(b.u16() % 200);
            Some([&NETD_MAC.0[..], &mac.0, &kind, b.take(len)].concat())
        }
    }
}
