//! NVMe controllers behind PCI Express, with the NVM command set.
//!
//! What a driver and a model of the device both need, in both directions: a register or an entry is
//! built by the one and taken apart by the other with the same methods.
//!
//! # References
//! - `[NVMe]` NVM Express Base Specification, Revision 2.1, 5 August 2024
//! - `[NVMe-NVM]` NVM Express NVM Command Set Specification, Revision 1.1, 5 August 2024
//! - `[NVMe-PCIe]` NVM Express NVMe over PCIe Transport Specification, Revision 1.1, 5 August 2024

mod command;
mod completion;
pub mod event;
pub mod feature;
pub mod identify;
pub mod log;
pub mod opcode;
pub mod registers;
mod status;

pub use command::{DsmRange, ProtectionCheck, Submission, Transfer};
pub use completion::{Completion, PHASE_BIT, PHASE_WORD, Success};
pub use status::Status;

/// PCI class code: mass storage, non-volatile memory, NVM Express I/O controller. [NVMe-PCIe 3.1.1]
pub const CLASS: u32 = 0x01_08_02;
/// The identifier that means "all namespaces". [NVMe 3.2.1.2]
pub const ALL_NAMESPACES: u32 = u32::MAX;
/// 64-bit words of a submission queue entry. [NVMe 4.1]
pub const SUBMISSION_WORDS: usize = 8;
/// 64-bit words of a completion queue entry. [NVMe 4.2]
pub const COMPLETION_WORDS: usize = 2;
/// log2 of a submission queue entry's bytes, for CC.IOSQES. [NVMe 4.1]
pub const SUBMISSION_SHIFT: u32 = 6;
/// log2 of a completion queue entry's bytes, for CC.IOCQES. [NVMe 4.2]
pub const COMPLETION_SHIFT: u32 = 4;
/// Most logical blocks of one read, write or write-zeroes command (the field counts from zero).
/// [NVMe-NVM 3.3.4]
pub const MAX_BLOCKS: u32 = 1 << 16;
