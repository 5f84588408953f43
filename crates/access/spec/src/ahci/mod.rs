//! Serial ATA host controllers with the Advanced Host Controller Interface.
//!
//! # Shape
//! All registers lie in BAR 5: the controller's own, then 128 bytes for each port. A port has a
//! list of 32 command headers, each naming a table that holds the command as a frame and the list
//! of its memory; and a page into which the drive's frames are written.
//!
//! # References
//! - `[AHCI]` Serial ATA AHCI Specification, Revision 1.3.1, 2012
//! - `[SATA]` Serial ATA Revision 3.0, June 2009

mod command;
pub mod fis;
pub mod port;
pub mod registers;

pub use command::{
    COMMAND_ALIGN, COMMAND_LIST_ALIGN, COMMAND_LIST_BYTES, CommandHeader, HEADER_BYTES,
    HeaderFlags, MAX_REGION_BYTES, RECEIVED_ALIGN, RECEIVED_BYTES, REGION_BYTES, Region, SLOTS,
    TABLE_FRAME, TABLE_REGIONS,
};

/// PCI class code: mass storage, Serial ATA, AHCI. [AHCI 2.1.5]
pub const CLASS: u32 = 0x01_06_01;
/// The BAR with all registers. [AHCI 2.1.11]
pub const BAR: u8 = 5;
/// Ports that a controller can have.
pub const MAX_PORTS: u8 = 32;
