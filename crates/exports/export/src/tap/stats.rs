//! What went through an interface, counted by the threads that move it.

use std::sync::atomic::{AtomicU64, Ordering};

use ring3_class::net::Nic;
use ring3_stats::Lost;

/// A number that one thread adds to and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Only of the thread whose counter it is: no locked instruction.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Of what goes up and down.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of one queue.
#[derive(Debug, Default)]
pub struct Counters {
    pub rx_packets: Counter,
    pub rx_bytes: Counter,
    pub rx_dropped: Counter,
    pub rx_joined: Counter,
    pub tx_packets: Counter,
    pub tx_bytes: Counter,
    pub tx_dropped: Counter,
    pub sleeps: Counter,
    /// 1 while vhost-net moves its packets.
    pub vhost: Counter,
    pub switches: Counter,
}

/// What went through an interface so far, in all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Packets from the card that the kernel has taken.
    pub rx_packets: u64,
    /// Their bytes; what was put together has its headers once.
    pub rx_bytes: u64,
    /// Packets from the card that the kernel has not taken: the interface was down, or memory was
    /// short.
    pub rx_dropped: u64,
    /// Of the packets that the kernel has taken, those that went as a part of the one before: TCP
    /// that was put together.
    pub rx_joined: u64,
    /// Packets of the kernel for the card, those included that it cannot send.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets of the kernel that the card cannot send.
    pub tx_dropped: u64,
    /// Times that a thread may have slept.
    pub sleeps: u64,
    /// Queues whose packets vhost-net moves now; by `read` and `write` go those of the others.
    pub vhost_queues: u64,
    /// Times that a queue has gone from one of the two to the other.
    pub switches: u64,
    /// Packets for which the card had no buffer.
    pub rx_missed: u64,
    /// Packets that the card has received damaged, or described in a way that makes no sense.
    pub rx_errors: u64,
    /// Packets that were lost with a reset of the card before it had sent them.
    pub tx_lost: u64,
}

impl Stats {
    pub(super) fn sum<'a>(queues: impl Iterator<Item = &'a Counters>) -> Self {
        queues.fold(Self::default(), |sum, queue| Self {
            rx_packets: sum.rx_packets + queue.rx_packets.get(),
            rx_bytes: sum.rx_bytes + queue.rx_bytes.get(),
            rx_dropped: sum.rx_dropped + queue.rx_dropped.get(),
            rx_joined: sum.rx_joined + queue.rx_joined.get(),
            tx_packets: sum.tx_packets + queue.tx_packets.get(),
            tx_bytes: sum.tx_bytes + queue.tx_bytes.get(),
            tx_dropped: sum.tx_dropped + queue.tx_dropped.get(),
            sleeps: sum.sleeps + queue.sleeps.get(),
            vhost_queues: sum.vhost_queues + queue.vhost.get(),
            switches: sum.switches + queue.switches.get(),
            ..sum
        })
    }

    /// With what the card says that it has lost.
    pub(super) fn with_lost(self, lost: Lost) -> Self {
        let Lost { rx_missed, rx_errors, tx_lost } = lost;
        Self { rx_missed, rx_errors, tx_lost, ..self }
    }
}

/// What `nic` has lost so far; `None` if it cannot be asked.
pub(super) fn lost(nic: &dyn Nic) -> Option<Lost> {
    let ring3_class::net::Counters { rx_missed, rx_errors, tx_lost, .. } = nic.counters().ok()?;
    Some(Lost { rx_missed, rx_errors, tx_lost })
}
