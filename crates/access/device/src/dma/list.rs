//! The segment list of a transfer: device addresses and lengths.

use std::ops::Deref;
use std::sync::Arc;

use super::ledger::RangeAllocator;
use super::{Arena, DmaBuffer, Segment, Span, bytes};
use crate::Error;

/// Device addresses of the bytes of one transfer, in order, and what keeps the bytes there.
///
/// A driver believes it, because nobody else can make one: not of numbers, but of [`Span`]s that an
/// arena has checked, of a buffer, or of mappings ([`Streams`](super::Streams)). Who submits for a
/// client asks an arena that has the client's regions and no others.
/// ```
/// # use ring3_device::dma::{Arena, Region, Span};
/// # fn main() -> Result<(), ring3_device::Error> {
/// let arena = Arena::new(Region::new(1 << 16)?, 0x10_0000);
/// let span = Span { region: 0, len: 512, offset: 0x2000 };
/// let list = arena.list(&[span]).expect("within its region");
/// assert_eq!(list[0].iova, 0x10_2000);
/// assert!(arena.list(&[Span { region: 0, len: 512, offset: 1 << 16 }]).is_none());
/// # Ok(())
/// # }
/// ```
/// ```compile_fail
/// # use ring3_device::dma::{Segment, SegmentList};
/// let segments = vec![Segment { iova: 0x1000, len: 4096 }];
/// let aimed = SegmentList { segments, arena: None, owners: Vec::new() };
/// ```
#[derive(Default)]
pub struct SegmentList {
    segments: Vec<Segment>,
    /// Whose spans they are; `None` of memory beside an arena.
    arena: Option<Arena>,
    /// Held, never looked at.
    owners: Vec<Arc<dyn Send + Sync>>,
}

impl SegmentList {
    /// The same list, which also holds `owner`, until the last list made of it is dropped.
    pub fn with_owner(mut self, owner: Arc<dyn Send + Sync>) -> Self {
        self.owners.push(owner);
        self
    }

    /// Becomes the bytes of `spans`, in order, as by [`Arena::list`] of the arena that it was made
    /// of, in the memory that it has: for who has one list for each request that may be in flight.
    /// False, and of no bytes, if a span is none of that arena's.
    pub fn aim(&mut self, spans: &[Span]) -> bool {
        self.segments.clear();
        let Some(arena) = &self.arena else { return false };
        for &span in spans {
            let Some(segment) = arena.segment(span) else {
                self.segments.clear();
                return false;
            };
            self.segments.push(segment);
        }
        true
    }

