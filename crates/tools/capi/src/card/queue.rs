//! The one queue of a card whose driver is this program.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ring3_class::irq::Irq;
use ring3_class::net::{Counters, Info, Limits, Packet, Provided, Queue, QueueSettings};
use ring3_class::wait::{Source, WaitStats, Waiter};
use ring3_class::{Deadline, Error};

use super::state::CardShared;

pub(super) struct HostedQueue {
    shared: Arc<CardShared>,
    settings: QueueSettings,
    limits: Limits,
    waiter: Waiter,
    wake_on_tx: bool,
    counters: Counters,
}

impl HostedQueue {
    pub(super) fn open(
        info: &Info,
        shared: Arc<CardShared>,
        settings: &QueueSettings,
    ) -> Result<Self, Error> {
        let (rx, tx) = info.max_depth;
        let settings = QueueSettings {
            rx_depth: settings.rx_depth.min(rx),
            tx_depth: settings.tx_depth.min(tx),
            ..*settings
        };
        let limits = Limits::new(info, &settings, settings.tx_depth);
        let mut state = shared.lock();
        if state.open.is_some() {
            return Err(Error::Busy("the card's queue is open: drop it first".into()));
        }
        state.open = Some(limits);
        drop(state);
        let waiter = shared.arrived.waiter();
        Ok(Self {
            shared,
            settings,
            limits,
            waiter,
            wake_on_tx: false,
            counters: Counters::default(),
        })
    }

    fn is_pending(&self) -> bool {
        self.shared.arrived.get() > 0
            || self.wake_on_tx && self.shared.returned.load(Ordering::SeqCst) > 0
    }
}

impl Queue for HostedQueue {
    fn depth(&self) -> (u16, u16) {
        (self.settings.rx_depth, self.settings.tx_depth)
    }

    fn outstanding(&self) -> (u16, u16) {
        let state = self.shared.lock();
        // Never more than the depths.
        (
            (state.provided.len() + state.filled.len()) as u16,
            (state.waiting.len() + state.sent.len()) as u16,
        )
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut state = self.shared.lock();
        for (count, packet) in batch.iter_mut().enumerate() {
            if state.provided.len() + state.filled.len() >= self.settings.rx_depth.into() {
                return Provided { count, refused: None };
            }
            if let Err(refused) = self.limits.check_buffer(packet) {
                return Provided { count, refused: Some(refused) };
            }
            state.provided.push_back(mem::take(packet));
        }
        Provided { count: batch.len(), refused: None }
    }

    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let mut state = self.shared.lock();
        let count = state.filled.len().min(batch.len());
        for (place, packet) in batch.iter_mut().zip(state.filled.drain(..count)) {
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += u64::from(packet.len);
            *place = packet;
        }
        self.shared.arrived.set(state.filled.len());
        Ok(count)
    }

    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut state = self.shared.lock();
        let mut provided = Provided::default();
        while provided.count < batch.len() {
            let pieces = match self.limits.check(&batch[provided.count..]) {
                Ok(pieces) => pieces,
                Err(refused) => {
                    provided.refused = Some(refused);
                    break;
                }
            };
            if state.waiting.len() + state.sent.len() + pieces > self.settings.tx_depth.into() {
                break;
            }
            let packet = &mut batch[provided.count..provided.count + pieces];
            let bytes: u64 = packet.iter().map(|piece| u64::from(piece.len)).sum();
            provided.count += pieces;
            let packet = packet.iter_mut().map(mem::take);
            if state.link.up {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += bytes;
                state.waiting.extend(packet);
            } else {
                self.counters.tx_lost += 1;
                state.counters.tx_lost += 1;
                state.sent.extend(packet);
                self.shared.returned.store(state.sent.len(), Ordering::Release);
            }
        }
        self.shared.waiting.store(state.waiting.len(), Ordering::Release);
        if !state.waiting.is_empty() {
            self.shared.want();
        }
        provided
    }

    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let mut state = self.shared.lock();
        let count = state.sent.len().min(batch.len());
        batch.iter_mut().zip(state.sent.drain(..count)).for_each(|(place, packet)| *place = packet);
        self.shared.returned.store(state.sent.len(), Ordering::Release);
        Ok(count)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        self.wake_on_tx = wake;
        self.shared.lock().wake_on_tx = wake;
    }
}

impl Drop for HostedQueue {
    fn drop(&mut self) {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        (state.open, state.wake_on_tx) = (None, false);
        [&mut state.provided, &mut state.filled, &mut state.waiting, &mut state.sent]
            .into_iter()
            .for_each(VecDeque::clear);
        self.shared.arrived.set(0);
        self.shared.waiting.store(0, Ordering::Release);
        self.shared.returned.store(0, Ordering::Release);
    }
}

impl Source for HostedQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.is_pending()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let (shared, tx) = (&self.shared, self.wake_on_tx);
        shared.arrived.arm(true);
        self.waiter
            .arm(|| shared.arrived.get() > 0 || tx && shared.returned.load(Ordering::SeqCst) > 0)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.shared.arrived.arm(false);
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.waiter.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let (shared, tx) = (&self.shared, self.wake_on_tx);
        // What wakes it may be seen by its own polling before.
        shared.arrived.arm(true);
        self.waiter.wait(deadline, || {
            shared.arrived.get() > 0 || tx && shared.returned.load(Ordering::SeqCst) > 0
        })
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
