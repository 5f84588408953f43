//! ATA drives: the commands that every host controller carries, and what a drive says about itself.
//!
//! What a driver and a model of the drive both need, in both directions.
//!
//! # References
//! - `[ACS-3]` ATA/ATAPI Command Set 3, T13/2161-D, Revision 5, October 2013
//! - `[ACS-4]` ATA/ATAPI Command Set 4, T13/BSR INCITS 529, Revision 14, 2016 (logs)
//! - `[ATA-6]` AT Attachment with Packet Interface 6, T13/1410-D, Revision 3b, February 2002 (PIO
//!   and multiword DMA details)
//! - `[SATA]` Serial ATA Revision 3.0, June 2009

pub mod identify;
pub mod log;
pub mod opcode;
mod status;
mod taskfile;
mod trim;

pub use identify::Identify;
pub use status::{ErrorBits, Status};
pub use taskfile::{Signature, TaskFile, device};
pub use trim::TrimRange;

/// Bytes of the unit of all PIO transfers and of IDENTIFY and TRIM data, whatever the logical block
/// is. [ACS-3 4.2]
pub const SECTOR: usize = 512;
/// Sectors that a 28-bit command reaches: one less than 2^28. [ACS-3 4.1.2]
pub const LBA28_SECTORS: u64 = (1 << 28) - 1;
/// Most sectors of one 28-bit command; the count field says 0. [ACS-3 7.1.2]
pub const MAX_COUNT_28: u32 = 256;
/// Most sectors of one 48-bit command; the count field says 0. [ACS-3 7.1.3]
pub const MAX_COUNT_48: u32 = 65536;
