//! Ethernet addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use netd_base::codec::{DecodeError, Field, Reader};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// Whether the group bit is set (broadcast or multicast).
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The modified EUI-64 interface identifier's link-local address (RFC 4291, appendix A).
    pub fn link_local(self) -> Ipv6Addr {
        let m = self.0;
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.0;
        write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", m[0], m[1], m[2], m[3], m[4], m[5])
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an Ethernet address.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not an Ethernet address: six hexadecimal bytes joined by ':' or '-' are allowed")]
pub struct MacError(String);

impl FromStr for MacAddr {
    type Err = MacError;

    fn from_str(s: &str) -> Result<Self, MacError> {
        let mut bytes = [0; 6];
        let mut parts = s.split([':', '-']);
        for b in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2 && !p.starts_with('+'));
            *b = part.and_then(|p| u8::from_str_radix(p, 16).ok()).ok_or_else(|| MacError(s.into()))?;
        }
        if parts.next().is_some() {
            return Err(MacError(s.into()));
        }
        Ok(MacAddr(bytes))
    }
}

impl Field for MacAddr {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.0);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(MacAddr(r.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_text() {
        let m: MacAddr = "52:54:00:AA-bb-0c".parse().unwrap();
        assert_eq!(m.to_string(), "52:54:00:aa:bb:0c");
        for bad in ["", "52:54:00:aa:bb", "52:54:00:aa:bb:cc:dd", "52:54:00:aa:bb:+c", "52:54:00:aa:bb:ccc"] {
            assert!(bad.parse::<MacAddr>().is_err(), "{bad}");
        }
        assert_eq!(m.link_local().to_string(), "fe80::5054:ff:feaa:bb0c");
    }
}
