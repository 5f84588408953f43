//! A disk's description as the parameters of a ublk device.

use ring3_class::block::{Discard, Info};

use super::uapi::{self, Parameters};

/// The kernel counts in this unit, whatever the disk's blocks are.
pub const SECTOR: u32 = 512;

/// Longest discard or write-zeroes that is announced, in sectors: the kernel keeps a request's
/// bytes in 32 bits.
const MOST_SECTORS: u32 = u32::MAX / SECTOR;

/// The largest physical block that is announced: file systems choose their own block no smaller,
/// and pages are the largest they all can do.
const MOST_PHYSICAL: u32 = 4096;

/// The largest unit that is announced as the best one: the kernel reads ahead as much.
const MOST_OPTIMAL: u32 = 32 << 20;

/// The largest disk that the kernel can name the bytes of.
const MOST_BYTES: u64 = i64::MAX as u64;

/// Bytes of each tag's buffer: what the disk can move at once, but no more than `wanted`; whole
/// pages and whole blocks.
pub fn buffer_bytes(info: &Info, wanted: u32, page: u32) -> u32 {
    let unit = page.max(info.block_size);
    (info.max_transfer.min(wanted) / unit * unit).max(unit)
}

/// The parameters that tell the kernel what `info` says, for buffers of `buffer` bytes.
///
/// Fails with a reason if the kernel cannot express it: a block size that is no power of two from
/// 512 to `page`, a disk that moves less than a block at once, or one with more bytes than the
/// kernel counts. What only makes a disk faster, and makes no sense, is not announced. `info` may
/// be what a driver says that nobody trusts, and the kernel checks none of it.
pub fn parameters(info: &Info, buffer: u32, page: u32) -> Result<Parameters, String> {
    let block = info.block_size;
    if !block.is_power_of_two() || block < SECTOR || block > page {
        return Err(format!(
            "blocks of {block} bytes: the kernel takes powers of two from {SECTOR} to {page}"
        ));
    }
    if info.max_transfer < block {
        return Err(format!(
            "it says that it moves {} bytes at once, and has blocks of {block}",
            info.max_transfer
        ));
    }
    if info.blocks.checked_mul(block.into()).is_none_or(|bytes| bytes > MOST_BYTES) {
        return Err(format!(
            "it says that it has {} blocks of {block} bytes: the kernel counts up to {MOST_BYTES} \
            bytes",
            info.blocks
        ));
    }
    let sane = info.optimal_io.is_power_of_two() && info.optimal_io <= MOST_OPTIMAL;
    let optimal = if sane { info.optimal_io.max(block) } else { block };
    let mut attrs = 0;
    if info.read_only {
        attrs |= uapi::ATTR_READ_ONLY;
    }
    if info.rotates {
        attrs |= uapi::ATTR_ROTATIONAL;
    }
    if info.volatile_cache {
        attrs |= uapi::ATTR_VOLATILE_CACHE;
        if info.fua {
            attrs |= uapi::ATTR_FUA;
        }
    }
    let mut parameters = Parameters {
        len: Parameters::LEN,
        types: uapi::PARAM_BASIC,
        attrs,
        logical_bs_shift: shift(block),
        physical_bs_shift: shift(optimal.clamp(block, MOST_PHYSICAL.max(block))),
        io_opt_shift: shift(optimal),
        io_min_shift: shift(optimal),
        chunk_sectors: chunk(info) / SECTOR,
        max_sectors: buffer.min(info.max_transfer) / block * (block / SECTOR),
        dev_sectors: info.blocks * u64::from(block / SECTOR),
        ..Parameters::default()
    };
    add_discard(&mut parameters, info);
    Ok(parameters)
}

/// The boundary at which the kernel splits requests, in bytes; 0 for none. It must hold whole
/// blocks, and whole pages, without which nothing is ever split.
fn chunk(info: &Info) -> u32 {
    let least = info.block_size.max(MOST_PHYSICAL);
    if info.boundary.is_power_of_two() && info.boundary >= least { info.boundary } else { 0 }
}

