//! The few numbers that stand for many rounds.

use serde::{Deserialize, Serialize};

/// Smallest, middle and largest of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many values there were.
    pub rounds: usize,
    /// The smallest.
    pub min: f64,
    /// The middle one; the mean of the two middle ones if there is an even number.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// `None` if there are no values. What is not a number is left out.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> =
            values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let (low, high) = (sorted.get((sorted.len() - 1) / 2)?, sorted.get(sorted.len() / 2)?);
        Some(Self { rounds: sorted.len(), min, median: (low + high) / 2.0, max })
    }

    /// Half of what lies between the smallest and the largest, in percent of the median; `None` if
    /// that is zero.
    pub fn spread(&self) -> Option<f64> {
        (self.median != 0.0).then(|| 50.0 * (self.max - self.min) / self.median)
    }

    /// This median over that of `baseline`; `None` if that is zero.
    pub fn ratio_to(&self, baseline: &Self) -> Option<f64> {
        (baseline.median != 0.0).then(|| self.median / baseline.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value_whatever_the_order() {
        assert_eq!(
            Summary::of(&[9.0, 1.0, 5.0]),
            Some(Summary { rounds: 3, min: 1.0, median: 5.0, max: 9.0 })
        );
    }

    #[test]
    fn the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() {
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 100.0]).unwrap().median, 3.0);
    }

    #[test]
    fn nothing_has_no_summary() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN]), None);
    }

    #[test]
    fn a_ratio_is_of_medians_and_not_of_means() {
        let slow = Summary::of(&[10.0, 10.0, 1000.0]).unwrap();
        let fast = Summary::of(&[60.0, 60.0, 60.0]).unwrap();
        assert_eq!(fast.ratio_to(&slow), Some(6.0));
    }

    #[test]
    fn the_spread_is_half_of_what_lies_between_the_ends() {
        assert_eq!(Summary::of(&[80.0, 100.0, 140.0]).unwrap().spread(), Some(30.0));
        assert_eq!(Summary::of(&[0.0]).unwrap().spread(), None);
    }

    #[test]
    fn there_is_no_ratio_to_zero() {
        let zero = Summary::of(&[0.0]).unwrap();
        assert_eq!(zero.ratio_to(&zero), None);
    }
}
