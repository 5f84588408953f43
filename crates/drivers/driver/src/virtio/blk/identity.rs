//! What a disk is, out of its features and its configuration. [virtio 5.2.3, 5.2.4]

use ring3_class::block::{Discard, Info};
use ring3_device::Error;
use ring3_device::dma::SegmentRules;
use ring3_spec::register::Reg;
use ring3_spec::virtio::{INDIRECT_DESC, blk};

use super::super::transport::Transport;

/// What the driver can use.
pub(super) const WANTED: u64 = blk::SIZE_MAX
    | blk::SEG_MAX
    | blk::RO
    | blk::BLK_SIZE
    | blk::FLUSH
    | blk::TOPOLOGY
    | blk::CONFIG_WCE
    | blk::MQ
    | blk::DISCARD
    | blk::WRITE_ZEROES
    | INDIRECT_DESC;
/// Most pieces of a request's data: 512 KiB in pages.
const MAX_SEGMENTS: u32 = 128;
/// Pieces of a request beside its data: header and status.
pub(super) const FRAME: u32 = 2;
/// A request that is no table of pieces takes one in so many of a queue's entries.
const SHARE: u32 = 16;
const PAGE: u32 = 4096;

/// How the requests of a disk are described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Shape {
    /// Pieces are in a table of the request's own, so that it takes one entry of its queue.
    pub(super) indirect: bool,
    /// Most pieces of a request, its frame included.
    pub(super) pieces: u16,
    /// Most bytes of a piece.
    pub(super) piece_bytes: u32,
    /// Entries of each queue.
    pub(super) entries: u16,
}

/// What is read of the configuration at once.
struct Config {
    sectors: u64,
    block: u32,
    segments: u32,
    segment_bytes: u32,
    physical: u8,
    writeback: bool,
    discard: [u32; 2],
    write_zeroes: u32,
}

impl Config {
    fn read(transport: &Transport, features: u64) -> Self {
        let field = |feature: u64, register: Reg<u32, _>, default| match features & feature {
            0 => default,
            _ => transport.config(register),
        };
        let half = |at| u64::from(transport.config(Reg::<u32, ring3_spec::register::Ro>::at(at)));
        Self {
            sectors: half(0) | half(4) << 32,
            block: field(blk::BLK_SIZE, blk::CONFIG_BLK_SIZE, blk::SECTOR),
            segments: field(blk::SEG_MAX, blk::CONFIG_SEG_MAX, 1),
            segment_bytes: field(blk::SIZE_MAX, blk::CONFIG_SIZE_MAX, u32::MAX),
            physical: if features & blk::TOPOLOGY != 0 {
                transport.config(blk::CONFIG_PHYSICAL_EXPONENT)
            } else {
                0
            },
            writeback: features & blk::FLUSH != 0
                && (features & blk::CONFIG_WCE == 0
                    || transport.config(blk::CONFIG_WRITEBACK) != 0),
            discard: [blk::CONFIG_MAX_DISCARD, blk::CONFIG_DISCARD_ALIGNMENT]
                .map(|register| field(blk::DISCARD, register, 0)),
            write_zeroes: field(blk::WRITE_ZEROES, blk::CONFIG_MAX_WRITE_ZEROES, 0),
        }
    }
}

/// Queues of the disk behind `transport`, at least 1. [virtio 5.2.4]
pub(super) fn queues(transport: &Transport, features: u64) -> u16 {
    if features & blk::MQ != 0 { transport.config(blk::CONFIG_QUEUES).max(1) } else { 1 }
}

/// What the disk behind `transport` is, with `features` and queues of `entries`.
pub(super) fn identify(
    transport: &Transport,
    features: u64,
    entries: u16,
    most: Option<u32>,
) -> Result<(Info, Shape), Error> {
    let name = transport.device.name();
    let needed = [
        (blk::WRITE_ZEROES, 60),
        (blk::DISCARD, 48),
        (blk::CONFIG_WCE, 33),
        (blk::TOPOLOGY, 25),
        (blk::BLK_SIZE, 24),
    ];
    let needed =
        needed.iter().find(|(feature, _)| features & feature != 0).map_or(16, |(_, bytes)| *bytes);
    if transport.config_len() < needed
        && features & (WANTED & !(blk::RO | blk::FLUSH | blk::MQ | INDIRECT_DESC)) != 0
    {
        return Err(Error::Protocol(format!(
            "{name}: its features need {needed} bytes of configuration, and it has fewer"
        )));
    }
    let config = transport.read_consistent_config(|| Config::read(transport, features))?;
    if ![512, 4096].contains(&config.block) {
        let block = config.block;
        return Err(Error::Unsupported(format!(
            "{name}: its blocks have {block} bytes; 512 and 4096 are supported"
        )));
    }
    let shape = shape(&config, features, entries).ok_or_else(|| {
        Error::Unsupported(format!("{name}: queues of {entries} entries have no room for requests"))
    })?;
    let info = describe(&config, features, shape, most).ok_or_else(|| {
        Error::Protocol(format!(
            "{name}: it says that it has {} sectors, and pieces of {} bytes",
            config.sectors, config.segment_bytes
        ))
    })?;
    Ok((info, shape))
}

