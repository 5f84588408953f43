//! Where the bytes of a request are.

use std::ops::Deref;
use std::sync::Arc;

use ring3_device::dma::{DmaBuffer, Foreign, Piece, Segment};

/// The bytes of a request, lent to the device until its completion.
///
/// Each kind is one pointer, so that a request's data travel in two registers, from the submitter to the device's slot and back.
#[derive(Debug, Default)]
pub enum Data {
    /// No bytes (flush, discard, write zeroes).
    #[default]
    None,
    /// A range of the device's arena, from its start.
    Buffer(DmaBuffer),
    /// Device addresses whose memory is kept by the submitter: a list of pieces, in order.
    Segments(List<Segment>),
    /// As [`Segments`](Self::Segments), of memory that others use, too.
    Part(Box<Part>),
    /// Pieces of memory outside of the arena. A [`Splitter`](super::Splitter) maps or copies them; drivers refuse them.
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

/// Pieces of memory that others use, too, and what keeps it until the last of them is done.
pub struct Part {
    segments: Box<[Segment]>,
    #[allow(dead_code, reason = "held, never looked at")]
    owner: Arc<dyn Send + Sync>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.segments.fmt(f)
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

impl Data {
    /// Device addresses of memory that `owner` keeps.
    pub fn part(segments: Box<[Segment]>, owner: Arc<dyn Send + Sync>) -> Self {
        Self::Part(Box::new(Part { segments, owner }))
    }

    /// Bytes that it can hold.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Buffer(buffer) => buffer.len(),
            Self::Segments(segments) => total(segments),
            Self::Part(part) => total(&part.segments),
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
            Self::Buffer(buffer) => Segments { first: Some(buffer.segment(len)), rest: &[], left: len },
            Self::Segments(segments) => Segments { first: None, rest: segments, left: len },
            Self::Part(part) => Segments { first: None, rest: &part.segments, left: len },
        }
    }

    /// The device addresses of bytes `skip..skip + len`.
    pub fn window(&self, skip: usize, len: usize) -> Box<[Segment]> {
        let (all, mut skip) = (self.segments(skip + len), skip as u64);
        let cut = |segment: Segment| {
            let gone = skip.min(segment.len.into());
            skip -= gone;
            let len = segment.len - gone as u32;
            (len > 0).then_some(Segment { iova: segment.iova + gone, len })
        };
        all.filter_map(cut).collect()
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

fn total(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len as usize).sum()
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

    #[test]
    fn segments_end_where_the_request_ends() {
        let data =
            Data::Segments([Segment { iova: 0x1000, len: 512 }, Segment { iova: 0x9000, len: 4096 }].into_iter().collect());
        let pieces: Vec<_> = data.segments(1024).collect();
        assert_eq!(pieces, [Segment { iova: 0x1000, len: 512 }, Segment { iova: 0x9000, len: 512 }]);
    }

    #[test]
    fn a_window_starts_and_ends_within_segments() {
        let data =
            Data::Segments([Segment { iova: 0x1000, len: 512 }, Segment { iova: 0x9000, len: 4096 }].into_iter().collect());
        let pieces = data.window(256, 512);
        assert_eq!(*pieces, [Segment { iova: 0x1100, len: 256 }, Segment { iova: 0x9000, len: 256 }]);
        assert_eq!(*data.window(1024, 512), [Segment { iova: 0x9200, len: 512 }]);
    }

    #[test]
    fn data_without_bytes_has_no_segments() {
        assert_eq!(Data::None.segments(4096).next(), None);
    }
}
