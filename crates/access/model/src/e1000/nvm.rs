//! NVM and PHY: what a reset does not change. [82574 6, 10.2.2; 802.3 22.2.4]

use ring3_spec::e1000::general::Mdi;
use ring3_spec::e1000::{nvm, phy};

use super::shape::{Nvm, Shape};

/// The identifier of the PHY in an 82574. [82574 10.3]
const PHY_ID: (u16, u16) = (0x0141, 0x0cb1);

/// The words of the NVM.
pub(super) fn words(shape: &Shape) -> [u16; nvm::CHECKED_WORDS as usize] {
    let mut words = [0; nvm::CHECKED_WORDS as usize];
    for (word, bytes) in words.iter_mut().zip(shape.mac.chunks_exact(2)) {
        *word = u16::from_le_bytes([bytes[0], bytes[1]]);
    }
    let sum = words.iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
    words[words.len() - 1] =
        nvm::SUM.wrapping_sub(sum) ^ u16::from(matches!(shape.nvm, Nvm::Bad | Nvm::Flaky));
    words
}

/// The PHY in the card.
pub(super) struct Phy {
    control: phy::Control,
    advertised: u16,
    gigabit: u16,
    /// The link was lost since the status was last read.
    lost: bool,
}

impl Phy {
    pub(super) fn new() -> Self {
        Self {
            control: phy::Control(0).with_negotiate(1),
            advertised: 0x0de1,
            gigabit: 0x0300,
            lost: false,
        }
    }

    pub(super) fn lose_link(&mut self) {
        self.lost = true;
    }

    /// Whether it looks for a link.
    pub(super) fn is_on(&self) -> bool {
        self.control.power_down() == 0
    }

    /// Does what was written to MDIC; the answer to be read there.
    pub(super) fn access(&mut self, mdi: Mdi, link: bool) -> Mdi {
        let done = mdi.with_ready(1);
        let register = mdi.register() as u8;
        match mdi.operation() {
            _ if mdi.phy() != Mdi::INTERNAL => done.with_error(1),
            Mdi::READ => done.with_data(self.read(register, link).into()),
            Mdi::WRITE => {
                self.write(register, mdi.data() as u16);
                done
            }
            _ => done.with_error(1),
        }
    }

    fn read(&mut self, register: u8, link: bool) -> u16 {
        match register {
            phy::CONTROL => self.control.0,
            phy::STATUS => {
                let link = link && !std::mem::take(&mut self.lost);
                // All speeds of copper, preamble suppression. [802.3 22.2.4.2]
                let status = phy::Status(0x7849).with_negotiates(1).with_extended(1);
                status.with_link(link.into()).with_negotiated(link.into()).0
            }
            phy::ID_HIGH => PHY_ID.0,
            phy::ID_LOW => PHY_ID.1,
            phy::ADVERTISEMENT => self.advertised,
            phy::PARTNER if link => 0x4de1,
            phy::GIGABIT_CONTROL => self.gigabit,
            // Both ends are 1000BASE-T, full duplex. [802.3 40.5.1.1]
            phy::GIGABIT_STATUS if link => 0x3800,
            _ => 0,
        }
    }

    fn write(&mut self, register: u8, value: u16) {
        match register {
            phy::CONTROL if phy::Control(value).reset() != 0 => {
                *self = Self { lost: self.lost, ..Self::new() }
            }
            phy::CONTROL => self.control = phy::Control(value).with_restart(0),
            phy::ADVERTISEMENT => self.advertised = value,
            phy::GIGABIT_CONTROL => self.gigabit = value,
            _ => {}
        }
    }
}
