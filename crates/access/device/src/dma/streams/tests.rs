use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use super::super::{Arena, Iommu, Pages, Region};
use super::*;

const PAGE: usize = 4096;

/// Remembers what is mapped.
#[derive(Default)]
struct Table {
    mapped: Mutex<Vec<(u64, usize)>>,
    fixed: bool,
}

impl Iommu for Table {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        let mut mapped = self.mapped.lock().unwrap();
        assert!(
            mapped
                .iter()
                .all(|&(at, len)| iova + pages.len() as u64 <= at || at + len as u64 <= iova)
        );
        mapped.push((iova, pages.len()));
        Ok(())
    }
    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        self.mapped.lock().unwrap().retain(|&range| range != (iova, len));
        Ok(())
    }
    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=0xffff, 0x20_0000..=u64::MAX]
    }
    fn page_size(&self) -> usize {
        PAGE
    }
    fn can_map(&self, _: &Pages) -> bool {
        !self.fixed
    }
}

fn streams(table: Table, mode: Mode, cache: CacheLimits) -> (Streams, Arc<Table>) {
    let table = Arc::new(table);
    let arena = Arena::new(Region::new(64 * PAGE).unwrap(), 0x40_0000);
    let dma = Dma::new(arena, table.clone());
    let limits =
        StreamLimits { mode, rules: SegmentRules::PAGES, cache, copies: 2, copy_size: 4 * PAGE };
    (Streams::new(&dma, limits).unwrap(), table)
}

fn zero_copy() -> (Streams, Arc<Table>) {
    streams(Table::default(), Mode::ZeroCopy, CacheLimits::default())
}

fn whole(pieces: &[Piece], direction: Direction) -> Transfer<'_> {
    Transfer { pieces, skip: 0, len: pieces.iter().map(|piece| piece.len).sum(), direction }
}

fn pages(count: usize) -> Piece {
    Foreign::new(count * PAGE).unwrap().into()
}

#[test]
fn whole_pages_are_mapped_once_and_found_again() {
    let (mut streams, table) = zero_copy();
    let pieces = [pages(4)];
    for _ in 0..3 {
        let stream = streams.begin(whole(&pieces, Direction::ToDevice)).unwrap();
        assert!(
            matches!(&stream, Stream::Mapped(segments) if segments[0].len as usize == 4 * PAGE)
        );
        streams.end(stream, whole(&pieces, Direction::ToDevice), true).unwrap();
    }
    let stats = streams.stats();
    assert_eq!(
        (stats.hits, stats.misses, stats.copied, table.mapped.lock().unwrap().len()),
        (2, 1, 0, 1)
    );
}

#[test]
fn registered_memory_is_reached_where_it_is_and_mapped_by_no_stream() {
    let (mut streams, table) = zero_copy();
    let pieces = [pages(4)];
    let lent = pieces[0].memory.region();
    (0..2).for_each(|_| streams.dma.register_region(lent).unwrap());
    let part = Transfer { skip: PAGE, ..whole(&pieces, Direction::FromDevice) };
    let stream = streams.begin(Transfer { len: PAGE, ..part }).unwrap();
    let iova = streams.dma.arena().address(lent).unwrap();
    assert!(matches!(&stream, Stream::Mapped(segments) if segments[0].iova == iova + PAGE as u64));
    assert_eq!((streams.stats().misses, table.mapped.lock().unwrap().len()), (0, 1));
}

#[test]
fn device_addresses_avoid_what_is_reserved_and_the_arena() {
    let (mut streams, table) = zero_copy();
    let held: Vec<_> = (0..40).map(|_| [pages(16)]).collect();
    let _streams: Vec<_> = held
        .iter()
        .map(|pieces| streams.begin(whole(pieces, Direction::ToDevice)).unwrap())
        .collect();
    for &(iova, len) in table.mapped.lock().unwrap().iter() {
        let end = iova + len as u64;
        assert!(
            iova >= PAGE as u64 && (end <= 0x1_0000 || iova >= 0x20_0000),
            "{iova:#x} is reserved"
        );
        assert!(end <= 0x40_0000 || iova >= 0x44_0000, "{iova:#x} is the arena's");
    }
}

