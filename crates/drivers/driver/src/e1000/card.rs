//! The card by its registers: reset, and from there to a card that can start its queues. [82574
//! 4.6; 8254x 14]

use std::time::Duration;

use ring3_class::net::{Filter, Link, Mac};
use ring3_device::{Deadline, Device, Error, Registers, poll_until};
use ring3_spec::e1000::general::{self, Control, ControlExtended, NvmControl, Status};
use ring3_spec::e1000::interrupt::{self, Causes};
use ring3_spec::e1000::{BAR, BAR_BYTES, advanced, receive, statistics, transmit};

use super::interrupts::Vectors;
use super::options::Options;
use super::rings::Rings;
use super::variant::{Family, Variant};
use crate::lifetime::{StopFailed, stop_function};

/// The type of VLAN frames. [802.3 3.2.7]
const VLAN_TYPE: u32 = 0x8100;

/// The registers of a card, and what a reset must set again.
pub(super) struct Card {
    registers: Registers,
    pub(super) variant: Variant,
    /// The address in its NVM.
    pub(super) nvm: Mac,
    pub(super) filter: Filter,
    /// The queues that are open, by their number.
    pub(super) rings: Vec<Option<Rings>>,
    /// Among how many queues it spreads what it receives.
    pub(super) spread: u32,
    /// Frames that found no room, as far as they were counted.
    pub(super) missed: u64,
}

impl Card {
    /// The card behind `device`'s registers, whatever state it is in.
    pub(super) fn new(device: &dyn Device, variant: Variant) -> Result<Self, Error> {
        let registers = Registers::new(device.bar(BAR)?, BAR_BYTES)?;
        registers.read_alive(general::STATUS)?;
        let rings = vec![None; variant.queues.into()];
        Ok(Self {
            registers,
            variant,
            nvm: Mac::default(),
            filter: Filter::default(),
            rings,
            spread: 1,
            missed: 0,
        })
    }

    pub(super) fn registers(&self) -> &Registers {
        &self.registers
    }

    pub(super) fn status(&self) -> Result<Status, Error> {
        self.registers.read_alive(general::STATUS)
    }

    pub(super) fn link(&self) -> Result<Link, Error> {
        let status = self.status()?;
        let up = status.link() == 1;
        let known = |value| up.then_some(value);
        Ok(Link {
            up,
            speed: known(status.megabits()),
            full_duplex: up.then_some(status.full_duplex() == 1),
        })
    }

    /// Fails unless the card runs as it was started: it is gone, or somebody else has reset it.
    pub(super) fn running(&self) -> Result<Status, Error> {
        let status = self.status()?;
        if self.is_started() && self.registers.read_alive(receive::CONTROL)?.enable() == 0 {
            return Err(Error::Fatal(
                "it was reset behind the driver's back (RCTL.EN is 0)".into(),
            ));
        }
        Ok(status)
    }

    /// Adds what the card has counted of frames that found no room; a reset would forget it.
    pub(super) fn count_missed(&mut self) {
        let missed = self.registers.take(statistics::MISSED);
        self.missed += if missed == u32::MAX { 0 } else { u64::from(missed) };
    }

