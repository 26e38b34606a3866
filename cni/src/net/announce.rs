//! Announcing where an address is now: frames that switches and neighbours learn from.
//!
//! | frame | for | after |
//! |---|---|---|
//! | ARP announcement, as request and as reply | hosts that know an IPv4 address | RFC 5227, section 2.3; RFC 826 hosts that heed replies only |
//! | unsolicited neighbour advertisement, override set, to all nodes | hosts that know an IPv6 address | RFC 4861, section 7.2.6 |
//! | MLDv2 report of the solicited-node groups | switches that forward multicast to listeners only: they have not heard the silent interface's own reports | RFC 3810, section 5.2 |
//! | RARP request for the own address | switches, also of networks without addresses | what hypervisors send after a migration |

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};
use podvirt_api::mac::MacAddr;

use super::{NetError, netns};

const BROADCAST: [u8; 6] = [0xff; 6];
/// All nodes, ff02::1, as an Ethernet address (RFC 2464, section 7).
const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
/// Smallest Ethernet frame without its check sequence, bytes (IEEE 802.3).
const FRAME_MIN: usize = 60;

/// Operations of ARP and RARP (RFC 826, RFC 903).
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const REVERSE_REQUEST: u16 = 3;

/// The frames that tell that `mac` has `addresses`.
pub fn frames(mac: MacAddr, addresses: &[IpAddr]) -> Vec<Vec<u8>> {
    let mut frames = vec![rarp(mac)];
    for address in addresses {
        match address {
            IpAddr::V4(a) => frames.extend([announcement(mac, *a, REQUEST), announcement(mac, *a, REPLY)]),
            IpAddr::V6(a) => frames.push(advertisement(mac, *a)),
        }
    }
    let ipv6: Vec<Ipv6Addr> = addresses
        .iter()
        .filter_map(|a| match a {
            IpAddr::V4(_) => None,
            IpAddr::V6(a) => Some(*a),
        })
        .collect();
    if !ipv6.is_empty() {
        frames.push(listener_report(mac, &ipv6));
    }
    frames
}

/// Sends `frames` over `interface` of the calling thread's namespace.
///
/// # Errors
/// There is no such interface; it does not send.
pub fn send(interface: &str, frames: &[Vec<u8>]) -> Result<(), NetError> {
    let failed = |e: io::Error| NetError::io(format!("cannot announce over {interface:?}"), e);
    // Names the interface by its index; a raw frame needs nothing else of it.
    let address = link_address(interface).map_err(failed)?;
    // Protocol 0: it receives nothing.
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None);
    let socket = socket.map_err(|e| failed(e.into()))?;
    let send = |frame: &Vec<u8>| sendto(socket.as_raw_fd(), frame, &address, MsgFlags::empty());
    let sent = frames.iter().try_for_each(|frame| send(frame).map(drop));
    netns::close_aside(socket);
    sent.map_err(|e| failed(e.into()))
}

fn link_address(interface: &str) -> io::Result<LinkAddr> {
    let of_name = getifaddrs()?.filter(|i| i.interface_name == interface);
    let address = of_name.filter_map(|i| i.address?.as_link_addr().copied()).next();
    address.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "there is no such interface"))
}

fn ethernet(destination: [u8; 6], source: MacAddr, ethertype: u16) -> Vec<u8> {
    let mut frame = [destination, source.0].concat();
    frame.extend(ethertype.to_be_bytes());
    frame
}

fn arp(
    mut frame: Vec<u8>,
    operation: u16,
    sender: (MacAddr, Ipv4Addr),
    target: ([u8; 6], Ipv4Addr),
) -> Vec<u8> {
    // Ethernet, IPv4, lengths 6 and 4.
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(sender.0.0);
    frame.extend(sender.1.octets());
    frame.extend(target.0);
    frame.extend(target.1.octets());
    frame.resize(frame.len().max(FRAME_MIN), 0);
    frame
}

fn announcement(mac: MacAddr, address: Ipv4Addr, operation: u16) -> Vec<u8> {
    // In a request the target's Ethernet address is not known; in a reply it is the broadcast address.
    let target = if operation == REQUEST { [0; 6] } else { BROADCAST };
    arp(ethernet(BROADCAST, mac, ETHERTYPE_ARP), operation, (mac, address), (target, address))
}

fn rarp(mac: MacAddr) -> Vec<u8> {
    let unknown = Ipv4Addr::UNSPECIFIED;
    arp(ethernet(BROADCAST, mac, ETHERTYPE_RARP), REVERSE_REQUEST, (mac, unknown), (mac.0, unknown))
}

fn advertisement(mac: MacAddr, address: Ipv6Addr) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    // Type 136; flag O: override; the address; option 2, one unit of 8 bytes: the target's Ethernet address.
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(address.octets());
    message.extend([2, 1]);
    message.extend(mac.0);
    // Hop limit 255 (RFC 4861, section 7.1.2).
    ipv6(mac, ALL_NODES, (address, all_nodes, 255), &[], message)
}

