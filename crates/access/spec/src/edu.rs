//! QEMU's teaching device.
//!
//! # References
//! - `[EDU]` QEMU documentation, "EDU device", `docs/specs/edu.rst`

use crate::register::{Reg, Ro, Rw, Wo};

/// PCI vendor id. [EDU, PCI specs]
pub const VENDOR: u16 = 0x1234;
/// PCI device id. [EDU, PCI specs]
pub const DEVICE: u16 = 0x11e8;

/// Identification: 0xRRrr00ed, major and minor version. [EDU, 0x00]
pub const IDENTIFICATION: Reg<u32, Ro> = Reg::at(0x00);
/// Liveness check: reads back the bitwise inverse of what was written. [EDU, 0x04]
pub const LIVENESS: Reg<u32, Rw> = Reg::at(0x04);
/// Factorial: write n, wait until `STATUS_COMPUTING` clears, read n!. [EDU, 0x08]
pub const FACTORIAL: Reg<u32, Rw> = Reg::at(0x08);
/// Status. [EDU, 0x20]
pub const STATUS: Reg<u32, Rw> = Reg::at(0x20);
/// Interrupt status: the values that raised the interrupt, or'ed. [EDU, 0x24]
pub const INTERRUPT_STATUS: Reg<u32, Ro> = Reg::at(0x24);
/// Raise an interrupt: the value is or'ed into the status. [EDU, 0x60]
pub const INTERRUPT_RAISE: Reg<u32, Wo> = Reg::at(0x60);
/// Acknowledge: these bits leave the status. [EDU, 0x64]
pub const INTERRUPT_ACKNOWLEDGE: Reg<u32, Wo> = Reg::at(0x64);
/// DMA source address. [EDU, 0x80]
pub const DMA_SOURCE: Reg<u64, Rw> = Reg::at(0x80);
/// DMA destination address. [EDU, 0x88]
pub const DMA_DESTINATION: Reg<u64, Rw> = Reg::at(0x88);
/// DMA transfer count in bytes. [EDU, 0x90]
pub const DMA_COUNT: Reg<u64, Rw> = Reg::at(0x90);
/// DMA command; the start bit stays set until the transfer is done. [EDU, 0x98]
pub const DMA_COMMAND: Reg<u64, Rw> = Reg::at(0x98);

/// `STATUS`: a factorial is being computed.
pub const STATUS_COMPUTING: u32 = 0x01;
/// `STATUS`: raise an interrupt when the factorial is done.
pub const STATUS_IRQ_AT_END: u32 = 0x80;
/// `INTERRUPT_STATUS`: a factorial is done.
pub const IRQ_FACTORIAL: u32 = 0x001;
/// `INTERRUPT_STATUS`: a DMA transfer is done.
pub const IRQ_DMA: u32 = 0x100;

/// `DMA_COMMAND`: start.
pub const DMA_START: u64 = 0x01;
/// `DMA_COMMAND`: from the device's buffer to memory (otherwise from memory to the buffer).
pub const DMA_TO_MEMORY: u64 = 0x02;
/// `DMA_COMMAND`: raise `IRQ_DMA` at the end.
pub const DMA_IRQ: u64 = 0x04;

/// Where the device's own buffer lies in its DMA address space.
pub const BUFFER: u64 = 0x40000;
/// Size of that buffer in bytes.
pub const BUFFER_SIZE: usize = 4096;
/// The DMA addresses that the device can reach by default: 28 bits. [EDU, dma_mask]
pub const DMA_MASK: u64 = (1 << 28) - 1;
