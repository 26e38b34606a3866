//! The part of an image that a request asks for (RFC 9110, section 14): one range of bytes.

use std::ops::Range;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// All of it.
    All,
    /// A part.
    Part(Range<u64>),
    /// A part that it does not have.
    Beyond,
}

/// What the field `Range` asks of an image of `size` bytes. What is not understood, and several ranges at a time, count as all.
pub(super) fn asked(field: Option<&str>, size: u64) -> Asked {
    let Some(said) = field.and_then(|field| field.trim().strip_prefix("bytes=")) else { return Asked::All };
    let Some((first, last)) = said.trim().split_once('-').filter(|_| !said.contains(',')) else {
        return Asked::All;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|_| !text.trim().starts_with('+'));
    let part = match (first.trim(), last.trim()) {
        ("", last) => match number(last) {
            Some(0) => return Asked::Beyond,
            Some(length) => size.saturating_sub(length)..size,
            None => return Asked::All,
        },
        (first, "") => match number(first) {
            Some(first) => first..size,
            None => return Asked::All,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => first..size.min(last.saturating_add(1)),
            _ => return Asked::All,
        },
    };
    if part.start >= size { Asked::Beyond } else { Asked::Part(part) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_the_rfc_says() {
        for (field, wanted) in [
            (None, Asked::All),
            (Some("bytes=0-"), Asked::Part(0..100)),
            (Some("bytes=10-19"), Asked::Part(10..20)),
            (Some("bytes=90-1000"), Asked::Part(90..100)),
            (Some("bytes=-10"), Asked::Part(90..100)),
            (Some("bytes=-1000"), Asked::Part(0..100)),
            (Some("bytes=100-"), Asked::Beyond),
            (Some("bytes=-0"), Asked::Beyond),
            (Some("bytes=20-10"), Asked::All),
            (Some("bytes=0-1,5-6"), Asked::All),
            (Some("bytes=+1-2"), Asked::All),
            (Some("lines=1-2"), Asked::All),
            (Some("bytes=a-b"), Asked::All),
            (Some("bytes=5-18446744073709551615"), Asked::Part(5..100)),
        ] {
            assert_eq!(asked(field, 100), wanted, "{field:?}");
        }
        assert_eq!(asked(Some("bytes=0-"), 0), Asked::Beyond);
    }
}