    /// Resets all but the PHY. When this succeeds, the card owns no memory. [82574 4.6.2, 5.2;
    /// 8254x 14.4]
    fn reset(&mut self) -> Result<(), Error> {
        self.mask();
        self.registers.write(receive::CONTROL, receive::Control(0));
        self.registers.write(transmit::CONTROL, transmit::Control(0));
        let control = self.registers.read_alive(general::CONTROL)?;
        if self.variant.family.is_express() {
            self.end_transfers(control)?;
        } else {
            std::thread::sleep(Duration::from_millis(general::SETTLE_MILLIS));
        }
        let owned = self.own_for_reset()?;
        self.registers.write(general::CONTROL, control.with_reset(1));
        std::thread::sleep(Duration::from_micros(general::RESET_QUIET_MICROS));
        let within = || Deadline::after(Duration::from_millis(general::RESET_MILLIS));
        poll_until(within(), "the card's reset (CTRL.RST)", || {
            Ok((self.registers.read_alive(general::CONTROL)?.reset() == 0).then_some(()))
        })?;
        if owned {
            self.release_configuration()?;
        }
        let flash = self.reload_flash()?;
        // A card without an NVM never says that it has read it, and neither does QEMU's 82576 after
        // this reset. Both work, so a time-out here is no error.
        let read = poll_until(within(), "the card's NVM (EEC.Auto_RD)", || {
            Ok(self.has_read_nvm()?.then_some(()))
        });
        match read {
            Err(error @ Error::Timeout { .. }) => {
                tracing::debug!("{error}; the card is used nevertheless")
            }
            read => read?,
        }
        match self.variant.family {
            Family::I8254x => std::thread::sleep(Duration::from_millis(general::AUTO_READ_MILLIS)),
            Family::I82574 => {
                // Without it the PHY is used while it gets its configuration.
                std::thread::sleep(Duration::from_millis(general::PHY_CONFIGURATION_MILLIS))
            }
            Family::I82576 => {}
        }
        if flash {
            let control = self.registers.read_alive(general::NVM_CONTROL)?;
            self.registers.write(general::NVM_CONTROL, control.with_auto_update(0));
        }
        self.mask();
        self.registers.take(interrupt::CAUSE);
        Ok(())
    }

    /// Takes the PHY from firmware, which must not be in the middle of an access when the reset
    /// comes; whether that was possible. It is reset in any case. [Linux, e1000_reset_hw_82571]
    fn own_for_reset(&self) -> Result<bool, Error> {
        if self.variant.family != Family::I82574 {
            return Ok(false);
        }
        let within = Duration::from_millis(general::RESET_OWNERSHIP_MILLIS);
        match poll_until(Deadline::after(within), "the PHY, which firmware has", || {
            Ok(self.acquire_configuration()?.then_some(()))
        }) {
            Err(error @ Error::Timeout { .. }) => {
                tracing::debug!("{error}; the card is reset nevertheless");
                Ok(false)
            }
            owned => owned.map(|()| true),
        }
    }

    /// Has the card read its NVM, if that is a Flash: CTRL.RST alone does not. Whether it is one.
    /// [Linux, e1000_reset_hw_82571]
    fn reload_flash(&self) -> Result<bool, Error> {
        if self.variant.family != Family::I82574
            || self.registers.read_alive(general::NVM_CONTROL)?.kind() != NvmControl::FLASH
        {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_micros(general::FLASH_QUIET_MICROS));
        let extended = self.registers.read_alive(general::CONTROL_EXTENDED)?;
        self.registers.write(general::CONTROL_EXTENDED, extended.with_nvm_reset(1));
        Ok(true)
    }

