//! The card: what it offers, and the way of a frame.

use std::time::Instant;

use ring3_spec::virtio::net::{self, Header};
use ring3_spec::virtio::{self as spec, NO_VECTOR};

use super::control::Filter;
use super::frame;
use super::handle::Misbehaviour;
use super::queue::{Chain, Queue};
use super::registers::{self, BAR, BAR_LEN};
use crate::wire::{Wire, WireShape};
use crate::{BarLayout, Blocked, Bus, Identity, Model, MsixLayout};

/// PCI class: an Ethernet controller. [PCI appendix D]
const CLASS: u32 = 0x02_00_00;
/// Receive, transmit, control. [virtio 5.1.2]
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const CONTROL: usize = 2;
/// Vectors: the configuration's, and one for each queue but the control queue.
const VECTORS: u16 = 3;
const MTU: u16 = 9000;

/// A virtio network card with one pair of queues.
pub struct VirtioNetModel {
    pub(super) status: u8,
    pub(super) device_select: u32,
    pub(super) driver_select: u32,
    pub(super) features: u64,
    pub(super) config_vector: u16,
    pub(super) generation: u8,
    pub(super) select: u16,
    pub(super) isr: u8,
    pub(super) queues: [Queue; 3],
    pub(super) filter: Filter,
    pub(super) link: bool,
    pub(super) misbehaviour: Option<Misbehaviour>,
    pub(super) wire: Wire,
    /// What the driver was last told of the link.
    said: bool,
    /// Frames that found no buffer.
    pub(super) missed: u64,
}

impl VirtioNetModel {
    pub(super) fn new(end: &WireShape) -> Self {
        let mut wire = Wire::new(end);
        wire.offer(true);
        Self {
            status: 0,
            device_select: 0,
            driver_select: 0,
            features: 0,
            config_vector: NO_VECTOR,
            generation: 0,
            select: 0,
            isr: 0,
            queues: Default::default(),
            filter: Filter::default(),
            link: true,
            misbehaviour: None,
            wire,
            missed: 0,
            said: true,
        }
    }

    pub(super) fn offered(&self) -> u64 {
        let checksums = net::CSUM | net::GUEST_CSUM | net::HOST_TSO4;
        let control = net::CTRL_VQ | net::CTRL_RX | net::CTRL_VLAN | net::CTRL_MAC_ADDR;
        spec::VERSION_1 | net::MAC | net::MTU | net::STATUS | net::MRG_RXBUF | checksums | control
    }

    /// The card's configuration. [virtio 5.1.4]
    pub(super) fn config(&self) -> [u8; net::CONFIG_LEN as usize] {
        let mut bytes = [0; net::CONFIG_LEN as usize];
        bytes[..6].copy_from_slice(&Filter::default().address);
        bytes[6..8].copy_from_slice(&u16::from(self.linked()).to_le_bytes());
        bytes[8..10].copy_from_slice(&1u16.to_le_bytes());
        bytes[10..12].copy_from_slice(&MTU.to_le_bytes());
        bytes
    }

    /// Back to the state after a reset; wire, link and what goes wrong stay.
    pub(super) fn restart(&mut self, bus: &Bus) {
        (self.status, self.features, self.isr, self.select) = (0, 0, 0, 0);
        (self.device_select, self.driver_select, self.config_vector) = (0, 0, NO_VECTOR);
        self.queues = Default::default();
        self.filter = Filter::default();
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
            self.config_changed(bus);
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.status & spec::DRIVER_OK != 0 && self.status & spec::NEEDS_RESET == 0
    }

    /// The driver says that there is something on queue `queue`. An access that the IOMMU blocks ends the card's work.
    pub(super) fn notified(&mut self, bus: &Bus, queue: u16) {
        let done = match usize::from(queue) {
            TRANSMIT if self.runs() => self.transmit(bus),
            CONTROL if self.runs() => self.control(bus),
            _ => Ok(()),
        };
        if done.is_err() {
            self.needs_reset(bus);
        }
    }

    /// [virtio 2.1.2]
    pub(super) fn needs_reset(&mut self, bus: &Bus) {
        self.status |= spec::NEEDS_RESET;
        self.config_changed(bus);
    }

    pub(super) fn config_changed(&mut self, bus: &Bus) {
        self.generation = self.generation.wrapping_add(1);
        self.isr |= 2;
        signal(bus, self.config_vector);
    }

    fn transmit(&mut self, bus: &Bus) -> Result<(), Blocked> {
        while let Some(chain) = self.queues[TRANSMIT].take(bus)? {
            let mut bytes = Vec::new();
            for piece in chain.pieces.iter().filter(|piece| !piece.writable) {
                let start = bytes.len();
                bytes.resize(start + piece.len as usize, 0);
                bus.read(piece.address, &mut bytes[start..])?;
            }
            if let Some(header) = Header::from_bytes(&bytes).filter(|_| self.linked()) {
                let frames = frame::on_wire(&header, bytes.split_off(Header::SIZE));
                frames.into_iter().filter(|frame| frame.len() >= 14).for_each(|frame| self.wire.send(frame));
            }
            self.queues[TRANSMIT].put(bus, chain.head.into(), 0)?;
        }
        self.end(bus, TRANSMIT)?;
        self.wire.flush();
        while let Some(frame) = self.wire.take_mirrored() {
            self.receive(bus, &frame);
        }
        Ok(())
    }

