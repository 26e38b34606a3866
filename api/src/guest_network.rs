//! The network of a guest behind masquerade: which address the guest has there.
//!
//! As in upstream's binding, the first address of the network is the gateway's and the second one the guest's; bits of the
//! host part are ignored. An octet may have leading zeros, as old manifests have; it is decimal all the same.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// What is allowed as [`v4`]'s text.
pub const ALLOWED_V4: &str =
    "a unicast network with a prefix length from 8 to 30, as in '10.0.2.0/24', is allowed";
/// What is allowed as [`v6`]'s text.
pub const ALLOWED_V6: &str =
    "a global or unique local network with a prefix length from 8 to 126, as in 'fd10:0:2::/120', is allowed";

/// The guest's address in an IPv4 network, with the network's prefix length; none where the text is not allowed.
pub fn v4(cidr: &str) -> Option<Ipv4Net> {
    let (network, length) = cidr.split_once('/')?;
    let octets: Vec<&str> = network.split('.').map(plain).collect();
    // A number's own parser takes a sign.
    let length = Some(plain(length)).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let network = Ipv4Net::new(octets.join(".").parse().ok()?, length.parse().ok()?).ok()?;
    let guest = Ipv4Addr::from(u32::from(network.network()).checked_add(2)?);
    let unicast =
        |a: Ipv4Addr| a.octets()[0] != 0 && a.octets()[0] < 224 && !a.is_loopback() && !a.is_link_local();
    let fits = (8..=30).contains(&network.prefix_len());
    (fits && unicast(guest)).then(|| Ipv4Net::new(guest, network.prefix_len()).ok()).flatten()
}

/// The guest's address in an IPv6 network, with the network's prefix length; none where the text is not allowed.
pub fn v6(cidr: &str) -> Option<Ipv6Net> {
    let network: Ipv6Net = cidr.parse().ok()?;
    let guest = Ipv6Addr::from(u128::from(network.network()).checked_add(2)?);
    let global = !guest.is_unspecified()
        && !guest.is_loopback()
        && !guest.is_multicast()
        && !guest.is_unicast_link_local()
        && guest.to_ipv4().is_none();
    let fits = (8..=126).contains(&network.prefix_len());
    (fits && global).then(|| Ipv6Net::new(guest, network.prefix_len()).ok()).flatten()
}

/// Digits without the zeros before them.
fn plain(digits: &str) -> &str {
    let plain = digits.trim_start_matches('0');
    if plain.is_empty() && !digits.is_empty() { "0" } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_has_the_second_address() {
        let v4 = |text| v4(text).map(|net| net.to_string());
        assert_eq!(v4("10.0.2.0/24").unwrap(), "10.0.2.2/24");
        assert_eq!(v4("10.10.010.0/24").unwrap(), "10.10.10.2/24");
        assert_eq!(v4("192.0.2.77/26").unwrap(), "192.0.2.66/26");
        assert_eq!(v4("10.0.0.0/30").unwrap(), "10.0.0.2/30");
        let v6 = |text| v6(text).map(|net| net.to_string());
        assert_eq!(v6("fd10:0:2::2/120").unwrap(), "fd10:0:2::2/120");
        assert_eq!(v6("fd10:10:10::/64").unwrap(), "fd10:10:10::2/64");
        assert_eq!(v6("2001:db8::ff/126").unwrap(), "2001:db8::fe/126");
    }

    #[test]
    fn what_no_guest_can_have_is_not_allowed() {
        for text in [
            "",
            "/",
            "10.0.2.0",
            "10.0.2.0/",
            "10.0.2/24",
            "10.0.2.0.0/24",
            "10.0.256.0/24",
            "10.0.2.0/31",
            "10.0.0.0/7",
            "10.0.2.0/240",
            "10.0.2.0/+24",
            "10.0.2.-1/24",
            "10..2.0/24",
            "127.0.0.0/8",
            "224.0.0.0/24",
            "255.255.255.0/24",
            "0.0.0.0/8",
            "169.254.1.0/24",
            "fd10::/64",
            "10.0.2.0/24 ",
        ] {
            assert_eq!(v4(text), None, "{text}");
        }
        for text in [
            "",
            "fd10::",
            "fd10::/127",
            "fd10::/7",
            "fe80::/64",
            "ff02::/64",
            "::/64",
            "::/120",
            "::ffff:10.0.2.0/120",
            "10.0.2.0/24",
            "fd10::/129",
        ] {
            assert_eq!(v6(text), None, "{text}");
        }
    }
}
