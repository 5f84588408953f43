//! The DMA memory of one device, mapped in advance.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::ledger::RangeAllocator;
use super::{DmaBuffer, HUGE_PAGE, Region, Segment, Span};
use crate::Error;

/// Most regions of one arena.
pub const MAX_REGIONS: usize = 32;

/// Memory that the device reaches at all times: regions, in each of which device address = `iova` +
/// offset. Cloning makes another handle. Whoever makes one says where the device has the regions,
/// and has mapped them there: a backend does, or the owner of a device for a client, with the
/// client's regions alone.
///
/// Allocation takes a lock and is for start-up; what a request needs is allocated before the first
/// request. Finding a [`Span`] or an address takes none.
#[derive(Clone)]
pub struct Arena {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Filled from the front and never emptied.
    regions: [OnceLock<Placed>; MAX_REGIONS],
    /// What is free of each, and what is taken.
    ledgers: Mutex<Vec<RangeAllocator>>,
    /// The last page of region 0 is [kept](super::PersistentWords).
    keeps: OnceLock<()>,
}

/// A region, and where the device has it.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The bytes.
    pub region: Arc<Region>,
    /// The device address of the first.
    pub iova: u64,
}

impl Arena {
    /// The arena over `region`, which the backend has mapped (or is about to map) at `iova`.
    pub fn new(region: impl Into<Arc<Region>>, iova: u64) -> Self {
        let region = region.into();
        let len = region.len();
        Self::with_range(region, iova, 0, len)
    }

    /// As [`new`](Arena::new), but only `region[start..end]` is given out. `iova` is still that of
    /// offset 0.
    pub fn with_range(region: impl Into<Arc<Region>>, iova: u64, start: usize, end: usize) -> Self {
        let arena = Self::empty();
        arena.add(Placed { region: region.into(), iova }, start, end);
        arena
    }

    pub(super) fn empty() -> Self {
        Self { inner: Arc::default() }
    }

    /// The last page of region 0, of which nothing is allocated, holds persistent words from now
    /// on.
    pub(super) fn keep(&self) {
        let _ = self.inner.keeps.set(());
    }

    /// Whether the last page of region 0 holds persistent words.
    pub(super) fn has_persistent_words(&self) -> bool {
        self.inner.keeps.get().is_some()
    }

    /// Gives out `region[start..end]`, too, once the regions before it are full. The region's
    /// number; `None` if there are as many as there can be.
    pub(super) fn add(&self, placed: Placed, start: usize, end: usize) -> Option<u32> {
        let mut ledgers = self.ledgers();
        let number = ledgers.len();
        let place = self.inner.regions.get(number)?;
        let end = end.min(placed.region.len());
        ledgers.push(RangeAllocator::new(start as u64..end as u64));
        place.set(placed).ok().map(|()| number as u32)
    }

    /// Registers foreign memory that is mapped for the device already. Nothing is allocated from
    /// it: users name bytes of it by [`Span`]s, and [`Streams`](super::Streams) find pieces of it.
    /// Returns its number; `None` if there are as many regions as there can be.
    pub fn register_region(&self, placed: Placed) -> Option<u32> {
        self.add(placed, 0, 0)
    }

    /// The device address of the first byte of `region`, if that is one of the arena's.
    #[inline]
    pub fn address(&self, region: &Region) -> Option<u64> {
        self.regions().find(|placed| placed.region.id() == region.id()).map(|placed| placed.iova)
    }

    /// The memory underneath, for who must share it, in the order of the regions' numbers.
    pub fn regions(&self) -> impl Iterator<Item = &Placed> {
        self.inner.regions.iter().map_while(OnceLock::get)
    }

    /// The device address of the first byte of region 0.
    pub fn iova(&self) -> u64 {
        self.regions().next().map_or(0, |placed| placed.iova)
    }

