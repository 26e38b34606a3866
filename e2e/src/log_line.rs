//! What a line of a daemon's log has to be.

use podvirt_daemon::strict_json::StrictJson;
use serde::de::Error as _;

/// Reads a line as a JSON object in which each key is there once.
///
/// # Errors
/// It is no JSON object, or a key is there twice.
pub fn check(line: &str) -> serde_json::Result<()> {
    match serde_json::from_str(line)? {
        StrictJson::Object(_) => Ok(()),
        _ => Err(serde_json::Error::custom("no object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_there_twice_is_refused_at_any_depth() {
        let nested = r#"{"a": [1, -1, 1.5, true, null, "x", {"a": {}}], "span": {"a": 1, "name": "a"}}"#;
        for line in ["{}", nested] {
            check(line).unwrap();
        }
        let twice = [r#"{"a": 1, "a": 2}"#, r#"{"span": {"name": 1, "name": 1}}"#];
        for line in twice.into_iter().chain(["[]", "a panic", "", r#"{"a": 1"#]) {
            assert!(check(line).is_err(), "{line}");
        }
    }
}
