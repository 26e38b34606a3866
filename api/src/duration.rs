//! Spans of time as Go writes them (`metav1.Duration`): `300ms`, `1.5h`, `2h45m`.

use std::time::Duration;

/// Units, those first that another one begins like.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("\u{3bc}s", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// The span that a text says; `None` when it says none, or one below zero.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, behind) = rest.split_at(digits);
        let (unit, seconds) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit))?;
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        sum = sum.checked_add(part)?;
        rest = behind.get(unit.len()..)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_writes_spans_so() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("300ms", 300),
            ("1.5h", 5_400_000),
            ("2h45m", 9_900_000),
            ("5m0s", 300_000),
            ("+1s", 1000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "5", "-5m", "5 m", "m", "1d", "1..5s", "five", "99999999999999999999h", "+"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
