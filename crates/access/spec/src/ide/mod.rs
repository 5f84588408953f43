//! PCI IDE controllers: the registers of a channel, the bus master, and the chips' own timing
//! registers.
//!
//! # Ports
//! A channel has a command block of eight ports, a control block of four of which one is used, and
//! eight ports of bus master. In native mode BARs 0 and 1 (primary) and 2 and 3 (secondary) place
//! the first two; in compatibility mode they are where the PC/AT had them, and backends show them
//! as the same BARs. BAR 4 holds the bus masters of both channels.
//!
//! # References
//! - `[PCI-IDE]` PCI IDE Controller Specification, Revision 1.0, 4 March 1994
//! - `[BMIDE]` Programming Interface for Bus Master IDE Controller, Revision 1.0, 16 May 1994
//! - `[ATA-6]` AT Attachment with Packet Interface 6, T13/1410-D, Revision 3b, February 2002
//! - `[PIIX4]` Intel 82371AB (PIIX4), 290562-001, April 1997; PIIX3 (82371SB) has the same
//!   registers without Ultra DMA
//! - `[CMD646]` CMD Technology PCI0646 and PCI0646U2 data sheets, 1997

pub mod bus_master;
pub mod cmd64x;
pub mod piix;
mod ports;

pub use bus_master::{BusMasterCommand, BusMasterStatus, PRD_BOUNDARY, Prd};
pub use ports::{DeviceControl, command, control};

/// PCI base class and sub-class: mass storage, IDE; the interface is in the low byte. [PCI-IDE 2.0]
pub const CLASS: u32 = 0x01_01_00;
/// Selects base class and sub-class of a class code.
pub const CLASS_MASK: u32 = 0xff_ff_00;
/// Channels of a function.
pub const CHANNELS: u8 = 2;
/// Drives of a channel: master and slave.
pub const DRIVES: u8 = 2;

crate::fields! {
    /// The interface byte of the class code. [PCI-IDE 2.0, BMIDE 1.1]
    pub struct Interface(u8) {
        /// The primary channel is in native mode.
        primary_native, with_primary_native: 0..=0;
        /// The primary channel can be switched.
        primary_switchable, with_primary_switchable: 1..=1;
        /// The secondary channel is in native mode.
        secondary_native, with_secondary_native: 2..=2;
        /// The secondary channel can be switched.
        secondary_switchable, with_secondary_switchable: 3..=3;
        /// It is a bus master.
        bus_master, with_bus_master: 7..=7;
    }
}

impl Interface {
    /// Whether `channel` (0 or 1) is in native mode: ports by BARs, interrupt by the pin.
    pub const fn is_native(self, channel: u8) -> bool {
        self.0 & if channel == 0 { 1 << 0 } else { 1 << 2 } != 0
    }
}

/// Ports at which a channel in compatibility mode answers, and its ISA interrupt. [PCI-IDE 2.1]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Legacy {
    /// First of the eight ports of the command block.
    pub command: u16,
    /// First of the four ports of the control block; only [`control::DEVICE_CONTROL`] among them is
    /// the controller's.
    pub control: u16,
    /// Interrupt line of the ISA bus.
    pub irq: u8,
}

/// The two channels' places in compatibility mode. [PCI-IDE 2.1]
pub const LEGACY: [Legacy; CHANNELS as usize] = [
    Legacy { command: 0x1f0, control: 0x3f4, irq: 14 },
    Legacy { command: 0x170, control: 0x374, irq: 15 },
];

/// BAR of `channel`'s command block.
pub const fn command_bar(channel: u8) -> u8 {
    channel * 2
}

/// BAR of `channel`'s control block.
pub const fn control_bar(channel: u8) -> u8 {
    channel * 2 + 1
}

/// BAR of the bus masters. [BMIDE 2.0]
pub const BUS_MASTER_BAR: u8 = 4;
