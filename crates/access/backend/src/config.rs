//! Configuration space, wherever its bytes are: in VFIO's region, in sysfs' `config`, behind a
//! socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use ring3_device::Error;
use ring3_device::config::Filter;
use ring3_spec::pci;

/// Where the bytes are.
pub(crate) trait Store: Send + Sync {
    /// Reads at `offset`; false if there is nothing, or nothing any more.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> bool;
    /// Writes at `offset`.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
}

/// A part of a file.
pub(crate) struct InFile {
    file: OwnedFd,
    start: u64,
    size: u64,
}

/// The configuration space of one function. Reads are free; a driver's writes leave alone what
/// belongs to the backend.
pub(crate) struct ConfigSpace<S = InFile> {
    name: String,
    store: S,
    filter: Filter,
    /// Held to change COMMAND, which is read and written back.
    command: Mutex<()>,
}

impl ConfigSpace {
    /// The `size` bytes of `file` from `start` on; `name` is what the user called the function.
    pub(crate) fn new(name: String, file: OwnedFd, start: u64, size: u64) -> Self {
        Self::over(name, InFile { file, start, size })
    }

    /// The file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.store.file.as_fd()
    }
}

impl<S: Store> ConfigSpace<S> {
    /// The bytes in `store`.
    pub(crate) fn over(name: String, store: S) -> Self {
        let filter = Filter::new(|offset, width| read(&store, offset, width));
        Self { name, store, filter, command: Mutex::new(()) }
    }

    /// What the user called the function.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What belongs to the backend.
    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Reads `width` bytes; all ones where there is nothing.
    pub(crate) fn read(&self, offset: u64, width: usize) -> u32 {
        read(&self.store, offset, width)
    }

    /// Writes for a driver, except what the filter keeps.
    pub(crate) fn write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let _command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        self.filter.check(offset, width, value, self.read(pci::COMMAND, 2) as u16)?;
        self.write_unfiltered(offset, width, value)
    }

    /// Whether the function may start transfers; false if it is gone.
    pub(crate) fn is_bus_master(&self) -> bool {
        let command = self.read(pci::COMMAND, 2) as u16;
        command != u16::MAX && command & pci::COMMAND_BUS_MASTER != 0
    }

    /// Allows or forbids transfers.
    pub(crate) fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        if on {
            self.change_command(0, pci::COMMAND_BUS_MASTER)
        } else {
            self.change_command(pci::COMMAND_BUS_MASTER, 0)
        }
    }

    /// Clears and sets bits of COMMAND, and waits until the function knows.
    ///
    /// Only the byte that changes is written: without VFIO, the kernel masks the pin in the upper
    /// one whenever it fires.
    pub(crate) fn change_command(&self, clear: u16, set: u16) -> Result<(), Error> {
        let _command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.read(pci::COMMAND, 2) as u16;
        if old == u16::MAX {
            return Err(Error::Gone);
        }
        let new = old & !clear | set;
        for (at, (old, new)) in
            (pci::COMMAND..).zip(old.to_le_bytes().into_iter().zip(new.to_le_bytes()))
        {
            if new != old {
                self.write_unfiltered(at, 1, new.into())?;
            }
        }
        if new != old {
            // The read pushes the write out; what the function sent before it has arrived when it
            // is answered. [PCI 3.2.5]
            self.read(pci::COMMAND, 2);
        }
        Ok(())
    }

    /// Opens the pin or holds it back.
    pub(crate) fn set_pin(&self, open: bool) -> Result<(), Error> {
        let _command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        let disabled = (pci::COMMAND_INTX_DISABLE >> 8) as u8;
        let old = self.read(pci::COMMAND + 1, 1) as u8;
        let new = if open { old & !disabled } else { old | disabled };
        if new == old { Ok(()) } else { self.write_unfiltered(pci::COMMAND + 1, 1, new.into()) }
    }

    fn write_unfiltered(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let bytes = value.to_le_bytes();
        let bytes = bytes.get(..width).filter(|_| [1, 2, 4].contains(&width));
        let bytes = bytes.ok_or_else(|| {
            Error::Invalid(format!(
                "{}: {width} bytes of configuration space at {offset:#x}",
                self.name
            ))
        })?;
        self.store.write(offset, bytes).map_err(|error| {
            Error::os(format!("{}: writing configuration space at {offset:#x}", self.name), error)
        })
    }
}

impl InFile {
    fn place(&self, offset: u64, len: usize) -> Option<u64> {
        (offset.checked_add(len as u64)? <= self.size).then_some(self.start + offset)
    }
}

impl Store for InFile {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let len = bytes.len();
        self.place(offset, len)
            .is_some_and(|at| rustix::io::pread(&self.file, bytes, at) == Ok(len))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let at = self.place(offset, bytes.len()).ok_or(io::ErrorKind::InvalidInput)?;
        match rustix::io::pwrite(&self.file, bytes, at)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

fn read(store: &impl Store, offset: u64, width: usize) -> u32 {
    let mut bytes = [0; 4];
    let Some(part) = bytes.get_mut(..width).filter(|_| [1, 2, 4].contains(&width)) else {
        return u32::MAX;
    };
    if store.read(offset, part) { u32::from_le_bytes(bytes) } else { u32::MAX }
}
