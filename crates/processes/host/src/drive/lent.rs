//! Clients' memory that requests of a disk may lie in, as the supervisor tells of it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_class::block::Disk;
use ring3_device::Error;
use ring3_device::dma::Region;
use ring3_export::ublk::{Memory, Queues, Regions, regions};

/// A disk's.
#[derive(Default)]
pub struct Lent {
    /// Where its queues look; anew with each set of queues.
    regions: Arc<Regions>,
    memories: BTreeMap<u16, Arc<Memory>>,
}

impl Lent {
    /// `queues`, which have none yet, know of all there is, and of all that comes.
    pub fn share_with(&mut self, queues: &mut Queues) {
        self.regions = Arc::default();
        self.memories
            .iter()
            .for_each(|(&index, memory)| self.regions.insert(index, memory.clone()));
        queues.share(self.regions.clone());
    }

    /// Lets the device of `disk` reach a client's `file`, which the kernel calls `index`. The same
    /// may be said twice.
    pub fn insert(&mut self, disk: &dyn Disk, index: u16, file: OwnedFd) -> Result<(), Error> {
        if self.memories.contains_key(&index) {
            return Ok(());
        }
        regions::check(disk)?;
        let memory = Arc::new(Memory::map(disk.dma(), Arc::new(Region::from_fd(file)?))?);
        self.memories.insert(index, memory.clone());
        self.regions.insert(index, memory);
        Ok(())
    }

    /// The kernel has forgotten `index`: the device does not reach it any more when this returns.
    /// The same may be said twice.
    pub fn remove(&mut self, index: u16) -> Result<(), Error> {
        self.regions.remove(index);
        self.memories.remove(&index).map_or(Ok(()), |memory| memory.cut())
    }

    /// The same of all, of which the next process is told by the supervisor.
    pub fn clear(&mut self) -> Result<(), Error> {
        while let Some((&index, _)) = self.memories.first_key_value() {
            self.remove(index)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ring3_class::block::Ram;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn file() -> OwnedFd {
        let file = memfd_create("client", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 8192).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        file
    }

    #[test]
    fn memory_that_cannot_be_mapped_any_more_names_nothing_and_the_rest_is_there() {
        let (disk, mut lent) = (Ram::new(512, 64, 1 << 20).unwrap(), Lent::default());
        let closed = file();
        fcntl_add_seals(&closed, SealFlags::FUTURE_WRITE).unwrap();
        assert!(lent.insert(&disk, 3, closed).is_err());
        lent.insert(&disk, 4, file()).unwrap();
        let mut queues = Queues::open(&disk, 1, 4).unwrap();
        lent.share_with(&mut queues);
        let mut view = ring3_export::ublk::regions::View::new(lent.regions.clone());
        assert!(view.data(3 << 32, 512).is_none() && view.data(4 << 32, 512).is_some());
        lent.remove(3).unwrap();
    }

    #[test]
    fn memory_that_is_told_of_twice_is_mapped_once_and_taken_back_once() {
        let (disk, mut lent) = (Ram::new(512, 64, 1 << 20).unwrap(), Lent::default());
        lent.insert(&disk, 3, file()).unwrap();
        let memory = lent.memories[&3].clone();
        lent.insert(&disk, 3, file()).unwrap();
        assert!(Arc::ptr_eq(&memory, &lent.memories[&3]));
        lent.remove(3).unwrap();
        lent.remove(3).unwrap();
        assert!(lent.memories.is_empty());
    }

    #[test]
    fn queues_that_are_made_anew_know_what_was_there_before() {
        let (disk, mut lent) = (Ram::new(512, 64, 1 << 20).unwrap(), Lent::default());
        lent.insert(&disk, 3, file()).unwrap();
        let mut view = |_: ()| {
            let mut queues = Queues::open(&disk, 1, 4).unwrap();
            lent.share_with(&mut queues);
            ring3_export::ublk::regions::View::new(lent.regions.clone())
        };
        assert!(view(()).data(3 << 32, 512).is_some());
        assert!(view(()).data(3 << 32, 512).is_some());
    }
}
