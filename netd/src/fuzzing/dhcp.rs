//! DHCPv4 and DHCPv6 messages of the guest, in frames whose headers and checksums are right.

use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};

use super::Bytes;
use super::link::{GATEWAY4, GUEST_MAC, GUEST4, GUEST6, NETD_MAC, addresses, check_frame, link};
use crate::guest::frame::{self, MacPair};
use crate::guest::{Handled, Services};
use crate::time::Time;
use crate::wire::{ETH_LEN, MacAddr};

/// Messages of one input.
const MESSAGES: usize = 8;

/// Runs one input of DHCPv4 messages.
pub fn dhcp4(data: &[u8]) {
    run(data, |b, mac| {
        let IpAddr::V4(from) = b.pick(&addresses(false)) else { unreachable!() };
        let to = if b.one_in(2) { std::net::Ipv4Addr::BROADCAST } else { GATEWAY4 };
        let payload = message(b);
        let ends = MacPair { from: mac, to: NETD_MAC };
        frame::udp4(ends, SocketAddrV4::new(from, 68), SocketAddrV4::new(to, 67), payload)
    });
}

/// Runs one input of DHCPv6 messages.
pub fn dhcp6(data: &[u8]) {
    run(data, |b, mac| {
        let IpAddr::V6(from) = b.pick(&addresses(true)) else { unreachable!() };
        let group = "ff02::1:2".parse().unwrap();
        let to = if b.one_in(4) { NETD_MAC.link_local() } else { group };
        let payload = message(b);
        let ends = MacPair { from: mac, to: NETD_MAC };
        frame::udp6(ends, SocketAddrV6::new(from, 546, 0, 0), SocketAddrV6::new(to, 547, 0, 0), payload)
    });
}

fn message<'a>(b: &mut Bytes<'a>) -> &'a [u8] {
    let len = usize::from(b.u16() % 1600);
    b.take(len)
}

fn run(data: &[u8], build: impl Fn(&mut Bytes<'_>, MacAddr) -> Option<Vec<u8>>) {
    let mut b = Bytes::new(data);
    let shape = b.u8();
    let mut link = link(shape & 1 != 0);
    if shape & 2 != 0 {
        link.mtu = 68 + b.u16() % 0x4000;
    }
    let mut services = Services::new();
    let mut out = Vec::new();
    for _ in 0..MESSAGES {
        if b.is_empty() {
            break;
        }
        let mac = if b.one_in(8) { MacAddr([2, 0, 0, 0, 0, b.u8()]) } else { GUEST_MAC };
        let Some(frame) = build(&mut b, mac) else { continue };
        let handled = services.handle(&frame, &link, Time::ZERO, &mut out);
        assert_ne!(handled, Handled::NotMine, "a message to the server is the server's");
        assert!(out.len() <= 1, "more than one answer");
        for answer in out.drain(..) {
            let ip = check_frame(&answer).expect("an answer over IP");
            let udp = &answer[ETH_LEN + ip.header_len..];
            // No longer than the link takes, or than any client must take.
            assert!(
                answer.len() - ETH_LEN
                    <= usize::from(link.mtu).max(if ip.src.is_ipv4() { 576 } else { 1280 })
            );
            let payload = &udp[8..ip.payload_len];
            if ip.src.is_ipv4() { reply4(payload) } else { reply6(payload) }
        }
    }
}

/// A reply gives the guest's address or none, and its options end where they say.
fn reply4(m: &[u8]) {
    assert_eq!((m[0], m.len() >= 300), (2, true));
    let yiaddr = &m[16..20];
    assert!(yiaddr == GUEST4.octets() || yiaddr == [0; 4], "another address");
    let mut options = &m[240..];
    loop {
        let (&code, rest) = options.split_first().expect("options without an end");
        match code {
            255 => break,
            0 => options = rest,
            _ => {
                let len = usize::from(rest[0]);
                assert!(code != 51 || yiaddr == GUEST4.octets(), "a lease without an address");
                options = &rest[1 + len..];
            }
        }
    }
}

fn reply6(m: &[u8]) {
    assert!(matches!(m[0], 2 | 7), "neither advertisement nor reply");
    options6(&m[4..], 0);
}

fn options6(mut options: &[u8], depth: usize) {
    while !options.is_empty() {
        let code = u16::from_be_bytes([options[0], options[1]]);
        let len = usize::from(u16::from_be_bytes([options[2], options[3]]));
        let value = &options[4..4 + len];
        match code {
            // Identity association, address.
            3 if depth == 0 => options6(&value[12..], 1),
            5 => {
                let lifetime = u32::from_be_bytes(value[20..24].try_into().unwrap());
                assert!(value[..16] == GUEST6.octets() || lifetime == 0, "another address");
            }
            _ => {}
        }
        options = &options[4 + len..];
    }
}
