//! The card by its registers: reset, NVM, PHY, and both directions from nothing to running. [82574 4.6]

use std::time::Duration;

use ring3_class::net::{Filter, Link, Mac};
use ring3_device::{Deadline, Device, Error, Registers, poll_until};
use ring3_spec::e1000::general::{self, Control, ControlExtended, Mdi, Status};
use ring3_spec::e1000::interrupt::{self, Causes};
use ring3_spec::e1000::receive::{self, Checksum, FilterControl};
use ring3_spec::e1000::transmit::{self, Gap};
use ring3_spec::e1000::{BAR, BAR_BYTES, DESCRIPTOR_BYTES, nvm, phy, statistics};

use super::interrupts::Vectors;
use super::options::Options;
use crate::lifetime::{Unstopped, stop_function};

/// The type of VLAN frames. [802.3 3.2.7]
const VLAN_TYPE: u32 = 0x8100;

/// The registers of a card, and what a reset must set again.
pub(super) struct Card {
    registers: Registers,
    filter: Filter,
    /// The queue that is open.
    pub(super) rings: Option<Rings>,
    /// Frames that found no room, as far as they were counted.
    pub(super) missed: u64,
}

/// Where a queue's rings are, and how frames are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rings {
    /// Device address and descriptors.
    pub(super) receive: (u64, u32),
    pub(super) transmit: (u64, u32),
    /// Bytes of a receive buffer: one of those of RCTL.BSIZE.
    pub(super) buffer_bytes: u32,
    /// Frames are longer than 1522 bytes.
    pub(super) long_packets: bool,
    /// Descriptors that come back interrupt.
    pub(super) wake_on_tx: bool,
}

impl Card {
    /// The card behind `device`'s registers, whatever state it is in.
    pub(super) fn new(device: &dyn Device) -> Result<Self, Error> {
        let registers = Registers::new(device.bar(BAR)?, BAR_BYTES)?;
        registers.read_alive(general::STATUS)?;
        Ok(Self { registers, filter: Filter::default(), rings: None, missed: 0 })
    }

