//! The other end of the wire.

use std::mem;

use ring3_class::net::{Cable, Filter, Nic, Packet, Queue, QueueSettings};
use ring3_device::{Deadline, Error};

/// What is at a card's port: frames as they are on the wire, without their check sequence.
pub trait Wire {
    /// Sends `frame` to the card.
    fn send(&mut self, frame: &[u8]) -> Result<(), Error>;

    /// The next frame that the card has sent; `None` at `deadline`.
    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error>;

    /// Takes the link away, or gives it back. False if that cannot be done here.
    fn plug(&mut self, _plugged: bool) -> bool {
        false
    }

    /// What cannot be shown by this wire and the card at it.
    fn quirks(&self) -> Quirks {
        Quirks::default()
    }
}

/// What a model of a card cannot show, whoever drives it, and a real card can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// Frames wait on the wire while the card has no buffer: it misses none.
    pub holds_back: bool,
    /// A large send that ends with a whole segment is followed by a frame of headers alone.
    pub sends_headers_alone: bool,
    /// What is for the card's own address is received, whatever address it was given.
    pub keeps_address: bool,
}

impl Quirks {
    /// Of QEMU's `model` of a card, at a socket of its.
    pub fn of_qemu(model: &str) -> Self {
        // Its 8254x: e1000, e1000-82544gc, e1000-82545em.
        Self {
            holds_back: true,
            sends_headers_alone: model == "e1000" || model.starts_with("e1000-"),
            ..Self::default()
        }
    }
}

/// Bytes of a buffer: the longest frame.
const ROOM: u32 = 9216;
/// Buffers each way.
const DEPTH: u16 = 64;

/// A second card at the other end of the cable.
pub struct Peer<'a> {
    queue: Box<dyn Queue>,
    free: Vec<Packet>,
    /// Where packets begin in their buffers.
    start: u32,
    cable: Option<&'a Cable>,
}

impl<'a> Peer<'a> {
    /// `nic`, which takes everything from now on. `cable` is what can be pulled.
    pub fn new(nic: &dyn Nic, cable: Option<&'a Cable>) -> Result<Self, Error> {
        let info = nic.info();
        nic.set_filter(&Filter { promiscuous: true, ..Filter::own(info.mac) })?;
        let settings = QueueSettings {
            rx_depth: DEPTH,
            tx_depth: DEPTH,
            mtu: info.mtu.1.min(9000),
            rx_room: ROOM,
        };
        let mut queue = nic
            .open_queues(1, &settings)?
            .pop()
            .ok_or_else(|| Error::Protocol("no queue was opened".into()))?;
        let start = info.headroom.next_multiple_of(64);
        let buffer = || {
            nic.dma()
                .arena()
                .alloc((start + ROOM) as usize, 64)
                .map(|buffer| Packet::new(buffer, start))
        };
        let mut provided = (0..queue.depth().0).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
        let taken = queue.rx_provide(&mut provided);
        if taken.count != provided.len() {
            return Err(Error::Protocol(format!("an empty queue took {taken:?} of its depth")));
        }
        let free = (0..DEPTH).map(|_| buffer()).collect::<Result<_, _>>()?;
        Ok(Self { queue, free, start, cable })
    }

    fn reclaim(&mut self) -> Result<(), Error> {
        let mut batch: [Packet; 16] = Default::default();
        let count = self.queue.tx_return(&mut batch)?;
        self.free.extend(batch.iter_mut().take(count).map(mem::take));
        Ok(())
    }
}

impl Wire for Peer<'_> {
    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.reclaim()?;
        let mut packet = self
            .free
            .pop()
            .ok_or_else(|| Error::Busy("the peer has sent nothing for long".into()))?;
        packet.fill(frame)?;
        let mut batch = [packet];
        let taken = self.queue.tx_provide(&mut batch);
        if taken.count == 1 {
            Ok(())
        } else {
            Err(Error::Invalid(format!("the peer did not take a frame: {taken:?}")))
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error> {
        let mut frame = Vec::new();
        loop {
            let mut batch = [Packet::default()];
            if self.queue.rx_return(&mut batch)? == 0 {
                if !self.queue.wait(deadline)? {
                    return Ok(None);
                }
                continue;
            }
            let [mut packet] = batch;
            let (start, meta) = (frame.len(), packet.meta);
            frame.resize(start + packet.len as usize, 0);
            packet.read(0, &mut frame[start..])?;
            (packet.meta, packet.start) = (Default::default(), self.start);
            // A buffer that came back is one that fits.
            let _ = self.queue.rx_provide(&mut [packet]);
            if let Some(tag) = meta.vlan() {
                frame.splice(12..12, [0x81, 0x00].into_iter().chain(tag.to_be_bytes()));
            }
            if !meta.more() {
                return Ok(Some(frame));
            }
        }
    }

    fn plug(&mut self, plugged: bool) -> bool {
        self.cable.inspect(|cable| cable.plug(plugged)).is_some()
    }
}
