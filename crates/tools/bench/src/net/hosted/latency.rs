//! Many times that one thing took: mean, variance, distribution, and how they went over the run.

use super::HostedLoad;
use crate::report::Measurement;

/// Nanoseconds of a bin of the distribution.
const BIN: u64 = 4000;
/// Parts of a run whose longest times are told.
const PARTS: usize = 256;

/// Times in nanoseconds, in the order in which they were taken.
pub struct Latencies {
    times: Vec<u64>,
    sorted: Vec<u64>,
}

impl Latencies {
    /// Of these times.
    pub fn new(times: Vec<u64>) -> Self {
        let mut sorted = times.clone();
        sorted.sort_unstable();
        Self { times, sorted }
    }

    fn mean(&self) -> f64 {
        self.times.iter().sum::<u64>() as f64 / self.times.len().max(1) as f64
    }

    /// The mean of the squares of what each differs from the mean by.
    fn variance(&self) -> f64 {
        let mean = self.mean();
        self.times.iter().map(|&time| (time as f64 - mean).powi(2)).sum::<f64>()
            / self.times.len().max(1) as f64
    }

    fn at(&self, quantile: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1) as f64;
        self.sorted.get((last * quantile).round() as usize).map_or(0.0, |&time| time as f64)
    }

    /// `BIN:COUNT` for each bin that is not empty: from so many microseconds on, so many.
    fn distribution(&self) -> String {
        let bins = self.sorted.chunk_by(|one, other| one / BIN == other / BIN);
        bins.map(|bin| format!("{}:{}", bin[0] / BIN * (BIN / 1000), bin.len()))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The longest of each part of the run, in microseconds.
    fn course(&self) -> String {
        let parts = self.times.chunks(self.times.len().div_ceil(PARTS).max(1));
        let longest = parts.filter_map(|part| part.iter().max());
        longest.map(|time| format!("{:.1}", *time as f64 / 1e3)).collect::<Vec<_>>().join(" ")
    }

    /// Fills in what can be said; in the first round, distribution and course as facts of the
    /// placement.
    pub fn fill(&self, load: &HostedLoad, into: Measurement) -> Measurement {
        let us = |nanos: f64| nanos / 1e3;
        let mut into = into
            .with("latency_us_mean", us(self.mean()))
            .with("latency_us2_variance", self.variance() / 1e6)
            .with("latency_us_p50", us(self.at(0.5)))
            .with("latency_us_p99", us(self.at(0.99)))
            .with("latency_us_max", us(self.at(1.0)));
        if into.round == 1 {
            into.facts.insert(format!("distribution of {load}"), self.distribution());
            into.facts.insert(format!("course of {load}"), self.course());
        }
        into
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn mean_variance_and_distribution_are_of_all_times_and_the_course_is_in_their_order() {
        let load = HostedLoad { kind: Kind::Ping, bytes: 56 };
        let latencies = Latencies::new(vec![10_000, 2_000, 6_000, 3_000, 4_000]);
        let filled = latencies.fill(&load, Measurement::new(1, load, "kernel"));
        assert_eq!(
            (filled.values["latency_us_mean"], filled.values["latency_us2_variance"]),
            (5.0, 8.0)
        );
        assert_eq!((filled.values["latency_us_p50"], filled.values["latency_us_max"]), (4.0, 10.0));
        assert_eq!(filled.facts["distribution of icmp-56"], "0:2 4:2 8:1");
        assert_eq!(filled.facts["course of icmp-56"], "10.0 2.0 6.0 3.0 4.0");
        assert!(latencies.fill(&load, Measurement::new(2, load, "kernel")).facts.is_empty());
    }

    #[test]
    fn no_times_are_no_numbers_that_are_none() {
        let load = HostedLoad { kind: Kind::Ping, bytes: 56 };
        let filled = Latencies::new(Vec::new()).fill(&load, Measurement::new(1, load, "kernel"));
        assert!(filled.values.values().all(|value| *value == 0.0));
    }
}
