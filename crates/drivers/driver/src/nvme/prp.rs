//! The data of a request as physical region pages (PRPs). [NVMe 4.3.1]
//!
//! The command itself contains the addresses of up to two pages. A longer request needs a list;
//! every slot has its own, allocated when the queue is created. Only the first piece may begin
//! within a page, and only the last may end within one. Data that does not fit is rejected, and the
//! class layer copies it to a buffer that fits.

use ring3_class::block::Data;
use ring3_device::Error;
use ring3_device::dma::{Arena, DmaBuffer, Segment};
use ring3_device::ring::Words;

/// Most bytes of one request: as many pages as one page-sized list names.
pub(super) const MAX_TRANSFER: u32 = 512 * 4096;
/// Bytes of the shortest list; also what dataset management's one range needs.
const MIN_LIST: usize = 64;
/// And of one where [`Layout::chained`] holds, as the kernel's driver aligns it.
const CHAINED_LIST: usize = 512;
/// A list lies within one page, so that it needs no pointer to a next one.
const MAX_LIST: usize = 4096;

/// How long lists are.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Most bytes of a request.
    pub(super) max_transfer: u32,
    /// Bytes of a memory page, CC.MPS.
    pub(super) page: u64,
    /// The device takes the last entry of a page for a pointer to the next list, always. By the
    /// specification it is one only if more entries follow. So no list fills its place.
    pub(super) chained: bool,
}

impl Layout {
    /// Bytes of each list; a power of two.
    fn each(self) -> usize {
        let entries = u64::from(self.max_transfer).div_ceil(self.page) as usize;
        let (spare, least) = if self.chained { (1, CHAINED_LIST) } else { (0, MIN_LIST) };
        ((entries + spare) * 8).next_power_of_two().clamp(least, MAX_LIST)
    }
}

/// The lists of all slots of a queue.
pub(super) struct Lists {
    memory: DmaBuffer,
    /// Bytes of each; a power of two.
    each: usize,
    /// Bytes of a memory page, CC.MPS.
    page: u64,
}

impl Lists {
    /// Lists for `slots` requests.
    pub(super) fn new(arena: &Arena, slots: usize, layout: Layout) -> Result<Self, Error> {
        let each = layout.each();
        let memory = arena.alloc(slots * each, MAX_LIST)?.tagged("nvme page lists");
        Ok(Self { memory, each, page: layout.page })
    }

    /// The same in `memory`, which they had before. [`Error::Invalid`] if that is not as long as
    /// they are.
    pub(super) fn resume(memory: DmaBuffer, slots: usize, layout: Layout) -> Result<Self, Error> {
        let each = layout.each();
        if memory.len() != slots * each {
            return Err(Error::Invalid(format!(
                "the page lists of {slots} requests in {} bytes",
                memory.len()
            )));
        }
        Ok(Self { memory, each, page: layout.page })
    }

    /// PRP entries 1 and 2 for the first `len` bytes of `data`; `None` if they do not fit the
    /// rules. Writes the list of `slot` if they need one.
    pub(super) fn describe(&self, slot: usize, data: &Data, len: usize) -> Option<(u64, u64)> {
        let (mut first, mut second) = (None, 0);
        let (mut listed, mut described, mut open) = (0, 0, true);
        for Segment { iova, len: piece } in data.segments(len) {
            let end = iova.checked_add(piece.into())?;
            // `open`: everything so far ends at a page boundary.
            if !open || iova & 3 != 0 || (first.is_some() && !iova.is_multiple_of(self.page)) {
                return None;
            }
            let mut at = iova;
            while at < end {
                if first.is_none() {
                    first = Some(at);
                } else {
                    if listed >= self.each / 8 {
                        return None;
                    }
                    self.memory.store(slot * self.each / 8 + listed, at);
                    second = if listed == 0 { at } else { self.iova(slot) };
                    listed += 1;
                }
                at = (at & !(self.page - 1)).saturating_add(self.page);
            }
            open = end.is_multiple_of(self.page);
            described += piece as usize;
        }
        first.filter(|_| described == len).map(|first| (first, second))
    }

    /// Puts `words` where the list of `slot` is, for a command whose data is made by the driver;
    /// returns its device address.
    pub(super) fn store(&self, slot: usize, words: [u64; 2]) -> u64 {
        self.memory.store_entry(slot * self.each / 8, &words);
        self.iova(slot)
    }

    fn iova(&self, slot: usize) -> u64 {
        self.memory.iova() + (slot * self.each) as u64
    }

    /// The memory underneath, to give it up or to leave it.
    pub(super) fn memory(&mut self) -> &mut DmaBuffer {
        &mut self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scattered::scattered;
    use proptest::prelude::*;
    use ring3_device::dma::Region;

    const PAGE: u64 = 4096;

    fn layout(max_transfer: u32) -> Layout {
        Layout { max_transfer, page: PAGE, chained: false }
    }

    fn arena() -> Arena {
        Arena::new(Region::new(4 << 20).unwrap(), 0x1000_0000)
    }

    /// The bytes that a device would move, as pieces that lie within pages.
    fn as_the_device_reads_it(
        lists: &Lists,
        slot: usize,
        (prp1, prp2): (u64, u64),
        len: u64,
    ) -> Vec<(u64, u64)> {
        let in_first = (PAGE - prp1 % PAGE).min(len);
        let (mut pieces, mut left) = (vec![(prp1, in_first)], len - in_first);
        let list = (lists.iova(slot) - lists.memory.iova()) as usize / 8;
        let mut next = 0;
        while left > 0 {
            let page = if len - in_first <= PAGE { prp2 } else { lists.memory.load(list + next) };
            pieces.push((page, left.min(PAGE)));
            left -= left.min(PAGE);
            next += 1;
        }
        pieces
    }

    fn in_pages(data: &Data, len: usize) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        for segment in data.segments(len) {
            let (mut at, end) = (segment.iova, segment.iova + u64::from(segment.len));
            while at < end {
                let step = (PAGE - at % PAGE).min(end - at);
                pieces.push((at, step));
                at += step;
            }
        }
        pieces
    }

