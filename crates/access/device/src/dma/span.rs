//! Spans: names for bytes, which a client may pass to the owner of the device.

use super::Segment;

/// Bytes of one region of an [`Arena`](super::Arena), by the region's number there.
///
/// Unlike a device address it says nothing that could not be checked:
/// [`Arena::segment`](super::Arena::segment) makes device addresses of it, of the regions of
/// whoever submits it and of no others.
///
/// A packet in its buffer, with room before it for headers that are added on its way:
/// ```
/// # use ring3_device::dma::{Arena, Region};
/// # fn main() -> Result<(), ring3_device::Error> {
/// let arena = Arena::new(Region::new(1 << 16)?, 0x10_0000);
/// let buffer = arena.alloc(2048, 2048)?.span();
/// let packet = buffer.part(64, 1500).expect("within the buffer");
/// let framed = buffer.part(64 - 14, 14 + 1500).expect("within the buffer");
/// assert_eq!(arena.segment(framed).unwrap().iova + 14, arena.segment(packet).unwrap().iova);
/// assert!(buffer.part(64, 2048).is_none());
/// # Ok(())
/// # }
/// ```
///
/// The memory of a hosted kernel, for which a device address is a base and an offset, whatever lies
/// there:
/// ```
/// # use ring3_device::dma::{Arena, Region, Span};
/// # fn main() -> Result<(), ring3_device::Error> {
/// const BASE: u64 = 1 << 32;
/// let memory = Arena::new(Region::new(16 << 20)?, BASE);
/// let page = |number: u64| memory.segment(Span { region: 0, len: 4096, offset: number << 12 });
/// assert_eq!(page(7).unwrap().iova, BASE + (7 << 12));
/// assert!(page(1 << 40).is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// Which region, from 0 on.
    pub region: u32,
    /// Bytes.
    pub len: u32,
    /// The first of them, counted from the region's start.
    pub offset: u64,
}

impl Span {
    /// `len` of its bytes, from `skip` on, if it has them.
    pub fn part(self, skip: u32, len: u32) -> Option<Self> {
        (skip.checked_add(len)? <= self.len).then(|| Self {
            len,
            offset: self.offset.wrapping_add(skip.into()),
            ..self
        })
    }

    /// Whether all of `other` is in it.
    pub fn contains(self, other: Self) -> bool {
        let end = |span: Self| u128::from(span.offset) + u128::from(span.len);
        self.region == other.region && self.offset <= other.offset && end(other) <= end(self)
    }

    /// Where it is for a device that has the region of `bytes` bytes at `iova`; `None` if it is
    /// empty or reaches beyond the region or the last address.
    #[inline]
    pub(super) fn within(self, bytes: u64, iova: u64) -> Option<Segment> {
        let inside =
            self.len > 0 && self.offset <= bytes && u64::from(self.len) <= bytes - self.offset;
        let iova = iova.checked_add(self.offset)?;
        (inside && iova.checked_add(self.len.into()).is_some())
            .then_some(Segment { iova, len: self.len })
    }
}
