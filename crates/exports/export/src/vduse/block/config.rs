//! A disk's description as a virtio disk's: features and configuration. [virtio 5.2.3, 5.2.4]

use ring3_spec::virtio::blk;
use ring3_vduse::features;

use crate::ublk::limits::SECTOR;
use crate::ublk::uapi::{self, Parameters};

/// Bytes of a piece at most. Pages come one by one as a rule, and so many of them as fill the
/// buffer make the longest request.
pub const PIECE: u32 = 4096;
/// Pieces of a chain at most. Longer chains are a fault that stops the queue until the driver
/// resets the device.
pub const PIECES: usize = 1024;
/// Pieces of a chain that carry data: all but the header and the status. [virtio 5.2.6]
const DATA_PIECES: u32 = PIECES as u32 - 2;

/// What the driver is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub features: u64,
    pub bytes: [u8; blk::CONFIG_LEN as usize],
}

impl Config {
    /// Of a disk with these parameters, whose requests have a buffer of `buffer` bytes, in `queues`
    /// queues.
    pub fn new(disk: &Parameters, buffer: u32, queues: u16) -> Self {
        let has = |attribute| disk.attrs & attribute != 0;
        let offered = [
            (true, features::ALL | blk::SIZE_MAX | blk::SEG_MAX | blk::BLK_SIZE | blk::TOPOLOGY),
            (has(uapi::ATTR_READ_ONLY), blk::RO),
            (has(uapi::ATTR_VOLATILE_CACHE), blk::FLUSH),
            (queues > 1, blk::MQ),
            (disk.max_discard_sectors > 0, blk::DISCARD),
            (disk.max_write_zeroes_sectors > 0, blk::WRITE_ZEROES),
        ];
        let features =
            offered.into_iter().filter(|(has, _)| *has).fold(0, |all, (_, feature)| all | feature);
        let mut bytes = [0; blk::CONFIG_LEN as usize];
        let mut put =
            |at: u32, value: &[u8]| bytes[at as usize..][..value.len()].copy_from_slice(value);
        let piece = PIECE.min(disk.max_sectors * SECTOR);
        let block = 1 << disk.logical_bs_shift;
        let blocks_of = |shift: u8| 1u32 << shift.saturating_sub(disk.logical_bs_shift);
        put(0, &disk.dev_sectors.to_le_bytes());
        put(8, &piece.to_le_bytes());
        // What the driver takes for the longest chain (SEG_MAX) must fit into ours, whatever the
        // buffer holds.
        put(12, &(buffer.min(disk.max_sectors * SECTOR) / piece).min(DATA_PIECES).to_le_bytes());
        put(20, &u32::to_le_bytes(block));
        put(24, &[disk.physical_bs_shift - disk.logical_bs_shift]);
        put(26, &(blocks_of(disk.io_min_shift).min(u16::MAX.into()) as u16).to_le_bytes());
        put(28, &blocks_of(disk.io_opt_shift).to_le_bytes());
        put(34, &queues.to_le_bytes());
        put(36, &disk.max_discard_sectors.to_le_bytes());
        put(40, &u32::from(disk.max_discard_sectors > 0).to_le_bytes());
        put(44, &(disk.discard_granularity / SECTOR).to_le_bytes());
        put(48, &disk.max_write_zeroes_sectors.to_le_bytes());
        put(52, &u32::from(disk.max_write_zeroes_sectors > 0).to_le_bytes());
        Self { features, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Parameters {
        Parameters {
            logical_bs_shift: 12,
            physical_bs_shift: 12,
            io_min_shift: 14,
            io_opt_shift: 16,
            max_sectors: 512,
            dev_sectors: 8000,
            ..Parameters::default()
        }
    }

    fn word(config: &Config, at: usize) -> u32 {
        u32::from_le_bytes(config.bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn the_longest_request_fills_the_buffer_in_pages() {
        let config = Config::new(&disk(), 256 << 10, 1);
        assert_eq!(
            (word(&config, 0), word(&config, 8), word(&config, 12), word(&config, 20)),
            (8000, 4096, 64, 4096)
        );
        assert_eq!((config.bytes[24], word(&config, 28)), (0, 16));
        let short =
            Config::new(&Parameters { max_sectors: 2, logical_bs_shift: 9, ..disk() }, 4096, 1);
        assert_eq!((word(&short, 8), word(&short, 12)), (1024, 1));
    }

    #[test]
    fn the_longest_request_of_a_large_buffer_is_a_chain_that_the_server_takes() {
        for mib in [2, 4, 32] {
            let large = Parameters { max_sectors: mib << 11, ..disk() };
            let pieces = word(&Config::new(&large, mib << 20, 1), 12) + 2;
            assert!(pieces as usize <= PIECES, "{mib} MiB: {pieces} pieces with header and status");
        }
    }

    #[test]
    fn what_a_disk_cannot_is_not_offered() {
        let has = |disk: &Parameters, queues, feature| {
            Config::new(disk, 4096, queues).features & feature != 0
        };
        for feature in
            [blk::RO, blk::FLUSH, blk::MQ, blk::DISCARD, blk::WRITE_ZEROES, blk::CONFIG_WCE]
        {
            assert!(!has(&disk(), 1, feature));
        }
        let all = uapi::ATTR_READ_ONLY | uapi::ATTR_VOLATILE_CACHE;
        let able = Parameters {
            attrs: all,
            max_discard_sectors: 8,
            max_write_zeroes_sectors: 8,
            ..disk()
        };
        for feature in [blk::RO, blk::FLUSH, blk::MQ, blk::DISCARD, blk::WRITE_ZEROES] {
            assert!(has(&able, 2, feature));
        }
    }
}
