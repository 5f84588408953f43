//! Transfer modes: which one a drive, its cable and the chip share, and which one is slower.

use ring3_spec::ata::Identify;

use super::super::identity::Identity;

/// The fastest Ultra DMA mode for which a cable of 40 wires is enough. [ATA-6 Annex A]
const NARROW_CABLE: u8 = 2;

/// How drive and chip move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// By the processor.
    Pio,
    /// By the bus master, as firmware has set drive and chip up.
    Firmware,
    /// By the bus master, multiword DMA mode 0 to 2.
    Multiword(u8),
    /// By the bus master, Ultra DMA mode 0 to 6.
    Ultra(u8),
}

/// What a chip can be programmed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Timings {
    /// PIO modes.
    pub(super) pio: bool,
    /// Multiword DMA modes.
    pub(super) multiword: bool,
    /// The best Ultra DMA mode.
    pub(super) ultra: Option<u8>,
}

impl Mode {
    /// The best that all of them share; firmware's if the chip's timing is not ours.
    pub(super) fn best(identity: &Identity, timings: Timings) -> Self {
        if !identity.dma {
            return Self::Pio;
        }
        let cable = if identity.wide_cable { u8::MAX } else { NARROW_CABLE };
        match (identity.ultra_dma.zip(timings.ultra), identity.multiword_dma) {
            (Some((drive, chip)), _) => Self::Ultra(drive.min(chip).min(cable)),
            (None, Some(drive)) if timings.multiword => Self::Multiword(drive),
            _ => Self::Firmware,
        }
    }

    /// The next slower one worth trying on a cable that damages data, for a drive and a chip with
    /// `multiword`.
    pub(super) fn slower(self, multiword: Option<u8>) -> Option<Self> {
        match self {
            Self::Ultra(mode) if mode > NARROW_CABLE => Some(Self::Ultra(NARROW_CABLE)),
            Self::Ultra(mode) if mode > 0 => Some(Self::Ultra(0)),
            Self::Ultra(_) => Some(multiword.map_or(Self::Pio, Self::Multiword)),
            Self::Multiword(_) | Self::Firmware => Some(Self::Pio),
            Self::Pio => None,
        }
    }

    /// What SET FEATURES says in the count; `None` if there is nothing to say. [ACS-3 7.45.3]
    pub(super) fn code(self) -> Option<u16> {
        match self {
            Self::Multiword(mode) => Some(0x20 | u16::from(mode)),
            Self::Ultra(mode) => Some(0x40 | u16::from(mode)),
            Self::Pio | Self::Firmware => None,
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pio => f.write_str("PIO"),
            Self::Firmware => f.write_str("the DMA mode that firmware chose"),
            Self::Multiword(mode) => write!(f, "multiword DMA mode {mode}"),
            Self::Ultra(mode) => write!(f, "Ultra DMA mode {mode}"),
        }
    }
}

/// The best PIO mode of a drive; mode 0 if it says nothing. [ACS-3 7.12.7.28]
pub(super) fn best_pio(data: &Identify) -> u8 {
    let advanced = if data.valid() & 1 << 1 != 0 { data.advanced_pio() } else { 0 };
    match advanced & 0b11 {
        0b10 | 0b11 => 4,
        0b01 => 3,
        _ => 0,
    }
}

/// What SET FEATURES says in the count for PIO `mode` with flow control. [ACS-3 7.45.3]
pub(super) const fn pio_code(mode: u8) -> u16 {
    0x08 | mode as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIIX4: Timings = Timings { pio: true, multiword: true, ultra: Some(2) };
    const CMD649: Timings = Timings { pio: false, multiword: false, ultra: Some(5) };

    fn drive(ultra: Option<u8>, multiword: Option<u8>, wide_cable: bool) -> Identity {
        let mut data = Identify::zeroed();
        data.set_capabilities(3 << 8).set_sectors28(1000);
        let identity = Identity::new(&data).unwrap();
        Identity { ultra_dma: ultra, multiword_dma: multiword, wide_cable, ..identity }
    }

    #[test]
    fn the_slowest_of_drive_cable_and_chip_decides() {
        assert_eq!(Mode::best(&drive(Some(5), Some(2), true), PIIX4), Mode::Ultra(2));
        assert_eq!(Mode::best(&drive(Some(5), Some(2), true), CMD649), Mode::Ultra(5));
        assert_eq!(Mode::best(&drive(Some(5), Some(2), false), CMD649), Mode::Ultra(2));
        assert_eq!(Mode::best(&drive(Some(1), Some(2), true), CMD649), Mode::Ultra(1));
    }

    #[test]
    fn without_ultra_dma_it_is_multiword_if_the_chip_can_be_told() {
        assert_eq!(Mode::best(&drive(None, Some(2), true), PIIX4), Mode::Multiword(2));
        assert_eq!(Mode::best(&drive(None, Some(2), true), CMD649), Mode::Firmware);
        assert_eq!(Mode::best(&drive(Some(5), Some(2), true), Timings::default()), Mode::Firmware);
    }

    #[test]
    fn a_drive_without_dma_is_driven_by_the_processor() {
        assert_eq!(
            Mode::best(&Identity { dma: false, ..drive(Some(5), Some(2), true) }, PIIX4),
            Mode::Pio
        );
    }

    #[test]
    fn modes_fall_in_few_steps_to_the_processors() {
        let mut steps = vec![Mode::Ultra(5)];
        while let Some(slower) = steps.last().and_then(|mode| mode.slower(Some(2))) {
            steps.push(slower);
        }
        assert_eq!(steps[1..], [Mode::Ultra(2), Mode::Ultra(0), Mode::Multiword(2), Mode::Pio]);
    }

    #[test]
    fn modes_are_told_as_the_standard_numbers_them() {
        assert_eq!(
            (Mode::Ultra(5).code(), Mode::Multiword(2).code(), pio_code(4)),
            (Some(0x45), Some(0x22), 0x0c)
        );
    }
}
