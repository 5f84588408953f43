//! Chips: what a PCI IDE function has beside the registers that all have.
//!
//! Every function of the class works. Of those that are known by name the channels' switches and
//! timing are programmed; of all others they stay as firmware left them.

use ring3_device::{Device, Error, Registers};
use ring3_spec::ide::cmd64x::{self, MODE};
use ring3_spec::ide::piix::{self, Timing};
use ring3_spec::ide::{self, CHANNELS, Interface};
use ring3_spec::pci;

use super::mode::{Mode, Timings};

/// The chip behind a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chip {
    /// Intel PIIX3, and PIIX4 with Ultra DMA.
    Piix { ultra: bool },
    /// CMD PCI0646, PCI0648 and PCI0649; the first revisions have no Ultra DMA and no interrupt
    /// status among the ports.
    Cmd { ultra: Option<u8> },
    /// Any other.
    Generic,
}

impl Chip {
    /// The chip of `device` and its interface; [`Error::Unsupported`] if it is no IDE function.
    pub(super) fn of(device: &dyn Device) -> Result<(Self, Interface), Error> {
        let word = device.config_read(pci::REVISION, 4);
        let (class, revision) = (word >> 8, word as u8);
        if word == u32::MAX {
            return Err(Error::Gone);
        }
        if class & ide::CLASS_MASK != ide::CLASS {
            return Err(Error::Unsupported(format!(
                "{}: class {class:06x} is no IDE controller's",
                device.name()
            )));
        }
        let id = |offset| device.config_read(offset, 2) as u16;
        let chip = match (id(pci::VENDOR_ID), id(pci::DEVICE_ID)) {
            (piix::VENDOR, piix::PIIX3) => Self::Piix { ultra: false },
            (piix::VENDOR, piix::PIIX4) => Self::Piix { ultra: true },
            (cmd64x::VENDOR, cmd64x::CMD646) => {
                Self::Cmd { ultra: (revision >= cmd64x::CMD646_ULTRA_REVISION).then_some(2) }
            }
            (cmd64x::VENDOR, cmd64x::CMD648) => Self::Cmd { ultra: Some(4) },
            (cmd64x::VENDOR, cmd64x::CMD649) => Self::Cmd { ultra: Some(5) },
            _ => Self::Generic,
        };
        Ok((chip, Interface(class as u8)))
    }

    /// What can be programmed.
    pub(super) fn timings(self) -> Timings {
        match self {
            Self::Piix { ultra } => {
                Timings { pio: true, multiword: true, ultra: ultra.then_some(2) }
            }
            Self::Cmd { ultra } => Timings { pio: false, multiword: false, ultra },
            Self::Generic => Timings::default(),
        }
    }

    /// Whether its data port takes accesses of 32 bits.
    pub(super) fn has_wide_data(self) -> bool {
        matches!(self, Self::Piix { .. })
    }

    /// Which channels are switched on. A PIIX with neither has seen no firmware: its driver
    /// switches both on.
    pub(super) fn enabled(self, device: &dyn Device) -> [bool; CHANNELS as usize] {
        match self {
            Self::Piix { .. } => match [0, 1].map(|channel| timing(device, channel).enabled() == 1)
            {
                [false, false] => [true, true],
                some => some,
            },
            Self::Cmd { .. } => [
                true,
                device.config_read(cmd64x::CONTROL, 1) as u8 & cmd64x::CONTROL_SECONDARY != 0,
            ],
            Self::Generic => [true, true],
        }
    }

    /// Switches `channel` on, with the slowest timing if it was off.
    pub(super) fn enable(self, device: &dyn Device, channel: u8) -> Result<(), Error> {
        match self {
            Self::Piix { .. } => {
                let now = timing(device, channel);
                let wanted = now.with_enabled(1);
                if now == wanted {
                    Ok(())
                } else {
                    device.config_write(piix::timing(channel), 2, wanted.0.into())
                }
            }
            Self::Cmd { .. } if channel == 1 => {
                let now = device.config_read(cmd64x::CONTROL, 1) as u8;
                let wanted = now | cmd64x::CONTROL_SECONDARY;
                if now == wanted {
                    Ok(())
                } else {
                    device.config_write(cmd64x::CONTROL, 1, wanted.into())
                }
            }
            Self::Cmd { .. } | Self::Generic => Ok(()),
        }
    }

    /// Takes the interrupt of `channel` back where the chip keeps it in a register of its own, too.
    /// `ports` are the bus master's.
    pub(super) fn acknowledge(self, device: &dyn Device, channel: u8, ports: Option<&Registers>) {
        match (self, ports) {
            // The other channel's interrupt is cleared by a one, too, and stays for a zero.
            (Self::Cmd { ultra: Some(_) }, Some(ports)) => {
                let others = ports.read(MODE).with_primary_interrupt(0).with_secondary_interrupt(0);
                ports.write(
                    MODE,
                    if channel == 0 {
                        others.with_primary_interrupt(1)
                    } else {
                        others.with_secondary_interrupt(1)
                    },
                );
            }
            (Self::Cmd { ultra: None }, _) => {
                let (register, bit) = if channel == 0 {
                    (cmd64x::CONFIGURATION, cmd64x::CONFIGURATION_INTERRUPT)
                } else {
                    (cmd64x::ADDRESS_SETUP_23, cmd64x::ADDRESS_SETUP_23_INTERRUPT)
                };
                let value = device.config_read(register, 1) as u8;
                if value & bit != 0
                    && let Err(error) = device.config_write(register, 1, value.into())
                {
                    tracing::debug!("{}: interrupt of channel {channel}: {error}", device.name());
                }
            }
            _ => {}
        }
    }

