//! The card under test with its wire, and the steps that checks are made of.

use std::cell::RefCell;
use std::mem;

use ring3_class::net::{Filter, Info, Mac, Meta, Nic, Packet, Queue, QueueSettings};
use ring3_device::{Deadline, Error};

use super::{Options, Quirks, Wire, frame};
pub(super) use crate::step::{Step, ensure, skip};

pub(super) struct Subject<'a> {
    pub(super) nic: &'a dyn Nic,
    pub(super) options: &'a Options,
    wire: RefCell<&'a mut dyn Wire>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(nic: &'a dyn Nic, wire: &'a mut dyn Wire, options: &'a Options) -> Self {
        Self { nic, options, wire: RefCell::new(wire) }
    }

    pub(super) fn info(&self) -> &Info {
        self.nic.info()
    }

    pub(super) fn quirks(&self) -> Quirks {
        self.wire.borrow().quirks()
    }

    pub(super) fn mac(&self) -> Mac {
        self.info().mac
    }

    /// Frame `number` of `len` bytes from the card to the wire's end.
    pub(super) fn out(&self, number: u32, len: usize) -> Vec<u8> {
        frame::between(frame::PEER, self.mac(), number, len)
    }

    /// What holds before each check: the card's own filter, and nothing on the wire.
    pub(super) fn prepare(&self) -> Step {
        self.nic.set_filter(&Filter::own(self.mac()))?;
        while self.wire.borrow_mut().receive(Deadline::after(std::time::Duration::ZERO))?.is_some()
        {
        }
        Ok(())
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.options.patience)
    }

    /// Sends `frame` to the card.
    pub(super) fn send(&self, frame: &[u8]) -> Step {
        Ok(self.wire.borrow_mut().send(frame)?)
    }

    /// The next frame that the card has sent.
    pub(super) fn sent(&self) -> Step<Vec<u8>> {
        let frame = self.wire.borrow_mut().receive(self.deadline())?;
        frame.ok_or_else(|| {
            format!("nothing came out of the card in {:?}", self.options.patience).into()
        })
    }

    /// Nothing more may come out of the card.
    pub(super) fn silent(&self) -> Step {
        match self.wire.borrow_mut().receive(Deadline::after(self.options.silence))? {
            None => Ok(()),
            Some(frame) => Err(format!(
                "a frame of {} bytes came out of the card that nobody sent",
                frame.len()
            )
            .into()),
        }
    }

    pub(super) fn plug(&self, plugged: bool) -> Step {
        if self.wire.borrow_mut().plug(plugged) {
            Ok(())
        } else {
            skip("the link cannot be taken away here")
        }
    }

    /// One queue, with as many buffers to receive into as it holds.
    pub(super) fn open(&self, settings: QueueSettings) -> Step<Port<'_, 'a>> {
        let mut port = self.open_empty(settings)?;
        port.provide(usize::from(port.queue.depth().0))?;
        Ok(port)
    }

    /// One queue, and no buffers.
    pub(super) fn open_empty(&self, settings: QueueSettings) -> Step<Port<'_, 'a>> {
        let mut queues = self.nic.open_queues(1, &settings)?;
        ensure!(queues.len() == 1, "one queue was asked for, and {} were opened", queues.len());
        let port = Port {
            subject: self,
            queue: queues.remove(0),
            settings,
            free: Vec::new(),
            taken: Vec::new(),
        };
        let (rx, tx) = port.queue.depth();
        ensure!(rx >= 1 && tx >= 1, "queues of {rx} and {tx} buffers were opened");
        Ok(port)
    }

    /// Where packets begin in their buffers.
    fn start(&self) -> u32 {
        self.info().headroom.next_multiple_of(64)
    }

    /// A buffer with the card's headroom and `room` behind it.
    pub(super) fn buffer(&self, room: u32) -> Step<Packet> {
        let start = self.start();
        Ok(Packet::new(self.nic.dma().arena().alloc((start + room) as usize, 64)?, start))
    }
}

/// An open queue, and buffers.
pub(super) struct Port<'s, 'a> {
    subject: &'s Subject<'a>,
    pub(super) queue: Box<dyn Queue>,
    pub(super) settings: QueueSettings,
    /// To send with.
    free: Vec<Packet>,
    /// Received, and not yet provided again.
    taken: Vec<Packet>,
}

