//! Forms of texts.

/// A DNS label in Kubernetes' form (RFC 1123): at most 63 of a-z, 0-9 and `-`, not `-` at the ends.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// DNS labels with dots between them, at most 253 letters in all.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

/// The value of a label: at most 63 letters, digits, `-`, `_` and `.`, none of the last three at the ends; or nothing.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

/// The key of a label: a name, which may have a DNS name and `/` before it.
pub(crate) fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(text),
    }
}

fn is_label_name(text: &str) -> bool {
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    text.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// A PCI address: `0000:00:1f.7`.
pub fn is_pci_address(text: &str) -> bool {
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
    let mut parts = text.split(':');
    let (Some(domain), Some(bus), Some(rest), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some((slot, function)) = rest.split_once('.') else { return false };
    hex(domain, 4)
        && hex(bus, 2)
        && hex(slot, 2)
        && matches!(function.as_bytes(), [b'0'..=b'7'])
        && u8::from_str_radix(slot, 16).is_ok_and(|s| s < 32)
}

/// A UUID with dashes.
pub(crate) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(n, b)| match n {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// A serial number that QEMU and the guest take as it is.
pub(crate) fn is_plain_serial(text: &str) -> bool {
    text.len() <= 256 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.+-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_have_one_form() {
        assert!(is_pci_address("0000:00:1f.7"));
        for wrong in ["00:1f.7", "0000:00:1f.8", "0000:00:20.0", "0000:00:1f", "0000:00:1f.7:0", ""] {
            assert!(!is_pci_address(wrong), "{wrong}");
        }
    }

    #[test]
    fn labels_have_kubernetes_form() {
        let long = "a".repeat(64);
        for (right, wrong) in
            [("app", "-app"), ("example.com/App_1.x", "example.com/"), ("a", long.as_str()), ("a/b", "a/b/c")]
        {
            assert!(is_label_key(right) && !is_label_key(wrong), "{right} {wrong}");
        }
        assert!(is_label_value("") && is_label_value("A.b_c-1"));
        assert!(!is_label_value("a/b") && !is_label_value("a.") && !is_label_value(&long));
    }

    #[test]
    fn names_follow_rfc_1123() {
        assert!(is_dns_subdomain("a-1.b"));
        for wrong in ["", "A", "-a", "a-", "a..b", ".a", "a_b"] {
            assert!(!is_dns_subdomain(wrong), "{wrong}");
        }
    }
}
