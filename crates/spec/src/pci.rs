//! PCI configuration space: the registers that a user-level driver looks at.
//!
//! # References
//! - `[PCI]` PCI Local Bus Specification 3.0, February 2004, chapter 6
//! - `[PCIe]` PCI Express Base Specification 5.0, chapter 7

/// Vendor id, 16 bits. [PCI 6.2.1]
pub const VENDOR_ID: u64 = 0x00;
/// Device id, 16 bits. [PCI 6.2.1]
pub const DEVICE_ID: u64 = 0x02;
/// Command register, 16 bits. [PCI 6.2.2]
pub const COMMAND: u64 = 0x04;
/// Status register, 16 bits. [PCI 6.2.3]
pub const STATUS: u64 = 0x06;
/// Class code, 24 bits: interface, sub-class, base class. [PCI 6.2.1]
pub const CLASS: u64 = 0x09;
/// Header type, 8 bits; bit 7 says multi-function. [PCI 6.2.1]
pub const HEADER_TYPE: u64 = 0x0e;
/// First base address register; six of 32 bits. [PCI 6.2.5]
pub const BAR0: u64 = 0x10;
/// Pointer to the first capability, 8 bits. [PCI 6.7]
pub const CAPABILITIES: u64 = 0x34;
/// Interrupt pin, 8 bits: 0 means no INTx, 1 means INTA. [PCI 6.2.4]
pub const INTERRUPT_PIN: u64 = 0x3d;

/// COMMAND: the function answers port accesses.
pub const COMMAND_IO: u16 = 1 << 0;
/// COMMAND: the function answers memory accesses.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// COMMAND: the function may start transfers (DMA and MSI).
pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// COMMAND: INTx is not asserted.
pub const COMMAND_INTX_DISABLE: u16 = 1 << 10;
/// STATUS: a capability list exists.
pub const STATUS_CAPABILITIES: u16 = 1 << 4;

/// Capability id of MSI. [PCI 6.8.1]
pub const CAP_MSI: u8 = 0x05;
/// Capability id of PCI Express. [PCIe 7.5.3]
pub const CAP_EXPRESS: u8 = 0x10;
/// Capability id of MSI-X. [PCI 6.8.2]
pub const CAP_MSIX: u8 = 0x11;

/// The most that a BAR index can be.
pub const BAR_COUNT: u8 = 6;