    /// Programs the timing of `drive` on `channel` for DMA by `mode` and PIO mode `pio`. What the
    /// chip cannot be told stays.
    pub(super) fn program(
        self,
        device: &dyn Device,
        (channel, drive): (u8, u8),
        mode: Mode,
        pio: u8,
    ) -> Result<(), Error> {
        match self {
            Self::Piix { ultra } => {
                program_piix(device, (channel, drive), mode, pio)?;
                if ultra { program_piix_ultra(device, channel * 2 + drive, mode) } else { Ok(()) }
            }
            Self::Cmd { ultra: Some(_) } => {
                let at = cmd64x::ultra_dma(channel);
                let ultra = if let Mode::Ultra(mode) = mode { Some(mode) } else { None };
                device.config_write(
                    at,
                    1,
                    cmd64x::with_ultra_dma(device.config_read(at, 1) as u8, drive, ultra).into(),
                )
            }
            Self::Cmd { ultra: None } | Self::Generic => Ok(()),
        }
    }
}

fn timing(device: &dyn Device, channel: u8) -> Timing {
    Timing(device.config_read(piix::timing(channel), 2) as u16)
}

/// PIO and multiword DMA of one drive, which share a timing. [PIIX4 4.1.8, 4.1.9]
fn program_piix(
    device: &dyn Device,
    (channel, drive): (u8, u8),
    mode: Mode,
    pio: u8,
) -> Result<(), Error> {
    let Clocks { sample, recovery, dma_only } = Clocks::of(mode, pio);
    let fast = sample + recovery > 0;
    // Fast timing, IORDY, posting, and whether for DMA alone.
    let flags =
        if fast { 1 | u16::from(pio >= 3) << 1 | 1 << 2 | u16::from(dma_only) << 3 } else { 0 };
    let now = timing(device, channel).with_enabled(1).with_slave_timing(1);
    let wanted = if drive == 0 {
        Timing(now.0 & !0xf | flags).with_sample(sample).with_recovery(recovery)
    } else {
        now.with_slave(flags)
    };
    device.config_write(piix::timing(channel), 2, wanted.0.into())?;
    if drive == 0 {
        return Ok(());
    }
    let shift = channel * 4;
    let nibble = (sample << 2 | recovery) << shift;
    let others = device.config_read(piix::SLAVE_TIMING, 1) & !(0xf << shift);
    device.config_write(piix::SLAVE_TIMING, 1, others | u32::from(nibble))
}

/// Ultra DMA of drive 0 to 3, both channels counted. [PIIX4 4.1.10, 4.1.11]
fn program_piix_ultra(device: &dyn Device, drive: u8, mode: Mode) -> Result<(), Error> {
    let on = device.config_read(piix::ULTRA_DMA_CONTROL, 1);
    let Mode::Ultra(mode) = mode else {
        return device.config_write(piix::ULTRA_DMA_CONTROL, 1, on & !(1 << drive));
    };
    let shift = drive * 4;
    let cycles = device.config_read(piix::ULTRA_DMA_TIMING, 2) & !(0b11 << shift);
    device.config_write(piix::ULTRA_DMA_TIMING, 2, cycles | u32::from(mode) << shift)?;
    device.config_write(piix::ULTRA_DMA_CONTROL, 1, on | 1 << drive)
}

/// What IDETIM says of a cycle.
#[derive(Debug, PartialEq, Eq)]
struct Clocks {
    sample: u16,
    recovery: u16,
    /// PIO is slower than that, and runs with the slowest timing.
    dma_only: bool,
}

impl Clocks {
    /// Multiword modes 1 and 2 have the cycles of PIO modes 3 and 4. [PIIX4 table 5]
    fn of(mode: Mode, pio: u8) -> Self {
        let dma = match mode {
            Mode::Multiword(0) => 0,
            Mode::Multiword(mode) => mode.min(2) + 2,
            Mode::Pio | Mode::Firmware | Mode::Ultra(_) => pio,
        };
        let (sample, recovery) = match dma {
            0 | 1 => (0, 0),
            2 => (1, 0),
            3 => (2, 1),
            _ => (2, 3),
        };
        Self { sample, recovery, dma_only: pio < dma }
    }
}

impl std::fmt::Display for Chip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Piix { ultra: false } => "PIIX3",
            Self::Piix { ultra: true } => "PIIX4",
            Self::Cmd { ultra: Some(5) } => "CMD649",
            Self::Cmd { ultra: Some(4) } => "CMD648",
            Self::Cmd { .. } => "CMD646",
            Self::Generic => "IDE controller",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiword_dma_and_pio_share_a_cycle() {
        assert_eq!(
            Clocks::of(Mode::Multiword(2), 4),
            Clocks { sample: 2, recovery: 3, dma_only: false }
        );
        assert_eq!(
            Clocks::of(Mode::Multiword(1), 4),
            Clocks { sample: 2, recovery: 1, dma_only: false }
        );
        assert_eq!(
            Clocks::of(Mode::Multiword(2), 0),
            Clocks { sample: 2, recovery: 3, dma_only: true }
        );
    }

    #[test]
    fn ultra_dma_leaves_the_cycle_to_pio() {
        assert_eq!(
            Clocks::of(Mode::Ultra(2), 3),
            Clocks { sample: 2, recovery: 1, dma_only: false }
        );
        assert_eq!(
            Clocks::of(Mode::Ultra(2), 0),
            Clocks { sample: 0, recovery: 0, dma_only: false }
        );
    }
}