    /// Bytes `skip..skip + len` of it, or as many of these as it has.
    pub fn window(&self, skip: usize, len: usize) -> Self {
        let (mut skip, mut left) = (skip as u64, len as u64);
        let cut = |segment: &Segment| {
            let gone = skip.min(segment.len.into());
            let len = (u64::from(segment.len) - gone).min(left);
            (skip, left) = (skip - gone, left - len);
            (len > 0).then_some(Segment { iova: segment.iova + gone, len: len as u32 })
        };
        let segments = self.segments.iter().filter_map(cut).collect();
        Self { segments, arena: self.arena.clone(), owners: self.owners.clone() }
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.len as usize).sum()
    }

    /// The names of its segments in their arena; `None` of memory beside an arena, which no other
    /// process can find.
    pub fn spans(&self) -> Option<Vec<Span>> {
        let arena = self.arena.as_ref()?;
        self.segments.iter().map(|segment| arena.span(segment.iova, segment.len as usize)).collect()
    }

    /// Copies its first `len` bytes to `buffer`, from its start, in this process: for a device that
    /// does not reach them. Fails of memory beside an arena, and where either is shorter.
    pub fn copy_to(&self, buffer: &DmaBuffer, len: usize) -> Result<(), Error> {
        self.copy(buffer, len, |bytes, place, len| {
            // SAFETY: `copy` proved both ranges, which are only accessed by raw pointers.
            unsafe { bytes::copy(bytes, place, len) }
        })
    }

    /// Copies the first `len` bytes of `buffer` to its own, from its start. Fails as
    /// [`copy_to`](Self::copy_to).
    pub fn copy_from(&self, buffer: &DmaBuffer, len: usize) -> Result<(), Error> {
        self.copy(buffer, len, |bytes, place, len| {
            // SAFETY: `copy` proved both ranges, which are only accessed by raw pointers.
            unsafe { bytes::copy(place, bytes, len) }
        })
    }

    /// Runs `step` on each piece of its first `len` bytes, with its place in `buffer`.
    fn copy(
        &self,
        buffer: &DmaBuffer,
        len: usize,
        step: impl Fn(*mut u8, *mut u8, usize),
    ) -> Result<(), Error> {
        let none =
            || Error::Invalid("bytes that are in no arena, or fewer than are to be copied".into());
        let arena = self.arena.as_ref().ok_or_else(none)?;
        let mut done = 0;
        for segment in &self.segments {
            let piece = (segment.len as usize).min(len - done);
            let bytes = arena.at(segment.iova, piece).ok_or_else(none)?;
            step(bytes.as_ptr(), buffer.checked(done, piece)?, piece);
            done += piece;
        }
        if done == len { Ok(()) } else { Err(none()) }
    }

    /// Releases the buffers that its segments lie in to the next owner: they stay allocated until
    /// they are [claimed](Arena::claim), even if a holder drops them.
    pub fn release_to_successor(self) {
        if let Some(arena) = &self.arena {
            self.segments.iter().for_each(|segment| {
                arena.change(segment.iova, RangeAllocator::release_to_successor)
            });
        }
    }

    /// Appends memory that `owner` keeps mapped at `iova`.
    pub(super) fn push_mapped(&mut self, iova: u64, len: u32, owner: Arc<dyn Send + Sync>) {
        match self.segments.last_mut() {
            Some(last) if last.iova + u64::from(last.len) == iova => last.len += len,
            _ => self.segments.push(Segment { iova, len }),
        }
        self.owners.push(owner);
    }
}

impl Arena {
    /// The bytes of `spans`, in order; `None` unless each lies in one of the arena's regions. The
    /// caller sees to it that they stay allocated, by [`SegmentList::with_owner`] of their owner: a
    /// range that was given back is somebody else's soon.
    pub fn list(&self, spans: &[Span]) -> Option<SegmentList> {
        let segments = spans.iter().map(|&span| self.segment(span)).collect::<Option<_>>()?;
        Some(SegmentList { segments, arena: Some(self.clone()), owners: Vec::new() })
    }
}

impl DmaBuffer {
    /// Bytes `skip..skip + len` of it, or as many of these as it has. Lent as by [`Arena::list`].
    pub fn list(&self, skip: usize, len: usize) -> SegmentList {
        let whole = SegmentList {
            segments: vec![self.segment(usize::MAX)],
            arena: Some(self.arena().clone()),
            owners: Vec::new(),
        };
        whole.window(skip, len)
    }
}

impl Deref for SegmentList {
    type Target = [Segment];
    fn deref(&self) -> &[Segment] {
        &self.segments
    }
}

