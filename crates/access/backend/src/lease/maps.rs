//! What a driver has mapped for its device beside the arena, and what that may cost the holder.
//!
//! # Trust
//! Each mapping costs the holder a mapping of its own, and each file a descriptor; both have a
//! budget of the device's. A file has one descriptor however many of its pieces are mapped, so that
//! a driver with many small pieces takes no more of what all devices share than one with a large
//! piece.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use ring3_device::Error;
use ring3_device::dma::{Pages, Region, admit};
use ring3_lease::Memory;
use rustix::fs::SealFlags;

use super::desk::{DriverGrants, LeaseServer};

/// How many ranges a driver may have mapped at a time. A process may have 65530. [vm.max_map_count]
pub(super) const MAX_MAPS: usize = 1024;

/// Of how many files these may be.
pub(super) const MAX_FILES: usize = 128;

/// How many bytes it may have mapped at a time, or how many times the arena, whichever is more.
const MAX_MAPPED: usize = 1 << 30;
const MAX_SHARE: usize = 16;

/// Pages of a driver's, by the number under which they are saved.
pub(super) struct Mapping {
    pub(super) serial: u64,
    pub(super) pages: Pages,
    /// Another process has recorded it, and may have died before it was made.
    pub(super) doubtful: bool,
}

/// The files of which anything is mapped: each has one descriptor here.
#[derive(Default)]
pub(super) struct Files(BTreeMap<(u64, u64), Weak<OwnedFd>>);

impl Files {
    /// The descriptor by which this process has the file of `fd`: a former one, if there is one.
    /// `None` if there are too many files already.
    pub(super) fn one(&mut self, fd: OwnedFd) -> Result<Option<Arc<OwnedFd>>, Error> {
        let stat = rustix::fs::fstat(&fd)
            .map_err(|error| Error::os("looking at a file that shall be DMA memory", error))?;
        self.0.retain(|_, file| file.strong_count() > 0);
        let key = (stat.st_dev, stat.st_ino);
        if let Some(file) = self.0.get(&key).and_then(Weak::upgrade) {
            return Ok(Some(file));
        }
        if self.0.len() >= MAX_FILES {
            return Ok(None);
        }
        let file = Arc::new(fd);
        self.0.insert(key, Arc::downgrade(&file));
        Ok(Some(file))
    }
}

impl LeaseServer {
    pub(super) fn map(&self, memory: Memory, file: Option<OwnedFd>) -> Result<(), Error> {
        let Memory { iova, len, .. } = memory;
        let refused = |why: &str| Error::Invalid(format!("mapping {iova:#x}+{len:#x}: {why}"));
        let file = file.ok_or_else(|| refused("no descriptor came with it"))?;
        // A file that shrinks leaves a mapping without memory, and an access that meets it, a
        // model's, is a SIGBUS.
        if !rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        {
            return Err(refused("its file may shrink: use a memfd with the seal F_SEAL_SHRINK"));
        }
        let mut asked = self.asked();
        self.check_map(&asked, &memory)?;
        // What is mapped for a device is held in memory. What the file has already is there; the
        // rest would be taken for the driver, by this process.
        let there = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_blocks as usize * 512);
        let file = asked.files.one(file)?;
        let file = file.ok_or_else(|| {
            refused("it is of one more file than a driver may have mapped: map parts of one file")
        })?;
        let region = Arc::new(Region::part_of_shared(file, memory.offset, len as usize)?);
        if !region.is_huge() {
            admit(region.len().saturating_sub(there))?;
        }
        let pages = region.pages()?;
        let serial = asked.next_serial();
        // Recorded first: whoever adopts the claim takes back what is not there rather than leave
        // what is.
        asked.mapped.insert(iova, Mapping { serial, pages: pages.clone(), doubtful: false });
        self.notify(&asked);
        let mapped = self.device.dma().iommu().map(&pages, iova);
        if mapped.is_err() {
            asked.mapped.remove(&iova);
            self.notify(&asked);
        }
        mapped
    }

    /// Fails unless there is room for it, by all that is counted and by its addresses.
    fn check_map(
        &self,
        asked: &DriverGrants,
        &Memory { iova, len, .. }: &Memory,
    ) -> Result<(), Error> {
        let refused = |why: &str| Error::Invalid(format!("mapping {iova:#x}+{len:#x}: {why}"));
        let size = usize::try_from(len).map_err(|_| refused("no such size"))?;
        if asked.mapped.len() >= MAX_MAPS {
            return Err(refused(
                "there are too many mappings already: unmap some, or map larger pieces",
            ));
        }
        let all = asked
            .mapped
            .values()
            .map(|mapping| mapping.pages.len())
            .sum::<usize>()
            .saturating_add(size);
        let own = MAX_MAPPED.max(MAX_SHARE * self.device.dma().arena().len());
        if all > own.saturating_add(self.allowed.load(Ordering::Relaxed)) {
            return Err(refused(
                "that is more memory than a driver of this device may have mapped: unmap some, or \
                claim it with a larger arena",
            ));
        }
        let last = iova.checked_add(len).ok_or_else(|| refused("no such addresses"))?;
        let arena = self
            .device
            .dma()
            .arena()
            .regions()
            .any(|placed| iova < placed.end() && placed.iova < last);
        let overlaps =
            |(&other, mapping): (&u64, &Mapping)| iova < other + mapping.pages.len() as u64;
        if arena || asked.mapped.range(..last).next_back().is_some_and(overlaps) {
            return Err(Error::Busy(format!(
                "device addresses {iova:#x}+{len:#x} are mapped already"
            )));
        }
        Ok(())
    }

    pub(super) fn unmap(&self, iova: u64, len: u64) -> Result<(), Error> {
        let mut asked = self.asked();
        if asked.mapped.get(&iova).is_none_or(|mapping| mapping.pages.len() as u64 != len) {
            return Err(Error::Invalid(format!("{iova:#x}+{len:#x} was not mapped as one range")));
        }
        self.device.dma().iommu().unmap(iova, len as usize)?;
        asked.mapped.remove(&iova);
        self.notify(&asked);
        Ok(())
    }

    /// Takes back what drivers have mapped.
    pub(super) fn unmap_all(&self) -> Result<(), Error> {
        let mut asked = self.asked();
        while let Some(entry) = asked.mapped.first_entry() {
            match self.device.dma().iommu().unmap(*entry.key(), entry.get().pages.len()) {
                Err(Error::Invalid(_)) if entry.get().doubtful => {}
                unmapped => unmapped?,
            }
            entry.remove();
        }
        Ok(())
    }
}