impl Port<'_, '_> {
    /// Provides `count` buffers to receive into.
    pub(super) fn provide(&mut self, count: usize) -> Step {
        for _ in 0..count {
            let packet = self.subject.buffer(self.settings.rx_room)?;
            let provided = self.queue.rx_provide(&mut [packet]);
            ensure!(provided.count == 1, "a queue with room did not take a buffer: {provided:?}");
        }
        Ok(())
    }

    /// A buffer that holds `bytes`.
    pub(super) fn packet(&mut self, bytes: &[u8], meta: Meta) -> Step<Packet> {
        let mut packet =
            match self.free.pop().filter(|packet| packet.room() as usize >= bytes.len()) {
                Some(packet) => packet,
                None => self.subject.buffer((bytes.len() as u32).max(2048))?,
            };
        packet.fill(bytes)?;
        packet.meta = meta;
        Ok(packet)
    }

    /// Sends a packet, and waits until its buffers have come back.
    pub(super) fn send(&mut self, bytes: &[u8], meta: Meta) -> Step {
        let packet = self.packet(bytes, meta)?;
        self.send_pieces(&mut [packet])
    }

    /// The same with a packet in pieces.
    pub(super) fn send_pieces(&mut self, pieces: &mut [Packet]) -> Step {
        let provided = self.queue.tx_provide(pieces);
        ensure!(
            provided.count == pieces.len(),
            "a queue with room did not take a packet: {provided:?}"
        );
        self.drain()
    }

    /// Waits until everything that was to be sent has come back.
    pub(super) fn drain(&mut self) -> Step {
        let deadline = self.subject.deadline();
        self.queue.wake_on_tx(true);
        while self.queue.outstanding().1 > 0 {
            let mut batch: [Packet; 8] = Default::default();
            let count = self.queue.tx_return(&mut batch)?;
            self.free.extend(batch.into_iter().take(count));
            if count == 0 {
                ensure!(
                    !deadline.expired(),
                    "{} buffers have not come back from being sent",
                    self.queue.outstanding().1
                );
                // Something may be pending all the time: what was received.
                self.queue.wait(Deadline::after(std::time::Duration::from_millis(1)))?;
                self.tick()?;
            }
        }
        self.queue.wake_on_tx(false);
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Error> {
        self.queue.tick(std::time::Instant::now()).map(drop)
    }

    /// The next packet that the card has received, whole.
    pub(super) fn receive(&mut self) -> Step<(Vec<u8>, Meta)> {
        let received = self.receive_until(self.subject.deadline())?;
        received.ok_or_else(|| {
            format!("the card has received nothing in {:?}", self.subject.options.patience).into()
        })
    }

    /// Nothing more may be received.
    pub(super) fn silent(&mut self) -> Step {
        match self.receive_until(Deadline::after(self.subject.options.silence))? {
            None => Ok(()),
            Some((bytes, _)) => Err(format!(
                "a packet of {} bytes was received that was not for the card",
                bytes.len()
            )
            .into()),
        }
    }

    /// The next packet, unless none comes until `deadline`.
    pub(super) fn receive_until(&mut self, deadline: Deadline) -> Step<Option<(Vec<u8>, Meta)>> {
        let (mut bytes, mut first) = (Vec::new(), None);
        loop {
            let mut batch = [Packet::default()];
            if self.queue.rx_return(&mut batch)? == 0 {
                if !self.queue.wait(deadline)? {
                    ensure!(
                        bytes.is_empty(),
                        "the rest of a packet is missing after {} bytes",
                        bytes.len()
                    );
                    return Ok(None);
                }
                continue;
            }
            let packet = mem::take(&mut batch[0]);
            ensure!(
                packet.buffer.is_some() && packet.len <= packet.room(),
                "a packet is not within its buffer"
            );
            let (start, meta) = (bytes.len(), packet.meta);
            bytes.resize(start + packet.len as usize, 0);
            packet.read(0, &mut bytes[start..])?;
            first.get_or_insert(meta);
            self.taken.push(Packet { start: self.subject.start(), ..packet });
            if !meta.more() {
                let provided = self.queue.rx_provide(&mut self.taken);
                ensure!(
                    provided.count == self.taken.len(),
                    "buffers that came back were not taken again: {provided:?}"
                );
                self.taken.clear();
                return Ok(first.map(|meta| (bytes, meta)));
            }
        }
    }
}

/// Queues for packets of 1,500 bytes.
pub(super) const SETTINGS: QueueSettings =
    QueueSettings { rx_depth: 32, tx_depth: 32, mtu: 1500, rx_room: 2048 };
