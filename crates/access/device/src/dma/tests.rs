//! Tests of arenas that grow, and of regions that several devices share.

use super::*;

const PAGE: u64 = 4096;

/// An IOMMU that refuses what overlaps, and everything beyond `room` mappings.
#[derive(Default)]
struct Table {
    mapped: Mutex<Vec<(u64, u64)>>,
    room: usize,
}

impl Iommu for Table {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        let (mut mapped, end) = (self.mapped.lock().unwrap(), iova + pages.len() as u64);
        assert!(mapped.iter().all(|&(start, stop)| end <= start || stop <= iova));
        if mapped.len() == self.room {
            return Err(Error::Claim("no mapping is left".into()));
        }
        mapped.push((iova, end));
        Ok(())
    }
    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        self.mapped.lock().unwrap().retain(|&range| range != (iova, iova + len as u64));
        Ok(())
    }
    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=1 << 40]
    }
    fn page_size(&self) -> usize {
        PAGE as usize
    }
}

fn dma(room: usize) -> (Dma, Arc<Table>) {
    let table = Arc::new(Table { room, ..Table::default() });
    (Dma::new(Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000), table.clone()), table)
}

#[test]
fn allocation_falls_through_to_what_was_added_and_frees_go_back_to_their_region() {
    let (dma, _) = dma(1);
    let (arena, first) = (dma.arena(), dma.arena().len());
    let low = arena.alloc(first, 4096).unwrap();
    assert!(matches!(arena.alloc(1, 1), Err(Error::NoMemory { .. })));
    dma.grow(1 << 16).unwrap();
    let high = arena.alloc_pages(8192).unwrap();
    assert_eq!((low.span().region, high.span().region), (0, 1));
    high.write(8000, b"there").unwrap();
    let mut bytes = [0; 5];
    dma.read(high.iova() + 8000, &mut bytes).unwrap();
    assert_eq!(&bytes, b"there");
    drop(low);
    assert_eq!(arena.alloc(1, 1).unwrap().span().region, 0);
    assert_eq!(arena.free_bytes(), arena.len() - 8192);
    drop(high);
    assert_eq!(arena.free_bytes(), arena.len());
}

#[test]
fn a_buffer_that_is_a_region_leaves_the_rest_of_the_arena_and_is_used_again() {
    let (dma, table) = dma(2);
    let (arena, first, free) = (dma.arena(), dma.arena().len(), dma.arena().free_bytes());
    let buffer = dma.alloc_region(3 * PAGE as usize).unwrap();
    assert_eq!((buffer.len(), buffer.span().region), (3 * PAGE as usize, 1));
    assert!(arena.free_bytes() >= free && arena.alloc(first, 4096).is_ok());
    let address = buffer.iova();
    drop(buffer);
    let again = dma.alloc_region(3 * PAGE as usize).unwrap();
    assert_eq!((again.iova(), table.mapped.lock().unwrap().len()), (address, 1));
    assert_eq!(dma.alloc_region(3 * PAGE as usize).unwrap().span().region, 2);
    assert!(matches!(dma.alloc_region(8 << 20), Err(Error::Claim(_))));
}

#[test]
fn a_region_that_cannot_be_mapped_leaves_the_arena_as_it_was() {
    let (dma, table) = dma(0);
    assert!(matches!(dma.grow(4096), Err(Error::Claim(_))));
    assert_eq!((dma.arena().regions().count(), table.mapped.lock().unwrap().len()), (1, 0));
    let fixed = Dma::new(dma.arena().clone(), Arc::new(StaticIommu::identity(0..=u64::MAX)));
    let error = fixed.grow(4096).unwrap_err().to_string();
    assert!(error.contains("open it with a larger arena (arena=64M in its name)"), "{error}");
}

#[test]
fn one_region_too_many_is_refused_and_unmapped_again() {
    let (dma, table) = dma(MAX_REGIONS + 1);
    (1..MAX_REGIONS).for_each(|_| dma.grow(4096).unwrap());
    assert!(matches!(dma.grow(4096), Err(Error::Unsupported(_))));
    assert_eq!(table.mapped.lock().unwrap().len(), MAX_REGIONS - 1);
}

