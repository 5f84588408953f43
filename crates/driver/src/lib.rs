//! The drivers: edu (the teaching device), nvme, and ata (IDE and AHCI).
#![forbid(unsafe_code)]

pub mod ata;
pub mod edu;
mod interrupts;
mod lifetime;
pub mod nvme;
pub mod registry;
#[cfg(test)]
mod scattered;
mod timeouts;

pub use interrupts::Interrupts;