/// Discard and write-zeroes share a part, which needs a granularity even if there is only the
/// latter.
fn add_discard(parameters: &mut Parameters, info: &Info) {
    let per_block = info.block_size / SECTOR;
    let sectors = |blocks: u32| blocks.min(MOST_SECTORS / per_block) * per_block;
    // With pieces that are longer than a discard may be, some kernels cut one into pieces without
    // end.
    let fits = |discard: &&Discard| {
        let piece = discard.granularity.max(info.block_size);
        piece.is_power_of_two() && piece / SECTOR <= sectors(discard.max_blocks)
    };
    let discard = info.discard.as_ref().filter(fits);
    if discard.is_none() && info.max_write_zeroes_blocks == 0 {
        return;
    }
    parameters.types |= uapi::PARAM_DISCARD;
    parameters.discard_granularity = info.block_size;
    parameters.max_write_zeroes_sectors = sectors(info.max_write_zeroes_blocks);
    if let Some(discard) = discard {
        parameters.discard_granularity = discard.granularity.max(info.block_size);
        parameters.max_discard_sectors = sectors(discard.max_blocks);
        parameters.max_discard_segments = 1;
    }
}

fn shift(power_of_two: u32) -> u8 {
    power_of_two.trailing_zeros() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(block_size: u32) -> Info {
        Info {
            model: "model".into(),
            serial: "serial".into(),
            firmware: "1".into(),
            block_size,
            blocks: 1000,
            max_transfer: 512 << 10,
            segments: ring3_class::dma::SegmentRules::PAGES,
            optimal_io: block_size,
            boundary: 0,
            volatile_cache: true,
            fua: true,
            max_write_zeroes_blocks: 0,
            discard: None,
            read_only: false,
            rotates: false,
        }
    }

    fn of(info: &Info) -> Parameters {
        parameters(info, buffer_bytes(info, 256 << 10, 4096), 4096).unwrap()
    }

    #[test]
    fn the_size_is_counted_in_512_bytes_also_for_blocks_of_4096() {
        assert_eq!(of(&info(4096)).dev_sectors, 8000);
        assert_eq!(of(&info(512)).dev_sectors, 1000);
    }

    #[test]
    fn a_request_is_no_longer_than_its_buffer() {
        assert_eq!(of(&info(512)).max_sectors, 512);
    }

    #[test]
    fn a_buffer_is_no_longer_than_what_the_disk_moves_at_once() {
        let info = Info { max_transfer: 8192, ..info(512) };
        assert_eq!(buffer_bytes(&info, 256 << 10, 4096), 8192);
    }

    #[test]
    fn a_disk_that_moves_less_than_a_page_still_gets_a_page_and_its_own_limit() {
        let info = Info { max_transfer: 1024, ..info(512) };
        assert_eq!(buffer_bytes(&info, 256 << 10, 4096), 4096);
        assert_eq!(of(&info).max_sectors, 2);
    }

    #[test]
    fn a_disk_that_moves_less_than_a_block_is_refused() {
        let why = parameters(&Info { max_transfer: 511, ..info(512) }, 4096, 4096).unwrap_err();
        assert!(why.contains("511"), "{why}");
    }

    #[test]
    fn fua_is_announced_only_with_a_cache_that_can_lose_writes() {
        assert_eq!(of(&info(512)).attrs, uapi::ATTR_VOLATILE_CACHE | uapi::ATTR_FUA);
        assert_eq!(of(&Info { volatile_cache: false, ..info(512) }).attrs, 0);
        assert_eq!(of(&Info { fua: false, ..info(512) }).attrs, uapi::ATTR_VOLATILE_CACHE);
    }

    #[test]
    fn a_disk_that_refuses_writes_is_read_only() {
        assert_eq!(
            of(&Info { read_only: true, volatile_cache: false, ..info(512) }).attrs,
            uapi::ATTR_READ_ONLY
        );
    }

    #[test]
    fn a_disk_that_turns_is_announced_as_one() {
        let turns = Info { rotates: true, volatile_cache: false, ..info(512) };
        assert_eq!(of(&turns).attrs, uapi::ATTR_ROTATIONAL);
    }

    #[test]
    fn write_zeroes_alone_has_a_granularity_and_no_discard() {
        let parameters = of(&Info { max_write_zeroes_blocks: 0x1_0000, ..info(512) });
        assert_eq!(parameters.types, uapi::PARAM_BASIC | uapi::PARAM_DISCARD);
        assert_eq!((parameters.discard_granularity, parameters.max_discard_sectors), (512, 0));
        assert_eq!(parameters.max_write_zeroes_sectors, 0x1_0000);
    }

    #[test]
    fn a_discard_limit_beyond_32_bits_of_bytes_is_cut() {
        let discard = Some(Discard { max_blocks: u32::MAX, granularity: 4096 });
        let parameters = of(&Info { discard, ..info(4096) });
        assert_eq!(parameters.max_discard_sectors, (u32::MAX / 4096) * 8);
        assert_eq!(parameters.max_discard_segments, 1);
    }

    #[test]
    fn a_discard_of_pieces_that_make_no_sense_is_not_announced_and_zeroes_are() {
        for (max_blocks, granularity) in
            [(u32::MAX, u32::MAX), (u32::MAX, 1536), (8, 1 << 20), (u32::MAX, 1 << 31), (0, 512)]
        {
            let discard = Some(Discard { max_blocks, granularity });
            let parameters = of(&Info { discard, max_write_zeroes_blocks: 8, ..info(512) });
            let announced = (
                parameters.max_discard_sectors,
                parameters.max_discard_segments,
                parameters.discard_granularity,
            );
            assert!(
                announced == (0, 0, 512) || granularity == 1 << 31,
                "{granularity}: {announced:?}"
            );
            assert!(parameters.discard_granularity.is_power_of_two());
            assert_eq!(parameters.max_write_zeroes_sectors, 8);
        }
    }

    #[test]
    fn a_disk_of_more_bytes_than_the_kernel_counts_is_refused() {
        let most = MOST_BYTES / 512;
        assert_eq!(of(&Info { blocks: most, ..info(512) }).dev_sectors, most);
        for (blocks, block_size) in [(most + 1, 512), (u64::MAX, 512), (u64::MAX / 8, 4096)] {
            let why = parameters(&Info { blocks, ..info(block_size) }, 4096, 4096).unwrap_err();
            assert!(why.contains("blocks of"), "{why}");
        }
    }

    #[test]
    fn a_best_unit_beyond_what_the_kernel_should_read_ahead_is_the_block() {
        assert_eq!(of(&Info { optimal_io: 32 << 20, ..info(512) }).io_opt_shift, 25);
        for boundary in [4096, 128 << 10, 1 << 31] {
            assert_eq!(of(&Info { boundary, ..info(512) }).chunk_sectors, boundary / 512);
        }
        for boundary in [0, 512, 2048, 5000, u32::MAX] {
            assert_eq!(of(&Info { boundary, ..info(512) }).chunk_sectors, 0, "{boundary}");
        }
        for optimal_io in [64 << 20, 1 << 31, 3000, 0] {
            assert_eq!(of(&Info { optimal_io, ..info(512) }).io_opt_shift, 9);
        }
    }

    #[test]
    fn a_large_optimal_unit_does_not_become_a_physical_block_that_file_systems_refuse() {
        let parameters = of(&Info { optimal_io: 64 << 10, ..info(512) });
        assert_eq!((parameters.physical_bs_shift, parameters.io_min_shift), (12, 16));
    }

    #[test]
    fn blocks_larger_than_a_page_are_refused_with_the_reason() {
        assert!(parameters(&info(8192), 8192, 4096).unwrap_err().contains("8192"));
        assert!(parameters(&info(520), 8192, 4096).is_err());
    }
}
