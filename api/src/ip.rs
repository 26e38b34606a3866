//! IP addresses as manifests write them.

use std::net::IpAddr;

/// The address that `text` is.
///
/// Octets of an IPv4 address may have leading zeros and are decimal all the same, as in Kubernetes' own fields that are older
/// than the stricter rule (`k8s.io/utils/net.ParseIPSloppy`). What is passed on is to be written without: other programs take
/// such an octet for octal.
pub fn parse(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    let octets: Vec<&str> = text.split('.').collect();
    let plain = |octet: &&str| match octet.trim_start_matches('0') {
        "" if !octet.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    octets.iter().map(plain).collect::<Vec<_>>().join(".").parse().ok().filter(IpAddr::is_ipv4)
}

/// Each address as other programs read it; what is none stays as it is.
pub fn plain(texts: &[String]) -> Vec<String> {
    texts.iter().map(|text| parse(text).map_or_else(|| text.clone(), |address| address.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal_and_go() {
        let texts = [
            "0127.0.0.3",
            "01.1.1.1",
            "000.00.0.010",
            "192.0.2.1",
            "fd00::0a",
            "x",
            "1.2.3",
            "1.2.3.",
            "256.1.1.1",
            "0x1.1.1.1",
            "",
        ];
        let read = plain(&texts.map(str::to_owned));
        assert_eq!(
            read,
            [
                "127.0.0.3",
                "1.1.1.1",
                "0.0.0.10",
                "192.0.2.1",
                "fd00::a",
                "x",
                "1.2.3",
                "1.2.3.",
                "256.1.1.1",
                "0x1.1.1.1",
                ""
            ]
        );
        for text in ["x", "1.2.3", "1.2.3.", ".1.2.3", "256.1.1.1", "0x1.1.1.1", "", "01", "1.2.3.-4"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
