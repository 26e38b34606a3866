//! Forms of texts.

/// A DNS label in Kubernetes' form (RFC 1123): at most 63 of a-z, 0-9 and `-`, not `-` at the ends.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// At least one of a-z, 0-9 and `-`, not `-` at the ends.
fn is_part(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The name of an object in Kubernetes' form: at most 253 of a-z, 0-9 and `-` in parts with dots between them, which may be longer
/// than a DNS label.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

/// The name of a label in Kubernetes' form: at most 63 letters, digits, `-`, `_` and `.`, letters or digits at the ends; an object's
/// name and a slash may stand in front.
pub(crate) fn is_label_name(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_dns_subdomain) && !name.is_empty() && is_label_value(name)
}

/// The value of a label in Kubernetes' form: nothing, or as a label's name without what stands in front.
pub(crate) fn is_label_value(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let end = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().copied().all(inner) && end(bytes.first()) && end(bytes.last())
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

/// A UUID, with or without dashes.
pub(crate) fn is_uuid(text: &str) -> bool {
    match text.len() {
        32 => text.bytes().all(|b| b.is_ascii_hexdigit()),
        36 => text.bytes().enumerate().all(|(n, b)| match n {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        }),
        _ => false,
    }
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
            assert!(is_label_name(right) && !is_label_name(wrong), "{right} {wrong}");
        }
        assert!(is_label_value("") && is_label_value("A.b_c-1"));
        assert!(!is_label_value("a/b") && !is_label_value("a.") && !is_label_value(&long));
    }

    #[test]
    fn names_follow_rfc_1123() {
        assert!(is_dns_subdomain("a-1.b"));
        assert!(is_dns_subdomain(&"a".repeat(253)) && !is_dns_subdomain(&"a".repeat(254)));
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)));
        for wrong in ["", "A", "-a", "a-", "a..b", ".a", "a_b"] {
            assert!(!is_dns_subdomain(wrong), "{wrong}");
        }
    }

    #[test]
    fn labels_have_kubernetes_forms() {
        for right in ["zone", "Zone_1.x", "kubernetes.io/hostname"] {
            assert!(is_label_name(right), "{right}");
        }
        for wrong in ["", "/a", "a/", "a/b/c", "bad key", "-a", &"a".repeat(64)] {
            assert!(!is_label_name(wrong), "{wrong}");
        }
        assert!(
            is_label_value("")
                && is_label_value("a.b_c-D")
                && !is_label_value(".a")
                && !is_label_value("a b")
        );
    }

    #[test]
    fn a_uuid_may_lack_its_dashes() {
        assert!(
            is_uuid("5d307ca9-b3ef-428c-8861-06e72d69f223") && is_uuid("5D307CA9b3ef428c886106e72d69f223")
        );
        assert!(!is_uuid("5d307ca9-b3ef428c886106e72d69f223") && !is_uuid("x"));
    }
}
