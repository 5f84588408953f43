//! The card: what it offers, and the way of a frame.

use std::time::Instant;

use ring3_spec::virtio as spec;
use ring3_spec::virtio::net::{self, Header};

use super::super::function::{Asked, Function};
use super::super::queue::{Chain, Piece};
use super::control::Filter;
use super::handle::InjectedFault;
use super::steering::Steering;
use super::{Shape, frame};
use crate::wire::Wire;
use crate::{Blocked, Bus, Identity, Model};

/// PCI class: an Ethernet controller. [PCI appendix D]
const CLASS: u32 = 0x02_00_00;
const MTU: u16 = 9000;

/// The shortest frame on a wire, without its check: whoever sends a shorter one fills it up. [802.3
/// 3.2.8]
const LEAST: usize = 60;

/// Bytes of a chain that is read, at most: more than any packet and any command has. A descriptor
/// may say any number.
const LONGEST: usize = 1 << 20;

/// A virtio network card. Its queues: each pair's, receive and transmit, and behind them the
/// control queue. [virtio 5.1.2]
pub struct VirtioNetModel {
    pub(super) function: Function,
    /// The address that it was made with.
    mac: [u8; 6],
    /// Pairs of queues that it has.
    pairs: u16,
    pub(super) steering: Steering,
    pub(super) filter: Filter,
    pub(super) link: bool,
    pub(super) misbehaviour: Option<InjectedFault>,
    pub(super) wire: Wire,
    /// What the driver was last told of the link.
    said: bool,
    /// Frames that found no buffer.
    pub(super) missed: u64,
    /// Of each pair a buffer for reception that others have overtaken.
    aside: Vec<Option<Chain>>,
}

/// The queue that `pair` receives with. [virtio 5.1.2]
fn receive_of(pair: u16) -> usize {
    2 * usize::from(pair)
}

/// The queue that `pair` sends with. [virtio 5.1.2]
fn transmit_of(pair: u16) -> usize {
    2 * usize::from(pair) + 1
}

/// The bytes that the driver gives in a chain of `pieces`.
fn given(bus: &Bus, pieces: &[Piece]) -> Result<Vec<u8>, Blocked> {
    let mut bytes = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.writable) {
        let start = bytes.len();
        if piece.len as usize > LONGEST - start {
            return Err(Blocked::Unmapped);
        }
        bytes.resize(start + piece.len as usize, 0);
        bus.read(piece.address, &mut bytes[start..])?;
    }
    Ok(bytes)
}

impl VirtioNetModel {
    pub(super) fn new(shape: &Shape) -> Self {
        let mut wire = Wire::new(&shape.wire);
        wire.offer(true);
        let checksums = net::CSUM | net::GUEST_CSUM | net::HOST_TSO4;
        let control = net::CTRL_VQ | net::CTRL_RX | net::CTRL_VLAN | net::CTRL_MAC_ADDR;
        let packed = if shape.packed { spec::RING_PACKED } else { 0 }
            | if shape.events { spec::EVENT_IDX } else { 0 };
        let several = if shape.pairs > 1 { net::MQ } else { 0 };
        let all = net::MAC
            | net::MTU
            | net::STATUS
            | net::MRG_RXBUF
            | checksums
            | control
            | packed
            | several;
        let offered = all & !shape.without;
        Self {
            function: Function::new(shape.places, offered, 2 * usize::from(shape.pairs) + 1),
            mac: shape.mac,
            pairs: shape.pairs,
            steering: Steering::default(),
            filter: Filter::new(shape.mac, offered),
            link: true,
            misbehaviour: None,
            wire,
            missed: 0,
            aside: vec![None; shape.pairs.into()],
            said: true,
        }
    }

    /// The card's configuration. [virtio 5.1.4] Its address is the one that the driver has set
    /// last, as QEMU's card has it: a reset brings back its own.
    pub(super) fn config(&self) -> [u8; net::CONFIG_LEN as usize] {
        let mut bytes = [0; net::CONFIG_LEN as usize];
        bytes[..6].copy_from_slice(&self.filter.address);
        bytes[6..8].copy_from_slice(&u16::from(self.linked()).to_le_bytes());
        bytes[8..10].copy_from_slice(&self.pairs.to_le_bytes());
        bytes[10..12].copy_from_slice(&MTU.to_le_bytes());
        bytes
    }

