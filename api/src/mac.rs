//! Ethernet addresses of guests.

use std::fmt;
use std::str::FromStr;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

/// The text is not an Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "six pairs of hexadecimal digits, separated by ':' or '-', or three groups of four, separated by '.', are allowed"
)]
pub struct MacError;

impl MacAddr {
    /// An address for an interface that the manifest gives none: the same words give the same address.
    ///
    /// It is locally administered and unicast (IEEE 802, section 8.4): `02` and 40 bits of a hash.
    pub fn derived(words: &[&str]) -> Self {
        let [.., a, b, c, d, e] = hash64(words).to_be_bytes();
        MacAddr([0x02, a, b, c, d, e])
    }

    /// Whether a guest's interface may have this address: unicast and not zero.
    pub fn is_usable(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

/// FNV-1a over `words`, each ended by a byte that UTF-8 never has, then mixed so that every bit counts.
pub(crate) fn hash64(words: &[&str]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in words {
        for byte in word.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    // The finaliser of SplitMix64: FNV alone leaves the high bits of similar words similar.
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

impl FromStr for MacAddr {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let (separator, digits) = match text.bytes().find(|b| b":-.".contains(b)) {
            Some(b'.') => ('.', 4),
            Some(b'-') => ('-', 2),
            _ => (':', 2),
        };
        let parts: Vec<&str> = text.split(separator).collect();
        let right = |part: &&str| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
        if parts.len() * digits != 12 || !parts.iter().all(right) {
            return Err(MacError);
        }
        let number = u64::from_str_radix(&parts.concat(), 16).map_err(|_| MacError)?;
        let [_, _, octets @ ..] = number.to_be_bytes();
        Ok(MacAddr(octets))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_address_convert_both_ways() {
        let mac: MacAddr = "52:54:00:AB:cd:0f".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:ab:cd:0f");
        assert_eq!("52-54-00-ab-cd-0f".parse(), Ok(mac));
        assert_eq!("5254.00ab.cd0f".parse(), Ok(mac));
        for wrong in [
            "",
            "52:54:00:ab:cd",
            "52:54:00:ab:cd:0f:11",
            "52:54:00:ab:cd:+f",
            "5254.00ab.cd0",
            "525400abcd0f",
            "é",
        ] {
            assert_eq!(wrong.parse::<MacAddr>(), Err(MacError), "{wrong}");
        }
    }

    #[test]
    fn multicast_and_zero_are_no_guest_addresses() {
        assert!(!MacAddr([0x01, 0, 0x5e, 0, 0, 1]).is_usable());
        assert!(!MacAddr([0; 6]).is_usable());
        assert!(MacAddr([0x52, 0x54, 0, 0, 0, 1]).is_usable());
    }

    #[test]
    fn derived_addresses_are_stable_usable_and_differ_by_word() {
        let mac = MacAddr::derived(&["default", "vm", "", "net0"]);
        assert_eq!(mac, MacAddr::derived(&["default", "vm", "", "net0"]));
        assert!(mac.is_usable());
        assert_ne!(mac, MacAddr::derived(&["default", "vm", "", "net1"]));
        assert_ne!(MacAddr::derived(&["a", "bc"]), MacAddr::derived(&["ab", "c"]));
    }
}