    /// Bytes of all regions together.
    pub fn len(&self) -> usize {
        self.regions().map(|placed| placed.region.len()).sum()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all of it lies below the device address `limit`.
    pub fn is_below(&self, limit: u64) -> bool {
        self.regions().all(|placed| placed.end() <= limit)
    }

    /// A zeroed buffer of `len` bytes (1 to 4 GiB - 1) whose device address is a multiple of
    /// `align`, a power of two.
    pub fn alloc(&self, len: usize, align: usize) -> Result<DmaBuffer, Error> {
        if len == 0 || len > u32::MAX as usize || !align.is_power_of_two() {
            return Err(Error::Invalid(format!("DMA buffer of {len} bytes aligned to {align}")));
        }
        let buffer = self.buffer(self.carve(len, align)?, len)?;
        buffer.fill(0);
        Ok(buffer)
    }

    /// A buffer of `len` bytes that starts on a page, as queues and data that a PRP describes must.
    pub fn alloc_pages(&self, len: usize) -> Result<DmaBuffer, Error> {
        self.alloc(len, 4096)
    }

    /// As [`alloc_pages`](Self::alloc_pages), with the bytes that whoever had the range before has
    /// left: no page of it is touched, which takes the most of the time. For memory that is filled
    /// before anybody reads it.
    pub fn alloc_uninitialised(&self, len: usize) -> Result<DmaBuffer, Error> {
        if len == 0 || len > u32::MAX as usize {
            return Err(Error::Invalid(format!("DMA buffer of {len} bytes")));
        }
        self.buffer(self.carve(len, 4096)?, len)
    }

    /// The first `bytes` bytes of a region but the first that is made for so many, or for as many
    /// as round up to huge pages, and of which nothing is taken; `None` if there is none.
    pub(super) fn carve_region(&self, bytes: usize) -> Option<DmaBuffer> {
        let iova = {
            let mut ledgers = self.ledgers();
            ledgers.iter_mut().zip(self.regions()).skip(1).find_map(|(ledger, placed)| {
                let len = placed.region.len();
                let fits = (bytes..bytes.saturating_add(HUGE_PAGE)).contains(&len)
                    && ledger.free_bytes() == len as u64;
                fits.then(|| ledger.carve(bytes as u64, 1, placed.iova)).flatten()?;
                Some(placed.iova)
            })?
        };
        self.buffer(iova, bytes).ok()
    }

    /// Bytes that are free now, in all ranges together.
    pub fn free_bytes(&self) -> usize {
        self.ledgers().iter().map(|ledger| ledger.free_bytes() as usize).sum()
    }

    /// What buffers have of region 0 now: where each range starts behind the region's first byte,
    /// its bytes, and a number that no other buffer at this place has had. Ascending.
    pub fn taken(&self) -> Vec<(u64, u64, u64)> {
        self.ledgers().first().map_or_else(Vec::new, |ledger| ledger.taken().collect())
    }

    /// Where the device finds `span`; `None` unless all of it lies in one of the arena's regions. A
    /// few instructions, for spans of clients that are not trusted.
    #[inline]
    pub fn segment(&self, span: Span) -> Option<Segment> {
        let placed = self.inner.regions.get(span.region as usize)?.get()?;
        span.within(placed.region.len() as u64, placed.iova)
    }

    /// The name of `len` bytes at `iova`, if they lie in one region.
    pub fn span(&self, iova: u64, len: usize) -> Option<Span> {
        let holds = |placed: &Placed| placed.offset(iova, len);
        let (region, offset) = self
            .regions()
            .enumerate()
            .find_map(|(region, placed)| Some((region, holds(placed)?)))?;
        Some(Span { region: region as u32, len: u32::try_from(len).ok()?, offset: offset as u64 })
    }

    /// Where `len` bytes at `iova` are in this process, if they lie in one region.
    pub(super) fn at(&self, iova: u64, len: usize) -> Option<NonNull<u8>> {
        self.regions().find_map(|placed| placed.at(iova, len))
    }

    fn buffer(&self, iova: u64, len: usize) -> Result<DmaBuffer, Error> {
        let base = self
            .at(iova, len)
            .ok_or_else(|| Error::Invalid(format!("{iova:#x}+{len:#x} is not in the arena")))?;
        // SAFETY: `at` proved the range, and the caller has taken it out of what is free.
        Ok(unsafe { DmaBuffer::new(self.clone(), base, iova, len) })
    }

    fn carve(&self, len: usize, align: usize) -> Result<u64, Error> {
        let mut ledgers = self.ledgers();
        for (ledger, placed) in ledgers.iter_mut().zip(self.regions()) {
            if let Some(offset) = ledger.carve(len as u64, align as u64, placed.iova) {
                return Ok(placed.iova + offset);
            }
        }
        let free = ledgers.iter().map(|ledger| ledger.free_bytes() as usize).sum();
        Err(Error::NoMemory { wanted: len, free, total: self.len() })
    }

    /// Takes a buffer's range back and joins it with its neighbours.
    pub(super) fn give_back(&self, iova: u64, len: usize) {
        if len > 0 {
            self.change(iova, |ledger, offset| ledger.give_back(offset));
        }
    }

    /// Says what the range at `iova` is for.
    pub(super) fn tag(&self, iova: u64, tag: &'static str) {
        self.change(iova, |ledger, offset| ledger.tag(offset, tag));
    }

    pub(super) fn change(&self, iova: u64, step: impl FnOnce(&mut RangeAllocator, u64)) {
        let mut ledgers = self.ledgers();
        let found = ledgers
            .iter_mut()
            .zip(self.regions())
            .find_map(|(ledger, placed)| Some((ledger, placed.offset(iova, 1)?)));
        if let Some((ledger, offset)) = found {
            step(ledger, offset as u64);
        }
    }

    /// What was taken when the arena was [adopted](Self::adopt), or
    /// [left](DmaBuffer::release_to_successor) since, and nobody has claimed, with its tags.
    pub fn unclaimed(&self) -> Vec<(Span, String)> {
        let span = |region, offset, len| Span { region, len, offset };
        let of = |(region, ledger): (u32, &RangeAllocator)| {
            let ranges = ledger
                .unclaimed()
                .map(|(offset, len, tag)| (span(region, offset, len as u32), tag.to_owned()));
            ranges.collect::<Vec<_>>()
        };
        (0..).zip(self.ledgers().iter()).flat_map(of).collect()
    }

    /// The buffer that `span` was when the arena was saved, or when it was left, with its bytes.
    /// Each range is given once; anything else is [`Error::Invalid`].
    pub fn claim(&self, span: Span) -> Result<DmaBuffer, Error> {
        self.claim_tentative(span)
            .inspect(|buffer| self.change(buffer.iova(), RangeAllocator::commit))
    }

    /// The same; a buffer that is dropped before it is settled leaves the range to be claimed
    /// again.
    pub(super) fn claim_tentative(&self, span: Span) -> Result<DmaBuffer, Error> {
        let refused = || {
            Error::Invalid(format!("{span:?} is no range that was saved, or it is claimed already"))
        };
        let segment = self.segment(span).ok_or_else(refused)?;
        let claimed = self
            .ledgers()
            .get_mut(span.region as usize)
            .is_some_and(|ledger| ledger.claim(span.offset, span.len.into()));
        if claimed { self.buffer(segment.iova, span.len as usize) } else { Err(refused()) }
    }

    /// Frees what was taken when the arena was adopted and nobody has claimed: the device must not
    /// know of it any more.
    pub fn release(&self) {
        self.ledgers().iter_mut().for_each(RangeAllocator::release);
    }

    pub(super) fn ledgers(&self) -> MutexGuard<'_, Vec<RangeAllocator>> {
        // They are consistent between any two statements that can panic, so a poisoned lock is
        // still good.
        self.inner.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Placed {
    /// The device address behind the last byte.
    pub fn end(&self) -> u64 {
        self.iova.saturating_add(self.region.len() as u64)
    }

    /// Where in the region `len` bytes at device address `iova` lie.
    #[inline]
    fn offset(&self, iova: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(iova.checked_sub(self.iova)?).ok()?;
        (offset.checked_add(len)? <= self.region.len()).then_some(offset)
    }

    #[inline]
    fn at(&self, iova: u64, len: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.region.at(self.offset(iova, len)?, len).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena(len: usize) -> Arena {
        Arena::new(Region::new(len).unwrap(), 0x10_0000)
    }

    #[test]
    fn device_addresses_are_aligned_even_if_the_arena_is_not() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
        assert_eq!(arena.alloc(100, 1 << 14).unwrap().iova() % (1 << 14), 0);
    }

    #[test]
    fn a_stale_buffer_has_the_bytes_that_were_left_there_and_another_one_none() {
        let arena = arena(1 << 14);
        arena.alloc_pages(4096).unwrap().write(7, b"left").unwrap();
        let mut bytes = [0; 4];
        arena.alloc_uninitialised(4096).unwrap().read(7, &mut bytes).unwrap();
        assert_eq!(&bytes, b"left");
        arena.alloc_pages(4096).unwrap().read(7, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4]);
        assert!(arena.alloc_uninitialised(0).is_err());
    }

    #[test]
    fn an_arena_that_is_full_says_how_much_was_wanted() {
        let arena = arena(4096);
        let total = arena.len();
        assert!(matches!(
            arena.alloc(total + 1, 1),
            Err(Error::NoMemory { wanted, .. }) if wanted == total + 1,
        ));
    }

    #[test]
    fn nothing_is_allocated_from_registered_memory_and_all_of_it_has_spans() {
        let (arena, lent) = (arena(4096), Arc::new(Region::new(8192).unwrap()));
        let (free, number) = (
            arena.free_bytes(),
            arena.register_region(Placed { region: lent.clone(), iova: 0x20_0000 }).unwrap(),
        );
        assert_eq!((arena.free_bytes(), arena.address(&lent)), (free, Some(0x20_0000)));
        let span = Span { region: number, len: 512, offset: 7680 };
        assert_eq!(arena.segment(span).map(|segment| segment.iova), Some(0x20_1e00));
        assert_eq!(arena.span(0x20_1e00, 512), Some(span));
        assert_eq!(arena.address(&Region::new(4096).unwrap()), None);
    }

    #[test]
    fn a_new_buffer_is_zeroed_even_if_its_range_was_used_before() {
        let arena = arena(4096);
        let buffer = arena.alloc(4096, 1).unwrap();
        buffer.fill(0xff);
        drop(buffer);
        let mut bytes = [1; 4096];
        arena.alloc(4096, 1).unwrap().read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
    }

    #[test]
    fn an_abandoned_buffer_does_not_come_back() {
        let arena = arena(1 << 14);
        let before = arena.free_bytes();
        let mut buffer = arena.alloc(4096, 1).unwrap();
        buffer.abandon();
        assert!(buffer.read(0, &mut [0]).is_err());
        drop(buffer);
        assert_eq!(arena.free_bytes(), before - 4096);
    }

    proptest! {
        #[test]
        fn buffers_never_overlap_and_everything_comes_back(
            sizes in prop::collection::vec((1usize..9000, 0u32..13), 1..40), order in any::<u64>(),
        ) {
            let arena = arena(1 << 20);
            let before = arena.free_bytes();
            let mut held = Vec::new();
            for (i, &(len, align)) in sizes.iter().enumerate() {
                if let Ok(buffer) = arena.alloc(len, 1 << align) {
                    held.push(buffer);
                }
                if order >> (i % 64) & 1 == 1 && !held.is_empty() {
                    held.swap_remove(i % held.len());
                }
                let mut ranges: Vec<_> =
                    held.iter().map(|b| (b.iova(), b.iova() + b.len() as u64)).collect();
                ranges.sort();
                prop_assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0));
            }
            held.clear();
            prop_assert_eq!(arena.free_bytes(), before);
            prop_assert_eq!(arena.ledgers()[0].free_ranges(), 1);
        }
    }
}