fn shape(config: &Config, features: u64, entries: u16) -> Option<Shape> {
    let indirect = features & INDIRECT_DESC != 0;
    let segments = config.segments.clamp(1, MAX_SEGMENTS);
    // No chain is longer than its queue, wherever it lies. [virtio 2.7.5.3.1]
    let room = if indirect {
        u32::from(entries)
    } else {
        (u32::from(entries) / SHARE).max(FRAME + 1).min(entries.into())
    };
    let pieces = (segments + FRAME).min(room);
    (pieces > FRAME).then_some(Shape {
        indirect,
        pieces: pieces as u16,
        piece_bytes: config.segment_bytes,
        entries,
    })
}

fn describe(config: &Config, features: u64, shape: Shape, most: Option<u32>) -> Option<Info> {
    let (block, pieces) = (config.block, u32::from(shape.pieces) - FRAME);
    let sectors_of_block = block / blk::SECTOR;
    let blocks = config.sectors / u64::from(sectors_of_block);
    blocks.checked_mul(block.into()).filter(|bytes| *bytes > 0)?;
    // A segment that is longer than a piece becomes several, and one more than it would have to if
    // it begins in the middle of one.
    let whole = pieces.saturating_mul(PAGE);
    let (segments, transfer) = match shape.piece_bytes {
        piece if piece >= whole => (pieces, whole),
        piece if pieces == 1 => (1, piece),
        piece => (pieces / 2, (pieces / 2).saturating_mul(piece).min(whole)),
    };
    let transfer = most.map_or(transfer, |most| transfer.min(most.max(PAGE))) / block * block;
    let in_blocks = |sectors: u32| sectors / sectors_of_block;
    let granularity = config.discard[1].saturating_mul(blk::SECTOR).max(block);
    (transfer > 0).then(|| Info {
        model: "virtio disk".into(),
        serial: String::new(),
        firmware: String::new(),
        block_size: block,
        blocks,
        max_transfer: transfer,
        segments: SegmentRules { align: 1, boundary: 1, max: segments },
        optimal_io: block
            .checked_shl(config.physical.into())
            .filter(|bytes| *bytes >= block)
            .unwrap_or(block),
        boundary: 0,
        volatile_cache: config.writeback,
        fua: false,
        max_write_zeroes_blocks: in_blocks(config.write_zeroes),
        discard: Some(Discard { max_blocks: in_blocks(config.discard[0]), granularity })
            .filter(|discard| discard.max_blocks > 0),
        read_only: features & blk::RO != 0,
        rotates: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Config = Config {
        sectors: 1000,
        block: 512,
        segments: 254,
        segment_bytes: u32::MAX,
        physical: 3,
        writeback: true,
        discard: [8, 1],
        write_zeroes: 16,
    };

    fn described(config: &Config, features: u64, entries: u16) -> Option<(Info, Shape)> {
        let shape = shape(config, features, entries)?;
        Some((describe(config, features, shape, None)?, shape))
    }

    #[test]
    fn a_request_is_no_longer_than_its_queue_and_takes_one_entry_of_it_if_it_may() {
        let (info, shape) = described(&CONFIG, INDIRECT_DESC, 256).unwrap();
        assert_eq!((shape.pieces, info.segments.max, info.max_transfer), (130, 128, 512 << 10));
        let (info, shape) = described(&CONFIG, INDIRECT_DESC, 16).unwrap();
        assert_eq!((shape.pieces, info.max_transfer), (16, 14 * 4096));
        let (info, shape) = described(&CONFIG, 0, 256).unwrap();
        assert_eq!((shape.pieces, shape.indirect, info.max_transfer), (16, false, 14 * 4096));
        assert!(described(&CONFIG, 0, 2).is_none());
    }

    #[test]
    fn short_pieces_make_short_requests() {
        let (info, _) =
            described(&Config { segment_bytes: 4096, ..CONFIG }, INDIRECT_DESC, 256).unwrap();
        assert_eq!((info.segments.max, info.max_transfer), (64, 256 << 10));
        let (info, _) =
            described(&Config { segment_bytes: 1536, segments: 1, ..CONFIG }, INDIRECT_DESC, 256)
                .unwrap();
        assert_eq!((info.segments.max, info.max_transfer), (1, 1536));
        assert!(
            described(&Config { segment_bytes: 511, segments: 1, ..CONFIG }, INDIRECT_DESC, 256)
                .is_none()
        );
    }

    #[test]
    fn sectors_have_512_bytes_whatever_the_blocks_have() {
        let (info, _) = described(&Config { block: 4096, ..CONFIG }, 0, 256).unwrap();
        assert_eq!(
            (info.blocks, info.max_write_zeroes_blocks, info.discard.unwrap().max_blocks),
            (125, 2, 1)
        );
        assert_eq!((info.discard.unwrap().granularity, info.optimal_io), (4096, 32768));
        assert!(described(&Config { sectors: 7, block: 4096, ..CONFIG }, 0, 256).is_none());
        assert!(described(&Config { sectors: u64::MAX, ..CONFIG }, 0, 256).is_none());
    }
}
