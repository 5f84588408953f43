//! The deterministic sequence of operations and offsets.

use crate::workload::{Mix, Order, Workload};

/// An endless sequence of operations that depends on the workload, the region and the seed alone.
pub struct Offsets {
    workload: Workload,
    /// Requests that fit into the region.
    places: u64,
    next: u64,
    state: u64,
}

impl Offsets {
    /// The sequence over the first `region` bytes, which hold at least one request.
    pub fn new(workload: Workload, region: u64, seed: u64) -> Self {
        Self { workload, places: (region / u64::from(workload.bytes)).max(1), next: 0, state: seed }
    }

    /// Whether the next request writes, and where it starts, in bytes.
    #[inline]
    pub fn draw(&mut self) -> (bool, u64) {
        let place = match self.workload.order {
            Order::Random => ((u128::from(self.random()) * u128::from(self.places)) >> 64) as u64,
            Order::Sequential => {
                let place = self.next;
                self.next = if place + 1 == self.places { 0 } else { place + 1 };
                place
            }
        };
        let write = match self.workload.mix {
            Mix::Read => false,
            Mix::Write => true,
            Mix::Both => self.random() & 1 == 1,
        };
        (write, place * u64::from(self.workload.bytes))
    }

    /// SplitMix64: three multiplications, full period. [Steele, Lea, Flood: Fast splittable
    /// pseudorandom number generators, 2014]
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        super::stamp::mix(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(name: &str, region: u64, seed: u64) -> Vec<(bool, u64)> {
        let mut offsets = Offsets::new(name.parse().unwrap(), region, seed);
        (0..1000).map(|_| offsets.draw()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_sequence_and_another_seed_another() {
        assert_eq!(offsets("randrw-4k-qd1", 1 << 30, 7), offsets("randrw-4k-qd1", 1 << 30, 7));
        assert_ne!(offsets("randrw-4k-qd1", 1 << 30, 7), offsets("randrw-4k-qd1", 1 << 30, 8));
    }

    #[test]
    fn requests_are_aligned_and_stay_within_the_region() {
        let region = 10 * 4096 + 100;
        assert!(
            offsets("randread-4k-qd1", region, 1)
                .iter()
                .all(|&(_, at)| at % 4096 == 0 && at + 4096 <= region)
        );
    }

    #[test]
    fn a_sequence_starts_again_at_the_end_of_the_region() {
        let places: Vec<_> = offsets("seqread-4k-qd1", 3 * 4096, 1)
            .iter()
            .take(4)
            .map(|&(_, at)| at / 4096)
            .collect();
        assert_eq!(places, [0, 1, 2, 0]);
    }

    #[test]
    fn a_mix_reads_and_writes_about_equally() {
        let writes =
            offsets("randrw-4k-qd1", 1 << 30, 1).iter().filter(|&&(write, _)| write).count();
        assert!((400..600).contains(&writes), "{writes} of 1000");
    }
}