impl std::fmt::Debug for SegmentList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.segments.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Region;
    use super::*;

    fn span(region: u32, offset: u64, len: u32) -> Span {
        Span { region, len, offset }
    }

    /// A device's arena of a region for the driver and one for a client, and the client's view of
    /// it.
    fn driver_and_client() -> (Arena, Arena) {
        let (arena, client) =
            (Arena::new(Region::new(8192).unwrap(), 0x1000), Arc::new(Region::new(8192).unwrap()));
        let placed = super::super::Placed { region: client.clone(), iova: 0x3000 };
        assert!(arena.add(placed, 0, 8192).is_some());
        (arena, Arena::new(client, 0x3000))
    }

    #[test]
    fn a_client_names_bytes_of_its_own_regions_and_no_others() {
        let (device, client) = driver_and_client();
        assert_eq!(
            client.list(&[span(0, 4096, 512)]).unwrap()[..],
            device.list(&[span(1, 4096, 512)]).unwrap()[..]
        );
        // What the device has beside it, before and behind, has no name in the client's arena.
        for wrong in [
            span(1, 0, 512),
            span(0, 8192, 1),
            span(0, 8191, 2),
            span(0, 0u64.wrapping_sub(0x2000), 512),
            span(0, 0, 0),
        ] {
            assert!(client.list(&[span(0, 0, 512), wrong]).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn a_list_that_is_aimed_anew_has_the_bytes_of_its_own_arena_or_none() {
        let (_, client) = driver_and_client();
        let owner = Arc::new(());
        let mut list = client.list(&[]).unwrap().with_owner(owner.clone());
        assert!(list.aim(&[span(0, 512, 512), span(0, 4096, 8)]));
        assert_eq!((list.bytes(), list[0].iova, Arc::strong_count(&owner)), (520, 0x3200, 2));
        assert!(!list.aim(&[span(0, 0, 512), span(0, 8191, 2)]));
        assert!(list.is_empty() && !SegmentList::default().aim(&[span(0, 0, 1)]));
    }

    #[test]
    fn bytes_are_copied_between_a_list_and_a_buffer_that_the_device_reaches() {
        let (_, client) = driver_and_client();
        let own = Arena::new(Region::new(8192).unwrap(), 0x10_0000);
        let (from, to) = (own.alloc(1024, 1).unwrap(), own.alloc(1024, 1).unwrap());
        from.write(0, &[1, 2, 3, 4, 5, 6]).unwrap();
        let list = client.list(&[span(0, 4094, 2), span(0, 100, 3), span(0, 8191, 1)]).unwrap();
        list.copy_from(&from, 6).unwrap();
        list.copy_to(&to, 4).unwrap();
        let mut found = [0; 6];
        to.read(0, &mut found).unwrap();
        assert_eq!(found, [1, 2, 3, 4, 0, 0]);
        assert!(
            list.copy_to(&to, 7).is_err() && list.copy_from(&own.alloc(5, 1).unwrap(), 6).is_err()
        );
        assert!(SegmentList::default().copy_to(&to, 0).is_err());
    }

    #[test]
    fn a_window_starts_and_ends_within_segments_and_has_their_names() {
        let (arena, _) = driver_and_client();
        let list = arena.list(&[span(0, 512, 512), span(1, 0, 4096)]).unwrap();
        assert_eq!(list.bytes(), 4608);
        assert_eq!(list.window(256, 512).spans().unwrap(), [span(0, 768, 256), span(1, 0, 256)]);
        assert_eq!(list.window(1024, 512).spans().unwrap(), [span(1, 512, 512)]);
        assert_eq!(list.window(4600, 512).bytes(), 8);
    }

    #[test]
    fn a_list_of_a_buffer_ends_with_the_buffer() {
        let (arena, _) = driver_and_client();
        let buffer = arena.alloc(1024, 1).unwrap();
        assert_eq!(
            buffer.list(512, usize::MAX).spans(),
            Some(vec![buffer.span().part(512, 512).unwrap()])
        );
        assert!(buffer.list(1024, 1).is_empty());
    }

    #[test]
    fn a_list_keeps_its_owner_until_the_last_list_made_of_it_is_gone() {
        let (arena, _) = driver_and_client();
        let owner = Arc::new(());
        let list = arena.list(&[span(0, 0, 512)]).unwrap().with_owner(owner.clone());
        let window = list.window(0, 16);
        drop(list);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(window);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn no_list_reaches_beyond_the_last_device_address() {
        let arena = Arena::new(Region::new(8192).unwrap(), u64::MAX - 4095);
        assert!(arena.list(&[span(0, 0, 4095)]).is_some());
        assert!(
            [span(0, 0, 8192), span(0, 4096, 1)]
                .iter()
                .all(|&wraps| arena.list(&[wraps]).is_none())
        );
    }
}