    /// Back to the state after a reset; wire, link and what goes wrong stay.
    pub(super) fn restart(&mut self, bus: &Bus) {
        self.function.restart();
        self.aside.fill(None);
        self.steering = Steering::default();
        self.filter = Filter::new(self.mac, self.function.offered);
        self.wire.attach(bus);
    }

    pub(super) fn linked(&self) -> bool {
        self.link && self.wire.is_up()
    }

    /// Takes the link away, or gives it back.
    pub(super) fn plug(&mut self, bus: &Bus, plugged: bool) {
        self.link = plugged;
        self.wire.offer(plugged);
        self.tell_link(bus);
    }

    fn tell_link(&mut self, bus: &Bus) {
        if self.said != self.linked() {
            self.said = self.linked();
            self.function.config_changed(bus);
        }
    }

    /// The driver says that there is something on queue `queue`. An access that the IOMMU blocks
    /// ends the card's work.
    fn notified(&mut self, bus: &Bus, queue: u16) {
        let done = match queue {
            _ if !self.function.runs() => Ok(()),
            _ if queue == self.control_queue() => self.control(bus),
            _ if queue % 2 == 1 && queue / 2 < self.steering.used() => {
                self.transmit(bus, queue / 2)
            }
            _ => Ok(()),
        };
        if done.is_err() {
            self.function.need_reset(bus);
        }
    }

    /// Behind the pairs that it has, if the driver knows of more than one. [virtio 5.1.2]
    fn control_queue(&self) -> u16 {
        if self.function.features & net::MQ != 0 { 2 * self.pairs } else { 2 }
    }

    /// What goes wrong from now on. A wire that takes packets again takes those that wait.
    pub(super) fn misbehave(&mut self, bus: &Bus, how: Option<InjectedFault>) {
        let before = std::mem::replace(&mut self.misbehaviour, how);
        if before == Some(InjectedFault::WireIsFull) {
            (0..self.steering.used()).for_each(|pair| self.notified(bus, 2 * pair + 1));
        }
    }

    fn transmit(&mut self, bus: &Bus, pair: u16) -> Result<(), Blocked> {
        if matches!(self.misbehaviour, Some(InjectedFault::WireIsFull | InjectedFault::Hangs)) {
            return Ok(());
        }
        let queue = transmit_of(pair);
        let mut sent = Vec::new();
        while let Some(chain) = self.function.queues[queue].take(bus)? {
            let mut bytes = given(bus, &chain.pieces)?;
            if let Some(header) = Header::from_bytes(&bytes).filter(|_| self.linked()) {
                let frames = frame::on_wire(&header, bytes.split_off(Header::SIZE));
                for mut frame in frames.into_iter().filter(|frame| frame.len() >= 14) {
                    frame.resize(frame.len().max(LEAST), 0);
                    self.steering.sent(&frame, pair);
                    self.wire.send(frame);
                }
            }
            sent.push(chain);
        }
        if self.misbehaviour == Some(InjectedFault::UsesOutOfOrder) {
            sent.reverse();
        }
        for chain in &sent {
            self.function.queues[queue].put(bus, chain, chain.id.into(), 0)?;
        }
        if let Some(last) =
            sent.last().filter(|_| self.misbehaviour == Some(InjectedFault::UsesOneMore))
        {
            self.function.queues[queue].put(bus, last, u32::from(last.id) + 1, 0)?;
        }
        self.end(bus, queue)?;
        self.wire.flush();
        while let Some(frame) = self.wire.take_mirrored() {
            self.receive(bus, &frame);
        }
        Ok(())
    }

