//! What a simulated disk is like: everything that is fixed when it is made.

use std::time::Duration;

use ring3_device::{Error, Uri, parse_size};

use super::super::function::Places;
use super::super::queue::MAX_SIZE;
use crate::Timing;
use crate::options::{Options, duration, number};

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes; a multiple of the block.
    pub bytes: u64,
    /// log2 of a block's bytes: 9 or 12.
    pub block_shift: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Queues, 1 to 64.
    pub queues: u16,
    /// Most entries of a queue, 4 to 256.
    pub entries: u16,
    /// Most segments of a request, 1 to 254.
    pub segments: u32,
    /// Whether there is a volatile write cache.
    pub cache: bool,
    /// Whether requests may lie in tables of their own.
    pub indirect: bool,
    /// Whether packed virtqueues are offered.
    pub packed: bool,
    /// Whether either side may say by a position when it wants to be told.
    pub events: bool,
    /// Whether a driver must order its accesses as for hardware (ORDER_PLATFORM).
    pub ordered: bool,
    /// MSI-X vectors, 0 to 65.
    pub vectors: u16,
    /// How long a reset takes.
    pub ready: Duration,
    /// When requests are done.
    pub timing: Timing,
    pub(super) places: Places,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            block_shift: 9,
            read_only: false,
            queues: 4,
            entries: MAX_SIZE,
            segments: 126,
            cache: true,
            indirect: true,
            packed: false,
            events: true,
            ordered: false,
            vectors: 5,
            ready: Duration::ZERO,
            timing: Timing::Inline,
            places: Places::TOGETHER,
        }
    }
}

const KEYS: [&str; 15] = [
    "size",
    "block",
    "readonly",
    "queues",
    "entries",
    "segments",
    "cache",
    "indirect",
    "packed",
    "events",
    "order",
    "vectors",
    "structures",
    "ready",
    "fault",
];

/// The shape that `uri` describes.
pub(super) fn of_uri(uri: &Uri) -> Result<(Options<'_>, Shape), Error> {
    let (options, default) = (Options::of(uri, "virtio-blk", &KEYS)?, Shape::default());
    let within = |least: u64, most: u64| {
        move |text: &str| number(text).filter(|n| (least..=most).contains(n))
    };
    let block = options.get("block", "512 or 4096", 512, |text| {
        number(text).filter(|block| [512, 4096].contains(block))
    })?;
    let queues = options.get("queues", "1 to 64", default.queues.into(), within(1, 64))?;
    let entries =
        options.get("entries", "a power of two, 4 to 256", u64::from(MAX_SIZE), |text| {
            number(text).filter(|entries| (4..=256).contains(entries) && entries.is_power_of_two())
        })?;
    let shape = Shape {
        bytes: options.get(
            "size",
            "bytes, whole blocks up to 1T, as 64M",
            default.bytes,
            |text| {
                parse_size(text)
                    .filter(|size| (1..=1 << 40).contains(size) && size.is_multiple_of(block))
            },
        )?,
        block_shift: block.ilog2(),
        read_only: options.switch("readonly", false)?,
        queues: queues as u16,
        entries: entries as u16,
        segments: options.get("segments", "1 to 254", default.segments.into(), within(1, 254))?
            as u32,
        cache: options.switch("cache", true)?,
        indirect: options.switch("indirect", true)?,
        packed: options.switch("packed", false)?,
        events: options.switch("events", true)?,
        ordered: options.switch("order", false)?,
        vectors: options.get("vectors", "0 to 65", queues + 1, within(0, 65))? as u16,
        ready: options.get("ready", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        timing: options.timing()?,
        places: options.get("structures", "together or apart", default.places, Places::named)?,
    };
    Ok((options, shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_options_make_the_default_shape_and_values_that_make_no_sense_are_refused() {
        let shape = |text: &str| {
            of_uri(&format!("sim:virtio-blk{text}").parse().unwrap()).map(|(_, shape)| shape)
        };
        assert_eq!(shape("").unwrap(), Shape::default());
        for wrong in
            ["block=1000", "size=1", "queues=0", "entries=100", "segments=0", "structures=gone"]
        {
            assert!(shape(&format!(",{wrong}")).is_err(), "{wrong}");
        }
    }
}
