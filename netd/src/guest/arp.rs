//! Address resolution over IPv4: netd is every neighbour the guest can have.
//!
//! The link has two stations, the guest and netd, and netd carries whatever the guest sends to any address.
//! So it answers a request for every unicast address (proxy ARP, RFC 1027) with its own Ethernet address,
//! except for the guest's: the host that asks for it is the guest itself, announcing it or looking whether
//! another host has it (RFC 5227), and an answer would take the address away from it.
//!
//! A probe (sender 0.0.0.0) for any other address is answered only if netd itself holds the address, the
//! gateway above all: then it is in use. netd does not *hold* the addresses it merely leads to, and calling
//! them taken would refuse the guest an address for its own purposes (169.254/16, a virtual address of a
//! cluster inside).

use std::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol};

use super::Handled;
use super::frame::{self, MacPair};
use crate::counters::Reason;
use crate::net::{Link, LinkV4, Mode};
use crate::wire::MacAddr;

/// Length of an ARP packet for IPv4 over Ethernet.
const LEN: usize = 28;

/// Answers one ARP packet of the guest.
pub(super) fn handle(payload: &[u8], link: &Link, out: &mut Vec<Vec<u8>>) -> Handled {
    let Ok(packet) = ArpPacket::new_checked(payload) else { return Handled::Dropped(Reason::Malformed) };
    // Refuses hardware and protocol types and lengths other than Ethernet and IPv4.
    let Ok(ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    }) = ArpRepr::parse(&packet)
    else {
        return Handled::Dropped(Reason::Malformed);
    };
    let sender = MacAddr(source_hardware_addr.0);
    if sender.is_group() {
        return Handled::Dropped(Reason::Malformed);
    }
    let (ArpOperation::Request, Some(v4)) = (operation, &link.v4) else { return Handled::Consumed };
    let probe = source_protocol_addr.is_unspecified();
    let answered =
        if probe { holds(link, v4, target_protocol_addr) } else { reaches(v4, target_protocol_addr) };
    if answered {
        out.push(build(
            MacPair { from: link.mac, to: sender },
            ArpOperation::Reply,
            (target_protocol_addr, source_protocol_addr),
            sender,
        ));
    }
    Handled::Consumed
}

/// A request for the guest's own address, so that its answer tells the guest's Ethernet address.
pub(super) fn solicit(link: &Link, v4: &LinkV4) -> Vec<u8> {
    build(
        MacPair { from: link.mac, to: MacAddr::BROADCAST },
        ArpOperation::Request,
        (v4.gateway, v4.guest),
        MacAddr([0; 6]),
    )
}

/// Whether netd answers for `target` to a guest that has an address.
fn reaches(v4: &LinkV4, target: Ipv4Addr) -> bool {
    let subnet_broadcast = v4.prefix_len < 31
        && ipnet::Ipv4Net::new(v4.guest, v4.prefix_len).is_ok_and(|n| n.broadcast() == target);
    target != v4.guest
        && !target.is_unspecified()
        && !target.is_loopback()
        && !target.is_multicast()
        && !target.is_broadcast()
        && !subnet_broadcast
}

/// Whether `target` is an address that netd itself takes on the link.
fn holds(link: &Link, v4: &LinkV4, target: Ipv4Addr) -> bool {
    target != v4.guest
        && (target == v4.gateway
            || v4.loopback == Some(target)
            || (link.mode == Mode::Masquerade && target == v4.pod))
}

fn build(
    ends: MacPair,
    operation: ArpOperation,
    addresses: (Ipv4Addr, Ipv4Addr),
    target_mac: MacAddr,
) -> Vec<u8> {
    let mut frame = frame::ethernet(ends, EthernetProtocol::Arp, LEN);
    ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(ends.from.0),
        source_protocol_addr: addresses.0,
        target_hardware_addr: EthernetAddress(target_mac.0),
        target_protocol_addr: addresses.1,
    }
    .emit(&mut ArpPacket::new_unchecked(&mut frame[frame::ETHERNET..]));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::test_link;

    fn ask(link: &Link, sender: [u8; 4], target: [u8; 4]) -> Vec<Vec<u8>> {
        let mut out = vec![];
        let request = build(
            MacPair { from: link.guest_mac.unwrap(), to: MacAddr::BROADCAST },
            ArpOperation::Request,
            (sender.into(), target.into()),
            MacAddr([0; 6]),
        );
        assert_eq!(handle(&request[14..], link, &mut out), Handled::Consumed);
        out
    }

    /// Sender address, target address, whether an answer comes.
    #[test]
    fn every_neighbour_is_netd_but_the_guest_itself() {
        let link = test_link();
        let guest = [10, 9, 0, 2];
        for (sender, target, answered) in [
            (guest, [10, 9, 0, 1], true),
            (guest, [10, 9, 0, 77], true),
            (guest, [169, 254, 1, 1], true),
            (guest, [8, 8, 8, 8], true),
            (guest, guest, false),
            ([0; 4], guest, false),
            ([0; 4], [10, 9, 0, 1], true),
            ([0; 4], [169, 254, 9, 9], false),
            (guest, [10, 9, 0, 255], false),
            (guest, [255; 4], false),
            (guest, [224, 0, 0, 1], false),
            (guest, [127, 0, 0, 1], false),
        ] {
            assert_eq!(ask(&link, sender, target).len(), usize::from(answered), "{sender:?} asks {target:?}");
        }
    }

    #[test]
    fn the_answer_is_byte_for_byte_a_reply() {
        let link = test_link();
        let reply = ask(&link, [10, 9, 0, 2], [10, 9, 0, 1]).remove(0);
        #[rustfmt::skip]
        assert_eq!(reply, [
            0x52, 0x54, 0, 0x11, 0x22, 0x33, 2, 0, 0x5e, 0x10, 0, 1, 8, 6,
            0, 1, 8, 0, 6, 4, 0, 2,
            2, 0, 0x5e, 0x10, 0, 1, 10, 9, 0, 1,
            0x52, 0x54, 0, 0x11, 0x22, 0x33, 10, 9, 0, 2,
        ]);
    }

    #[test]
    fn broken_packets_are_refused_and_replies_taken_silently() {
        let link = test_link();
        let good = build(
            MacPair { from: link.guest_mac.unwrap(), to: link.mac },
            ArpOperation::Reply,
            ([10, 9, 0, 2].into(), [10, 9, 0, 1].into()),
            link.mac,
        );
        let mut out = vec![];
        assert_eq!(handle(&good[14..], &link, &mut out), Handled::Consumed);
        let malformed = |payload: &[u8]| handle(payload, &link, &mut vec![]);
        for cut in 14..good.len() {
            assert_eq!(malformed(&good[14..cut]), Handled::Dropped(Reason::Malformed));
        }
        for (at, value) in [(15, 6), (16, 9), (18, 8), (19, 16), (22, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(malformed(&bad[14..]), Handled::Dropped(Reason::Malformed), "byte {at}");
        }
        assert!(out.is_empty());
    }

    #[test]
    fn without_ipv4_netd_does_not_answer() {
        let link = Link { v4: None, ..test_link() };
        assert!(ask(&link, [10, 9, 0, 2], [10, 9, 0, 1]).is_empty());
    }
}
