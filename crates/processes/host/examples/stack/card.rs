//! A card of ring3's as a device of smoltcp's.
//!
//! What was received is copied out of its buffer once, and what is sent into one: a device may
//! write to that memory at any time, so that there are no references to it that a stack could work
//! on.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use ring3_class::net::{ETHERNET_HEADER, Nic, Packet, Queue, QueueSettings};
use ring3_device::{Deadline, Error};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Packets of a batch.
const BATCH: usize = 32;
/// Bytes of a packet without its Ethernet header.
const MTU: u32 = 1500;
/// Bytes of a buffer from its packet's start on.
const ROOM: u32 = 2048;

/// A card and its queue.
pub struct Card {
    queue: Box<dyn Queue>,
    nic: Arc<dyn Nic>,
    batch: Box<[Packet]>,
    /// What has come and was not yet asked for.
    came: VecDeque<Packet>,
    /// Buffers to send of.
    free: Vec<Packet>,
    /// The frame that the stack reads, and the one that it writes.
    frames: [Vec<u8>; 2],
    failed: Option<Error>,
}

impl Card {
    /// Opens a queue of `nic`, and lets it receive.
    pub fn open(nic: Arc<dyn Nic>) -> Result<Self, Error> {
        let settings = QueueSettings { mtu: MTU, rx_room: ROOM, ..QueueSettings::default() };
        let mut queues = nic.open_queues(1, &settings)?;
        let mut queue = queues
            .pop()
            .ok_or_else(|| Error::Unsupported(format!("{} has no queue", nic.name())))?;
        let start = nic.info().headroom.next_multiple_of(64);
        let buffer =
            || Ok(Packet::new(nic.dma().arena().alloc((start + ROOM) as usize, 64)?, start));
        let buffers = |count: u16| (0..count).map(|_| buffer()).collect::<Result<Vec<_>, Error>>();
        let (mut empty, free) = (buffers(queue.depth().0)?, buffers(queue.depth().1)?);
        // It takes as many as it holds.
        let _ = queue.rx_provide(&mut empty);
        let batch = (0..BATCH).map(|_| Packet::default()).collect();
        Ok(Self {
            queue,
            nic,
            batch,
            came: VecDeque::with_capacity(BATCH),
            free,
            frames: Default::default(),
            failed: None,
        })
    }

    /// The card's address on the wire.
    pub fn mac(&self) -> [u8; 6] {
        self.nic.info().mac.0
    }

    /// Sleeps until something has come, for at most `limit`. What the card has complained of
    /// meanwhile is said here.
    pub fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.came.is_empty() && !self.queue.wait(Deadline::after(limit))? {
            self.queue.tick(std::time::Instant::now())?;
        }
        Ok(())
    }

    /// Takes what has come, and the buffers of what was sent.
    fn take(&mut self) -> Result<(), Error> {
        let sent = self.queue.tx_return(&mut self.batch)?;
        self.free.extend(self.batch[..sent].iter_mut().map(mem::take));
        if self.came.is_empty() {
            let count = self.queue.rx_return(&mut self.batch)?;
            self.came.extend(self.batch[..count].iter_mut().map(mem::take));
        }
        Ok(())
    }
}

impl Device for Card {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, ToSend<'_>)> {
        self.failed = self.take().err().or(self.failed.take());
        if self.free.is_empty() {
            return None;
        }
        let packet = self.came.pop_front()?;
        let [frame, out] = &mut self.frames;
        frame.resize(packet.len as usize, 0);
        let read = packet.read(0, frame);
        // The buffer came from the queue, so that there is room for it.
        let _ = self.queue.rx_provide(&mut [packet]);
        self.failed = read.err().or(self.failed.take());
        Some((
            Received(frame),
            ToSend { queue: &mut *self.queue, free: &mut self.free, frame: out },
        ))
    }

    fn transmit(&mut self, _: Instant) -> Option<ToSend<'_>> {
        self.failed = self.take().err().or(self.failed.take());
        let [_, frame] = &mut self.frames;
        (!self.free.is_empty()).then_some(ToSend {
            queue: &mut *self.queue,
            free: &mut self.free,
            frame,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut able = DeviceCapabilities::default();
        able.medium = Medium::Ethernet;
        able.max_transmission_unit = (MTU + ETHERNET_HEADER) as usize;
        able.max_burst_size = Some(BATCH);
        able
    }
}

/// A frame that has come.
pub struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        look(self.0)
    }
}

/// Room for a frame that goes out.
pub struct ToSend<'a> {
    queue: &'a mut dyn Queue,
    free: &'a mut Vec<Packet>,
    frame: &'a mut Vec<u8>,
}

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        self.frame.resize(len, 0);
        let written = write(self.frame);
        if let Some(mut packet) = self.free.pop() {
            // A frame that is refused, or finds the queue full, is lost, as any may be: the stack
            // sends again what matters.
            let _ = packet.fill(self.frame);
            let mut packet = [packet];
            let _ = self.queue.tx_provide(&mut packet);
            self.free.extend(packet.into_iter().filter(|place| place.buffer.is_some()));
        }
        written
    }
}
