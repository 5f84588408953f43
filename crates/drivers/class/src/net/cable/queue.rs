//! The queue of a card of a cable.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ring3_device::dma::Claims;
use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, Waiter};
use ring3_device::{Deadline, Error};
use serde::{Deserialize, Serialize};

use super::super::filter::TAGGED;
use super::super::{
    Checksum, Counters, Limits, Nic, Packet, Provided, Queue, QueueSettings, SavedPacket, complete,
};
use super::side::Signal;
use super::{CableShared, End};
use crate::Saved;

/// What is saved, and the version of its form.
const FORM: (&str, u32) = ("queue of a cable", 1);
/// The shortest frame, without its check sequence.
const SHORTEST: usize = 60;

pub(super) struct CableQueue {
    shared: Arc<CableShared>,
    side: usize,
    settings: QueueSettings,
    limits: Limits,
    /// Sent, and not yet returned.
    sent: VecDeque<Packet>,
    arrived: Arc<Signal>,
    waiter: Waiter,
    wake_on_tx: bool,
    /// Whether it is the card's queue: not before it was opened, and not any more once it was
    /// detached.
    attached: bool,
    counters: Counters,
    /// The frame on its way.
    frame: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct State {
    settings: QueueSettings,
    sent: Vec<SavedPacket>,
}

impl CableQueue {
    pub(super) fn open(end: &End, settings: &QueueSettings) -> Result<Self, Error> {
        let (rx, tx) = end.info.max_depth;
        let settings = QueueSettings {
            rx_depth: settings.rx_depth.min(rx),
            tx_depth: settings.tx_depth.min(tx),
            ..*settings
        };
        let mut queue = Self::new(end, settings, VecDeque::new());
        let mut side = end.shared.side(end.side);
        if side.open.is_some() {
            return Err(Error::Busy(format!("{}: its queue is open: drop it first", end.name())));
        }
        (side.open, side.attached, queue.attached) = (Some(queue.limits), true, true);
        Ok(queue)
    }

    pub(super) fn resume(end: &End, saved: &Saved) -> Result<Self, Error> {
        let state: State = saved.read(FORM.0, FORM.1)?;
        let mut claims = Claims::new(end.dma.arena());
        let sent =
            state.sent.iter().map(|packet| packet.claim(&mut claims)).collect::<Result<_, _>>()?;
        let mut queue = Self::new(end, state.settings, sent);
        let mut side = end.shared.side(end.side);
        if side.open != Some(queue.limits) || side.attached {
            return Err(Error::Invalid(format!("{}: no queue was left like that", end.name())));
        }
        (side.attached, queue.attached) = (true, true);
        drop(side);
        claims.commit();
        Ok(queue)
    }

    fn new(end: &End, settings: QueueSettings, sent: VecDeque<Packet>) -> Self {
        let arrived = end.shared.side(end.side).arrived.clone();
        Self {
            shared: end.shared.clone(),
            side: end.side,
            settings,
            limits: Limits::new(&end.info, &settings, settings.tx_depth),
            sent,
            waiter: arrived.waiter(),
            arrived,
            wake_on_tx: false,
            attached: false,
            counters: Counters::default(),
            frame: Vec::new(),
        }
    }

    /// Makes the frame that goes over the wire of the pieces of a packet; what the receiver is told
    /// of its checksum.
    fn frame(&mut self, pieces: &[Packet]) -> Result<Checksum, Error> {
        self.frame.clear();
        for piece in pieces {
            let end = self.frame.len();
            self.frame.resize(end + piece.len as usize, 0);
            piece.read(0, &mut self.frame[end..])?;
        }
        let meta = &pieces[0].meta;
        let mut checksum = Checksum::Unknown;
        if let Checksum::Partial { start, offset } = meta.checksum()
            && complete(&mut self.frame, start, offset)
        {
            checksum = Checksum::Valid;
        }
        if self.frame.len() < SHORTEST {
            self.frame.resize(SHORTEST, 0);
        }
        if let Some(tag) = meta.vlan() {
            self.frame.splice(12..12, TAGGED.into_iter().chain(tag.to_be_bytes()));
        }
        Ok(checksum)
    }