#[test]
fn a_confined_device_grows_below_its_limit_or_not_at_all() {
    let (dma, _) = dma(9);
    assert!(!dma.confine(0x10_0000) && dma.confine(8 << 20));
    assert!(matches!(dma.grow(16 << 20), Err(Error::Unsupported(_))));
    dma.grow(1 << 20).unwrap();
    assert!(dma.arena().is_below(8 << 20));
}

#[test]
fn a_span_is_found_only_within_one_region() {
    let (dma, _) = dma(1);
    dma.grow(4096).unwrap();
    let lens: Vec<_> = dma.arena().regions().map(|placed| placed.region.len() as u64).collect();
    let found = |region, offset, len| dma.arena().segment(Span { region, len, offset });
    for (region, len) in (0..).zip(lens) {
        let base = dma.arena().regions().nth(region as usize).unwrap().iova;
        assert_eq!(found(region, len - 1, 1), Some(Segment { iova: base + len - 1, len: 1 }));
        for (offset, len) in
            [(len - 1, 2), (len, 1), (len + 1, 1), (u64::MAX, 1), (0, 0), (0, u32::MAX)]
        {
            assert_eq!(found(region, offset, len), None, "{region}: {offset}+{len}");
        }
    }
    assert!([2, MAX_REGIONS as u32, u32::MAX].iter().all(|&region| found(region, 0, 1).is_none()));
}

#[test]
fn a_second_device_has_a_region_where_the_first_has_it_or_elsewhere() {
    let ((first, _), (second, table)) = (dma(9), dma(9));
    first.grow(1 << 16).unwrap();
    let (placed, buffer) =
        (first.arena().regions().nth(1).unwrap(), first.arena().alloc(64 << 10, 1).unwrap());
    buffer.write(0, b"shared").unwrap();
    let same = second.map_at(placed.region.pages().unwrap(), placed.iova).unwrap();
    assert!(matches!(
        second.map_at(placed.region.pages().unwrap(), placed.iova),
        Err(Error::Busy(_))
    ));
    assert!(second.map_at(placed.region.pages().unwrap(), placed.iova + 1).is_err());
    let other = second.map(placed.region.pages().unwrap()).unwrap();
    let mut bytes = [0; 6];
    for mapping in [&same, &other] {
        let at = buffer.span();
        let iova = if at.region == 1 { mapping.iova() + at.offset } else { continue };
        second.read(iova, &mut bytes).unwrap();
        assert_eq!(&bytes, b"shared");
    }
    drop((same, other));
    assert_eq!(table.mapped.lock().unwrap().len(), 0);
}

/// Which pages of `len` bytes at `at` are in this process's page table. [Linux,
/// Documentation/admin-guide/mm/pagemap.rst]
fn mapped_pages(at: *const u8, len: usize) -> Vec<bool> {
    use std::os::unix::fs::FileExt;

    const PRESENT: u64 = 1 << 63;
    let page = rustix::param::page_size();
    let file = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; len / page * 8];
    file.read_exact_at(&mut entries, (at as u64 / page as u64) * 8).unwrap();
    let entry = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap()) & PRESENT != 0;
    entries.chunks(8).map(entry).collect()
}

#[test]
fn pages_that_a_device_has_filled_are_mapped_before_the_kernel_is_asked_to_copy_them() {
    const LEN: usize = 64 << 12;
    let region = Region::new(LEN).unwrap();
    // The pages are the file's, as a device writes them: this process has touched none.
    let fd = region.fd().unwrap().try_clone_to_owned().unwrap();
    rustix::io::pwrite(&fd, &[1; LEN], 0).unwrap();
    let buffer = Arena::new(region, 0x10000).alloc_uninitialised(LEN).unwrap();
    assert_eq!(mapped_pages(buffer.as_ptr(), LEN).iter().filter(|&&is| is).count(), 0);
    buffer.map_pages(LEN);
    assert!(mapped_pages(buffer.as_ptr(), LEN).iter().all(|&is| is));
}
