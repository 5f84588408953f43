//! A client's memory, mapped for the device.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_device::Error;
use ring3_device::dma::{Iommu, Region};
use ring3_spec::vfio_user::{DMA_READ_WRITE, DMA_UNMAP_ALL, DmaMap, DmaUnmap};
use rustix::fs::SealFlags;

/// How many ranges a client may have mapped at a time.
pub(super) const MAX_MAPS: usize = 256;

/// What one client has mapped. Dropping it takes all of it back.
pub(super) struct ClientMemory {
    iommu: Arc<dyn Iommu>,
    /// Bytes by device address.
    maps: BTreeMap<u64, usize>,
}

impl ClientMemory {
    pub(super) fn new(iommu: Arc<dyn Iommu>) -> Self {
        Self { iommu, maps: BTreeMap::new() }
    }

    /// Maps a part of `file`.
    pub(super) fn map(&mut self, wish: &DmaMap, file: Option<OwnedFd>) -> Result<(), Error> {
        let refused = |why: &str| {
            Error::Invalid(format!("mapping {:#x}+{:#x}: {why}", wish.address, wish.size))
        };
        let file = file.ok_or_else(|| {
            refused(
                "no descriptor came with it; share the memory with the device (QEMU: -object \
                 memory-backend-memfd,share=on)",
            )
        })?;
        if wish.flags & DMA_READ_WRITE != DMA_READ_WRITE {
            return Err(refused("the device must be able to read and to write it"));
        }
        if self.maps.len() >= MAX_MAPS {
            return Err(refused(
                "there are too many mappings already: unmap some, or map larger pieces",
            ));
        }
        // A file that shrinks leaves a mapping without memory, and the access that meets it is a
        // SIGBUS.
        if !rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
        {
            return Err(refused(
                "its file may shrink: use a memfd with the seal F_SEAL_SHRINK (QEMU: \
                memory-backend-memfd)",
            ));
        }
        let whole = |number: u64| usize::try_from(number).map_err(|_| refused("no such size"));
        let size = whole(wish.size)?;
        let region = Arc::new(Region::part_of(file, wish.offset, size)?);
        self.iommu.map(&region.pages()?, wish.address)?;
        self.maps.insert(wish.address, size);
        Ok(())
    }

    /// Takes back what was mapped as one range, or everything.
    pub(super) fn unmap(&mut self, wish: &DmaUnmap) -> Result<(), Error> {
        match wish.flags {
            DMA_UNMAP_ALL if wish.address == 0 && wish.size == 0 => {
                self.unmap_all();
                Ok(())
            }
            0 if self.maps.get(&wish.address).is_some_and(|&size| size as u64 == wish.size) => {
                self.iommu.unmap(wish.address, wish.size as usize)?;
                self.maps.remove(&wish.address);
                Ok(())
            }
            0 => Err(Error::Invalid(format!(
                "{:#x}+{:#x} was not mapped as one range",
                wish.address, wish.size
            ))),
            flags => Err(Error::Unsupported(format!("unmapping with flags {flags:#x}"))),
        }
    }

    fn unmap_all(&mut self) {
        for (address, size) in std::mem::take(&mut self.maps) {
            if let Err(error) = self.iommu.unmap(address, size) {
                tracing::error!(%error, "a client's memory stays mapped");
            }
        }
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        self.unmap_all();
    }
}
