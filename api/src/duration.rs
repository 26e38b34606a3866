//! Durations as Go writes them in the API: `1m30s`, `1.5h`, `500ms`.

use std::time::Duration;

/// Reads a duration of [Go's form](https://pkg.go.dev/time#ParseDuration) that is not negative; `None` when the text is
/// none.
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..letters] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[letters..];
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gos_forms_are_read_and_others_are_not() {
        let seconds = |text: &str| parse(text).map(|duration| duration.as_secs_f64());
        assert_eq!(seconds("1m0s"), Some(60.0));
        assert_eq!(seconds("1h1.5s"), Some(3601.5));
        assert_eq!(seconds("250ms"), Some(0.25));
        assert_eq!(seconds("0"), Some(0.0));
        for wrong in ["", "1", "m", "-1s", "1x", "1m 2s", "1e400h", "..s"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
