//! Kubernetes quantities: `256Mi`, `1.5Gi`, `500m`, `2`, `12e6`.
//!
//! A number is kept exactly, in units of 10⁻⁹, and beside it the text it came from, so that what is written
//! back is what was read. As in Kubernetes, digits beyond 10⁻⁹ are rounded up.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

const NANOS: i128 = 1_000_000_000;
/// Kubernetes caps a quantity at 2⁶³-1: what is larger counts as that.
const MAX_NANOS: i128 = (i64::MAX as i128) * NANOS;

/// An amount of memory, CPU or storage.
#[derive(Clone, Debug, Default)]
pub struct Quantity {
    nanos: i128,
    text: String,
}

/// The text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a quantity is allowed: a number, with one of n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent behind it"
)]
pub struct QuantityError;

impl Quantity {
    /// The amount in whole units (bytes, CPUs), rounded up; below zero it is zero.
    pub fn value(&self) -> u64 {
        u64::try_from(self.nanos.max(0).div_ceil_nanos()).unwrap_or(u64::MAX)
    }

    /// The amount in thousandths, rounded up; below zero it is zero.
    pub fn milli_value(&self) -> u64 {
        let millis = (self.nanos.max(0) + 999_999) / 1_000_000;
        u64::try_from(millis).unwrap_or(u64::MAX)
    }

    /// Whether the amount is greater than zero.
    pub fn is_positive(&self) -> bool {
        self.nanos > 0
    }

    /// Whether the amount is less than zero.
    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    /// A quantity of `bytes`, written without a suffix.
    pub fn from_bytes(bytes: u64) -> Self {
        Quantity { nanos: i128::from(bytes) * NANOS, text: bytes.to_string() }
    }
}

/// So many bytes as Kubernetes writes an amount of memory: with the largest binary unit of which it is a whole number.
pub fn binary_text(bytes: u64) -> String {
    let units = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let whole = usize::try_from(bytes.trailing_zeros() / 10).unwrap_or(0).min(units.len());
    match whole.checked_sub(1).and_then(|place| units.get(place)) {
        Some(unit) if bytes != 0 => format!("{}{unit}", bytes >> (10 * whole)),
        _ => bytes.to_string(),
    }
}

trait DivCeil {
    fn div_ceil_nanos(self) -> i128;
}

impl DivCeil for i128 {
    fn div_ceil_nanos(self) -> i128 {
        (self + NANOS - 1) / NANOS
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

/// Numerator and denominator of what a suffix stands for.
fn factor(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent >= 0 { (power, 1) } else { (1, power) }
        }
    })
}

/// The amount in units of 10⁻⁹, rounded up; none where it is more than can be counted.
fn nanos(digits: i128, numerator: i128, scale: i128) -> Option<i128> {
    if digits == 0 {
        return Some(0);
    }
    // Multiply and divide by the greatest common parts first: 0.5Ei must not overflow on the way.
    let (numerator, scale) = reduce(numerator, scale);
    let (numerator, scale) = reduce(numerator.checked_mul(NANOS)?, scale);
    let (digits, scale) = reduce(digits, scale);
    let product = digits.checked_mul(numerator)?;
    Some(product / scale + i128::from(product % scale != 0))
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 36 {
            return Err(QuantityError);
        }
        let digits: i128 = format!("{whole}{fraction}").parse().map_err(|_| QuantityError)?;
        let (numerator, denominator) = factor(suffix).ok_or(QuantityError)?;
        let scale = u32::try_from(fraction.len())
            .ok()
            .and_then(|n| 10_i128.checked_pow(n))
            .and_then(|s| s.checked_mul(denominator))
            .ok_or(QuantityError)?;
        let nanos = nanos(digits, numerator, scale).map_or(MAX_NANOS, |nanos| nanos.min(MAX_NANOS));
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, text: text.to_owned() })
    }
}

fn reduce(a: i128, b: i128) -> (i128, i128) {
    let (mut x, mut y) = (a.unsigned_abs(), b.unsigned_abs());
    while y != 0 {
        (x, y) = (y, x % y);
    }
    let divisor = i128::try_from(x.max(1)).unwrap_or(1);
    (a / divisor, b / divisor)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() { f.write_str("0") } else { f.write_str(&self.text) }
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Quantity;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Quantity, E> {
                v.parse().map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Quantity, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Quantity, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Quantity, E> {
                self.visit_str(&v.to_string())
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn suffixes_have_kubernetes_meaning() {
        assert_eq!(q("256Mi").value(), 256 << 20);
        assert_eq!(q("1.5Gi").value(), 3 << 29);
        assert_eq!(q("1k").value(), 1000);
        assert_eq!(q("1M").value(), 1_000_000);
        assert_eq!(q("500m").milli_value(), 500);
        assert_eq!(q("500m").value(), 1, "rounded up");
        assert_eq!(q("2").milli_value(), 2000);
        assert_eq!(q("12e6").value(), 12_000_000);
        assert_eq!(q("1E").value(), 1_000_000_000_000_000_000);
        assert_eq!(q("7.5Ei").value(), 15 << 59);
        assert_eq!(q("100n").value(), 1);
        assert_eq!(q(".5").milli_value(), 500);
        assert_eq!(q("5.").value(), 5);
        assert_eq!(q("-1").value(), 0);
        assert!(!q("-1").is_positive());
    }

    #[test]
    fn equality_and_order_are_of_the_amount() {
        assert_eq!(q("1Gi"), q("1024Mi"));
        assert!(q("1G") < q("1Gi"));
    }

    #[test]
    fn what_was_read_is_written_back() {
        assert_eq!(q("0.5Gi").to_string(), "0.5Gi");
        assert_eq!(serde_json::to_string(&q("64M")).unwrap(), "\"64M\"");
        assert_eq!(serde_json::from_str::<Quantity>("3").unwrap().value(), 3);
    }

    #[test]
    fn what_is_larger_than_kubernetes_counts_is_the_largest_that_it_does() {
        for large in ["8Ei", "9E19", "1e30"] {
            assert_eq!(q(large).value(), i64::MAX.unsigned_abs(), "{large}");
            assert_eq!(q(large).to_string(), large);
        }
        assert!(q("-1e30").is_negative() && !q("0E+30").is_positive());
        assert_eq!(q("7Ei").value(), 7 << 60);
    }

    #[test]
    fn other_texts_are_refused() {
        for wrong in ["", "-", "Mi", "1 Mi", "1mi", "1KI", "0x10", "1.2.3", "1e", "1e99", "1Mi "] {
            assert_eq!(wrong.parse::<Quantity>(), Err(QuantityError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Quantity>();
        }

        #[test]
        fn numbers_with_suffixes_do_not_panic(text in "[+-]?[0-9.]{0,40}(e-?[0-9]{1,3}|[numkMGTPE]i?)?") {
            if let Ok(quantity) = text.parse::<Quantity>() {
                prop_assert_eq!(quantity.to_string(), text);
            }
        }

        #[test]
        fn mebibytes_are_exact(n in 0u64..1 << 40) {
            prop_assert_eq!(q(&format!("{n}Mi")).value(), n << 20);
        }
    }

    #[test]
    fn bytes_are_written_with_the_largest_unit_that_divides_them() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1000, "1000"),
            (1024, "1Ki"),
            (64 << 20, "64Mi"),
            (1536 << 20, "1536Mi"),
            (976_563 << 10, "976563Ki"),
            (2 << 40, "2Ti"),
            (1 << 63, "8Ei"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(binary_text(bytes), text);
        }
    }
}
