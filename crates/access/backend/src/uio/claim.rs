//! A claimed function: its files, the lock on it, and the order in which it is given up.

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::Silent;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use ring3_device::Error;
use ring3_device::dma::Region;
use ring3_pci::{Address, Function, Host, Obstacle, PassthroughDriver, Resource, WARDEN, uio_file};
use ring3_spec::pci;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::blocked;
use super::warden::{CleanupHandles, Warden};
use crate::config::ConfigSpace;

/// A function that is locked, with its transfers stopped.
pub(super) struct Claim {
    config: ConfigSpace,
    host: Host,
    address: Address,
    uio: File,
    /// Its name in sysfs.
    uio_name: String,
    /// Resets the function, if the kernel can.
    reset: Option<File>,
    /// Whoever has it has the function.
    lock: File,
    warden: Option<Warden>,
}

impl Claim {
    /// Takes the function at `address`, which must be bound to uio_pci_generic, with its transfers
    /// off and its pin held back.
    pub(super) fn open(host: &Host, address: Address, unprotected: bool) -> Result<Self, Error> {
        let function =
            Function::read(host, address).map_err(|obstacle| blocked(address, obstacle))?;
        if !unprotected {
            return Err(blocked(
                address,
                Obstacle::Unprotected { iommu: function.iommu_group.is_some() },
            ));
        }
        let uio_name = match uio_file(host, address) {
            Some(name) if function.way() == Some(PassthroughDriver::Uio) => name,
            _ => return Err(not_bound(host, &function)),
        };
        function.check_untranslated(host).map_err(|obstacle| blocked(address, obstacle))?;
        let path = format!("dev/{uio_name}");
        let lock = lock(host, address, &path)?;
        let uio = open_file(host, address, &path, Access::Both)?;
        let config = open_file(
            host,
            address,
            &format!("sys/bus/pci/devices/{address}/config"),
            Access::Both,
        )?;
        let size = config
            .metadata()
            .map_err(|error| Error::os(format!("uio:{address}: configuration space"), error))?
            .len();
        let config = ConfigSpace::new(format!("uio:{address}"), config.into(), 0, size);
        config.change_command(
            pci::COMMAND_BUS_MASTER,
            pci::COMMAND_MEMORY | pci::COMMAND_IO | pci::COMMAND_INTX_DISABLE,
        )?;
        let reset = open_file(
            host,
            address,
            &format!("sys/bus/pci/devices/{address}/reset"),
            Access::Write,
        )
        .ok();
        Ok(Self { config, host: host.clone(), address, uio, uio_name, reset, lock, warden: None })
    }

    /// From now on, whatever ends this process also stops the device, and only then frees `memory`.
    pub(super) fn guard(&mut self, memory: &Region) -> Result<(), Error> {
        let memory =
            memory.fd().ok_or_else(|| Error::Invalid("DMA memory without a file".into()))?;
        let (config, lock) = (self.config.file(), self.lock.as_fd());
        let reset = self.reset.as_ref().map(AsFd::as_fd);
        self.warden = Some(Warden::start(&CleanupHandles { config, lock, memory, reset })?);
        Ok(())
    }

    pub(super) fn name(&self) -> &str {
        self.config.name()
    }

    /// Its configuration space.
    pub(super) fn config(&self) -> &ConfigSpace {
        &self.config
    }

    /// The file that counts its interrupts.
    pub(super) fn uio(&self) -> &File {
        &self.uio
    }

    /// How often the pin has fired since uio_pci_generic has the function, modulo 2^32.
    pub(super) fn interrupts(&self) -> Result<u32, Error> {
        let path = self.host.path(&format!("sys/class/uio/{}/event", self.uio_name));
        let failed =
            |error| Error::os(format!("{}: reading {}", self.name(), path.display()), error);
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        // The kernel prints the counter unsigned; as a signed one it is the same modulo 2^32.
        let count = text.trim().parse::<i64>().map_err(|error| failed(io::Error::other(error)))?;
        Ok(count as u32)
    }

    /// What the kernel knows of the function and of BAR `index`.
    pub(super) fn resource(&self, index: u8) -> Result<(Function, Resource), Error> {
        let function = Function::read(&self.host, self.address)
            .map_err(|obstacle| blocked(self.address, obstacle))?;
        let found = function.bars.iter().copied().find(|bar| bar.index == index && bar.start != 0);
        let resource = found
            .ok_or_else(|| Error::Unsupported(format!("{}: it has no BAR {index}", self.name())))?;
        Ok((function, resource))
    }

