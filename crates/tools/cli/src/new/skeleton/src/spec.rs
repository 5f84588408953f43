//! The device's registers.
//!
//! # References
//! - `[DATA]` The name, revision and date of your data sheet.

use ring3_spec::register::{Reg, Ro, Rw, Wo};

/// PCI vendor id. [DATA, ids]
pub const VENDOR: u16 = 0x1234;
/// PCI device id. [DATA, ids]
pub const DEVICE: u16 = 0x5ce1;
/// Bytes of the registers. [DATA, registers]
pub const REGISTERS: u64 = 0x40;

/// Identification: always [`SIGNATURE`]. [DATA, 0x00]
pub const IDENTIFICATION: Reg<u32, Ro> = Reg::at(0x00);
/// Bytes to sum. [DATA, 0x04]
pub const LENGTH: Reg<u32, Rw> = Reg::at(0x04);
/// Where they lie. [DATA, 0x08]
pub const SOURCE: Reg<u64, Rw> = Reg::at(0x08);
/// Starts what is written. [DATA, 0x10]
pub const COMMAND: Reg<u32, Wo> = Reg::at(0x10);
/// Whether it works. [DATA, 0x14]
pub const STATUS: Reg<u32, Ro> = Reg::at(0x14);
/// What the last command has found. [DATA, 0x18]
pub const RESULT: Reg<u64, Ro> = Reg::at(0x18);

/// `IDENTIFICATION`.
pub const SIGNATURE: u32 = 0x5ce1_e701;
/// `COMMAND`: sum the bytes, then raise the interrupt.
pub const COMMAND_SUM: u32 = 1;
/// `STATUS`: a command is being executed.
pub const STATUS_BUSY: u32 = 1;
/// `STATUS`: the last command could not read its bytes.
pub const STATUS_FAILED: u32 = 2;
