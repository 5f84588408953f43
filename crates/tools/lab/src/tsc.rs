//! The host's time-stamp counter, which a guest under TCG reads as its own.
//!
//! A guest's kernel finds its frequency by an emulated timer, and on a busy host that is late: a
//! guest's clock ran 2.6 times as fast as the host's. So it is told.

use std::sync::OnceLock;

/// Its frequency in MHz, which is the same in each run on a machine; none where there is no such
/// counter.
pub(crate) fn megahertz() -> Option<u64> {
    static MEGAHERTZ: OnceLock<Option<u64>> = OnceLock::new();
    *MEGAHERTZ.get_or_init(measure)
}

#[cfg(target_arch = "x86_64")]
fn measure() -> Option<u64> {
    let (start, first) = look();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (end, last) = look();
    let nanoseconds = u64::try_from((end - start).as_nanos()).ok()?;
    // The kernel takes no counter that is slower than this for one [arch/x86/kernel/tsc.c].
    Some((last.wrapping_sub(first).checked_mul(1000)? + nanoseconds / 2) / nanoseconds)
        .filter(|&mhz| mhz >= 100)
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<u64> {
    None
}

/// The clock and the counter at one moment: of several looks, the one that took the least, because
/// who is interrupted between two of them tries again.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "there is no other way to the counter")]
fn look() -> (std::time::Instant, u64) {
    let one = || {
        let before = std::time::Instant::now();
        // SAFETY: it reads a counter, and every processor of this architecture has it.
        let counter = unsafe { std::arch::x86_64::_rdtsc() };
        (before.elapsed(), (before, counter))
    };
    (0..16).map(|_| one()).min_by_key(|&(took, _)| took).map_or_else(|| one().1, |(_, found)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        let (one, other) = (measure(), measure());
        assert_eq!(one.is_some(), cfg!(target_arch = "x86_64"));
        assert!(
            one.zip(other).is_none_or(|(one, other)| one.abs_diff(other) <= 1 + one / 200),
            "{one:?} {other:?}"
        );
    }
}