    /// The address that the card was made with. [82574 6.1]
    pub(super) fn address(&self) -> Result<Mac, Error> {
        let mut sum = 0u16;
        let mut address = [0; 6];
        for word in 0..nvm::CHECKED_WORDS {
            let value = self.nvm(word)?;
            sum = sum.wrapping_add(value);
            if let Some(bytes) = address.chunks_exact_mut(2).nth(usize::from(word - nvm::ADDRESS)) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        let address = Mac(address);
        if sum != nvm::SUM || address.is_group() || address == Mac::default() {
            return Err(Error::Unsupported(format!(
                "the card's NVM is damaged (its words add up to {sum:#06x}, its address is {address}): have its maker's tool write it again"
            )));
        }
        Ok(address)
    }

    /// A word of the NVM. [82574 10.2.2, EERD]
    fn nvm(&self, word: u16) -> Result<u16, Error> {
        self.registers.write(general::NVM_READ, nvm::Read(0).with_start(1).with_address(word.into()).0);
        poll_until(Deadline::after(Duration::from_micros(nvm::READ_MICROS)), "a word of the card's NVM (EERD.DONE)", || {
            let read = nvm::Read(self.registers.read_alive(general::NVM_READ)?);
            Ok((read.done() == 1).then_some(read.data() as u16))
        })
    }

    /// Does an access to the PHY. [82574 10.2.2, MDIC]
    fn mdi(&self, access: Mdi) -> Result<u16, Error> {
        self.registers.write(general::MDI, access.with_phy(Mdi::INTERNAL));
        let done = poll_until(Deadline::after(Duration::from_micros(general::MDI_MICROS)), "the PHY (MDIC.R)", || {
            let mdi = self.registers.read_alive(general::MDI)?;
            Ok((mdi.ready() == 1).then_some(mdi))
        })?;
        if done.error() == 1 {
            return Err(Error::Protocol(format!("register {} of the PHY does not answer (MDIC.E)", access.register())));
        }
        Ok(done.data() as u16)
    }

    /// The PHY's identifier; powers it up and lets it negotiate. [802.3 22.2.4]
    pub(super) fn start_phy(&self) -> Result<u32, Error> {
        let read = |register: u8| self.mdi(Mdi(0).with_register(register.into()).with_operation(Mdi::READ));
        let id = u32::from(read(phy::ID_HIGH)?) << 16 | u32::from(read(phy::ID_LOW)?);
        let control = phy::Control(read(phy::CONTROL)?);
        let wanted = control.with_power_down(0).with_negotiate(1);
        if wanted != control {
            let restart = Mdi(0).with_register(phy::CONTROL.into()).with_operation(Mdi::WRITE);
            self.mdi(restart.with_data(wanted.with_restart(1).0.into()))?;
        }
        Ok(id)
    }

    pub(super) fn status(&self) -> Result<Status, Error> {
        self.registers.read_alive(general::STATUS)
    }

    pub(super) fn link(&self) -> Result<Link, Error> {
        let status = self.status()?;
        let up = status.link() == 1;
        let known = |value| up.then_some(value);
        Ok(Link { up, speed: known(status.megabits()), full_duplex: up.then_some(status.full_duplex() == 1) })
    }

    /// Fails unless the card runs as it was started: it is gone, or somebody else has reset it.
    pub(super) fn running(&self) -> Result<Status, Error> {
        let status = self.status()?;
        if self.rings.is_some() && self.registers.read_alive(receive::CONTROL)?.enable() == 0 {
            return Err(Error::Fatal("it was reset behind the driver's back (RCTL.EN is 0)".into()));
        }
        Ok(status)
    }

    /// The receive descriptor that the card fills next.
    pub(super) fn receive_head(&self) -> u32 {
        self.registers.read(receive::head(0))
    }

    /// Adds what the card has counted of frames that found no room; a reset would forget it.
    pub(super) fn count_missed(&mut self) {
        let missed = self.registers.take(statistics::MISSED);
        self.missed += if missed == u32::MAX { 0 } else { u64::from(missed) };
    }

    /// Resets all but the PHY. When this succeeds, the card owns no memory. [82574 4.6.2, 5.2]
    fn reset(&mut self) -> Result<(), Error> {
        self.registers.write(interrupt::MASK_CLEAR, Causes::ALL);
        self.registers.write(receive::CONTROL, receive::Control(0));
        self.registers.write(transmit::CONTROL, transmit::Control(0));
        let control = self.registers.read_alive(general::CONTROL)?;
        // What is under way ends first, where the card can say so; the reset does not depend on it.
        self.registers.write(general::CONTROL, control.with_master_disable(1));
        let idle =
            poll_until(Deadline::after(Duration::from_millis(general::MASTER_MILLIS)), "the card's transfers to end", || {
                Ok((self.registers.read_alive(general::STATUS)?.master() == 0).then_some(()))
            });
        match idle {
            Err(Error::Gone) => return Err(Error::Gone),
            Err(late) => tracing::warn!("{late} (STATUS.GIO_MASTER_ENABLE): resetting it nevertheless"),
            Ok(()) => {}
        }
        self.registers.write(general::CONTROL, control.with_reset(1));
        std::thread::sleep(Duration::from_micros(general::RESET_QUIET_MICROS));
        poll_until(
            Deadline::after(Duration::from_millis(general::RESET_MILLIS)),
            "the card's reset (CTRL.RST, EEC.Auto_RD)",
            || {
                let control = self.registers.read_alive(general::CONTROL)?;
                let read = control.reset() == 0 && self.registers.read_alive(general::NVM_CONTROL)?.auto_read_done() == 1;
                Ok(read.then_some(()))
            },
        )?;
        self.registers.write(interrupt::MASK_CLEAR, Causes::ALL);
        self.registers.take(interrupt::CAUSE);
        Ok(())
    }

    /// Stops the card: resets it, and if it does not obey, takes its bus mastering away and resets the function.
    pub(super) fn stop(&mut self, device: &dyn Device) -> Result<(), Unstopped> {
        self.reset().or_else(|error| stop_function(device, error))
    }

    /// From a reset to a card with a link, and with both directions if a queue is open. [82574 4.6.3 to 4.6.6]
    pub(super) fn start(&self, vectors: &Vectors, options: &Options) {
        let registers = &self.registers;
        let extended = ControlExtended(0).with_driver_loaded(1).with_pending_clear(1).with_mask_on_read(1);
        // With IAME set and IAM empty, nothing is masked behind the driver's back.
        registers.write(general::CONTROL_EXTENDED, extended);
        registers.write(interrupt::AUTO_MASK, Causes::NONE);
        registers.write(general::FLOW_ADDRESS_LOW, 0);
        registers.write(general::FLOW_ADDRESS_HIGH, 0);
        registers.write(general::FLOW_TYPE, 0);
        registers.write(general::VLAN_TYPE, VLAN_TYPE);
        registers.write(general::CONTROL, Control(0).with_full_duplex(1).with_auto_speed(1).with_link_up(1).with_vlan(1));
        vectors.program(registers, options, self.rings.as_ref());
        if let Some(rings) = &self.rings {
            self.start_receiver(rings);
            self.start_transmitter(rings);
        }
        self.program_filter();
        // Pushes the writes out: what comes from now on is received.
        registers.read(general::STATUS);
    }

    /// [82574 4.6.5]
    fn start_receiver(&self, rings: &Rings) {
        let registers = &self.registers;
        registers.write(receive::FILTER_CONTROL, FilterControl(0).with_extended(1));
        registers.write(receive::CHECKSUM, Checksum(0).with_ip(1).with_transport(1).with_hash(1));
        registers.write(receive::MULTIPLE_QUEUES, 0);
        let (base, size) = rings.receive;
        registers.write(receive::ring_low(0), base as u32);
        registers.write(receive::ring_high(0), (base >> 32) as u32);
        registers.write(receive::ring_bytes(0), size * DESCRIPTOR_BYTES);
        registers.write(receive::head(0), 0);
        registers.write(receive::tail(0), 0);
    }

    /// [82574 4.6.6]
    fn start_transmitter(&self, rings: &Rings) {
        let registers = &self.registers;
        let (base, size) = rings.transmit;
        registers.write(transmit::ring_low(0), base as u32);
        registers.write(transmit::ring_high(0), (base >> 32) as u32);
        registers.write(transmit::ring_bytes(0), size * DESCRIPTOR_BYTES);
        registers.write(transmit::head(0), 0);
        registers.write(transmit::tail(0), 0);
        registers.write(transmit::descriptor_control(0), receive::DescriptorControl(0).with_granularity(1).with_count(1));
        registers.write(transmit::GAP, Gap::COPPER);
        let control = transmit::Control(0)
            .with_enable(1)
            .with_pad(1)
            .with_collision_threshold(transmit::Control::COLLISION_THRESHOLD)
            .with_collision_distance(transmit::Control::COLLISION_DISTANCE)
            .with_multiple_reads(1);
        registers.write(transmit::CONTROL, control);
    }

    /// Keeps `filter`, also for the next start.
    pub(super) fn set_filter(&mut self, filter: &Filter) {
        self.filter = filter.clone();
        self.program_filter();
    }

    fn program_filter(&self) {
        let control = super::filter::program(&self.registers, &self.filter);
        let Some(rings) = &self.rings else { return };
        let control = control
            .with_enable(1)
            .with_strip_fcs(1)
            .with_long_packets(rings.long_packets.into())
            .with_buffer_bytes(rings.buffer_bytes as usize);
        self.registers.write(receive::CONTROL, control);
    }

    pub(super) fn registers(&self) -> &Registers {
        &self.registers
    }
}
