//! What the NVM and the PHY say. [82574 6, 10.2.2; 8254x 5.6, 13.4.4, 13.4.5]

use std::time::Duration;

use ring3_class::net::Mac;
use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::e1000::general::{self, Mdi, Resources, Semaphore};
use ring3_spec::e1000::{nvm, phy};

use super::card::Card;
use super::filter;
use super::variant::{Family, Ownership};

/// Attempts at reading the NVM: behind a link that saves power the first may fail. [Linux,
/// e1000_probe]
const NVM_ATTEMPTS: u32 = 3;

impl Card {
    /// The address of the card's port, which it has from its NVM after a reset. A card with several
    /// ports has one NVM; what its first words say is the address of one of them.
    pub(super) fn port_address(&mut self) -> Result<Mac, Error> {
        let of_nvm = self.nvm_address()?;
        let of_port = filter::read_address(self.registers(), 0);
        let is_usable = |mac: &Mac| !mac.is_group() && *mac != Mac::default();
        Ok(of_port.filter(is_usable).unwrap_or(of_nvm))
    }

    /// The address in the NVM, which is whole. [82574 6.1]
    pub(super) fn nvm_address(&mut self) -> Result<Mac, Error> {
        let address = self.owning_nvm_and_phy(|| {
            let mut attempts = 1;
            loop {
                match self.checked_address() {
                    Err(Error::Unsupported(why)) if attempts < NVM_ATTEMPTS => {
                        tracing::debug!("{why}: it is read again");
                        attempts += 1;
                    }
                    read => return read,
                }
            }
        })?;
        self.nvm = address;
        Ok(address)
    }

