//! The drivers: edu (the teaching device), nvme, ata (IDE and AHCI), e1000 and virtio (network cards).
#![forbid(unsafe_code)]

pub mod ata;
pub mod e1000;
pub mod edu;
mod interrupts;
mod lifetime;
pub mod nvme;
pub mod registry;
#[cfg(test)]
mod scattered;
mod timeouts;
pub mod virtio;

pub use interrupts::Interrupts;