#[test]
fn a_device_with_few_address_lines_gets_low_addresses_or_copies() {
    let table = Arc::new(Table::default());
    let dma =
        Dma::new(Arena::new(Region::new(PAGE).unwrap(), 0x40_0000), table.clone()).below(0x3000);
    let held: Vec<_> = (0..3).map(|_| Foreign::new(PAGE).unwrap()).collect();
    let mapped: Vec<_> =
        held.iter().map_while(|memory| dma.map(memory.region().pages().unwrap()).ok()).collect();
    assert_eq!(mapped.iter().map(|mapping| mapping.iova()).collect::<Vec<_>>(), [0x1000, 0x2000]);
}

#[test]
fn a_vector_is_copied_both_ways() {
    let (mut streams, _) = zero_copy();
    let pieces =
        [Piece::from(Foreign::from(vec![7u8; 1000])), Piece::from(Foreign::from(vec![9u8; 24]))];
    let Stream::Copied(buffer) = streams.begin(whole(&pieces, Direction::ToDevice)).unwrap() else {
        panic!("mapped")
    };
    let mut bytes = [0; 2];
    buffer.read(999, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 9]);
    buffer.fill(0x5a);
    streams.end(Stream::Copied(buffer), whole(&pieces, Direction::FromDevice), true).unwrap();
    pieces[1].memory.read(22, &mut bytes).unwrap();
    assert_eq!(bytes, [0x5a; 2]);
}

#[test]
fn a_read_that_failed_changes_no_foreign_byte() {
    let (mut streams, _) = zero_copy();
    let pieces = [Piece::from(Foreign::from(vec![7u8; 512]))];
    let stream = streams.begin(whole(&pieces, Direction::FromDevice)).unwrap();
    streams.end(stream, whole(&pieces, Direction::FromDevice), false).unwrap();
    let mut bytes = [0];
    pieces[0].memory.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7]);
}

#[test]
fn pieces_with_a_gap_that_the_device_cannot_take_are_copied() {
    let (mut streams, _) = zero_copy();
    let half = |memory: &Foreign, offset| Piece { memory: memory.clone(), offset, len: 512 };
    let memory = Foreign::new(PAGE).unwrap();
    let pieces = [half(&memory, 0), half(&memory, 2048)];
    assert!(matches!(streams.begin(whole(&pieces, Direction::ToDevice)), Ok(Stream::Copied(_))));
}

#[test]
fn pieces_that_touch_become_one_segment() {
    let (mut streams, _) = zero_copy();
    let memory = Foreign::new(2 * PAGE).unwrap();
    let pieces = [(512, 1024), (1536, 2048)].map(|(offset, len)| Piece {
        memory: memory.clone(),
        offset,
        len,
    });
    let stream = streams.begin(whole(&pieces, Direction::ToDevice)).unwrap();
    assert!(matches!(
        &stream, Stream::Mapped(segments) if segments.len() == 1 && segments[0].len == 3072,
    ));
}

#[test]
fn a_window_of_a_transfer_starts_and_ends_within_pieces() {
    let (mut streams, _) = zero_copy();
    let pieces = [pages(2), pages(2)];
    let transfer = Transfer { skip: PAGE, len: 2 * PAGE, ..whole(&pieces, Direction::ToDevice) };
    let Stream::Mapped(segments) = streams.begin(transfer).unwrap() else { panic!("copied") };
    assert_eq!(segments.iter().map(|segment| segment.len as usize).sum::<usize>(), 2 * PAGE);
}

#[test]
fn a_backend_that_cannot_map_later_gets_copies() {
    let table = Table { fixed: true, ..Table::default() };
    let (mut streams, table) = streams(table, Mode::ZeroCopy, CacheLimits::default());
    assert!(matches!(
        streams.begin(whole(&[pages(1)], Direction::ToDevice)),
        Ok(Stream::Copied(_))
    ));
    assert!(table.mapped.lock().unwrap().is_empty());
}

#[test]
fn copying_can_be_chosen() {
    let (mut streams, table) = streams(Table::default(), Mode::Copy, CacheLimits::default());
    assert!(matches!(
        streams.begin(whole(&[pages(1)], Direction::ToDevice)),
        Ok(Stream::Copied(_))
    ));
    assert!(table.mapped.lock().unwrap().is_empty());
}

