//! The clock that measures waits. Tests count how often it is read.

use std::time::Instant;

/// Now.
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(test)]
    READS.set(READS.get() + 1);
    Instant::now()
}

#[cfg(test)]
thread_local! {
    static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// How often this thread has read the clock.
#[cfg(test)]
pub(crate) fn reads() -> u32 {
    READS.get()
}
