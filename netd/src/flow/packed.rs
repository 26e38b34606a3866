//! A key as the table keeps it: forty bytes, so that a slot with its flow's box is one line of the cache.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Key, Kind};

/// The kind, in the lowest bits of the last word.
const KIND: u64 = 0b11;
/// An end has an IPv6 address.
const GUEST_V6: u64 = 1 << 2;
const PEER_V6: u64 = 1 << 3;

/// See the module. Flow labels and scopes of IPv6 are no part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    /// The guest's address; of IPv4 in the first word.
    pub(super) guest: [u64; 2],
    /// The peer's address.
    pub(super) peer: [u64; 2],
    /// The guest's port, the peer's, sixteen bits each from the top; families and kind at the bottom.
    pub(super) rest: u64,
}

impl From<&Key> for Packed {
    #[inline]
    fn from(key: &Key) -> Packed {
        let (guest, guest_v6) = words(key.guest.ip());
        let (peer, peer_v6) = words(key.peer.ip());
        let ports = u64::from(key.guest.port()) << 48 | u64::from(key.peer.port()) << 32;
        let families = if guest_v6 { GUEST_V6 } else { 0 } | if peer_v6 { PEER_V6 } else { 0 };
        Packed { guest, peer, rest: ports | families | key.kind as u64 }
    }
}

impl Packed {
    /// The key.
    pub(super) fn key(&self) -> Key {
        let kind = match self.rest & KIND {
            0 => Kind::Tcp,
            1 => Kind::Udp,
            _ => Kind::Echo,
        };
        let end = |words, v6, shift: u32| {
            SocketAddr::new(address(words, self.rest & v6 != 0), (self.rest >> shift) as u16)
        };
        Key { kind, guest: end(self.guest, GUEST_V6, 48), peer: end(self.peer, PEER_V6, 32) }
    }
}

#[inline]
fn words(address: IpAddr) -> ([u64; 2], bool) {
    match address {
        IpAddr::V4(address) => ([u64::from(address.to_bits()), 0], false),
        IpAddr::V6(address) => ([(address.to_bits() >> 64) as u64, address.to_bits() as u64], true),
    }
}

fn address([high, low]: [u64; 2], v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
    } else {
        Ipv4Addr::from_bits(high as u32).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_packed_and_unpacked_and_no_two_are_packed_alike() {
        let ends: [SocketAddr; 6] = [
            "10.9.0.2:443",
            "10.9.0.2:444",
            "[::a09:2]:443",
            "[::ffff:10.9.0.2]:443",
            "[fd00::2]:443",
            "0.0.0.0:0",
        ]
        .map(|end| end.parse().unwrap());
        let mut all = Vec::new();
        for kind in [Kind::Tcp, Kind::Udp, Kind::Echo] {
            for guest in ends {
                for peer in ends {
                    let key = Key { kind, guest, peer };
                    let packed = Packed::from(&key);
                    assert_eq!(packed.key(), key);
                    assert!(!all.contains(&packed), "{key:?}");
                    all.push(packed);
                }
            }
        }
    }
}
