//! The drivers: edu (the teaching device), nvme, ata (IDE and AHCI), e1000 (network cards) and
//! virtio (a network card and a disk).
#![forbid(unsafe_code)]

pub mod ata;
mod disk;
pub mod e1000;
pub mod edu;
pub mod hosted;
mod interrupts;
mod lifetime;
pub mod nvme;
mod quirks;
pub mod registry;
#[cfg(test)]
mod scattered;
mod throttle;
pub mod virtio;

pub use interrupts::Interrupts;
pub use quirks::Circumstances;