    fn control(&mut self, bus: &Bus) -> Result<(), Blocked> {
        if self.misbehaviour == Some(Misbehaviour::IgnoresControl) {
            return Ok(());
        }
        while let Some(chain) = self.queues[CONTROL].take(bus)? {
            let mut command = Vec::new();
            for piece in chain.pieces.iter().filter(|piece| !piece.writable) {
                let start = command.len();
                command.resize(start + piece.len as usize, 0);
                bus.read(piece.address, &mut command[start..])?;
            }
            let answer = if self.filter.command(&command) { net::CONTROL_OK } else { net::CONTROL_ERROR };
            if let Some(place) = chain.pieces.iter().find(|piece| piece.writable) {
                bus.write(place.address, &[answer])?;
            }
            self.queues[CONTROL].put(bus, chain.head.into(), 1)?;
        }
        self.end(bus, CONTROL)
    }

    /// Lets the driver see what was done on a queue.
    fn end(&mut self, bus: &Bus, queue: usize) -> Result<(), Blocked> {
        let interrupt = self.queues[queue].publish(bus)?;
        self.isr |= 1;
        if interrupt && self.misbehaviour != Some(Misbehaviour::LosesInterrupts) {
            signal(bus, self.queues[queue].vector);
        }
        Ok(())
    }

    /// A frame comes. [virtio 5.1.6.4]
    pub(super) fn receive(&mut self, bus: &Bus, frame: &[u8]) {
        if !self.runs() || !self.linked() || !self.filter.accepts(frame) {
            return;
        }
        if self.deliver(bus, frame).is_err() {
            self.needs_reset(bus);
        }
    }

    fn deliver(&mut self, bus: &Bus, frame: &[u8]) -> Result<(), Blocked> {
        let before = self.queues[RECEIVE].taken;
        let (mut chains, mut room) = (Vec::new(), 0);
        let wanted = frame.len() + Header::SIZE;
        while room < wanted {
            let Some(chain) = self.queues[RECEIVE].take(bus)? else {
                self.queues[RECEIVE].taken = before;
                self.missed += 1;
                return Ok(());
            };
            room += chain.pieces.iter().map(|piece| piece.len as usize).sum::<usize>();
            chains.push(chain);
        }
        let mut header = Header::zeroed();
        let valid = self.features & net::GUEST_CSUM != 0 && frame::checksum_is_right(frame);
        header.set_buffers(chains.len() as u16).set_flags(if valid { net::DATA_VALID } else { 0 });
        self.twist(&mut header);
        let bytes = [&header.0[..], frame].concat();
        self.scatter(bus, &chains, &bytes)?;
        self.end(bus, RECEIVE)
    }

    fn scatter(&mut self, bus: &Bus, chains: &[Chain], mut bytes: &[u8]) -> Result<(), Blocked> {
        for chain in chains {
            let mut len = 0;
            for piece in chain.pieces.iter().filter(|piece| piece.writable) {
                let (now, later) = bytes.split_at(bytes.len().min(piece.len as usize));
                bus.write(piece.address, now)?;
                (bytes, len) = (later, len + now.len() as u32);
            }
            let (id, len) = self.twisted(chain.head.into(), len);
            self.queues[RECEIVE].put(bus, id, len)?;
            if self.misbehaviour == Some(Misbehaviour::UsesTwice) {
                self.queues[RECEIVE].put(bus, id, len)?;
            }
        }
        Ok(())
    }

    fn twist(&self, header: &mut Header) {
        match self.misbehaviour {
            Some(Misbehaviour::CountsNoBuffers) => drop(header.set_buffers(0)),
            Some(Misbehaviour::CountsManyBuffers) => drop(header.set_buffers(u16::MAX)),
            Some(Misbehaviour::LiesAboutChecksums) => {
                header.set_flags(net::NEEDS_CSUM).set_csum_start(u16::MAX).set_csum_offset(u16::MAX);
            }
            Some(Misbehaviour::LiesAboutSegments) => drop(header.set_gso_type(0x7f).set_gso_size(0)),
            _ => {}
        }
    }

    fn twisted(&self, id: u32, len: u32) -> (u32, u32) {
        match self.misbehaviour {
            Some(Misbehaviour::UsesWhatIsNot) => (id + 0x1_0000, len),
            Some(Misbehaviour::WritesTooMuch) => (id, u32::MAX),
            Some(Misbehaviour::WritesTooLittle) => (id, 3),
            _ => (id, len),
        }
    }
}

fn signal(bus: &Bus, vector: u16) {
    if vector != NO_VECTOR {
        bus.raise(vector);
    }
}

impl Model for VirtioNetModel {
    fn identity(&self) -> Identity {
        Identity {
            vendor: spec::VENDOR,
            device: net::DEVICE,
            revision: 1,
            class: CLASS,
            bars: vec![BarLayout { index: 1, len: 4096, ports: false }, BarLayout { index: BAR, len: BAR_LEN, ports: false }],
            pins: 0,
            msi: 0,
            msix: Some(MsixLayout { vectors: VECTORS, bar: 1, table: 0, pba: 0x800 }),
            express: true,
            dma_bits: 64,
        }
    }

    fn capabilities(&self) -> Vec<Vec<u8>> {
        registers::capabilities()
    }

    fn read(&mut self, _: &Bus, bar: u8, offset: u64, width: usize) -> u64 {
        if bar == BAR { self.read_register(offset, width) } else { 0 }
    }

    fn write(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize, value: u64) {
        if bar == BAR {
            self.write_register(bus, offset, width, value);
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