    fn control(&mut self, bus: &Bus) -> Result<(), Blocked> {
        if matches!(self.misbehaviour, Some(InjectedFault::IgnoresControl | InjectedFault::Hangs)) {
            return Ok(());
        }
        let queue = usize::from(self.control_queue());
        while let Some(chain) = self.function.queues[queue].take(bus)? {
            let command = given(bus, &chain.pieces)?;
            let done = self.filter.command(&command) || self.set_pairs(&command);
            let answer = if done { net::CONTROL_OK } else { net::CONTROL_ERROR };
            if let Some(place) = chain.pieces.iter().find(|piece| piece.writable) {
                bus.write(place.address, &[answer])?;
            }
            self.function.queues[queue].put(bus, &chain, chain.id.into(), 1)?;
        }
        self.end(bus, queue)
    }

    /// Has as many pairs used as a command says; false if it is none such. [virtio 5.1.6.5.5]
    fn set_pairs(&mut self, command: &[u8]) -> bool {
        let &[net::CONTROL_MQ, net::MQ_PAIRS_SET, low, high] = command else { return false };
        let count = u16::from_le_bytes([low, high]);
        let known = self.function.features & net::MQ != 0 && (1..=self.pairs).contains(&count);
        if known {
            self.steering.use_pairs(count);
        }
        known
    }

    /// Lets the driver see what was done on a queue.
    fn end(&mut self, bus: &Bus, queue: usize) -> Result<(), Blocked> {
        if self.misbehaviour == Some(InjectedFault::LeapsAhead) {
            self.function.queues[queue].leap(1000);
        }
        self.function.end(bus, queue, self.misbehaviour != Some(InjectedFault::LosesInterrupts))
    }

    /// A frame comes. [virtio 5.1.6.4]
    pub(super) fn receive(&mut self, bus: &Bus, frame: &[u8]) {
        if !self.function.runs() || !self.linked() || !self.filter.accepts(frame) {
            return;
        }
        if self.deliver(bus, frame).is_err() {
            self.function.need_reset(bus);
        }
    }

    fn deliver(&mut self, bus: &Bus, frame: &[u8]) -> Result<(), Blocked> {
        let pair = self.steering.of(frame);
        let queue = receive_of(pair);
        let before = self.function.queues[queue];
        let (mut chains, mut room) = (Vec::new(), 0);
        let wanted = frame.len() + Header::SIZE;
        let merges = self.function.features & net::MRG_RXBUF != 0;
        while room < wanted {
            // Without merged buffers a packet has one.
            let next =
                if merges || chains.is_empty() { self.next_buffer(bus, pair)? } else { None };
            let Some(chain) = next else {
                self.function.queues[queue] = before;
                self.missed += 1;
                return Ok(());
            };
            room += chain.pieces.iter().map(|piece| piece.len as usize).sum::<usize>();
            chains.push(chain);
        }
        let mut header = Header::zeroed();
        let valid =
            self.function.features & net::GUEST_CSUM != 0 && frame::checksum_is_right(frame);
        // QEMU's card leaves the number at zero unless it may merge, whatever [virtio 5.1.6.4.1]
        // says.
        let count = if merges { chains.len() as u16 } else { 0 };
        header.set_buffers(count).set_flags(if valid { net::DATA_VALID } else { 0 });
        self.twist(&mut header);
        let bytes = [&header.0[..], frame].concat();
        self.scatter(bus, queue, &chains, &bytes)?;
        self.end(bus, queue)
    }

    /// The next buffer of `pair` for reception.
    fn next_buffer(&mut self, bus: &Bus, pair: u16) -> Result<Option<Chain>, Blocked> {
        let (queue, aside) =
            (&mut self.function.queues[receive_of(pair)], &mut self.aside[usize::from(pair)]);
        if self.misbehaviour != Some(InjectedFault::UsesOutOfOrder) {
            return aside.take().map_or_else(|| queue.take(bus), |chain| Ok(Some(chain)));
        }
        if aside.is_none() {
            *aside = queue.take(bus)?;
        }
        queue.take(bus)
    }

