//! The Internet checksum (RFC 1071) and its pseudo headers (RFC 9293 section 3.1, RFC 8200 section 8.1).

use std::net::IpAddr;

/// Sums the 16-bit big-endian words of `data` onto `initial`; an odd last byte counts as the high half of a
/// word. Not complemented and not folded to 16 bit: see [`fold`].
pub fn sum(data: &[u8], initial: u32) -> u32 {
    let mut acc = u64::from(initial);
    let (quads, rest) = data.as_chunks::<4>();
    for q in quads {
        acc += u64::from(u32::from_be_bytes(*q));
    }
    let (pairs, last) = rest.as_chunks::<2>();
    for p in pairs {
        acc += u64::from(u16::from_be_bytes(*p));
    }
    if let [b] = last {
        acc += u64::from(*b) << 8;
    }
    // 2^16 = 1 modulo 2^16 - 1, so the halves of a wider sum may be added up at the end.
    u32::from(fold64(acc))
}

fn fold64(mut acc: u64) -> u16 {
    while acc > 0xffff {
        acc = (acc & 0xffff) + (acc >> 16);
    }
    acc as u16
}

/// Folds a sum to 16 bit, not complemented.
pub fn fold(acc: u32) -> u16 {
    fold64(u64::from(acc))
}

/// The sum of the pseudo header for `protocol` and a transport length in bytes. Zero for mixed families.
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> u32 {
    let addresses = match (src, dst) {
        (IpAddr::V4(s), IpAddr::V4(d)) => sum(&d.octets(), sum(&s.octets(), 0)),
        (IpAddr::V6(s), IpAddr::V6(d)) => sum(&d.octets(), sum(&s.octets(), 0)),
        _ => 0,
    };
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    u32::from(fold64(
        u64::from(addresses) + u64::from(protocol) + u64::from(len >> 16) + u64::from(len & 0xffff),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word by word.
    fn naive(data: &[u8], initial: u32) -> u16 {
        let mut acc = u64::from(initial);
        for c in data.chunks(2) {
            acc += u64::from(c[0]) << 8 | c.get(1).map_or(0, |b| u64::from(*b));
            acc = (acc & 0xffff) + (acc >> 16);
        }
        fold64(acc)
    }

    #[test]
    fn rfc1071_example() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0)), 0xddf2);
    }

    proptest! {
        #[test]
        fn equals_the_definition(data in proptest::collection::vec(any::<u8>(), 0..300), initial in 0u32..0x1_0000) {
            prop_assert_eq!(fold(sum(&data, initial)), naive(&data, initial));
        }
    }
}