    /// What is under way ends first, where the card can say so; the reset does not depend on it.
    /// [82574 5.2]
    fn end_transfers(&self, control: Control) -> Result<(), Error> {
        self.registers.write(general::CONTROL, control.with_master_disable(1));
        let idle = poll_until(
            Deadline::after(Duration::from_millis(general::MASTER_MILLIS)),
            "the card's transfers to end",
            || Ok((self.status()?.master() == 0).then_some(())),
        );
        match idle {
            Err(Error::Gone) => Err(Error::Gone),
            Err(error) => {
                // QEMU's 82576 never says that they have ended, and nobody can do anything about
                // it.
                tracing::debug!("{error}; it is reset nevertheless");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn has_read_nvm(&self) -> Result<bool, Error> {
        Ok(!self.variant.family.is_express()
            || self.registers.read_alive(general::NVM_CONTROL)?.auto_read_done() == 1)
    }

    fn mask(&self) {
        self.registers.write(interrupt::MASK_CLEAR, Causes::ALL);
        if self.variant.family == Family::I82576 {
            self.registers.write(advanced::VECTOR_MASK_CLEAR, u32::MAX);
        }
    }

    /// Stops the card: resets it, and if it does not obey, takes its bus mastering away and resets
    /// the function.
    pub(super) fn stop(&mut self, device: &dyn Device) -> Result<(), StopFailed> {
        self.rings.iter_mut().flatten().for_each(|rings| rings.started = false);
        self.say_loaded(false);
        self.reset().or_else(|error| stop_function(device, error))
    }

    /// From a reset to a card with a link, whose queues can be [started](Self::start_queue). [82574
    /// 4.6.3, 4.6.4]
    pub(super) fn start(&self, vectors: &Vectors, options: &Options) {
        let registers = &self.registers;
        match self.variant.family {
            Family::I8254x => {}
            Family::I82574 => {
                self.program_errata();
                self.say_loaded(true);
                let errata = self.variant.errata;
                // The NVM's bits of an 82573 say how its PHY is connected.
                let before = match errata.loaded_in_semaphore {
                    true => registers.read(general::CONTROL_EXTENDED),
                    false => ControlExtended(0).with_driver_loaded(1),
                };
                let extended = before
                    .with_reserved_one(1)
                    .with_reserved_zero(0)
                    .with_pending_clear((self.variant.vectors > 0).into())
                    .with_mask_on_read(1);
                // With IAME set and IAM empty, nothing is masked behind the driver's back.
                registers.write(general::CONTROL_EXTENDED, extended);
                registers.write(interrupt::AUTO_MASK, Causes::NONE);
            }
            Family::I82576 => {
                // The NVM says there how the PHY is connected.
                let extended = registers.read(general::CONTROL_EXTENDED);
                registers.write(general::CONTROL_EXTENDED, extended.with_driver_loaded(1));
                registers.write(interrupt::AUTO_MASK, Causes::NONE);
            }
        }
        registers.write(general::FLOW_ADDRESS_LOW, 0);
        registers.write(general::FLOW_ADDRESS_HIGH, 0);
        registers.write(general::FLOW_TYPE, 0);
        if self.variant.family != Family::I82576 {
            registers.write(general::VLAN_TYPE, VLAN_TYPE);
        }
        let auto_speed = (self.variant.family != Family::I82576).into();
        let control =
            Control(0).with_full_duplex(1).with_auto_speed(auto_speed).with_link_up(1).with_vlan(1);
        registers.write(general::CONTROL, control);
        if self.variant.family == Family::I82576
            && let Err(error) = self.renegotiate()
        {
            tracing::warn!("the card's PHY cannot be told to negotiate: {error}");
        }
        vectors.program(registers, options);
        self.program_spread();
        self.program_filter();
        // Pushes the writes out.
        registers.read(general::STATUS);
    }

    /// Sets the bits without which an 82574 or 82583 loses completions, and hangs. [Linux,
    /// e1000_initialize_hw_bits]
    fn program_errata(&self) {
        if !self.variant.errata.loses_completions {
            return;
        }
        let registers = &self.registers;
        let express = registers.read(general::EXPRESS_CONTROL);
        registers.write(general::EXPRESS_CONTROL, express.with_reserved_one(1));
        let express = registers.read(general::EXPRESS_CONTROL2);
        registers.write(general::EXPRESS_CONTROL2, express.with_keep_completions(1));
        let arbitration = registers.read(transmit::arbitration(0));
        registers.write(
            transmit::arbitration(0),
            arbitration.with_reserved_zero(0).with_reserved_one(1),
        );
    }

    /// Keeps `filter`, also for the next start.
    pub(super) fn set_filter(&mut self, filter: &Filter) {
        self.filter = filter.clone();
        self.program_filter();
    }

    /// Writes the filter; whether and how frames are received follows from the queues that are
    /// started.
    pub(super) fn program_filter(&self) {
        let control = super::filter::program(&self.registers, &self.filter);
        let Some(rings) = self.rings.iter().flatten().find(|rings| rings.started) else { return };
        let control = control
            .with_enable(1)
            .with_strip_fcs(1)
            .with_long_packets(rings.has_long_packets().into())
            .with_buffer_bytes(rings.buffer_bytes as usize);
        // QEMU's 8254x take nothing for a second after this was written.
        if self.registers.read(receive::CONTROL) != control {
            self.registers.write(receive::CONTROL, control);
        }
    }
}
