//! What the NVM and the PHY say. [82574 6, 10.2.2; 8254x 5.6, 13.4.4, 13.4.5]

use std::time::Duration;

use ring3_class::net::Mac;
use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::e1000::general::{self, Mdi};
use ring3_spec::e1000::{nvm, phy};

use super::card::Card;
use super::variant::Family;

impl Card {
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
                "the card's NVM is damaged (its words add up to {sum:#06x}, its address is \
                {address}): have its maker's tool write it again"
            )));
        }
        Ok(address)
    }

    /// A word of the NVM. [82574 10.2.2, EERD; 8254x 13.4.4]
    fn nvm(&self, word: u16) -> Result<u16, Error> {
        let narrow = self.family == Family::I8254x;
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
        let register = Mdi(0).with_register(phy::CONTROL.into());
        let control = phy::Control(self.mdi(register.with_operation(Mdi::READ))?);
        let control = control.with_power_down(0).with_negotiate(1).with_restart(1);
        self.mdi(register.with_operation(Mdi::WRITE).with_data(control.0.into())).map(drop)
    }
}
