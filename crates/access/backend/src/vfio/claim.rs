//! A claimed function: its descriptor, its configuration space, and the order in which it is given
//! up.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ring3_device::{Deadline, Error, poll_until};
use ring3_pci::{Address, Function, Host};
use ring3_spec::pci;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_DEVICE_FLAGS_RESET, VFIO_PCI_CONFIG_REGION_INDEX,
};

use super::ioctl;
use super::region::{Region, table_in};
use super::way::{Opened, Way, blocked};
use crate::config::ConfigSpace;

/// A reset may have to wait for another one on the same bus; PCI Express gives a function 1 s to
/// come back. [PCIe 2.3.1]
const RESET_LIMIT: Duration = Duration::from_secs(2);

/// What is held while a function is claimed. Dropping it stops transfers and closes the
/// descriptors, by which the kernel resets the function.
pub(super) struct Claim {
    // Before the way to it, so that its file, the device's, is closed first: the group cannot be
    // left while its device is open.
    config: ConfigSpace,
    resettable: bool,
    address: Address,
    direct_ports: bool,
    way: Way,
}

impl Claim {
    /// Takes the function at `address`, which was just opened.
    pub(super) fn new(address: Address, direct_ports: bool, opened: Opened) -> Result<Self, Error> {
        let claim = Self::adopt(address, direct_ports, opened)?;
        claim
            .config
            .change_command(pci::COMMAND_BUS_MASTER, pci::COMMAND_MEMORY | pci::COMMAND_IO)?;
        Ok(claim)
    }

    /// Takes the function at `address` as it is, which another process has opened and used.
    pub(super) fn adopt(
        address: Address,
        direct_ports: bool,
        opened: Opened,
    ) -> Result<Self, Error> {
        let name = format!("vfio:{address}");
        let Opened { device, way } = opened;
        let info = ioctl::device_info(&device)
            .map_err(|error| Error::os(format!("{name}: asking what it is"), error))?;
        if info.flags & VFIO_DEVICE_FLAGS_PCI == 0 {
            return Err(Error::Unsupported(format!("{name}: not a PCI function")));
        }
        let config = Region::read(&device, VFIO_PCI_CONFIG_REGION_INDEX, None)?;
        let resettable = info.flags & VFIO_DEVICE_FLAGS_RESET != 0;
        let config = ConfigSpace::new(name, device, config.offset, config.size);
        Ok(Self { config, resettable, address, direct_ports, way })
    }

    /// What the user called the function, without the backend.
    pub(super) fn address(&self) -> Address {
        self.address
    }

    /// How it was reached.
    pub(super) fn way(&self) -> &Way {
        &self.way
    }

    /// What must stay open so that the function stays claimed, by names.
    pub(super) fn descriptors(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let mut descriptors = vec![("device", self.device())];
        descriptors.extend(self.way.descriptors());
        descriptors
    }

    pub(super) fn name(&self) -> &str {
        self.config.name()
    }

    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.config.file()
    }

    /// Its configuration space.
    pub(super) fn config(&self) -> &ConfigSpace {
        &self.config
    }

    /// What sysfs says of it.
    pub(super) fn function(&self) -> Result<Function, Error> {
        Function::read(&Host::this(), self.address)
            .map_err(|obstacle| blocked(self.address, obstacle))
    }

    /// Whether ports are reached by instruction.
    pub(super) fn direct_ports(&self) -> bool {
        self.direct_ports
    }

    /// What the kernel says of BAR `index`.
    pub(super) fn region(&self, index: u8) -> Result<Region, Error> {
        if index >= pci::BAR_COUNT {
            return Err(Error::Unsupported(format!(
                "{}: there is no BAR {index} in any function",
                self.name()
            )));
        }
        Region::read(self.device(), index.into(), table_in(self.config.filter().msix, index))
    }

    /// Stops transfers, resets the function by the best means that the kernel has, and allows
    /// transfers again if they were. The kernel restores BARs and interrupts.
    pub(super) fn reset(&self) -> Result<(), Error> {
        let was_master = self.config.is_bus_master();
        self.config.set_bus_master(false)?;
        self.reset_stopped()?;
        if was_master { self.config.set_bus_master(true) } else { Ok(()) }
    }

    fn reset_stopped(&self) -> Result<(), Error> {
        if !self.resettable {
            return Err(Error::Unsupported(format!(
                "{}: the kernel has no way to reset it (no function level reset, and not alone on \
                its bus); its transfers are stopped",
                self.name()
            )));
        }
        poll_until(
            Deadline::after(RESET_LIMIT),
            "the reset of the function",
            || match ioctl::reset(self.device()) {
                Ok(()) => Ok(Some(())),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
                Err(error) => Err(Error::os(format!("{}: resetting it", self.name()), error)),
            },
        )
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The reset is the kernel's, at the close of the device: it does one there if it can do one
        // at all, as `resettable` says, and a second one here would take another 100 ms. [Linux,
        // `vfio_pci_core_disable`]
        let _ = self.config.set_bus_master(false);
    }
}
