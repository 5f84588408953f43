//! A card of ring3's in this process, by the class API.

use std::mem;
use std::time::Duration;

use ring3_class::net::{Nic, Packet, Queue, QueueSettings};
use ring3_device::Deadline;

use super::{BATCH, HEADER, MARK, Mark, Port, mark, put};
use crate::Error;

/// Bytes of a buffer from the packet's start on.
const ROOM: u32 = 2048;
/// Buffers to send of.
const OWN: usize = 128;

/// The card's queue.
pub struct ClassPort {
    name: String,
    queue: Box<dyn Queue>,
    batch: Box<[Packet]>,
    /// Buffers to send of that are here.
    own: Vec<Packet>,
}

impl ClassPort {
    /// Opens a queue of `nic`, and lets it receive.
    pub fn open(nic: &dyn Nic) -> Result<Self, Error> {
        let failed = |source| Error::Device { name: nic.name(), source };
        let settings = QueueSettings { rx_room: ROOM, ..QueueSettings::default() };
        let mut queues = nic.open_queues(1, &settings).map_err(failed)?;
        let mut queue = queues
            .pop()
            .ok_or_else(|| Error::Invalid(format!("{}: it has no queue", nic.name())))?;
        let start = nic.info().headroom.next_multiple_of(64);
        let buffer =
            || Ok(Packet::new(nic.dma().arena().alloc((start + ROOM) as usize, 64)?, start));
        let buffers =
            |count| (0..count).map(|_| buffer()).collect::<Result<Vec<_>, _>>().map_err(failed);
        let (own, mut empty) = (buffers(OWN)?, buffers(queue.depth().0.into())?);
        // What it does not take goes back to the arena.
        let _ = queue.rx_provide(&mut empty);
        let batch = (0..BATCH).map(|_| Packet::default()).collect();
        Ok(Self { name: nic.name(), queue, batch, own })
    }

    fn failed(&self, source: ring3_device::Error) -> Error {
        Error::Device { name: self.name.clone(), source }
    }
}

impl Port for ClassPort {
    fn send(
        &mut self,
        frame: &mut [u8],
        count: usize,
        marks: &mut dyn FnMut() -> Mark,
    ) -> Result<usize, Error> {
        let back = self.queue.tx_return(&mut self.batch).map_err(|source| self.failed(source))?;
        self.own.extend(self.batch[..back].iter_mut().map(mem::take));
        let from = self.own.len() - count.min(BATCH).min(self.own.len());
        for packet in &mut self.own[from..] {
            put(frame, &marks());
            packet
                .fill(frame)
                .map_err(|source| Error::Device { name: self.name.clone(), source })?;
        }
        let sent = self.queue.tx_provide(&mut self.own[from..]).count;
        self.own.drain(from..from + sent);
        Ok(sent)
    }

    fn receive(&mut self, limit: Duration, see: &mut dyn FnMut(Mark)) -> Result<(), Error> {
        let mut count =
            self.queue.rx_return(&mut self.batch).map_err(|source| self.failed(source))?;
        if count == 0 {
            self.queue.wait(Deadline::after(limit)).map_err(|source| self.failed(source))?;
            count = self.queue.rx_return(&mut self.batch).map_err(|source| self.failed(source))?;
        }
        for packet in &self.batch[..count] {
            let mut head = [0; HEADER + MARK];
            if packet.len as usize >= head.len() && packet.read(0, &mut head).is_ok() {
                mark(&head).into_iter().for_each(&mut *see);
            }
        }
        // There is room: they are what it has returned.
        let _ = self.queue.rx_provide(&mut self.batch[..count]);
        Ok(())
    }
}
