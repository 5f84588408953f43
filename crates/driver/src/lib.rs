//! The drivers: edu (the teaching device), nvme, ata (IDE and AHCI), and e1000 (network cards).
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

pub use interrupts::Interrupts;
