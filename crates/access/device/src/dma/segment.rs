//! Segments: pieces of a device's address space.

/// A range of device addresses, contiguous for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First device address.
    pub iova: u64,
    /// Bytes.
    pub len: u32,
}

/// Bytes of the smallest page of a device.
const PAGE: usize = 4096;

/// Of `len` bytes at `iova`, how many lie in the page of 4 KiB where they begin, if that is at a
/// multiple of 4; none otherwise. Such bytes are one piece for every device.
#[inline]
pub(super) fn in_page(iova: u64, len: usize) -> usize {
    if iova.is_multiple_of(4) { len.min(PAGE - iova as usize % PAGE) } else { 0 }
}

impl Segment {
    /// How many of its bytes lie in the page of 4 KiB where it begins, if that is at a multiple of
    /// 4; none otherwise. Such bytes are one piece for every device.
    #[inline]
    pub fn in_page(&self) -> usize {
        in_page(self.iova, self.len as usize)
    }
}

/// Which lists of segments a device can take in one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SegmentRules {
    /// The first address is a multiple of this power of two.
    pub align: u32,
    /// Every segment but the first starts, and every one but the last ends, at a multiple of this
    /// power of two; 1 means anywhere.
    pub boundary: u32,
    /// Most segments.
    pub max: u32,
}

impl SegmentRules {
    /// Whole pages between the first and the last byte, which NVMe's PRP lists ask for. [NVMe
    /// 4.3.1]
    pub const PAGES: Self = Self { align: 4, boundary: 4096, max: u32::MAX };

    /// Whether a device with these rules takes `segments`.
    pub fn allow(&self, segments: &[Segment]) -> bool {
        let Some((first, last)) = segments.first().zip(segments.last()) else { return true };
        let boundary = u64::from(self.boundary);
        first.iova.is_multiple_of(u64::from(self.align))
            && segments.len() <= self.max as usize
            && segments[1..].iter().all(|segment| segment.iova.is_multiple_of(boundary))
            && segments[..segments.len() - 1]
                .iter()
                .all(|segment| (segment.iova + u64::from(segment.len)).is_multiple_of(boundary))
            && last.len > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(iova: u64, len: u32) -> Segment {
        Segment { iova, len }
    }

    #[test]
    fn a_page_list_may_start_and_end_within_a_page() {
        assert!(SegmentRules::PAGES.allow(&[
            segment(0x1200, 0xe00),
            segment(0x9000, 0x1000),
            segment(0x5000, 0x200)
        ]));
    }

    #[test]
    fn a_page_list_has_no_gap_inside() {
        assert!(!SegmentRules::PAGES.allow(&[segment(0x1000, 0x800), segment(0x9000, 0x1000)]));
        assert!(!SegmentRules::PAGES.allow(&[segment(0x1000, 0x1000), segment(0x9200, 0xe00)]));
    }

    #[test]
    fn a_misaligned_start_is_refused() {
        assert!(!SegmentRules::PAGES.allow(&[segment(0x1002, 512)]));
    }

    #[test]
    fn more_segments_than_the_device_takes_are_refused() {
        let rules = SegmentRules { max: 1, ..SegmentRules::PAGES };
        assert!(!rules.allow(&[segment(0x1000, 0x1000), segment(0x3000, 0x1000)]));
    }
}