    fn send(&mut self, pieces: &[Packet]) {
        let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let checksum = self.frame(pieces);
        let mut counted = Counters::default();
        match checksum {
            Ok(checksum) if self.shared.plugged() => {
                self.shared.side(1 - self.side).receive(&self.frame, checksum);
                (counted.tx_packets, counted.tx_bytes) = (1, bytes);
            }
            _ => counted.tx_lost = 1,
        }
        self.counters += counted;
        self.shared.side(self.side).counters += counted;
    }

    fn is_pending(&self) -> bool {
        self.arrived.get() > 0 || self.wake_on_tx && !self.sent.is_empty()
    }
}

impl Queue for CableQueue {
    fn depth(&self) -> (u16, u16) {
        (self.settings.rx_depth, self.settings.tx_depth)
    }

    fn outstanding(&self) -> (u16, u16) {
        let side = self.shared.side(self.side);
        // Never more than the depths.
        ((side.provided.len() + side.filled.len()) as u16, self.sent.len() as u16)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut side = self.shared.side(self.side);
        for (count, packet) in batch.iter_mut().enumerate() {
            if !self.attached
                || side.provided.len() + side.filled.len() >= self.settings.rx_depth.into()
            {
                return Provided { count, refused: None };
            }
            if let Err(refused) = self.limits.check_buffer(packet) {
                return Provided { count, refused: Some(refused) };
            }
            side.provided.push_back(mem::take(packet));
        }
        Provided { count: batch.len(), refused: None }
    }

    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        if !self.attached {
            return Ok(0);
        }
        let mut side = self.shared.side(self.side);
        let count = side.filled.len().min(batch.len());
        for (place, packet) in batch.iter_mut().zip(side.filled.drain(..count)) {
            self.counters.rx_packets += u64::from(!packet.meta.more());
            self.counters.rx_bytes += u64::from(packet.len);
            *place = packet;
        }
        self.arrived.set(side.filled.len());
        Ok(count)
    }

    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut count = 0;
        while count < batch.len() && self.attached {
            let pieces = match self.limits.check(&batch[count..]) {
                Ok(pieces) => pieces,
                Err(refused) => return Provided { count, refused: Some(refused) },
            };
            if self.sent.len() + pieces > self.settings.tx_depth.into() {
                break;
            }
            let packet = &mut batch[count..count + pieces];
            self.send(packet);
            self.sent.extend(packet.iter_mut().map(mem::take));
            count += pieces;
        }
        Provided { count, refused: None }
    }

    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let count = self.sent.len().min(batch.len());
        batch.iter_mut().zip(self.sent.drain(..count)).for_each(|(place, packet)| *place = packet);
        Ok(count)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        self.wake_on_tx = wake;
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        if !self.attached {
            return Err(Error::Invalid("the queue was detached before".into()));
        }
        let sent = self.sent.iter().map(Packet::save).collect::<Result<_, _>>()?;
        let saved = Saved::new(FORM.0, FORM.1, &State { settings: self.settings, sent })?;
        self.sent.drain(..).for_each(Packet::release_to_successor);
        self.shared.side(self.side).attached = false;
        self.attached = false;
        Ok(saved)
    }
}

impl Drop for CableQueue {
    fn drop(&mut self) {
        if !self.attached {
            return;
        }
        let mut side = self.shared.side(self.side);
        (side.open, side.attached) = (None, false);
        side.provided.clear();
        side.filled.clear();
        self.arrived.set(0);
    }
}

impl Source for CableQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.is_pending()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let pending = self.is_pending();
        let arrived = &self.arrived;
        self.waiter.arm(|| pending || arrived.get() > 0)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.waiter.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let pending = self.is_pending();
        let arrived = &self.arrived;
        self.waiter.wait(deadline, || pending || arrived.get() > 0)
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
