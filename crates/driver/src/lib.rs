//! The drivers: edu (the teaching device), nvme, and ata (IDE and AHCI).
#![forbid(unsafe_code)]

pub mod ata;
pub mod edu;
mod interrupts;
mod lifetime;
pub mod nvme;
mod patience;
pub mod registry;
#[cfg(test)]
mod scattered;

pub use interrupts::Interrupts;
