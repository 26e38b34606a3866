//! What requests for disks' data and maps ask for. The parameters are upstream's.

use std::ops::Range;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

/// Letters of a parameter's value that are told.
const MOST_LETTERS: usize = 40;

/// A parameter is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    /// Its value is not allowed.
    #[error("{name}: '{value}': {allowed} is allowed")]
    Value {
        /// Its name.
        name: &'static str,
        /// The value, or the start of it.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The part begins behind the end.
    #[error("offset: '{offset}': the disk has {size} bytes, and less than that is allowed")]
    Beyond {
        /// Where it begins.
        offset: u64,
        /// The disk's size.
        size: u64,
    },
}

impl IntoResponse for Unusable {
    fn into_response(self) -> Response {
        let text = format!("{self}\n");
        match self {
            Unusable::Value { .. } => (StatusCode::BAD_REQUEST, text).into_response(),
            Unusable::Beyond { size, .. } => {
                let range = HeaderValue::try_from(format!("bytes */{size}"));
                let fields: HeaderMap =
                    range.into_iter().map(|range| (header::CONTENT_RANGE, range)).collect();
                (StatusCode::RANGE_NOT_SATISFIABLE, fields, text).into_response()
            }
        }
    }
}

/// The number that a parameter says; none where it is not there, or empty.
pub(super) fn number(uri: &Uri, name: &'static str, allowed: &'static str) -> Result<Option<u64>, Unusable> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(of, _)| *of == name).map(|(_, value)| value);
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let digits = value.bytes().all(|letter| letter.is_ascii_digit()).then(|| value.parse().ok()).flatten();
    let unusable = || Unusable::Value { name, value: value.chars().take(MOST_LETTERS).collect(), allowed };
    digits.map(Some).ok_or_else(unusable)
}

/// The part of a disk that a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    offset: u64,
    /// 0: up to the end.
    length: u64,
}

impl Part {
    /// What a request says.
    pub(super) fn of(uri: &Uri) -> Result<Self, Unusable> {
        const ALLOWED: &str = "a number of bytes";
        let read = |name| number(uri, name, ALLOWED).map(Option::unwrap_or_default);
        Ok(Part { offset: read("offset")?, length: read("length")? })
    }

    /// The part, of a disk of this size. What is longer than the disk ends with it, as upstream's does.
    pub(super) fn within(self, size: u64) -> Result<Range<u64>, Unusable> {
        let Part { offset, length } = self;
        if offset >= size {
            return Err(Unusable::Beyond { offset, size });
        }
        let end = if length == 0 { size } else { size.min(offset.saturating_add(length)) };
        Ok(offset..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_and_end_with_the_disk() {
        for (query, size, wanted) in [
            ("", 1024, Ok(0..1024)),
            ("?offset=&length=", 1024, Ok(0..1024)),
            ("?offset=256", 1024, Ok(256..1024)),
            ("?offset=256&length=0", 1024, Ok(256..1024)),
            ("?x-kubevirt-export-token=t&length=512&unknown=x", 1024, Ok(0..512)),
            ("?offset=768&length=512", 1024, Ok(768..1024)),
            ("?offset=768&length=18446744073709551615", 1024, Ok(768..1024)),
            (
                "?offset=1024",
                1024,
                Err("offset: '1024': the disk has 1024 bytes, and less than that is allowed"),
            ),
            (
                "?offset=2000&length=10",
                1024,
                Err("offset: '2000': the disk has 1024 bytes, and less than that is allowed"),
            ),
            ("?offset=1k", 1024, Err("offset: '1k': a number of bytes is allowed")),
            ("?offset=-1", 1024, Err("offset: '-1': a number of bytes is allowed")),
            ("?length=+1", 1024, Err("length: '+1': a number of bytes is allowed")),
            ("?length=%31", 1024, Err("length: '%31': a number of bytes is allowed")),
            (
                "?length=18446744073709551616",
                1024,
                Err("length: '18446744073709551616': a number of bytes is allowed"),
            ),
        ] {
            let uri = format!("/exports/v/data{query}").parse().unwrap();
            let part = Part::of(&uri).and_then(|part| part.within(size));
            assert_eq!(part.map_err(|error| error.to_string()), wanted.map_err(str::to_owned), "{query}");
        }
    }

    #[test]
    fn refusals_are_told_by_code_and_size() {
        let beyond = Unusable::Beyond { offset: 9, size: 7 }.into_response();
        assert_eq!(beyond.status(), StatusCode::RANGE_NOT_SATISFIABLE);
        assert_eq!(beyond.headers()["content-range"], "bytes */7");
        let long = format!("/?offset={}", "x".repeat(1000)).parse().unwrap();
        let error = Part::of(&long).unwrap_err();
        assert!(error.to_string().len() < 100, "{error}");
        assert_eq!(error.into_response().status(), StatusCode::BAD_REQUEST);
    }
}
