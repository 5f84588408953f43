//! Memory of clients that requests of a disk may lie in, so that nobody copies their bytes
//! (`UBLK_F_SHMEM_ZC`, Linux 7.1 and later).
//!
//! # Shape
//! A client's [`Memory`] is mapped for the disk's device, and registered with the kernel's ublk,
//! which knows it by an index from then on: a request whose pages lie in it, in one piece, comes
//! with index and offset in the place of bytes in its tag's buffer. [`Regions`] says what an index
//! is. Each queue has a [`View`] of it that costs a request one load.
//!
//! # Ordering
//! Memory is mapped before it is registered, and inserted before its client hears of it. It is
//! unregistered first, for which the kernel waits until no request lies in it; then
//! [removed](Regions::remove), and unmapped. Commands that register freeze the disk's queue, so
//! they are for neither a queue's thread nor its process: see
//! [`Control::register_memory`](super::Control::register_memory).
//!
//! # Trust
//! An index or an offset that names nothing is an I/O error of that request. A request whose memory
//! a device may still write is not ended before the device is [cut off](Memory::cut) from that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ring3_class::Error;
use ring3_class::block::{Data, Disk};
use ring3_class::dma::{Arena, Dma, Mapping, Region, SegmentList, Span};

use super::uapi;
use crate::serving::CommandChannel;

/// The largest memory of one client: offsets have 32 bits. `[UAPI UBLK_SHMEM_ZC_OFF_MASK]`
pub const MOST: u64 = 1 << 32;

/// A client's memory, as a device has it.
pub struct Memory {
    /// This memory alone.
    arena: Arena,
    mapping: Mutex<Option<Mapping>>,
}

impl Memory {
    /// Lets the device behind `dma` reach `region`, of whole pages.
    pub fn map(dma: &Dma, region: Arc<Region>) -> Result<Self, Error> {
        let mapping = dma.map(region.pages()?)?;
        Ok(Self { arena: Arena::new(region, mapping.iova()), mapping: Mutex::new(Some(mapping)) })
    }

    /// Takes it from the device: when this returns, the device writes nothing there any more. After
    /// an error it may.
    pub fn cut(&self) -> Result<(), Error> {
        let mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner).take();
        mapping.map_or(Ok(()), Mapping::unmap)
    }
}

/// What is registered, by the kernel's index.
#[derive(Default)]
pub struct Regions {
    memories: Mutex<BTreeMap<u16, Arc<Memory>>>,
    /// Counts changes.
    generation: AtomicU64,
    /// By which queues that have nothing to do hear of them.
    commands: OnceLock<Arc<CommandChannel>>,
}

impl Regions {
    /// Changes are told by `orders`.
    pub(super) fn wake_by(&self, commands: Arc<CommandChannel>) {
        let _ = self.commands.set(commands);
    }

    /// From now on requests may lie in `memory`, which the kernel calls `index`.
    pub fn insert(&self, index: u16, memory: Arc<Memory>) {
        self.lock().insert(index, memory);
        self.change();
    }

    /// Requests do not lie there any more: the kernel has forgotten `index`.
    pub fn remove(&self, index: u16) -> Option<Arc<Memory>> {
        let memory = self.lock().remove(&index);
        self.change();
        memory
    }

