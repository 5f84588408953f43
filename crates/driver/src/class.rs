//! Which driver fits a function, by its class code.
//!
//! A driver looks at the class before it looks at a register: those of another device mean something else, and where that device has nothing
//! it answers all ones, like one that is gone.

use ring3_device::{Device, Error};
use ring3_spec::{ahci, ide, nvme, pci};

/// The class code (24 bits) of `device`; [`Error::Gone`] if it answers nothing. [PCI 6.2.1]
pub fn of(device: &dyn Device) -> Result<u32, Error> {
    match device.config_read(pci::REVISION, 4) {
        u32::MAX => Err(Error::Gone),
        word => Ok(word >> 8),
    }
}

/// The error of a driver of disks, or of whoever looks for one, for a function of another class: says which driver fits.
pub fn misfit(device: &dyn Device, class: u32) -> Error {
    let (what, driver) = match class {
        nvme::CLASS => ("an NVMe controller", "nvme"),
        ahci::CLASS => ("an AHCI controller", "ata"),
        _ if class & ide::CLASS_MASK == ide::CLASS => ("an IDE controller", "ata"),
        _ => {
            return Error::Unsupported(format!("{}: no driver of disks fits its class {class:#08x}", device.name()));
        }
    };
    let name = device.name();
    Error::Unsupported(format!("{name}: it is {what}, whose driver is {driver}: ring3 run {driver}, ring3 {driver} id"))
}
