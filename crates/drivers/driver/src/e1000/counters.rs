//! What went through, for readers in other threads.

use std::sync::atomic::{AtomicU64, Ordering};

use ring3_class::net::Counters;

/// Counters of which one thread writes each, and any thread reads.
#[derive(Default)]
pub(super) struct Tally([AtomicU64; 7]);

impl Tally {
    pub(super) fn set(&self, counters: &Counters) {
        let Counters { rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost } =
            *counters;
        let values = [rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost];
        self.0
            .iter()
            .zip(values)
            .for_each(|(counter, value)| counter.store(value, Ordering::Relaxed));
    }

    /// What was received, alone.
    #[inline]
    pub(super) fn set_received(&self, packets: u64, bytes: u64) {
        self.0[0].store(packets, Ordering::Relaxed);
        self.0[1].store(bytes, Ordering::Relaxed);
    }

    /// What was sent, alone.
    #[inline]
    pub(super) fn set_sent(&self, packets: u64, bytes: u64) {
        self.0[4].store(packets, Ordering::Relaxed);
        self.0[5].store(bytes, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Counters {
        let [rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost] =
            std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed));
        Counters { rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost }
    }
}