    #[test]
    fn a_list_of_a_device_that_chains_has_an_entry_to_spare() {
        for (pages, each) in [(8, 512), (32, 512), (64, 1024), (511, 4096)] {
            let layout = Layout { chained: true, ..layout(pages * 4096) };
            assert_eq!(layout.each(), each, "{pages}");
            assert!(layout.each() / 8 > pages as usize);
        }
    }

    #[test]
    fn one_page_needs_one_entry() {
        let lists = Lists::new(&arena(), 1, layout(1 << 20)).unwrap();
        assert_eq!(lists.describe(0, &scattered(&[(0x8000, 4096)]), 4096), Some((0x8000, 0)));
    }

    #[test]
    fn a_page_that_begins_in_the_middle_needs_two_entries() {
        let lists = Lists::new(&arena(), 1, layout(1 << 20)).unwrap();
        assert_eq!(lists.describe(0, &scattered(&[(0x8800, 4096)]), 4096), Some((0x8800, 0x9000)));
    }

    #[test]
    fn a_piece_that_begins_within_a_page_is_only_accepted_first() {
        let lists = Lists::new(&arena(), 1, layout(1 << 20)).unwrap();
        assert_eq!(lists.describe(0, &scattered(&[(0x8000, 4096), (0xa200, 4096)]), 8192), None);
    }

    #[test]
    fn a_piece_that_ends_within_a_page_is_only_accepted_last() {
        let lists = Lists::new(&arena(), 1, layout(1 << 20)).unwrap();
        assert_eq!(lists.describe(0, &scattered(&[(0x8000, 512), (0xa000, 4096)]), 4608), None);
    }

    #[test]
    fn an_odd_address_is_rejected() {
        let lists = Lists::new(&arena(), 1, layout(1 << 20)).unwrap();
        assert_eq!(lists.describe(0, &scattered(&[(0x8002, 512)]), 512), None);
    }

    #[test]
    fn data_shorter_than_the_request_is_rejected() {
        let (arena, lists) = (arena(), Lists::new(&arena(), 1, layout(1 << 20)).unwrap());
        assert_eq!(lists.describe(0, &Data::from(arena.alloc_pages(512).unwrap()), 4096), None);
        assert_eq!(
            lists.describe(0, &Data::from(arena.alloc_pages(8192).unwrap()), 64 << 10),
            None
        );
        assert_eq!(lists.describe(0, &scattered(&[(0x8000, 512)]), 1024), None);
        assert_eq!(lists.describe(0, &Data::None, 512), None);
    }

    #[test]
    fn the_longest_request_fits_its_list_wherever_it_begins() {
        let lists = Lists::new(&arena(), 2, layout(MAX_TRANSFER)).unwrap();
        let data = scattered(&[(0x10_0200, MAX_TRANSFER)]);
        let prp = lists.describe(1, &data, MAX_TRANSFER as usize).unwrap();
        assert_eq!(
            as_the_device_reads_it(&lists, 1, prp, MAX_TRANSFER.into()),
            in_pages(&data, MAX_TRANSFER as usize)
        );
    }

    proptest! {
        #[test]
        fn what_the_device_reads_is_what_was_meant(
            offset in (0u64..1024).prop_map(|dwords| dwords * 4),
            pages in prop::collection::vec(1u64..9, 1..12),
            cut in 0u64..4096,
            slot in 0usize..4,
        ) {
            let lists = Lists::new(&arena(), 4, layout(1 << 20)).unwrap();
            let mut pieces: Vec<(u64, u32)> = Vec::new();
            for (i, &count) in pages.iter().enumerate() {
                let start = (i as u64 + 1) << 20;
                let skip = if i == 0 { offset } else { 0 };
                pieces.push((start + skip, (count * PAGE - skip) as u32));
            }
            let data = scattered(&pieces);
            let len = (data.len() as u64 - cut.min(data.len() as u64 - 1)) as usize;
            let prp = lists.describe(slot, &data, len).unwrap();
            let read = as_the_device_reads_it(&lists, slot, prp, len as u64);
            prop_assert_eq!(read, in_pages(&data, len));
        }

        #[test]
        fn a_buffer_and_the_same_range_as_a_segment_are_described_alike(pages in 1usize..20, len in 4usize..80_000) {
            let arena = arena();
            let lists = Lists::new(&arena, 1, layout(1 << 20)).unwrap();
            let buffer = arena.alloc(pages * 4096, 4).unwrap();
            let same = scattered(&[(buffer.iova(), buffer.len() as u32)]);
            let described = lists.describe(0, &Data::from(buffer), len);
            prop_assert_eq!(described, lists.describe(0, &same, len));
        }
    }
}