#[test]
fn the_least_recently_used_mapping_goes_first() {
    let (mut streams, table) =
        streams(Table::default(), Mode::ZeroCopy, CacheLimits { bytes: usize::MAX, entries: 2 });
    let held = [[pages(1)], [pages(1)], [pages(1)]];
    for index in [0, 1, 0, 2, 0] {
        drop(streams.begin(whole(&held[index], Direction::ToDevice)).unwrap());
    }
    let stats = streams.stats();
    assert_eq!(
        (stats.hits, stats.misses, stats.evictions, table.mapped.lock().unwrap().len()),
        (2, 3, 1, 2)
    );
}

#[test]
fn a_mapping_in_use_is_never_evicted() {
    let (mut streams, table) =
        streams(Table::default(), Mode::ZeroCopy, CacheLimits { bytes: PAGE, entries: 1 });
    let (first, second) = ([pages(1)], [pages(1)]);
    let stream = streams.begin(whole(&first, Direction::ToDevice)).unwrap();
    let other = streams.begin(whole(&second, Direction::ToDevice)).unwrap();
    assert_eq!(table.mapped.lock().unwrap().len(), 2);
    drop((stream, other));
    streams.purge(true);
    assert!(table.mapped.lock().unwrap().is_empty());
}

#[test]
fn memory_that_nobody_uses_any_more_is_unmapped_at_the_next_miss() {
    let (mut streams, table) = zero_copy();
    drop(streams.begin(whole(&[pages(1)], Direction::ToDevice)).unwrap());
    drop(streams.begin(whole(&[pages(1)], Direction::ToDevice)).unwrap());
    assert_eq!(table.mapped.lock().unwrap().len(), 1);
}

#[test]
fn a_mapping_outlives_the_streams_that_made_it() {
    let (mut streams, table) = zero_copy();
    let stream = streams.begin(whole(&[pages(1)], Direction::ToDevice)).unwrap();
    drop(streams);
    assert_eq!(table.mapped.lock().unwrap().len(), 1);
    drop(stream);
    assert!(table.mapped.lock().unwrap().is_empty());
}

#[test]
fn a_transfer_beyond_its_memory_is_refused() {
    let (mut streams, _) = zero_copy();
    let memory = Foreign::new(PAGE).unwrap();
    let pieces = [Piece { memory, offset: PAGE - 1, len: 2 }];
    assert!(streams.begin(whole(&pieces, Direction::ToDevice)).is_err());
    let short = [pages(1)];
    let transfer = Transfer { len: PAGE + 1, ..whole(&short, Direction::ToDevice) };
    assert!(streams.begin(transfer).is_err());
}

#[test]
fn copies_beyond_the_arena_are_refused_and_work_again_later() {
    let (mut streams, _) = streams(Table::default(), Mode::Copy, CacheLimits::default());
    let pieces = [pages(4)];
    let mut held = Vec::new();
    let error = loop {
        match streams.begin(whole(&pieces, Direction::ToDevice)) {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoMemory { .. }));
    streams.end(held.pop().unwrap(), whole(&pieces, Direction::ToDevice), true).unwrap();
    assert!(streams.begin(whole(&pieces, Direction::ToDevice)).is_ok());
}

#[test]
fn an_arena_with_room_for_one_copy_buffer_is_enough_and_one_without_room_is_refused() {
    let arena = Arena::new(Region::new(2 * PAGE).unwrap(), 0x40_0000);
    let dma = Dma::new(arena, Arc::new(Table::default()));
    let limits = StreamLimits {
        mode: Mode::Copy,
        rules: SegmentRules::PAGES,
        cache: CacheLimits::default(),
        copies: 16,
        copy_size: 2 * PAGE,
    };
    let mut streams = Streams::new(&dma, limits).unwrap();
    assert!(matches!(Streams::new(&dma, limits), Err(Error::NoMemory { .. })));
    let pieces = [pages(2)];
    for _ in 0..2 {
        let stream = streams.begin(whole(&pieces, Direction::ToDevice)).unwrap();
        streams.end(stream, whole(&pieces, Direction::ToDevice), true).unwrap();
    }
}

#[test]
fn a_transfer_longer_than_a_copy_buffer_leaves_the_pool_whole() {
    let (mut streams, _) = streams(Table::default(), Mode::Copy, CacheLimits::default());
    let long = [pages(8)];
    let stream = streams.begin(whole(&long, Direction::ToDevice)).unwrap();
    assert_eq!(streams.copies.len(), 2);
    streams.end(stream, whole(&long, Direction::ToDevice), true).unwrap();
    assert_eq!(streams.copies.len(), 2);
}
