//! The registers of a channel. [ATA-6 7]

use crate::fields;

/// The command block: BAR 0 or 2, eight ports. Write all of it only while BSY and DRQ are clear.
/// [ATA-6 7.2]
pub mod command {
    use crate::ata::{ErrorBits, Status};
    use crate::register::{ReadClears, Reg, Rw, Wo};

    /// Data, read: takes the next word of a PIO transfer. [ATA-6 7.6]
    pub const DATA_IN: Reg<u16, ReadClears> = Reg::at(0);
    /// Data, written: gives the next word.
    pub const DATA_OUT: Reg<u16, Wo> = Reg::at(0);
    /// Why the last command failed. [ATA-6 7.9]
    pub const ERROR: Reg<ErrorBits, Rw> = Reg::at(1);
    /// Features of the next command. Two writes for a 48-bit command, the upper half first; so for
    /// the next four.
    pub const FEATURES: Reg<u8, Wo> = Reg::at(1);
    /// Sector count. [ATA-6 7.14]
    pub const COUNT: Reg<u8, Rw> = Reg::at(2);
    /// Address bits 7:0, then 31:24 as the upper half. [ATA-6 7.13]
    pub const LBA_LOW: Reg<u8, Rw> = Reg::at(3);
    /// Address bits 15:8; upper half 39:32.
    pub const LBA_MID: Reg<u8, Rw> = Reg::at(4);
    /// Address bits 23:16; upper half 47:40.
    pub const LBA_HIGH: Reg<u8, Rw> = Reg::at(5);
    /// Which drive, and address bits 27:24 of a 28-bit command. [ATA-6 7.10]
    pub const DEVICE: Reg<u8, Rw> = Reg::at(6);
    /// Status; reading it takes the drive's interrupt back. [ATA-6 7.15]
    pub const STATUS: Reg<Status, ReadClears> = Reg::at(7);
    /// Command: writing it starts the command. [ATA-6 7.4]
    pub const COMMAND: Reg<u8, Wo> = Reg::at(7);
    /// Ports.
    pub const LEN: u64 = 8;
}

/// The control block: BAR 1 or 3. [PCI-IDE 2.4]
pub mod control {
    use super::DeviceControl;
    use crate::ata::Status;
    use crate::register::{Reg, Ro, Wo};

    /// Status, read without touching the interrupt. [ATA-6 7.3]
    pub const ALTERNATE_STATUS: Reg<Status, Ro> = Reg::at(2);
    /// Device control. [ATA-6 7.8]
    pub const DEVICE_CONTROL: Reg<DeviceControl, Wo> = Reg::at(2);
    /// Ports, of which only one is used.
    pub const LEN: u64 = 4;
}

fields! {
    /// Device control register. [ATA-6 7.8]
    pub struct DeviceControl(u8) {
        /// nIEN: the drive raises no interrupt.
        interrupts_off, with_interrupts_off: 1..=1;
        /// SRST: software reset of both drives while it is set; at least 5 microseconds.
        software_reset, with_software_reset: 2..=2;
        /// HOB: reads of count and address give the upper half.
        high_order, with_high_order: 7..=7;
    }
}