    fn change(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        if let Some(orders) = self.commands.get() {
            orders.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u16, Arc<Memory>>> {
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails, with what stands in the way, if the device of `disk` cannot reach clients' memory by
/// itself.
pub fn check(disk: &dyn Disk) -> Result<(), Error> {
    let page = rustix::param::page_size() as u32;
    if disk.info().segments.boundary > page {
        return Err(Error::Unsupported(format!(
            "the device takes no memory across a multiple of {} bytes, and clients' memory lies \
            where it lies: leave --share out",
            disk.info().segments.boundary
        )));
    }
    disk.dma().map(Arc::new(Region::new(page as usize)?).pages()?).map(drop)
}

/// One queue's view of [`Regions`].
pub struct View {
    regions: Arc<Regions>,
    generation: u64,
    known: BTreeMap<u16, Known>,
}

struct Known {
    memory: Arc<Memory>,
    /// Lists that no request has, in the boxes in which requests carry them: none is allocated for
    /// a request.
    #[expect(clippy::vec_box)]
    spare: Vec<Box<SegmentList>>,
}

impl View {
    /// Of `regions`.
    pub fn new(regions: Arc<Regions>) -> Self {
        // Older than any.
        Self { regions, generation: u64::MAX, known: BTreeMap::new() }
    }

    /// Whether there is any memory.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.refresh();
        self.known.is_empty()
    }

    /// The `bytes` that a descriptor names by `addr`, and the index of their memory; `None` if they
    /// lie in none.
    #[inline]
    pub fn data(&mut self, addr: u64, bytes: u32) -> Option<(u16, Data)> {
        self.refresh();
        let (index, offset) = uapi::shared_place(addr);
        let known = self.known.get_mut(&index)?;
        let mut list = match known.spare.pop() {
            Some(list) => list,
            None => Box::new(known.memory.arena.list(&[])?),
        };
        list.aim(&[Span { region: 0, len: bytes, offset: offset.into() }])
            .then_some((index, Data::Segments(list)))
    }

    /// Keeps the list of a request that has ended for the next one.
    #[inline]
    pub fn give_back(&mut self, index: u16, list: Box<SegmentList>) {
        if let Some(known) = self.known.get_mut(&index) {
            known.spare.push(list);
        }
    }

    /// See [`Memory::cut`]. Memory that is not there any more was cut off before.
    pub fn cut(&self, index: u16) -> Result<(), Error> {
        self.known.get(&index).map_or(Ok(()), |known| known.memory.cut())
    }

    #[inline]
    fn refresh(&mut self) {
        if self.generation != self.regions.generation.load(Ordering::Acquire) {
            self.renew();
        }
    }

    #[cold]
    fn renew(&mut self) {
        let memories = self.regions.lock();
        self.generation = self.regions.generation.load(Ordering::Acquire);
        // An index is used again for other memory.
        self.known.retain(|index, known| {
            memories.get(index).is_some_and(|memory| Arc::ptr_eq(memory, &known.memory))
        });
        for (&index, memory) in &*memories {
            self.known
                .entry(index)
                .or_insert_with(|| Known { memory: memory.clone(), spare: Vec::new() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::block::Ram;

    const PAGE: usize = 4096;

    /// Memory of `pages` pages that no device has, at `iova`.
    fn memory(pages: usize, iova: u64) -> Arc<Memory> {
        let region = Arc::new(Region::new(pages * PAGE).unwrap());
        Arc::new(Memory { arena: Arena::new(region, iova), mapping: Mutex::new(None) })
    }

    fn addr(index: u16, offset: u32) -> u64 {
        u64::from(index) << 32 | u64::from(offset)
    }

    fn iova(found: Option<(u16, Data)>) -> Option<u64> {
        let (_, data) = found?;
        data.segments(1).next().map(|segment| segment.iova)
    }

    #[test]
    fn a_request_lies_in_the_memory_that_its_index_names_at_its_offset() {
        let regions = Arc::new(Regions::default());
        regions.insert(3, memory(4, 0x10_0000));
        regions.insert(0, memory(4, 0x20_0000));
        let mut view = View::new(regions);
        assert_eq!(iova(view.data(addr(3, 512), 4096)), Some(0x10_0200));
        assert_eq!(iova(view.data(addr(0, 0), 512)), Some(0x20_0000));
    }

    #[test]
    fn an_index_that_nobody_has_and_bytes_beyond_the_end_lie_nowhere() {
        let regions = Arc::new(Regions::default());
        let region = memory(4, 0x10_0000);
        let len = region.arena.len() as u32;
        regions.insert(3, region);
        let mut view = View::new(regions);
        for (index, offset, bytes) in [
            (0, 0, 512),
            (4, 0, 512),
            (u16::MAX, 0, 512),
            (3, len, 1),
            (3, len - 512, 513),
            (3, u32::MAX, u32::MAX),
            (3, 0, 0),
        ] {
            assert!(view.data(addr(index, offset), bytes).is_none(), "{index} {offset} {bytes}");
        }
        assert!(view.data(addr(3, len - 512), 512).is_some());
    }

    #[test]
    fn bits_that_the_kernel_keeps_for_later_name_nothing_else() {
        let regions = Arc::new(Regions::default());
        regions.insert(1, memory(1, 0x1000));
        assert_eq!(iova(View::new(regions).data(addr(1, 0) | 0xffff << 48, 512)), Some(0x1000));
    }

    #[test]
    fn memory_that_was_removed_lies_nowhere_and_its_index_may_be_others() {
        let regions = Arc::new(Regions::default());
        regions.insert(0, memory(1, 0x1000));
        let mut view = View::new(regions.clone());
        let (index, Data::Segments(list)) = view.data(addr(0, 0), 512).unwrap() else {
            panic!("no list")
        };
        view.give_back(index, list);
        regions.remove(0);
        assert!(view.is_empty() && view.data(addr(0, 0), 512).is_none());
        regions.insert(0, memory(1, 0x9000));
        assert_eq!(iova(view.data(addr(0, 0), 512)), Some(0x9000));
    }

    #[test]
    fn a_view_lets_go_of_memory_that_was_removed() {
        let regions = Arc::new(Regions::default());
        let region = memory(1, 0x1000);
        regions.insert(0, region.clone());
        let mut view = View::new(regions.clone());
        drop(view.data(addr(0, 0), 512));
        regions.remove(0);
        assert!(view.is_empty());
        assert_eq!(Arc::strong_count(&region), 1);
    }

    #[test]
    fn memory_that_is_cut_off_is_out_of_the_devices_reach_and_can_be_cut_off_again() {
        let disk = Ram::new(512, 64, 1 << 20).unwrap();
        check(&disk).unwrap();
        let memory = Memory::map(disk.dma(), Arc::new(Region::new(PAGE).unwrap())).unwrap();
        let iova = memory.arena.iova();
        assert!(disk.dma().read(iova, &mut [0]).is_ok());
        memory.cut().unwrap();
        assert!(disk.dma().read(iova, &mut [0]).is_err());
        memory.cut().unwrap();
    }
}
