//! Texts of single settings, and what is wrong with them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// One setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, e.g. `limits.flows` or `ports.tcp[2]`.
    pub field: String,
    /// The value as it was written; none when it is missing.
    pub value: Option<String>,
    /// What is allowed there, as the end of a sentence.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(v) => write!(f, "{}: '{}' is not allowed; {}", self.field, v, self.allowed),
            None => write!(f, "{}: missing; {}", self.field, self.allowed),
        }
    }
}

/// Every setting that cannot be used; never empty when it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration has {} wrong setting(s)", self.0.len())?;
        self.0.iter().try_for_each(|p| write!(f, "\n  {p}"))
    }
}

impl std::error::Error for Problems {}

impl Problems {
    /// Notes a value that is not allowed.
    pub fn wrong(&mut self, field: impl Into<String>, value: &str, allowed: impl Into<String>) {
        self.0.push(Problem { field: field.into(), value: Some(value.into()), allowed: allowed.into() });
    }

    /// Notes a value that has to be there and is not.
    pub fn missing(&mut self, field: impl Into<String>, allowed: impl Into<String>) {
        self.0.push(Problem { field: field.into(), value: None, allowed: allowed.into() });
    }

    /// Reads an optional setting with `parse`; when that gives none, notes it with what is `allowed`.
    pub fn read<T>(
        &mut self,
        field: &str,
        text: Option<&str>,
        allowed: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = text?;
        let value = parse(text.trim());
        if value.is_none() {
            self.wrong(field, text, allowed);
        }
        value
    }

    /// Reads an optional setting by its type's own text form.
    pub fn from_str<T: FromStr>(&mut self, field: &str, text: Option<&str>, allowed: &str) -> Option<T> {
        self.read(field, text, allowed, |t| t.parse().ok())
    }

    /// Reads an optional integer between `min` and `max`, both included.
    pub fn integer(&mut self, field: &str, text: Option<&str>, min: u64, max: u64) -> Option<u64> {
        let allowed = format!("an integer from {min} to {max} is");
        self.read(field, text, &allowed, |t| integer(t).filter(|n| (min..=max).contains(n)))
    }

    /// Reads an optional time between `min` and `max` seconds, both included.
    pub fn duration(&mut self, field: &str, text: Option<&str>, min: u64, max: u64) -> Option<Duration> {
        let allowed = format!("a time from {min}s to {max}s is, such as '500ms', '30s', '2m' or '2h'");
        let range = Duration::from_secs(min)..=Duration::from_secs(max);
        self.read(field, text, &allowed, |t| duration(t).filter(|d| range.contains(d)))
    }

    /// Reads an optional size between `min` and `max` bytes, both included.
    pub fn bytes(&mut self, field: &str, text: Option<&str>, min: u64, max: u64) -> Option<u64> {
        let allowed = format!("a size from {min} to {max} bytes is, such as '65536', '64KiB' or '4MiB'");
        self.read(field, text, &allowed, |t| bytes(t).filter(|n| (min..=max).contains(n)))
    }
}

/// Decimal digits and nothing else; `u64::from_str` would take a sign too.
pub fn integer(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// A number and its unit, none when there is only a number.
fn split_unit(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((integer(number)?, unit.trim_start()))
}

/// A time: `ms`, `s`, `m` or `h` behind an integer; seconds without a unit.
pub fn duration(text: &str) -> Option<Duration> {
    let (n, unit) = split_unit(text)?;
    Some(match unit {
        "ms" => Duration::from_millis(n),
        "" | "s" => Duration::from_secs(n),
        "m" => Duration::from_secs(n.checked_mul(60)?),
        "h" => Duration::from_secs(n.checked_mul(3600)?),
        _ => return None,
    })
}

/// A size: `KiB` or `MiB` behind an integer; bytes without a unit.
pub fn bytes(text: &str) -> Option<u64> {
    let (n, unit) = split_unit(text)?;
    let factor = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    n.checked_mul(factor)
}

/// Whether `text` can be a host name: letters, digits and hyphens in labels of at most 63 (RFC 1123,
/// section 2.1), at most 253 in all.
pub fn is_hostname(text: &str) -> bool {
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// Whether `text` can be a domain: a host name whose labels may have underscores, as service names do; a
/// final dot is allowed.
pub fn is_domain(text: &str) -> bool {
    is_hostname(&text.strip_suffix('.').unwrap_or(text).replace('_', "a"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(duration("30"), Some(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(duration("2 m"), Some(Duration::from_secs(120)));
        assert_eq!(bytes("4MiB"), Some(4 << 20));
        for wrong in ["", "s", "-1s", "+1", "1d", "1.5s", "99999999999999999999", "18446744073709551615h"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        for wrong in ["", "KiB", "4MB", "18446744073709551615MiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_obey_rfc_1123() {
        for right in ["vm1", "vm1.example.org", "1a", &"a".repeat(63)] {
            assert!(is_hostname(right), "{right}");
        }
        for wrong in ["", "-a", "a-", "a..b", "a b", "a_b", &"a".repeat(64), &"a.".repeat(130)] {
            assert!(!is_hostname(wrong), "{wrong}");
        }
        assert!(is_domain("_tcp.svc.cluster.local."));
        assert!(!is_domain("."));
    }
}
