//! Registers of CMD's PCI0646 and its successors (PCI0648, PCI0649), in configuration space and in
//! the gaps of the bus master's ports. [CMD646 4]

use crate::fields;
use crate::register::{Reg, Rw};

/// PCI vendor.
pub const VENDOR: u16 = 0x1095;
/// PCI device: multiword DMA, Ultra DMA up to mode 2 from revision 5 on.
pub const CMD646: u16 = 0x0646;
/// PCI device: Ultra DMA up to mode 4.
pub const CMD648: u16 = 0x0648;
/// PCI device: Ultra DMA up to mode 5.
pub const CMD649: u16 = 0x0649;
/// First revision of the PCI0646 with Ultra DMA.
pub const CMD646_ULTRA_REVISION: u8 = 5;

/// CFR, 8 bits: bit 2 is the primary's interrupt, cleared by a one.
pub const CONFIGURATION: u64 = 0x50;
/// The primary channel's interrupt in CFR.
pub const CONFIGURATION_INTERRUPT: u8 = 1 << 2;
/// CNTRL, 8 bits: bit 3 switches the secondary channel on.
pub const CONTROL: u64 = 0x51;
/// The secondary channel is on, in CNTRL.
pub const CONTROL_SECONDARY: u8 = 1 << 3;
/// ARTTIM23, 8 bits: bit 4 is the secondary's interrupt, cleared by a one.
pub const ADDRESS_SETUP_23: u64 = 0x57;
/// The secondary channel's interrupt in ARTTIM23.
pub const ADDRESS_SETUP_23_INTERRUPT: u8 = 1 << 4;

/// UDIDETCR0 and 1: Ultra DMA of `channel`'s two drives, 8 bits at this place of configuration
/// space.
pub const fn ultra_dma(channel: u8) -> u64 {
    0x73 + channel as u64 * 8
}

/// MRDMODE in the bus master's ports, 8 bits: interrupts of both channels without touching a drive.
pub const MODE: Reg<Mode, Rw> = Reg::at(1);

fields! {
    /// MRDMODE: interrupts are cleared by a one.
    pub struct Mode(u8) {
        /// The primary's interrupt.
        primary_interrupt, with_primary_interrupt: 2..=2;
        /// The secondary's interrupt.
        secondary_interrupt, with_secondary_interrupt: 3..=3;
        /// The primary's interrupt does not reach the pin.
        primary_blocked, with_primary_blocked: 4..=4;
        /// The secondary's interrupt does not reach the pin.
        secondary_blocked, with_secondary_blocked: 5..=5;
    }
}

/// UDIDETCR with `drive` (0 or 1) in Ultra DMA `mode` (0 to 5), or in none; the other drive's bits
/// stay.
pub const fn with_ultra_dma(register: u8, drive: u8, mode: Option<u8>) -> u8 {
    let (mask, on) = match (drive, mode) {
        (0, None) => (0x35, 0),
        (0, Some(0)) => (0x35, 0x31),
        (0, Some(1)) => (0x35, 0x21),
        (0, Some(2)) => (0x35, 0x11),
        (0, Some(3)) => (0x35, 0x25),
        (0, Some(4)) => (0x35, 0x15),
        (0, Some(_)) => (0x35, 0x05),
        (_, None) => (0xca, 0),
        (_, Some(0)) => (0xca, 0xc2),
        (_, Some(1)) => (0xca, 0x82),
        (_, Some(2)) => (0xca, 0x42),
        (_, Some(3)) => (0xca, 0x8a),
        (_, Some(4)) => (0xca, 0x4a),
        (_, Some(_)) => (0xca, 0x0a),
    };
    register & !mask | on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drives_mode_leaves_the_other_drive_alone() {
        assert_eq!(with_ultra_dma(with_ultra_dma(0, 0, Some(2)), 1, Some(5)), 0x1b);
        assert_eq!(with_ultra_dma(0xff, 1, None), 0x35);
    }
}