fn listener_report(mac: MacAddr, addresses: &[Ipv6Addr]) -> Vec<u8> {
    /// Hop-by-hop options: ICMPv6 follows; router alert (RFC 2711), two bytes of padding.
    const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    /// Exclude mode with no source: everything that is sent to the group.
    const CHANGE_TO_EXCLUDE: u8 = 4;
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    let [a, b, c, d, e, f] = mac.0;
    // As the kernel makes it of the MAC address (RFC 4291, appendix A).
    let own = Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    let tails: BTreeSet<[u8; 3]> = addresses
        .iter()
        .chain([&own])
        .map(|a| {
            let [.., x, y, z] = a.octets();
            [x, y, z]
        })
        .collect();
    // Type 143.
    let mut message = vec![143, 0, 0, 0, 0, 0];
    message.extend(u16::try_from(tails.len()).unwrap_or(0).to_be_bytes());
    for [x, y, z] in tails {
        message.extend([CHANGE_TO_EXCLUDE, 0, 0, 0]);
        // The solicited-node group (RFC 4291, section 2.7.1).
        message.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z]);
    }
    ipv6(mac, [0x33, 0x33, 0, 0, 0, 0x16], (own, routers, 1), &ROUTER_ALERT, message)
}

/// A frame with the ICMPv6 `message`, whose checksum it computes, behind `options`.
fn ipv6(
    mac: MacAddr,
    to: [u8; 6],
    (source, destination, hops): (Ipv6Addr, Ipv6Addr, u8),
    options: &[u8],
    mut message: Vec<u8>,
) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(0);
    let mut pseudo = [source.octets(), destination.octets()].concat();
    pseudo.extend(u32::from(length(message.len())).to_be_bytes());
    pseudo.extend([0, 0, 0, ICMPV6]);
    pseudo.extend(&message);
    let sum = checksum(&pseudo).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let mut frame = ethernet(to, mac, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length(options.len() + message.len()).to_be_bytes());
    // 0: hop-by-hop options.
    frame.extend([if options.is_empty() { ICMPV6 } else { 0 }, hops]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(options);
    frame.extend(message);
    frame
}

/// The Internet checksum of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([0x02, 0x70, 0, 0, 0, 9]);

    #[test]
    fn ipv4_is_announced_as_request_and_reply_and_switches_hear_a_rarp() {
        let frames = frames(MAC, &["172.30.0.9".parse().unwrap()]);
        assert_eq!(frames.len(), 3);
        let (rarp, request, reply) = (&frames[0], &frames[1], &frames[2]);
        assert!(frames.iter().all(|f| f.len() == 60 && f[..6] == [0xff; 6] && f[6..12] == MAC.0));
        assert_eq!(rarp[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
        assert_eq!((&rarp[22..28], &rarp[32..38]), (&MAC.0[..], &MAC.0[..]));
        assert_eq!(request[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        assert_eq!((&request[28..32], &request[38..42]), (&[172, 30, 0, 9][..], &[172, 30, 0, 9][..]));
        assert_eq!(reply[20..22], [0, 2]);
    }

    #[test]
    fn ipv6_is_advertised_to_all_nodes_with_a_right_checksum() {
        let address: Ipv6Addr = "fd00:30::9".parse().unwrap();
        let frame = &frames(MAC, &[address.into()])[1];
        assert_eq!(frame[..6], ALL_NODES);
        assert_eq!((frame[20], frame[21], frame.len()), (58, 255, 14 + 40 + 32));
        assert_eq!((frame[54], frame[58]), (136, 0x20));
        assert_eq!(frame[62..78], address.octets());
        assert_eq!(frame[80..86], MAC.0);
        let mut pseudo = frame[22..54].to_vec();
        pseudo.extend([0, 0, 0, 32, 0, 0, 0, 58]);
        pseudo.extend(&frame[54..]);
        assert_eq!(checksum(&pseudo), 0);
    }

    #[test]
    fn switches_that_snoop_hear_which_groups_the_addresses_listen_to() {
        let frames = frames(MAC, &["fd00:30::12:3456".parse().unwrap(), "172.30.0.9".parse().unwrap()]);
        let report = frames.last().unwrap();
        assert_eq!(report[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        // Hop-by-hop options, hop limit 1, router alert.
        assert_eq!((report[20], report[21]), (0, 1));
        assert_eq!(report[54..62], [58, 0, 5, 2, 0, 0, 1, 0]);
        let own: Ipv6Addr = "fe80::70:ff:fe00:9".parse().unwrap();
        assert_eq!(report[22..38], own.octets());
        assert_eq!((report[62], report[68..70].to_vec()), (143, vec![0, 2]));
        let groups: Vec<Ipv6Addr> =
            report[70..].chunks(20).map(|r| Ipv6Addr::from(*r[4..].first_chunk::<16>().unwrap())).collect();
        let expected: [Ipv6Addr; 2] =
            ["ff02::1:ff00:9".parse().unwrap(), "ff02::1:ff12:3456".parse().unwrap()];
        assert_eq!(groups, expected);
        let length = u8::try_from(report.len() - 62).unwrap();
        let mut pseudo = report[22..54].to_vec();
        pseudo.extend([0, 0, 0, length, 0, 0, 0, 58]);
        pseudo.extend(&report[62..]);
        assert_eq!(checksum(&pseudo), 0);
    }
}
