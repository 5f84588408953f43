//! The location of a request's bytes.

use std::ops::Deref;
use std::sync::Arc;

use ring3_device::Error;
use ring3_device::dma::{Claims, DmaBuffer, Foreign, Piece, Segment, SegmentList, Span};

/// The bytes of a request, lent to the device until its completion.
///
/// Each kind is one pointer, so that a request's data travel in two registers, from the submitter
/// to the device's slot and back.
#[derive(Debug, Default)]
pub enum Data {
    /// No bytes (flush, discard, write zeroes).
    #[default]
    None,
    /// A range of the device's arena, from its start.
    Buffer(DmaBuffer),
    /// Ranges of arenas, or of what is mapped, in order: device addresses that only the device
    /// layer makes.
    Segments(Box<SegmentList>),
    /// Pieces of memory outside of the arena. A [`Splitter`](super::Splitter) maps or copies them;
    /// drivers refuse them.
    Foreign(List<Piece>),
}

/// Pieces, in order; as long as a pointer.
#[derive(Debug)]
pub struct List<T>(Box<Box<[T]>>);

impl<T> Deref for List<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> FromIterator<T> for List<T> {
    fn from_iter<I: IntoIterator<Item = T>>(pieces: I) -> Self {
        Self(Box::new(pieces.into_iter().collect()))
    }
}

impl From<DmaBuffer> for Data {
    fn from(buffer: DmaBuffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<Foreign> for Data {
    fn from(memory: Foreign) -> Self {
        Piece::from(memory).into()
    }
}

impl From<Piece> for Data {
    fn from(piece: Piece) -> Self {
        Self::Foreign([piece].into_iter().collect())
    }
}

impl From<SegmentList> for Data {
    fn from(list: SegmentList) -> Self {
        Self::Segments(Box::new(list))
    }
}

impl Data {
    /// Bytes `skip..skip + len` of it, which the part keeps; nothing of foreign memory.
    pub fn part(self: &Arc<Self>, skip: usize, len: usize) -> Self {
        let list = match &**self {
            Self::None | Self::Foreign(_) => return Self::None,
            Self::Buffer(buffer) => buffer.list(skip, len),
            Self::Segments(list) => list.window(skip, len),
        };
        list.with_owner(self.clone()).into()
    }

    /// The names of its bytes in their arena, by which the next process [claims](Self::claim) them
    /// while the device still has them. `None` of memory beside an arena, which no other process
    /// can find.
    pub fn spans(&self) -> Option<Vec<Span>> {
        match self {
            Self::None => Some(Vec::new()),
            Self::Buffer(buffer) => Some(vec![buffer.span()]),
            Self::Segments(list) => list.spans(),
            Self::Foreign(_) => None,
        }
    }

    /// The data whose [`spans`](Self::spans) these were before its arena was
    /// [adopted](ring3_device::dma::Arena::adopt): a buffer that was saved becomes one again. Parts
    /// of buffers become a list; the buffers stay to be claimed by whoever owns them.
    /// [`Error::Invalid`] for what was not taken then, or is claimed already.
    pub fn claim(claims: &mut Claims, spans: &[Span]) -> Result<Self, Error> {
        if spans.is_empty() {
            return Ok(Self::None);
        }
        if let [whole] = spans
            && let Ok(buffer) = claims.claim(*whole)
        {
            return Ok(Self::Buffer(buffer));
        }
        let unclaimed = claims.arena().unclaimed();
        let stray =
            spans.iter().find(|part| !unclaimed.iter().any(|(range, _)| range.contains(**part)));
        let list = claims.arena().list(spans).filter(|_| stray.is_none());
        list.map(Self::from).ok_or_else(|| {
            Error::Invalid(format!("{spans:?} are no parts of ranges that were saved"))
        })
    }

    /// Bytes that it can hold.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Buffer(buffer) => buffer.len(),
            Self::Segments(list) => list.bytes(),
            Self::Foreign(pieces) => pieces.iter().map(|piece| piece.len).sum(),
        }
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device addresses of its first `len` bytes, in order; none of foreign memory.
    pub fn segments(&self, len: usize) -> Segments<'_> {
        match self {
            Self::None | Self::Foreign(_) => Segments { first: None, rest: &[], left: 0 },
            Self::Buffer(buffer) => {
                Segments { first: Some(buffer.segment(len)), rest: &[], left: len }
            }
            Self::Segments(list) => Segments { first: None, rest: list, left: len },
        }
    }

