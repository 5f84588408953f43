//! Pages that lie side by side in physical memory.

/// Finds `count` pages of `size` bytes that lie side by side and end at or below `below`.
/// `addresses[n]` is where page `n` starts.
///
/// The pages' numbers, in the order of their addresses; or, if there are not so many in one piece,
/// how many there are at most.
pub(super) fn find(
    addresses: &[u64],
    size: u64,
    count: usize,
    below: u64,
) -> Result<Vec<u64>, usize> {
    let reachable =
        |&(address, _): &(u64, u64)| address.checked_add(size).is_some_and(|end| end <= below);
    let mut pages: Vec<(u64, u64)> = addresses.iter().copied().zip(0..).filter(reachable).collect();
    pages.sort_unstable();
    let runs = pages.chunk_by(|one, next| one.0.checked_add(size) == Some(next.0));
    let mut longest = 0;
    for run in runs {
        if let Some(enough) = run.get(..count) {
            return Ok(enough.iter().map(|&(_, page)| page).collect());
        }
        longest = longest.max(run.len());
    }
    Err(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 2 << 20;

    fn at(pages: &[u64]) -> Vec<u64> {
        pages.iter().map(|page| page * SIZE).collect()
    }

    #[test]
    fn pages_are_put_in_the_order_of_their_addresses() {
        assert_eq!(find(&at(&[7, 5, 9, 6]), SIZE, 3, u64::MAX), Ok(vec![1, 3, 0]));
    }

    #[test]
    fn without_a_run_of_that_length_the_longest_is_told() {
        assert_eq!(find(&at(&[1, 2, 4, 5, 6, 9]), SIZE, 4, u64::MAX), Err(3));
        assert_eq!(find(&[], SIZE, 1, u64::MAX), Err(0));
    }

    #[test]
    fn a_run_must_end_below_what_the_device_reaches() {
        assert_eq!(find(&at(&[126, 127, 128]), SIZE, 2, 128 * SIZE), Ok(vec![0, 1]));
        assert_eq!(find(&at(&[127, 128]), SIZE, 2, 128 * SIZE), Err(1));
    }

    #[test]
    fn a_page_that_is_seen_twice_makes_no_run() {
        assert_eq!(find(&at(&[3, 3]), SIZE, 2, u64::MAX), Err(1));
    }

    proptest! {
        #[test]
        fn what_is_found_is_one_piece_below_the_limit_and_nothing_longer_is_missed(
            pages in prop::collection::vec(0u64..64, 0..48), count in 1usize..12, limit in 0u64..64,
        ) {
            let addresses = at(&pages);
            let there = |page: u64| pages.contains(&page) && page < limit;
            let exists = (0..64).any(|first| (first..first + count as u64).all(there));
            match find(&addresses, SIZE, count, limit * SIZE) {
                Ok(run) => {
                    prop_assert_eq!(run.len(), count);
                    let first = addresses[run[0] as usize];
                    for (place, page) in run.iter().enumerate() {
                        prop_assert_eq!(addresses[*page as usize], first + place as u64 * SIZE);
                    }
                    prop_assert!(first + count as u64 * SIZE <= limit * SIZE);
                }
                // A page that is seen twice breaks a run, which only a kernel gone wrong could
                // show.
                Err(longest) => {
                    let doubled = pages
                        .iter()
                        .any(|page| pages.iter().filter(|other| *other == page).count() > 1);
                    prop_assert!(doubled || !exists);
                    prop_assert!(longest < count);
                }
            }
        }
    }
}
