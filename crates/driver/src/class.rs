//! Which driver fits a function, by its class code.
//!
//! A driver looks at the class before it looks at a register: those of another device mean something else, and where that device has nothing
//! it answers all ones, like one that is gone.

use ring3_device::{Device, Error};
use ring3_spec::{ahci, edu, ide, nvme, pci};

/// The class code (24 bits) of `device`; [`Error::Gone`] if it answers nothing. [PCI 6.2.1]
pub fn of(device: &dyn Device) -> Result<u32, Error> {
    match device.config_read(pci::REVISION, 4) {
        u32::MAX => Err(Error::Gone),
        word => Ok(word >> 8),
    }
}

/// The error of a driver, or of whoever looks for one, for a function of another class: says which driver fits.
pub fn misfit(device: &dyn Device, class: u32) -> Error {
    let (vendor, id) = ids(device);
    let fits = match class {
        nvme::CLASS => "an NVMe controller, whose driver is nvme: ring3 run nvme, ring3 nvme id",
        ahci::CLASS => "an AHCI controller, whose driver is ata: ring3 run ata, ring3 ata id",
        _ if class & ide::CLASS_MASK == ide::CLASS => "an IDE controller, whose driver is ata: ring3 run ata, ring3 ata id",
        _ if (vendor, id) == (edu::VENDOR, edu::DEVICE) => "QEMU's teaching device, whose driver is edu: ring3 run edu",
        _ => {
            let name = device.name();
            return Error::Unsupported(format!(
                "{name}: no driver of ring3 fits it ({vendor:04x}:{id:04x}, class {class:#08x}); ring3 run --help names what there is"
            ));
        }
    };
    Error::Unsupported(format!("{}: it is {fits}", device.name()))
}

/// Vendor and device id of `device`. [PCI 6.2.1]
pub fn ids(device: &dyn Device) -> (u16, u16) {
    (device.config_read(pci::VENDOR_ID, 2) as u16, device.config_read(pci::DEVICE_ID, 2) as u16)
}
