//! Data for requests that name their bytes by an address in this process.

use ring3_device::dma::{Arena, Dma, SegmentList, Span};

use super::Data;

/// Makes the [`Data`] of requests whose submitter has an address: a program in C, or in a language
/// that calls C.
///
/// The addresses lie in the arena or in a [registered region](super::Disk::register_region). Each
/// request in flight has a list of its own, which is used again, so a request allocates nothing
/// once as many lists exist as requests were in flight.
///
/// # Trust
/// An address outside of that memory is refused. Whether the bytes are the submitter's is the
/// submitter's affair: it keeps them allocated until the request ends.
pub struct Lender {
    arena: Arena,
    free: Vec<Data>,
}

impl Lender {
    /// For up to `depth` requests in flight, whose bytes lie in the memory of `dma`.
    pub fn new(dma: &Dma, depth: u16) -> Self {
        let arena = dma.arena().clone();
        let free = (0..depth).filter_map(|_| Self::list(&arena)).collect();
        Self { arena, free }
    }

    /// The `len` bytes at `address` of this process; `None` unless the device reaches all of them.
    #[inline]
    pub fn lend(&mut self, address: usize, len: usize) -> Option<Data> {
        let span = self.span(address, len)?;
        let mut data = match self.free.pop() {
            Some(data) => data,
            // Its list was lost with memory that a driver has abandoned.
            None => Self::list(&self.arena)?,
        };
        let Data::Segments(list) = &mut data else { return None };
        list.aim(&[span]).then_some(data)
    }

    /// Takes the data of a request that has ended, for the next one.
    #[inline]
    pub fn take_back(&mut self, data: Data) {
        if matches!(data, Data::Segments(_)) && self.free.len() < self.free.capacity() {
            self.free.push(data);
        }
    }

    fn list(arena: &Arena) -> Option<Data> {
        // Room for the one segment, so that the first request allocates nothing either.
        let first = arena.regions().next()?;
        let len = first.region.len().min(1) as u32;
        let list: SegmentList = arena.list(&[Span { region: 0, len, offset: 0 }])?;
        Some(list.into())
    }

    #[inline]
    fn span(&self, address: usize, len: usize) -> Option<Span> {
        let len = u32::try_from(len).ok()?;
        self.arena.regions().zip(0..).find_map(|(placed, region)| {
            let offset = address.checked_sub(placed.region.as_ptr() as usize)?;
            let end = offset.checked_add(len as usize)?;
            (end <= placed.region.len()).then_some(Span { region, len, offset: offset as u64 })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Disk, Ram};
    use super::*;

    #[test]
    fn bytes_of_a_buffer_become_data_by_their_address() {
        let disk = Ram::new(512, 100, 1 << 20).unwrap();
        let buffer = disk.dma().arena().alloc_pages(8192).unwrap();
        let mut lender = Lender::new(disk.dma(), 2);
        let data = lender.lend(buffer.as_ptr() as usize + 512, 1024).unwrap();
        let expected = buffer.list(512, 1024);
        assert_eq!(data.segments(usize::MAX).collect::<Vec<_>>(), expected[..]);
    }

    #[test]
    fn an_address_that_the_device_does_not_reach_is_refused() {
        let disk = Ram::new(512, 100, 1 << 20).unwrap();
        let region = disk.dma().arena().regions().next().unwrap().region.clone();
        let (first, end) = (region.as_ptr() as usize, region.as_ptr() as usize + region.len());
        let mut lender = Lender::new(disk.dma(), 2);
        assert!(lender.lend(first, region.len()).is_some());
        for (address, len) in [(first - 1, 1), (end - 511, 512), (end, 1), (usize::MAX, 512)] {
            assert!(lender.lend(address, len).is_none(), "{address:#x}+{len}");
        }
    }

    #[test]
    fn more_requests_than_it_was_made_for_get_data_too() {
        let disk = Ram::new(512, 100, 1 << 20).unwrap();
        let buffer = disk.dma().arena().alloc_pages(4096).unwrap();
        let mut lender = Lender::new(disk.dma(), 1);
        let lent: Vec<_> =
            (0..3).filter_map(|_| lender.lend(buffer.as_ptr() as usize, 512)).collect();
        assert_eq!(lent.len(), 3);
        lent.into_iter().for_each(|data| lender.take_back(data));
        assert!(lender.lend(buffer.as_ptr() as usize, 512).is_some());
    }
}