    /// The same, and the file that reaches it.
    pub(super) fn bar(&self, index: u8) -> Result<(Function, Resource, File), Error> {
        let (function, resource) = self.resource(index)?;
        let path = format!("sys/bus/pci/devices/{}/resource{index}", self.address);
        Ok((function, resource, open_file(&self.host, self.address, &path, Access::Both)?))
    }

    /// Allows or forbids transfers; they are allowed only while there is somebody to stop them.
    pub(super) fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        if on && !self.warden.as_ref().is_some_and(Warden::is_alive) {
            return Err(Error::Claim(format!(
                "{}: the process that would stop its transfers when this one is killed ({}) is \
                gone; open the device again",
                self.name(),
                WARDEN
            )));
        }
        self.config.set_bus_master(on)
    }

    /// Stops transfers, resets the function if the kernel can, and allows transfers again if they
    /// were. The kernel restores the rest.
    pub(super) fn reset(&self) -> Result<(), Error> {
        let was_master = self.config.is_bus_master();
        self.config.set_bus_master(false)?;
        self.reset_stopped()?;
        if was_master { self.set_bus_master(true) } else { Ok(()) }
    }

    fn reset_stopped(&self) -> Result<(), Error> {
        let Some(reset) = &self.reset else {
            return Err(Error::Unsupported(format!(
                "{}: the kernel has no way to reset it (no function level reset, and not alone on \
                its bus); its transfers are stopped",
                self.name()
            )));
        };
        let failed = |error: Errno| Error::os(format!("{}: resetting it", self.name()), error);
        rustix::io::pwrite(reset, b"1", 0).map(drop).map_err(failed)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.config.change_command(pci::COMMAND_BUS_MASTER, pci::COMMAND_INTX_DISABLE);
        match self.warden.take().filter(Warden::is_alive) {
            // It does the same once more, and the reset.
            Some(warden) => drop(warden),
            None => drop(self.reset_stopped()),
        }
    }
}

/// Why it is not there: the module, or the binding.
fn not_bound(host: &Host, function: &Function) -> Error {
    let loaded = host.path(&format!("sys/bus/pci/drivers/{}", PassthroughDriver::Uio)).is_dir();
    let obstacle = match loaded {
        true => Obstacle::NotBound { way: PassthroughDriver::Uio, driver: function.driver.clone() },
        false => {
            Obstacle::NoModule { module: PassthroughDriver::Uio.driver().into(), reason: None }
        }
    };
    blocked(function.address, obstacle)
}

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Both,
    Write,
}

fn open_file(host: &Host, address: Address, path: &str, access: Access) -> Result<File, Error> {
    let mut options = File::options();
    options.read(access == Access::Both).write(true).custom_flags(libc::O_NONBLOCK | libc::O_SYNC);
    options.open(host.path(path)).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            blocked(address, Obstacle::NoPermission { path: format!("/{path}") })
        }
        _ => Error::os(format!("uio:{address}: opening /{path}"), error),
    })
}

/// Takes the function for this process alone. `users_file` is where its user is looked for, for the
/// message.
///
/// The lock is on an attribute that only root can open and whose opening does nothing. The uio file
/// will not do: when any process closes it, the kernel switches bus mastering off, for whoever has
/// the function.
fn lock(host: &Host, address: Address, users_file: &str) -> Result<File, Error> {
    let path = format!("sys/bus/pci/devices/{address}/rescan");
    let file = std::fs::canonicalize(host.path(&path)).unwrap_or_default();
    // Who looks for the holders must not be one: the file is closed before they are looked for.
    let attempt = || {
        let lock = open_file(host, address, &path, Access::Write)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(lock)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(error) => Err(Error::os(format!("uio:{address}: locking /{path}"), error)),
        }
    };
    let file = file.to_str().unwrap_or_default().trim_start_matches('/').to_owned();
    crate::claim::claim(host, &[file], attempt)?.map_err(|taken| {
        let Obstacle::Busy { holders, .. } = taken else { return blocked(address, taken) };
        blocked(address, Obstacle::Busy { path: format!("/{users_file}"), holders })
    })
}
