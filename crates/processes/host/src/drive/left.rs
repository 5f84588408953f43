//! What one driver process leaves to the next, in a file that nobody can change.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_class::Saved;
use ring3_device::Device;
use ring3_device::dma::SavedArena;
use ring3_driver::registry::{Controller, Driver, Opened, Settings};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Of this form. Fields are only ever added, each with a default.
const VERSION: u32 = 1;

/// Most bytes: some hundred for each request that is with a device, and each buffer.
const MAX_LEN: u64 = 64 << 20;

/// What cannot be changed any more by anybody.
const SEALS: SealFlags =
    SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// A device as it runs.
#[derive(Serialize, Deserialize)]
pub struct Left {
    version: u32,
    /// Which memory is taken.
    pub arena: SavedArena,
    /// The driver's.
    pub controller: Saved,
    /// In the order of the offers.
    pub disks: Vec<SavedDiskQueues>,
}

/// How a process finds its device.
pub enum InheritedState {
    /// It does nothing.
    Nothing,
    /// Its last driver has left it so.
    Left(Left),
    /// Its last driver had recorded that, and was killed.
    Killed(Left),
}

/// A disk of it.
#[derive(Serialize, Deserialize)]
pub struct SavedDiskQueues {
    /// What it is called.
    pub name: String,
    /// The queues that it was served by.
    pub queues: Vec<Saved>,
}

impl Left {
    /// What was saved of a device.
    pub fn new(arena: SavedArena, controller: Saved, disks: Vec<SavedDiskQueues>) -> Self {
        Self { version: VERSION, arena, controller, disks }
    }

    /// The file by which another process can [adopt](Self::adopt) `device` if this one is killed.
    pub fn record(device: &dyn Device, controller: &dyn Controller) -> Result<OwnedFd, Error> {
        let failed = |source| Error::Device { device: device.name().into(), source };
        Self::new(device.dma().arena().save(), controller.record().map_err(failed)?, Vec::new())
            .write()
    }

    /// Goes on with `device`, whose driver was killed. `None` if that cannot be: its opening, which
    /// stops it first, can be.
    pub fn adopt(&self, device: &Arc<dyn Device>, settings: &Settings) -> Option<Opened> {
        let adopted = Driver::adopt(device.clone(), settings, &self.controller);
        // What nobody has claimed is used by nobody before the device has ended what it was told,
        // or is stopped.
        device.dma().arena().release();
        adopted
            .inspect_err(|why| {
                tracing::warn!("the device is not adopted, but stopped and started: {why}")
            })
            .ok()
    }

    /// The file with it.
    pub fn write(&self) -> Result<OwnedFd, Error> {
        let write = || -> io::Result<OwnedFd> {
            let bytes = serde_json::to_vec(self)?;
            let file = memfd_create("ring3-left", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let count = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
                rest = &rest[count..];
            }
            fcntl_add_seals(&file, SEALS)?;
            Ok(file)
        };
        write().map_err(|error| Error::os("saving the state of the driver", error))
    }
}

/// What the last process has left in `file`.
pub fn read(file: Option<OwnedFd>) -> Result<Left, Error> {
    let file =
        file.ok_or_else(|| Error::protocol("nothing saved came with the order to resume"))?;
    let read = || -> io::Result<Left> {
        let len = fstat(&file)?.st_size as u64;
        if !fcntl_get_seals(&file)?.contains(SEALS) || len > MAX_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a file that may change, or of no such size",
            ));
        }
        let mut bytes = vec![0; len as usize];
        let mut at = 0;
        while at < bytes.len() {
            match rustix::io::retry_on_intr(|| {
                rustix::io::pread(&file, &mut bytes[at..], at as u64)
            })? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => at += count,
            }
        }
        Ok(serde_json::from_slice(&bytes)?)
    };
    let left = read().map_err(|error| Error::os("what the last driver has saved", error))?;
    if left.version != VERSION {
        let reason = format!(
            "the last driver's state was saved in form {}, and this one reads form {VERSION}",
            left.version
        );
        return Err(Error::protocol(reason));
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left() -> Left {
        let queues = vec![Saved::new("a queue", 1, &7).unwrap()];
        let disks = vec![SavedDiskQueues { name: "disk".into(), queues }];
        Left::new(
            SavedArena::fresh(std::iter::empty()),
            Saved::new("a controller", 1, &"state").unwrap(),
            disks,
        )
    }

    #[test]
    fn what_is_left_is_found_as_it_was_and_cannot_be_changed() {
        let file = left().write().unwrap();
        assert!(rustix::io::write(&file, b"other").is_err());
        let found = read(Some(file)).unwrap();
        assert_eq!((found.disks[0].name.as_str(), found.disks[0].queues.len()), ("disk", 1));
    }

    #[test]
    fn a_file_that_may_change_or_is_in_another_form_is_not_read() {
        let plain = memfd_create("plain", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(read(Some(plain)).is_err() && read(None).is_err());
        let other = Left { version: 2, ..left() }.write().unwrap();
        assert!(read(Some(other)).err().unwrap().to_string().contains("form 2"));
    }
}
