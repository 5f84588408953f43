//! Counters of an open queue, for those who look while it goes.

use std::sync::atomic::{AtomicU64, Ordering};

use ring3_class::net::Counters;

/// Counters that one thread writes and others read.
#[derive(Default)]
pub(super) struct LiveCounters([AtomicU64; 5]);

impl LiveCounters {
    #[inline]
    pub(super) fn set(&self, counters: &Counters) {
        let Counters { rx_packets, rx_bytes, rx_errors, tx_packets, tx_bytes, .. } = *counters;
        let values = [rx_packets, rx_bytes, rx_errors, tx_packets, tx_bytes];
        self.0.iter().zip(values).for_each(|(place, value)| place.store(value, Ordering::Relaxed));
    }

    /// The same of what was received without an error.
    #[inline]
    pub(super) fn set_received(&self, counters: &Counters) {
        self.0[0].store(counters.rx_packets, Ordering::Relaxed);
        self.0[1].store(counters.rx_bytes, Ordering::Relaxed);
    }

    /// The same of what was sent.
    #[inline]
    pub(super) fn set_sent(&self, counters: &Counters) {
        self.0[3].store(counters.tx_packets, Ordering::Relaxed);
        self.0[4].store(counters.tx_bytes, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Counters {
        let [rx_packets, rx_bytes, rx_errors, tx_packets, tx_bytes] =
            self.0.each_ref().map(|value| value.load(Ordering::Relaxed));
        Counters { rx_packets, rx_bytes, rx_errors, tx_packets, tx_bytes, ..Counters::default() }
    }
}
