//! TTL and DSCP of the guest's connections.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::bed::{Bed, Family, Setup, TIMEOUT, eventually, with_bed};
use crate::tcp::{cases, open};

/// Expedited forwarding (RFC 3246) and another class, in their place in the TOS.
const EF: u8 = 46 << 2;
const AF11: u8 = 10 << 2;

/// TTL and TOS, or what IPv6 has for them, of each TCP packet that reaches the client from the pod.
struct Seen {
    packets: Socket,
    pod: IpAddr,
}

impl Seen {
    fn of(bed: &Bed, family: Family) -> Seen {
        let all = i32::from((libc::ETH_P_ALL as u16).to_be());
        let packets = bed.client.run(|| Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(all))));
        let packets = packets.unwrap();
        packets.set_read_timeout(Some(TIMEOUT)).unwrap();
        Seen { packets, pod: family.pod }
    }

    /// The next packet's, and whether it is a SYN.
    fn next(&mut self) -> (bool, u8, u8) {
        let mut buffer = [0; 65_536];
        loop {
            let n = self.packets.read(&mut buffer).expect("no packet came");
            let Ok(packet) = PacketHeaders::from_ip_slice(&buffer[..n]) else { continue };
            let Some(TransportHeader::Tcp(tcp)) = packet.transport else { continue };
            let (from, ttl, class): (IpAddr, u8, u8) = match packet.net {
                Some(NetHeaders::Ipv4(ip, _)) => {
                    (ip.source.into(), ip.time_to_live, ip.dscp.value() << 2 | ip.ecn.value())
                }
                Some(NetHeaders::Ipv6(ip, _)) => (ip.source.into(), ip.hop_limit, ip.traffic_class),
                _ => continue,
            };
            if self.pod == from {
                return (tcp.syn, ttl, class);
            }
        }
    }
}

fn set(s: &SockRef<'_>, family: Family, ttl: u8, class: u8) {
    if family.pod.is_ipv4() {
        s.set_ttl_v4(ttl.into()).unwrap();
        s.set_tos_v4(class.into()).unwrap();
    } else {
        s.set_unicast_hops_v6(ttl.into()).unwrap();
        s.set_tclass_v6(class.into()).unwrap();
    }
}

#[test]
fn a_connection_has_the_guests_ttl_and_dscp_from_its_first_packet_on() {
    with_bed(Setup::default(), |bed| {
        for family in bed.families() {
            let listener = bed.client.listen(family.client(7100));
            let mut seen = Seen::of(bed, family);
            let guest = bed.guest.tcp(family.client(7100));
            set(&SockRef::from(&guest), family, 255, EF);
            guest.connect_timeout(&family.client(7100).into(), TIMEOUT).unwrap();
            assert_eq!(seen.next(), (true, 255, EF));
            let mut guest = TcpStream::from(guest);
            guest.write_all(b"hello").unwrap();
            assert_eq!(seen.next(), (false, 255, EF));
            drop(listener);
        }
    });
}

#[test]
fn what_the_guest_changes_on_an_open_connection_changes_for_its_peer() {
    with_bed(Setup::default(), |bed| {
        for (family, by) in cases(bed) {
            let (mut guest, _client) = open(bed, family, by);
            let mut seen = Seen::of(bed, family);
            set(&SockRef::from(&guest), family, 200, AF11);
            eventually("its TTL and DSCP at the peer", || {
                guest.write_all(b"more").unwrap();
                (seen.next() == (false, 200, AF11)).then_some(())
            });
        }
    });
}
