//! A claimed function: its descriptor, its configuration space, and the order in which it is given up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::pci;
use vfio_bindings::bindings::vfio::{VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_CONFIG_REGION_INDEX};

use super::config::Filter;
use super::group::Opened;
use super::ioctl;
use super::region::{Region, table_in};
use super::type1::Type1;

/// A reset may have to wait for another one on the same bus; PCI Express gives a function 1 s to come back. [PCIe 2.3.1]
const RESET_LIMIT: Duration = Duration::from_secs(2);

/// What is held while a function is claimed. Dropping it stops transfers, resets the function and closes the descriptors.
pub(super) struct Claim {
    name: String,
    // Before the rest, so that it is closed first: the group cannot be left while its device is open.
    device: OwnedFd,
    config: Region,
    filter: Filter,
    resettable: bool,
    /// Held to change COMMAND, which is read and written back.
    command: Mutex<()>,
    _iommu: std::sync::Arc<Type1>,
    _held: Vec<OwnedFd>,
}

impl Claim {
    /// Takes a function that was just opened; `name` is what the user called it.
    pub(super) fn new(name: String, opened: Opened) -> Result<Self, Error> {
        let Opened { device, iommu, held } = opened;
        let info = ioctl::device_info(&device).map_err(|error| Error::os(format!("{name}: asking what it is"), error))?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 {
            return Err(Error::Unsupported(format!("{name}: not a PCI function")));
        }
        let config = Region::read(&device, VFIO_PCI_CONFIG_REGION_INDEX, None)?;
        let filter = Filter::new(|offset, width| read_config(&device, &config, offset, width));
        let resettable = info.flags & VFIO_DEVICE_FLAGS_RESET != 0;
        let claim = Self { name, device, config, filter, resettable, command: Mutex::new(()), _iommu: iommu, _held: held };
        claim.change_command(pci::COMMAND_BUS_MASTER, pci::COMMAND_MEMORY | pci::COMMAND_IO)?;
        Ok(claim)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// What the kernel says of BAR `index`.
    pub(super) fn region(&self, index: u8) -> Result<Region, Error> {
        if index >= pci::BAR_COUNT {
            return Err(Error::Unsupported(format!("{}: there is no BAR {index} in any function", self.name)));
        }
        Region::read(&self.device, index.into(), table_in(self.filter.msix, index))
    }

    /// Reads configuration space; all ones where there is nothing.
    pub(super) fn config_read(&self, offset: u64, width: usize) -> u32 {
        read_config(&self.device, &self.config, offset, width)
    }

    /// Writes configuration space, except what the filter keeps.
    pub(super) fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let _command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let command = self.config_read(pci::COMMAND, 2) as u16;
        self.filter.check(offset, width, value, command)?;
        self.write_config(offset, width, value)
    }

    /// Allows or forbids transfers.
    pub(super) fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        if on { self.change_command(0, pci::COMMAND_BUS_MASTER) } else { self.change_command(pci::COMMAND_BUS_MASTER, 0) }
    }

    /// Stops transfers, resets the function by the best means that the kernel has, and allows transfers again if they were. The
    /// kernel restores BARs and interrupts.
    pub(super) fn reset(&self) -> Result<(), Error> {
        let was_master = self.config_read(pci::COMMAND, 2) as u16 & pci::COMMAND_BUS_MASTER != 0;
        self.set_bus_master(false)?;
        self.reset_stopped()?;
        if was_master { self.set_bus_master(true) } else { Ok(()) }
    }

    fn reset_stopped(&self) -> Result<(), Error> {
        if !self.resettable {
            return Err(Error::Unsupported(format!(
                "{}: the kernel has no way to reset it (no function level reset, and not alone on its bus); its transfers are stopped",
                self.name
            )));
        }
        poll_until(Deadline::after(RESET_LIMIT), "the reset of the function", || match ioctl::reset(&self.device) {
            Ok(()) => Ok(Some(())),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            Err(error) => Err(Error::os(format!("{}: resetting it", self.name), error)),
        })
    }

    /// Clears and sets bits of COMMAND, and waits until the function knows.
    pub(super) fn change_command(&self, clear: u16, set: u16) -> Result<(), Error> {
        let _command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.config_read(pci::COMMAND, 2) as u16;
        if old == u16::MAX {
            return Err(Error::Gone);
        }
        let new = old & !clear | set;
        if new != old {
            self.write_config(pci::COMMAND, 2, new.into())?;
            // The read pushes the write out; what the function sent before it has arrived when it is answered. [PCI 3.2.5]
            self.config_read(pci::COMMAND, 2);
        }
        Ok(())
    }

    fn write_config(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let bytes = value.to_le_bytes();
        let place = place(&self.config, offset, width);
        let (Some(bytes), Some(at)) = (bytes.get(..width), place) else {
            return Err(Error::Invalid(format!("{}: {width} bytes of configuration space at {offset:#x}", self.name)));
        };
        let failed = |error| Error::os(format!("{}: writing configuration space at {offset:#x}", self.name), error);
        match rustix::io::pwrite(&self.device, bytes, at).map_err(|error| failed(io::Error::from(error)))? {
            written if written == width => Ok(()),
            _ => Err(failed(io::ErrorKind::WriteZero.into())),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The kernel does the same when the descriptor is closed; done here, the order does not depend on who else has it open.
        let _ = self.set_bus_master(false);
        let _ = self.reset_stopped();
    }
}

fn place(config: &Region, offset: u64, width: usize) -> Option<u64> {
    let fits = offset.checked_add(width as u64)? <= config.size && [1, 2, 4].contains(&width);
    fits.then_some(config.offset + offset)
}

fn read_config(device: &OwnedFd, config: &Region, offset: u64, width: usize) -> u32 {
    let mut bytes = [0; 4];
    let (Some(part), Some(at)) = (bytes.get_mut(..width), place(config, offset, width)) else { return u32::MAX };
    match rustix::io::pread(device, part, at) {
        Ok(read) if read == width => u32::from_le_bytes(bytes),
        _ => u32::MAX,
    }
}
