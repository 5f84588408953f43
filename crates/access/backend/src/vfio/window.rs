//! Where the arena goes among the device addresses that the IOMMU allows.

use std::ops::RangeInclusive;

/// Device address 0 stays empty, so that a null pointer in a descriptor faults; so does what a
/// boot-time table may have used.
const LOWEST: u64 = 1 << 20;

/// The part of `ranges` below device address `below`.
pub(super) fn reachable(ranges: &[RangeInclusive<u64>], below: u64) -> Vec<RangeInclusive<u64>> {
    let Some(top) = below.checked_sub(1) else { return Vec::new() };
    ranges
        .iter()
        .filter(|range| *range.start() <= top)
        .map(|range| *range.start()..=*range.end().min(&top))
        .collect()
}

/// The lowest address, a multiple of `align` (a power of two), where `len` bytes lie within one of
/// `ranges`.
///
/// The lowest, because an old device reaches few address bits, and because memory lies there on
/// every machine, so that no bridge between the device and its IOMMU takes the address for its own.
pub(super) fn place(ranges: &[RangeInclusive<u64>], len: u64, align: u64) -> Option<u64> {
    let fits = |range: &RangeInclusive<u64>| {
        let start = (*range.start()).max(LOWEST).checked_next_multiple_of(align)?;
        let last = start.checked_add(len.checked_sub(1)?)?;
        (last <= *range.end()).then_some(start)
    };
    ranges.iter().filter_map(fits).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What Linux says on an Intel machine: everything but the interrupt window.
    const INTEL: [RangeInclusive<u64>; 2] = [0..=0xfedf_ffff, 0xfef0_0000..=0x1ff_ffff_ffff];

    #[test]
    fn an_arena_lies_low_so_that_old_devices_reach_it() {
        assert!(place(&INTEL, 64 << 20, 2 << 20).unwrap() < 1 << 28);
    }

    #[test]
    fn an_arena_never_starts_at_zero() {
        assert!(place(&INTEL, 4096, 4096).unwrap() > 0);
    }

    #[test]
    fn an_arena_too_large_for_the_space_below_the_interrupt_window_goes_above() {
        assert_eq!(place(&INTEL, 4 << 30, 2 << 20), Some(0xff00_0000));
    }

    #[test]
    fn a_device_of_32_address_bits_gets_nothing_above_4_gib() {
        assert_eq!(reachable(&INTEL, 1 << 32), [0..=0xfedf_ffff, 0xfef0_0000..=0xffff_ffff]);
        assert_eq!(place(&reachable(&INTEL, 1 << 32), 4 << 30, 4096), None);
    }

    #[test]
    fn a_device_without_a_limit_reaches_everything() {
        assert_eq!(reachable(&INTEL, u64::MAX), INTEL);
    }

    proptest! {
        #[test]
        fn the_place_is_aligned_inside_one_range_and_clear_of_reserved_ones(
            cuts in prop::collection::btree_set(0u64..1 << 40, 0..12), len in 1u64..1 << 33,
            align in 12u32..31, bits in 20u32..63
        ) {
            // Every second stretch between the cuts is allowed, the others are reserved.
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let ranges: Vec<_> = cuts.chunks_exact(2).map(|pair| pair[0]..=pair[1] - 1).collect();
            let ranges = reachable(&ranges, 1 << bits);
            if let Some(start) = place(&ranges, len, 1 << align) {
                prop_assert_eq!(start % (1 << align), 0);
                prop_assert!(
                    ranges
                        .iter()
                        .any(|range| range.contains(&start) && range.contains(&(start + len - 1)))
                );
                prop_assert_eq!((start + len - 1) >> bits, 0);
            } else {
                // There is no place: not one aligned candidate of any range fits.
                for range in &ranges {
                    let first = (*range.start()).max(LOWEST).next_multiple_of(1 << align);
                    prop_assert!(first + len - 1 > *range.end());
                }
            }
        }
    }
}
