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
/// Revision, 8 bits; as 32 bits, the class code is above it. [PCI 6.2.1]
pub const REVISION: u64 = 0x08;
/// Class code, 24 bits: interface, sub-class, base class. [PCI 6.2.1]
pub const CLASS: u64 = 0x09;
/// First base address register; six of 32 bits. [PCI 6.2.5]
pub const BAR0: u64 = 0x10;
/// Behind the last base address register.
pub const BAR0_END: u64 = 0x28;
/// Subsystem vendor id, 16 bits, and subsystem id, 16 bits above it. [PCI 6.2.4]
pub const SUBSYSTEM: u64 = 0x2c;
/// Expansion ROM base address, 32 bits. [PCI 6.2.5.2]
pub const EXPANSION_ROM: u64 = 0x30;
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
/// Capability id of what a vendor has for itself. [PCI 6.7, appendix H]
pub const CAP_VENDOR: u8 = 0x09;
/// Capability id of PCI Express. [PCIe 7.5.3]
pub const CAP_EXPRESS: u8 = 0x10;
/// Capability id of MSI-X. [PCI 6.8.2]
pub const CAP_MSIX: u8 = 0x11;

/// The most that a BAR index can be.
pub const BAR_COUNT: u8 = 6;

/// Header of a capability: its id in the low byte, the next one's place in the high byte. [PCI 6.7]
pub const CAP_HEADER: u64 = 0;
/// Interrupt status, bit 3 of `STATUS`: the function wants its pin asserted. [PCI 6.2.3]
pub const STATUS_INTERRUPT: u16 = 1 << 3;

/// MSI: control, 16 bits, from the capability's start. [PCI 6.8.1.3]
pub const MSI_CONTROL: u64 = 2;
/// MSI: address, low half. [PCI 6.8.1.4]
pub const MSI_ADDRESS: u64 = 4;
/// MSI control: enabled.
pub const MSI_ENABLE: u16 = 1 << 0;
/// MSI control: log2 of how many vectors are enabled.
pub const MSI_VECTORS: u16 = 0b111 << 4;
/// MSI control: the address has 64 bits, so what follows it lies 4 bytes further.
pub const MSI_64: u16 = 1 << 7;
/// MSI control: there is a mask bit per vector.
pub const MSI_MASKABLE: u16 = 1 << 8;

/// MSI-X: control, 16 bits, from the capability's start. [PCI 6.8.2.3]
pub const MSIX_CONTROL: u64 = 2;
/// MSI-X: the table's BAR (bits 2 to 0) and its offset there. [PCI 6.8.2.4]
pub const MSIX_TABLE: u64 = 4;
/// MSI-X control: the table's size less one.
pub const MSIX_SIZE: u16 = 0x7ff;
/// MSI-X control: every vector is masked.
pub const MSIX_FUNCTION_MASK: u16 = 1 << 14;
/// MSI-X control: enabled.
pub const MSIX_ENABLE: u16 = 1 << 15;
/// Bytes of a table entry: address (64 bits), data, vector control. [PCI 6.8.2.6]
pub const MSIX_ENTRY: u64 = 16;
/// Vector control of a table entry, from its start; bit 0 masks the vector. [PCI 6.8.2.9]
pub const MSIX_VECTOR_CONTROL: u64 = 12;

/// Express: device capabilities, from the capability's start. [PCIe 7.5.3.3]
pub const EXPRESS_DEVICE_CAPABILITIES: u64 = 4;
/// Express: device control, 16 bits. [PCIe 7.5.3.4]
pub const EXPRESS_DEVICE_CONTROL: u64 = 8;
/// Device capabilities: the function can be reset alone.
pub const EXPRESS_FLR_CAPABLE: u32 = 1 << 28;
/// Device control: reset the function.
pub const EXPRESS_FLR: u16 = 1 << 15;
