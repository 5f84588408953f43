//! What is a chip's own: who it says it is, and its registers in configuration space. [PIIX4 4.1,
//! CMD646 4]

use ring3_spec::ide::{self, CHANNELS, Interface, cmd64x, piix};

use super::controller::IdeModel;

/// Bytes of configuration space.
pub(super) const CONFIG: usize = 256;
/// Where CMD's chips show the bus master's ports in configuration space. [CMD646 4]
const MIRROR: std::ops::Range<usize> = 0x70..0x80;

/// A chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// Intel 82371SB: compatibility mode, multiword DMA.
    Piix3,
    /// Intel 82371AB: compatibility mode, Ultra DMA up to mode 2.
    Piix4,
    /// CMD PCI0646U2: native mode, Ultra DMA up to mode 2.
    Cmd646,
}

impl Chip {
    pub(super) fn of_name(name: &str) -> Option<Self> {
        match name {
            "piix3" => Some(Self::Piix3),
            "piix4" => Some(Self::Piix4),
            "cmd646" => Some(Self::Cmd646),
            _ => None,
        }
    }

    /// Vendor, device and revision.
    pub(super) fn ids(self) -> (u16, u16, u8) {
        match self {
            Self::Piix3 => (piix::VENDOR, piix::PIIX3, 0),
            Self::Piix4 => (piix::VENDOR, piix::PIIX4, 1),
            Self::Cmd646 => (cmd64x::VENDOR, cmd64x::CMD646, cmd64x::CMD646_ULTRA_REVISION),
        }
    }

    pub(super) fn is_native(self) -> bool {
        self == Self::Cmd646
    }

    /// Class code.
    pub(super) fn class(self) -> u32 {
        let native = u8::from(self.is_native());
        let interface = Interface(0)
            .with_bus_master(1)
            .with_primary_native(native)
            .with_secondary_native(native);
        ide::CLASS
            | u32::from(
                interface.with_primary_switchable(native).with_secondary_switchable(native).0,
            )
    }

    /// Its best Ultra DMA mode.
    fn ultra_dma(self) -> Option<u8> {
        if self == Self::Piix3 { None } else { Some(2) }
    }

    /// What firmware has left in configuration space.
    pub(super) fn config(self) -> [u8; CONFIG] {
        let mut config = [0; CONFIG];
        match self {
            Self::Piix3 | Self::Piix4 => {
                for channel in 0..CHANNELS {
                    config[piix::timing(channel) as usize + 1] = 0x80;
                }
            }
            Self::Cmd646 => config[cmd64x::CONTROL as usize] = cmd64x::CONTROL_SECONDARY,
        }
        config
    }

    /// The bits of a byte of configuration space that are the chip's own and can be written.
    fn writable(self, at: usize) -> u8 {
        let at = at as u64;
        match self {
            Self::Piix3 | Self::Piix4 if (piix::timing(0)..=piix::SLAVE_TIMING).contains(&at) => {
                0xff
            }
            Self::Piix4 if at == piix::ULTRA_DMA_CONTROL => 0x0f,
            Self::Piix4 if at == piix::ULTRA_DMA_TIMING || at == piix::ULTRA_DMA_TIMING + 1 => 0x33,
            Self::Cmd646 if at == cmd64x::CONFIGURATION => 0,
            Self::Cmd646 if at == cmd64x::ADDRESS_SETUP_23 => !cmd64x::ADDRESS_SETUP_23_INTERRUPT,
            Self::Cmd646 if (cmd64x::CONTROL..=0x5b).contains(&at) => 0xff,
            _ => 0,
        }
    }

    /// Whether a byte of configuration space is the chip's own.
    fn owns(self, at: usize) -> bool {
        self.writable(at) != 0
            || self == Self::Cmd646 && (at as u64 == cmd64x::CONFIGURATION || MIRROR.contains(&at))
    }
}

impl IdeModel {
    /// Whether the chip answers at a channel's ports.
    pub(super) fn is_decoded(&self, channel: usize) -> bool {
        match self.shape.chip {
            Chip::Piix3 | Chip::Piix4 => {
                self.config[piix::timing(channel as u8) as usize + 1] & 0x80 != 0
            }
            Chip::Cmd646 => {
                channel == 0
                    || self.config[cmd64x::CONTROL as usize] & cmd64x::CONTROL_SECONDARY != 0
            }
        }
    }

    pub(super) fn read_own(&self, at: usize) -> Option<u8> {
        if !self.shape.chip.owns(at) {
            return None;
        }
        let byte = *self.config.get(at)?;
        Some(match at as u64 {
            _ if self.shape.chip != Chip::Cmd646 => byte,
            cmd64x::CONFIGURATION => {
                byte | if self.channels[0].latched { cmd64x::CONFIGURATION_INTERRUPT } else { 0 }
            }
            cmd64x::ADDRESS_SETUP_23 => {
                byte | if self.channels[1].latched { cmd64x::ADDRESS_SETUP_23_INTERRUPT } else { 0 }
            }
            _ if MIRROR.contains(&at) => self.read_master((at - MIRROR.start) as u64),
            _ => byte,
        })
    }

    pub(super) fn write_own(&mut self, bus: &crate::Bus, at: usize, value: u8) {
        let mask = self.shape.chip.writable(at);
        if let Some(byte) = self.config.get_mut(at) {
            *byte = *byte & !mask | value & mask;
        }
        if self.shape.chip != Chip::Cmd646 {
            return;
        }
        match at as u64 {
            cmd64x::CONFIGURATION if value & cmd64x::CONFIGURATION_INTERRUPT != 0 => {
                self.channels[0].latched = false
            }
            cmd64x::ADDRESS_SETUP_23 if value & cmd64x::ADDRESS_SETUP_23_INTERRUPT != 0 => {
                self.channels[1].latched = false
            }
            _ if MIRROR.contains(&at) => self.write_master(bus, (at - MIRROR.start) as u64, value),
            _ => {}
        }
    }

    /// Why a drive's transfer mode is beyond what the chip and the cable carry.
    pub(super) fn mode_is_too_fast(&self, mode: Option<u8>, wide_cable: bool) -> Option<String> {
        let mode = mode?;
        match self.shape.chip.ultra_dma() {
            None => Some(format!("Ultra DMA {mode}, and the chip has none")),
            Some(most) if mode > most => {
                Some(format!("Ultra DMA {mode}, and the chip has {most} at best"))
            }
            Some(_) if mode > 2 && !wide_cable => {
                Some(format!("Ultra DMA {mode} on a cable of 40 wires"))
            }
            Some(_) => None,
        }
    }

    /// Why a drive's transfer mode does not suit what the chip was told of it.
    pub(super) fn mode_is_not_told(
        &self,
        channel: usize,
        unit: usize,
        mode: Option<u8>,
    ) -> Option<String> {
        let told = match self.shape.chip {
            Chip::Piix3 => true,
            Chip::Piix4 => {
                let on =
                    self.config[piix::ULTRA_DMA_CONTROL as usize] >> (channel * 2 + unit) & 1 != 0;
                on == mode.is_some()
            }
            Chip::Cmd646 => {
                let register = self.config[cmd64x::ultra_dma(channel as u8) as usize];
                cmd64x::with_ultra_dma(register, unit as u8, mode) == register
            }
        };
        (!told).then(|| match mode {
            Some(mode) => {
                format!("the drive is in Ultra DMA {mode}, and the chip's register does not say so")
            }
            None => {
                "the chip's register says Ultra DMA, and the drive is not in such a mode".into()
            }
        })
    }
}
