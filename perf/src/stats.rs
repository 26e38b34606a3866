//! Median and range: the two figures that stand for a handful of repeated measurements.
//!
//! A mean would let one disturbed run decide, and with three to ten runs a standard deviation says little. The median
//! ignores the disturbed run; the range shows that there was one.

use serde::{Deserialize, Serialize};

/// What repeated measurements of one quantity gave, in that quantity's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The middle one, or the mean of the two middle ones.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
}

impl Summary {
    /// Summarises the values; `None` if there is none, or one that is not a finite number.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        if !sorted.iter().all(|v| v.is_finite()) {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get((sorted.len() - 1) / 2)?;
        Some(Summary { median: f64::midpoint(lower, upper), min: *sorted.first()?, max: *sorted.last()? })
    }

    /// Whether every value of the one is beyond every value of the other.
    pub(crate) fn is_apart_from(&self, other: &Summary) -> bool {
        self.max < other.min || other.max < self.min
    }
}

/// The value below which `share` (0 to 1) of the values are, the nearest one there is; they are sorted here.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rank among the measurements of one run"
    )]
    let rank = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
    values.get(rank).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let summary = Summary::of([4.0, 1.0, 3.0, 10.0]).unwrap();
        assert_eq!(summary, Summary { median: 3.5, min: 1.0, max: 10.0 });
    }

    #[test]
    fn one_disturbed_run_moves_the_range_and_not_the_median() {
        let summary = Summary::of([5.0, 0.1, 5.2]).unwrap();
        assert_eq!(summary, Summary { median: 5.0, min: 0.1, max: 5.2 });
    }

    #[test]
    fn nothing_and_nonsense_have_no_summary() {
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([1.0, f64::NAN]), None);
        assert_eq!(Summary::of([f64::INFINITY]), None);
    }

    #[test]
    fn ranges_that_touch_are_not_apart() {
        let of = |min, max| Summary { median: min, min, max };
        assert!(of(1.0, 2.0).is_apart_from(&of(2.1, 3.0)));
        assert!(of(2.1, 3.0).is_apart_from(&of(1.0, 2.0)));
        assert!(!of(1.0, 2.0).is_apart_from(&of(2.0, 3.0)));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut values = [30.0, 10.0, 20.0];
        assert_eq!(percentile(&mut values, 0.5), Some(20.0));
        assert_eq!(percentile(&mut values, 0.99), Some(30.0));
        assert_eq!(percentile(&mut [], 0.5), None);
    }

    proptest! {
        #[test]
        fn the_median_lies_within_the_range(values in prop::collection::vec(-1e9..1e9f64, 1..40)) {
            let summary = Summary::of(values).unwrap();
            prop_assert!(summary.min <= summary.median && summary.median <= summary.max);
        }
    }
}