    fn checked_address(&self) -> Result<Mac, Error> {
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
                "the card's NVM is damaged (its words add up to {sum:#06x}, its address is \
                {address}): have its maker's tool write it again"
            )));
        }
        Ok(address)
    }

    /// A word of the NVM. [82574 10.2.2, EERD; 8254x 13.4.4]
    fn nvm(&self, word: u16) -> Result<u16, Error> {
        let narrow = self.variant.family == Family::I8254x;
        let start = match narrow {
            true => nvm::ReadLegacy(0).with_start(1).with_address(word.into()).0,
            false => nvm::Read(0).with_start(1).with_address(word.into()).0,
        };
        self.registers().write(general::NVM_READ, start);
        poll_until(
            Deadline::after(Duration::from_micros(nvm::READ_MICROS)),
            "a word of the card's NVM (EERD.DONE)",
            || {
                let read = self.registers().read_alive(general::NVM_READ)?;
                let done =
                    if narrow { nvm::ReadLegacy(read).done() } else { nvm::Read(read).done() };
                // Where the word stands is the same in both.
                Ok((done == 1).then_some(nvm::Read(read).data() as u16))
            },
        )
    }

    /// Does `access` to NVM and PHY while neither firmware nor another port uses them.
    fn owning_nvm_and_phy<T>(&self, access: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let owned = match poll_until(
            Deadline::after(Duration::from_millis(general::OWNERSHIP_MILLIS)),
            "the card's NVM and PHY, which firmware or another port has",
            || Ok(self.acquire()?.then_some(())),
        ) {
            // Who has died with them never gives them back.
            Err(error @ Error::Timeout { .. }) => {
                tracing::warn!("{error}; they are used nevertheless");
                self.free()?;
                self.acquire()?
            }
            owned => owned.map(|()| true)?,
        };
        let done = access();
        if owned {
            self.release()?;
        }
        done
    }

    /// Takes the semaphore from a driver that has died with it.
    fn free(&self) -> Result<(), Error> {
        match self.variant.ownership {
            Ownership::Always | Ownership::Configuration => Ok(()),
            Ownership::Semaphore => self.release(),
            Ownership::Resources => {
                self.registers().write(general::SEMAPHORE, Semaphore(0));
                self.release()
            }
        }
    }

    /// Whether NVM and PHY are the driver's from now on.
    fn acquire(&self) -> Result<bool, Error> {
        match self.variant.ownership {
            Ownership::Always => Ok(true),
            Ownership::Configuration => self.acquire_configuration(),
            Ownership::Semaphore => self.acquire_semaphore(),
            Ownership::Resources => {
                let wanted = Resources::nvm_and_phy(self.status()?.port());
                self.with_semaphore(|resources| {
                    let is_free = (resources.software() | resources.firmware()) & wanted == 0;
                    let taken = resources.with_software(resources.software() | wanted);
                    is_free.then_some(taken)
                })
            }
        }
    }

    /// Gives NVM and PHY back.
    fn release(&self) -> Result<(), Error> {
        match self.variant.ownership {
            Ownership::Always => Ok(()),
            Ownership::Configuration => self.release_configuration(),
            Ownership::Semaphore => self.release_semaphore(),
            Ownership::Resources => {
                let ours = Resources::nvm_and_phy(self.status()?.port());
                self.with_semaphore(|resources| {
                    Some(resources.with_software(resources.software() & !ours))
                })
                .map(drop)
            }
        }
    }

    /// Whether EXTCNF_CTRL is the driver's from now on. [82574 10.2.2]
    pub(super) fn acquire_configuration(&self) -> Result<bool, Error> {
        let registers = self.registers();
        let before = registers.read_alive(general::EXTENDED_CONFIGURATION)?;
        registers.write(general::EXTENDED_CONFIGURATION, before.with_software_owns(1));
        Ok(registers.read_alive(general::EXTENDED_CONFIGURATION)?.software_owns() == 1)
    }

    pub(super) fn release_configuration(&self) -> Result<(), Error> {
        let before = self.registers().read_alive(general::EXTENDED_CONFIGURATION)?;
        self.registers().write(general::EXTENDED_CONFIGURATION, before.with_software_owns(0));
        Ok(())
    }

    /// Whether SWSM is the driver's from now on. [Linux, e1000_get_hw_semaphore_82571]
    fn acquire_semaphore(&self) -> Result<bool, Error> {
        let before: Semaphore = self.registers().read_alive(general::SEMAPHORE)?;
        if before.driver() == 1 {
            return Ok(false);
        }
        // The read has set SMBI; firmware decides about SWESMBI.
        self.registers().write(general::SEMAPHORE, before.with_driver(1).with_software(1));
        let owned = self.registers().read_alive(general::SEMAPHORE)?.software() == 1;
        if !owned {
            self.release_semaphore()?;
        }
        Ok(owned)
    }

    /// DRV_LOAD is in the same register and stays.
    fn release_semaphore(&self) -> Result<(), Error> {
        let held = self.registers().read_alive(general::SEMAPHORE)?;
        self.registers().write(general::SEMAPHORE, held.with_driver(0).with_software(0));
        Ok(())
    }

    /// Has firmware look for the driver in SWSM, where it does so. [Linux, e1000e_get_hw_control]
    pub(super) fn say_loaded(&self, loaded: bool) {
        if !self.variant.errata.loaded_in_semaphore {
            return;
        }
        let registers = self.registers();
        let semaphore: Semaphore = registers.read(general::SEMAPHORE);
        // The read has set SMBI, which must not stay.
        let said = semaphore.with_driver(0).with_software(0).with_driver_loaded(loaded.into());
        registers.write(general::SEMAPHORE, said);
    }

    /// Has `change` change who has what, if the semaphore that guards it is free; whether it was
    /// changed. [82576 4.7]
    fn with_semaphore(
        &self,
        change: impl FnOnce(Resources) -> Option<Resources>,
    ) -> Result<bool, Error> {
        let registers = self.registers();
        if registers.read_alive(general::SEMAPHORE)?.driver() == 1 {
            return Ok(false);
        }
        // The read has set it.
        let held = Semaphore(0).with_driver(1).with_software(1);
        registers.write(general::SEMAPHORE, held);
        let changed = if registers.read_alive(general::SEMAPHORE)?.software() == 1 {
            change(registers.read_alive(general::RESOURCES)?)
        } else {
            None
        };
        if let Some(resources) = changed {
            registers.write(general::RESOURCES, resources);
        }
        registers.write(general::SEMAPHORE, Semaphore(0));
        Ok(changed.is_some())
    }

    /// Does an access to the PHY. [82574 10.2.2, MDIC]
    fn mdi(&self, access: Mdi) -> Result<u16, Error> {
        self.registers().write(general::MDI, access.with_phy(Mdi::INTERNAL));
        let done = poll_until(
            Deadline::after(Duration::from_micros(general::MDI_MICROS)),
            "the PHY (MDIC.R)",
            || {
                let mdi = self.registers().read_alive(general::MDI)?;
                Ok((mdi.ready() == 1).then_some(mdi))
            },
        )?;
        if done.error() == 1 {
            return Err(Error::Protocol(format!(
                "register {} of the PHY does not answer (MDIC.E)",
                access.register()
            )));
        }
        Ok(done.data() as u16)
    }

    /// The PHY's identifier; powers it up and lets it negotiate. [802.3 22.2.4]
    pub(super) fn start_phy(&self) -> Result<u32, Error> {
        self.owning_nvm_and_phy(|| self.power_up_phy())
    }

    fn power_up_phy(&self) -> Result<u32, Error> {
        let read = |register: u8| {
            self.mdi(Mdi(0).with_register(register.into()).with_operation(Mdi::READ))
        };
        let id = u32::from(read(phy::ID_HIGH)?) << 16 | u32::from(read(phy::ID_LOW)?);
        let control = phy::Control(read(phy::CONTROL)?);
        let wanted = control.with_power_down(0).with_negotiate(1);
        if wanted != control {
            let restart = Mdi(0).with_register(phy::CONTROL.into()).with_operation(Mdi::WRITE);
            self.mdi(restart.with_data(wanted.with_restart(1).0.into()))?;
        }
        Ok(id)
    }

    /// Has a PHY without a link negotiate. One that CTRL.RST has reset, as a virtual card may do
    /// it, does not by itself. [802.3 28.2.4.1.1]
    pub(super) fn renegotiate(&self) -> Result<(), Error> {
        if self.status()?.link() == 1 {
            return Ok(());
        }
        self.owning_nvm_and_phy(|| {
            let register = Mdi(0).with_register(phy::CONTROL.into());
            let control = phy::Control(self.mdi(register.with_operation(Mdi::READ))?);
            let control = control.with_power_down(0).with_negotiate(1).with_restart(1);
            self.mdi(register.with_operation(Mdi::WRITE).with_data(control.0.into())).map(drop)
        })
    }
}