    fn scatter(
        &mut self,
        bus: &Bus,
        queue: usize,
        chains: &[Chain],
        mut bytes: &[u8],
    ) -> Result<(), Blocked> {
        for chain in chains {
            let mut len = 0;
            for piece in chain.pieces.iter().filter(|piece| piece.writable) {
                let (now, later) = bytes.split_at(bytes.len().min(piece.len as usize));
                bus.write(piece.address, now)?;
                (bytes, len) = (later, len + now.len() as u32);
            }
            let (id, len) = self.twisted(chain.id.into(), len);
            self.function.queues[queue].put(bus, chain, id, len)?;
            if self.misbehaviour == Some(InjectedFault::UsesTwice) {
                self.function.queues[queue].put(bus, chain, id, len)?;
            }
        }
        Ok(())
    }

    fn twist(&self, header: &mut Header) {
        match self.misbehaviour {
            Some(InjectedFault::CountsNoBuffers) => drop(header.set_buffers(0)),
            Some(InjectedFault::CountsManyBuffers) => drop(header.set_buffers(u16::MAX)),
            Some(InjectedFault::LiesAboutChecksums) => {
                header
                    .set_flags(net::NEEDS_CSUM)
                    .set_csum_start(u16::MAX)
                    .set_csum_offset(u16::MAX);
            }
            Some(InjectedFault::LiesAboutSegments) => {
                let _ = header.set_gso_type(0x7f).set_gso_size(0);
            }
            _ => {}
        }
    }

    fn twisted(&self, id: u32, len: u32) -> (u32, u32) {
        match self.misbehaviour {
            Some(InjectedFault::UsesWhatIsNot) => (id + 0x1_8000, len),
            Some(InjectedFault::WritesTooMuch) => (id, u32::MAX),
            Some(InjectedFault::WritesTooLittle) => (id, 3),
            _ => (id, len),
        }
    }
}

impl Model for VirtioNetModel {
    fn doorbell_bar(&self) -> Option<u8> {
        Some(self.function.notify_bar())
    }

    fn identity(&self) -> Identity {
        // The configuration's vector, and one for each queue but the control queue.
        self.function.identity(net::DEVICE, CLASS, 1 + 2 * self.pairs)
    }

    fn capabilities(&self) -> Vec<Vec<u8>> {
        self.function.capabilities(net::CONFIG_LEN)
    }

    fn read(&mut self, _: &Bus, bar: u8, offset: u64, width: usize) -> u64 {
        let config = self.config();
        self.function.read((bar, offset), width, &config)
    }

    fn write(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize, value: u64) {
        match self.function.write((bar, offset), width, value) {
            Asked::Reset if self.misbehaviour == Some(InjectedFault::NeverResets) => {}
            Asked::Reset => self.restart(bus),
            Asked::Notified(queue) => self.notified(bus, queue),
            Asked::Configured(..) | Asked::Nothing => {}
        }
    }

    fn reset(&mut self, bus: &Bus) {
        self.restart(bus);
    }

    /// Something has come through the cable, or its other end has gone or come.
    fn tick(&mut self, bus: &Bus, _: Instant) {
        self.tell_link(bus);
        for frame in self.wire.take_coming() {
            self.receive(bus, &frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use ring3_device::{Device, OpenOptions};

    use super::*;

    #[test]
    fn a_chain_of_gigabytes_is_blocked_before_memory_is_made_for_it() {
        let device = super::super::open(
            &"sim:virtio-net".parse().unwrap(),
            OpenOptions { arena: 1 << 20, ..OpenOptions::default() },
        )
        .unwrap();
        device.set_bus_master(true).unwrap();
        let address = device.dma().arena().iova();
        let pieces = |len| [Piece { address, len, writable: false }; 2];
        device.handle().with(|_, bus| {
            assert_eq!(given(bus, &pieces(4096)).map(|bytes| bytes.len()), Ok(8192));
            assert_eq!(given(bus, &pieces(1 << 20)), Err(Blocked::Unmapped));
            assert_eq!(given(bus, &pieces(u32::MAX)), Err(Blocked::Unmapped));
            // Nothing was tried.
            assert_eq!(device.handle().fault_count(), 0);
        });
    }
}