    /// The device address of its first byte, and how many of its bytes from there on lie in one
    /// page of 4 KiB ([`Segment::in_page`]). `None` without bytes, and of foreign memory.
    #[inline(always)]
    pub fn first_page(&self) -> Option<(u64, usize)> {
        match self {
            Self::Buffer(buffer) => Some((buffer.iova(), buffer.in_page())),
            Self::Segments(list) => list.first().map(|first| (first.iova, first.in_page())),
            Self::None | Self::Foreign(_) => None,
        }
    }

    /// The buffer, if it is one.
    #[inline]
    pub fn into_buffer(self) -> Option<DmaBuffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            other => other.discard(),
        }
    }

    #[cold]
    #[inline(never)]
    fn discard<T>(self) -> Option<T> {
        None
    }
}

/// Device addresses of a request, in order; made by [`Data::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    first: Option<Segment>,
    rest: &'a [Segment],
    left: usize,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        if self.left == 0 {
            return None;
        }
        let mut segment = match self.first.take() {
            Some(first) => first,
            None => {
                let (&next, rest) = self.rest.split_first()?;
                self.rest = rest;
                next
            }
        };
        segment.len = segment.len.min(self.left as u32);
        self.left -= segment.len as usize;
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ring3_device::dma::{Arena, Region};

    const IOVA: u64 = 0x1000;

    fn span(offset: u64, len: u32) -> Span {
        Span { region: 0, len, offset }
    }

    fn arena() -> Arena {
        Arena::new(Region::new(1 << 16).unwrap(), IOVA)
    }

    #[test]
    fn segments_end_where_the_request_ends() {
        let data = Data::from(arena().list(&[span(0, 512), span(0x8000, 4096)]).unwrap());
        let pieces: Vec<_> = data.segments(1024).collect();
        assert_eq!(
            pieces,
            [Segment { iova: 0x1000, len: 512 }, Segment { iova: 0x9000, len: 512 }]
        );
    }

    #[test]
    fn data_without_bytes_has_no_segments() {
        assert_eq!(Data::None.segments(4096).next(), None);
    }

    #[test]
    fn a_part_keeps_the_whole() {
        let arena = arena();
        let free = arena.free_bytes();
        let whole = Arc::new(Data::from(arena.alloc_pages(8192).unwrap()));
        let part = whole.part(4096, 4096);
        assert_eq!(part.spans(), Some(vec![whole.spans().unwrap()[0].part(4096, 4096).unwrap()]));
        drop(whole);
        assert_eq!(arena.free_bytes(), free - 8192);
        drop(part);
        assert_eq!(arena.free_bytes(), free);
    }

    #[test]
    fn foreign_memory_has_no_spans() {
        assert_eq!(Data::from(Foreign::from(vec![0; 512])).spans(), None);
    }

    /// The same arena in another process, with what was taken of it.
    fn adopted(arena: &Arena) -> Arena {
        let regions = arena.regions().map(|placed| placed.region.clone()).collect();
        Arena::adopt(regions, &arena.save()).unwrap()
    }

    #[test]
    fn data_that_was_saved_is_claimed_by_its_spans_once() {
        let before = arena();
        let data = Data::from(before.alloc_pages(4096).unwrap());
        let (spans, arena) = (data.spans().unwrap(), adopted(&before));
        let claimed = Data::claim(&mut Claims::new(&arena), &spans).unwrap();
        assert!(matches!(claimed, Data::Buffer(_)));
        assert_eq!(claimed.spans(), Some(spans.clone()));
        assert!(Data::claim(&mut Claims::new(&arena), &spans).is_err());
        assert!(matches!(Data::claim(&mut Claims::new(&arena), &[]), Ok(Data::None)));
    }

    #[test]
    fn parts_are_claimed_of_what_was_saved_and_of_nothing_else() {
        let before = arena();
        let whole = Arc::new(Data::from(before.alloc_pages(8192).unwrap()));
        let (parts, arena) = (whole.part(512, 1024).spans().unwrap(), adopted(&before));
        let claimed = Data::claim(&mut Claims::new(&arena), &parts).unwrap();
        assert_eq!((claimed.spans(), arena.unclaimed().len()), (Some(parts), 1));
        let Span { offset, .. } = whole.spans().unwrap()[0];
        for stray in [span(offset + 8191, 2), span(offset + 8192, 512), span(1 << 40, 512)] {
            assert!(Data::claim(&mut Claims::new(&arena), &[stray]).is_err(), "{stray:?}");
        }
    }
}
