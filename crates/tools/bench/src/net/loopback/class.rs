//! A card of ring3's in this process, by the class API.

use std::mem;
use std::time::Duration;

use ring3_class::net::{Nic, Packet, Queue};
use ring3_device::Deadline;

use super::super::filled;
use super::{BATCH, HEADER, MARK, Mark, Port, mark, put};
use crate::Error;

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
        let (queue, own) = filled::open(nic, OWN, 0)?;
        let batch = filled::places(BATCH);
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
