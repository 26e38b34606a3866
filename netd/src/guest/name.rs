//! Domain names as DHCP and router advertisements carry them: RFC 1035 section 3.1, without compression.

/// The longest encoded name (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;
/// The longest label (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;

/// The wire form of a name; none if a label is empty or too long, or the text is not plain ASCII.
pub(crate) fn encode(name: &str) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut out = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        let graphic = label.bytes().all(|b| b.is_ascii_graphic());
        if label.is_empty() || label.len() > MAX_LABEL || !graphic {
            return None;
        }
        out.push(u8::try_from(label.len()).ok()?);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    (out.len() <= MAX_NAME).then_some(out)
}

/// The wire forms of every name that has one, one behind the other.
pub(crate) fn encode_all<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<u8> {
    names.into_iter().filter_map(|n| encode(n)).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_counted_and_the_root_ends_them() {
        assert_eq!(encode("a.bc").unwrap(), b"\x01a\x02bc\x00");
        assert_eq!(encode("a.bc."), encode("a.bc"));
    }

    #[test]
    fn names_without_a_wire_form_are_left_out() {
        for bad in ["", ".", "a..b", "ü.org", "a b", &"x".repeat(64), &"ab.".repeat(90)] {
            assert_eq!(encode(bad), None, "{bad}");
        }
        assert_eq!(encode_all(&["a".into(), String::new(), "b".into()]), b"\x01a\x00\x01b\x00");
    }
}
