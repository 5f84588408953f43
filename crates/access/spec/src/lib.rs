//! Registers, descriptors and commands of the devices that ring3 drives.
//!
//! A file per device family, written like the data sheet: name, offset, access, section. Nothing
//! here does I/O; a driver and the model that stands in for its device both import it, and never
//! each other.
#![no_std]
#![forbid(unsafe_code)]

pub mod ahci;
pub mod ata;
pub mod e1000;
pub mod edu;
pub mod ide;
mod layout;
pub mod nvme;
pub mod pci;
pub mod register;
pub mod text;
pub mod vfio_user;
pub mod virtio;
