//! A claimed function: its files, the lock on it, and the order in which it is given up.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use ring3_device::dma::Memory;
use ring3_device::{Deadline, Error, poll_until};
use ring3_pci::{Address, Function, Host, Obstacle, Resource, Way, holders, uio_file};
use ring3_spec::pci;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::blocked;
use super::warden::{Post, Warden};
use crate::config::ConfigSpace;

/// How long the warden of a driver that has just ended may have the function still.
const WARDEN_LIMIT: Duration = Duration::from_millis(500);

/// A function that is locked, with its transfers stopped.
pub(super) struct Claim {
    config: ConfigSpace,
    host: Host,
    address: Address,
    uio: File,
    /// Its name in sysfs.
    uio_name: String,
    // Behind what it needs: dropped after bus mastering was switched off, before anybody can have the function.
    warden: Option<Warden>,
}

impl Claim {
    /// Takes the function at `address`, which must be bound to uio_pci_generic, with its transfers off and its pin held back.
    pub(super) fn open(host: &Host, address: Address, unprotected: bool) -> Result<Self, Error> {
        let function = Function::read(host, address).ok_or_else(|| blocked(address, Obstacle::NoFunction))?;
        if !unprotected {
            return Err(blocked(address, Obstacle::Unprotected { iommu: function.iommu_group.is_some() }));
        }
        let uio_name = match uio_file(host, address) {
            Some(name) if function.way() == Some(Way::Uio) => name,
            _ => return Err(not_bound(host, &function)),
        };
        function.check_untranslated(host).map_err(|obstacle| blocked(address, obstacle))?;
        let path = format!("dev/{uio_name}");
        let uio = lock(host, address, open_file(host, address, &path)?, &path)?;
        let config = open_file(host, address, &format!("sys/bus/pci/devices/{address}/config"))?;
        let size = config.metadata().map_err(|error| Error::os(format!("uio:{address}: configuration space"), error))?.len();
        let config = ConfigSpace::new(format!("uio:{address}"), config.into(), 0, size);
        config.change_command(pci::COMMAND_BUS_MASTER, pci::COMMAND_MEMORY | pci::COMMAND_IO | pci::COMMAND_INTX_DISABLE)?;
        Ok(Self { config, host: host.clone(), address, uio, uio_name, warden: None })
    }

    /// From now on, whatever ends this process also stops the device, and only then frees `memory`.
    pub(super) fn guard(&mut self, memory: &Memory) -> Result<(), Error> {
        let post = Post { config: self.config.file(), lock: self.uio.as_fd(), memory: memory.as_fd() };
        self.warden = Some(Warden::start(&post)?);
        Ok(())
    }

    pub(super) fn address(&self) -> Address {
        self.address
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
        let failed = |error| Error::os(format!("{}: reading {}", self.name(), path.display()), error);
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        // The kernel prints the counter unsigned; as a signed one it is the same modulo 2^32.
        let count = text.trim().parse::<i64>().map_err(|error| failed(io::Error::other(error)))?;
        Ok(count as u32)
    }

    /// What the kernel knows of BAR `index`, and the file that reaches it.
    pub(super) fn bar(&self, index: u8) -> Result<(Resource, File), Error> {
        let function = Function::read(&self.host, self.address).ok_or(Error::Gone)?;
        let found = function.bars.into_iter().find(|bar| bar.index == index && bar.start != 0);
        let resource = found.ok_or_else(|| Error::Unsupported(format!("{}: it has no BAR {index}", self.name())))?;
        Ok((resource, open_file(&self.host, self.address, &format!("sys/bus/pci/devices/{}/resource{index}", self.address))?))
    }

    /// Allows or forbids transfers; they are allowed only while there is somebody to stop them.
    pub(super) fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        if on && !self.warden.as_ref().is_some_and(Warden::is_alive) {
            return Err(Error::Claim(format!(
                "{}: the process that would stop its transfers when this one is killed ({}) is gone; open the device again",
                self.name(),
                ring3_pci::WARDEN
            )));
        }
        self.config.set_bus_master(on)
    }

    /// Stops transfers, resets the function if the kernel can, and allows transfers again if they were. The kernel restores the rest.
    pub(super) fn reset(&self) -> Result<(), Error> {
        let was_master = self.config.is_bus_master();
        self.config.set_bus_master(false)?;
        self.reset_stopped()?;
        if was_master { self.set_bus_master(true) } else { Ok(()) }
    }

    fn reset_stopped(&self) -> Result<(), Error> {
        let path = self.host.path(&format!("sys/bus/pci/devices/{}/reset", self.address));
        let failed = |error| Error::os(format!("{}: resetting it", self.name()), error);
        match File::options().write(true).open(path) {
            Ok(file) => rustix::io::write(file, b"1").map(drop).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Unsupported(format!(
                "{}: the kernel has no way to reset it (no function level reset, and not alone on its bus); its transfers are stopped",
                self.name()
            ))),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The warden would do the same; done here, it also holds for the time until it looks.
        let _ = self.config.change_command(pci::COMMAND_BUS_MASTER, pci::COMMAND_INTX_DISABLE);
        let _ = self.reset_stopped();
        self.warden = None;
    }
}

/// Why it is not there: the module, or the binding.
fn not_bound(host: &Host, function: &Function) -> Error {
    let loaded = host.path(&format!("sys/bus/pci/drivers/{}", Way::Uio)).is_dir();
    let obstacle = match loaded {
        true => Obstacle::NotBound { way: Way::Uio, driver: function.driver.clone() },
        false => Obstacle::NoModule { module: Way::Uio.driver().into(), reason: None },
    };
    blocked(function.address, obstacle)
}

fn open_file(host: &Host, address: Address, path: &str) -> Result<File, Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_SYNC).open(host.path(path));
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => blocked(address, Obstacle::NoPermission { path: format!("/{path}") }),
        _ => Error::os(format!("uio:{address}: opening /{path}"), error),
    })
}

/// Takes the function for this process alone. The lock is on the uio file, which only root can open, and the warden shares it.
fn lock(host: &Host, address: Address, uio: File, path: &str) -> Result<File, Error> {
    let taken =
        poll_until(Deadline::after(WARDEN_LIMIT), "the lock", || match flock(&uio, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(())),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(error) => Err(Error::os(format!("uio:{address}: locking /{path}"), error)),
        });
    match taken {
        Ok(()) => Ok(uio),
        Err(Error::Timeout { .. }) => {
            // Who looks for the holders must not be one.
            drop(uio);
            Err(blocked(address, Obstacle::Busy { path: format!("/{path}"), holders: holders(host, path) }))
        }
        Err(error) => Err(error),
    }
}
