//! From a request to a command: what is checked, and what the drive is told.

use ring3_class::block::{Info, IoError, Operation, Request};
use ring3_spec::ahci::fis::RegisterToDevice;
use ring3_spec::ata::{LBA28_SECTORS, MAX_COUNT_28, TaskFile, TrimRange, device, log, opcode};

use super::identity::{Flush, Identity};
use super::options::Level;

/// How a command's data move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// It has none.
    NonData,
    /// From the drive, by the processor.
    PioIn,
    /// To the drive, by the processor.
    PioOut,
    /// From the drive, by the controller.
    DmaIn,
    /// To the drive, by the controller.
    DmaOut,
    /// As `DmaIn`, among others.
    QueuedIn,
    /// As `DmaOut`, among others.
    QueuedOut,
}

impl Protocol {
    /// Whether the drive is written, and memory read.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::PioOut | Self::DmaOut | Self::QueuedOut)
    }

    /// Whether it may be in flight together with others.
    pub(super) fn is_queued(self) -> bool {
        matches!(self, Self::QueuedIn | Self::QueuedOut)
    }
}

/// What a drive is told. A queued command's tag is not in it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) task: TaskFile,
    pub(super) protocol: Protocol,
}

impl Command {
    /// Whether the controller moves its data.
    pub(super) fn is_dma(self) -> bool {
        !matches!(self.protocol, Protocol::NonData | Protocol::PioIn | Protocol::PioOut)
    }

    /// The command under `tag` (0 to 31), for queued ones. [ACS-3 7.20.3]
    pub(super) fn with_tag(mut self, tag: u8) -> Self {
        if self.protocol.is_queued() {
            self.task.count = u16::from(tag) << 3;
        }
        self
    }
}

/// Parks a drive before its power may go: a disk that turns brings its heads home, and one that
/// does not puts its tables in order.
pub(super) const STANDBY: Command = Command {
    task: TaskFile {
        command: opcode::STANDBY_IMMEDIATE,
        features: 0,
        count: 0,
        lba: 0,
        device: device::LBA,
        ext: false,
    },
    protocol: Protocol::NonData,
};

/// Reads `page` of `log`: 512 bytes. [ACS-3 7.24]
pub(super) const fn read_log(log: u8, page: u16) -> Command {
    Command {
        task: TaskFile {
            command: opcode::READ_LOG_EXT,
            features: 0,
            count: 1,
            lba: log::address(log, page),
            device: device::LBA,
            ext: true,
        },
        protocol: Protocol::PioIn,
    }
}

/// Makes the commands of one drive.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    /// Logical blocks of the drive.
    blocks: u64,
    max_blocks: u32,
    max_discard: u32,
    lba48: bool,
    flush: Flush,
    /// Writes can be durable one by one, by command or because there is no cache.
    cache: bool,
    fua: bool,
    multiple: bool,
}

impl Encoder {
    /// For requests to the drive `identity`, described to its users by `info`.
    pub(super) fn new(identity: &Identity, info: &Info) -> Self {
        Self {
            blocks: info.blocks,
            max_blocks: info.max_transfer / info.block_size.max(1),
            max_discard: info.discard.map_or(0, |discard| discard.max_blocks),
            lba48: identity.lba48,
            flush: identity.flush,
            cache: info.volatile_cache,
            fua: identity.fua,
            multiple: identity.multiple > 0,
        }
    }

    /// Whether what `request` writes may be in the drive's volatile cache when it has ended, and
    /// not on the medium.
    #[inline]
    pub(super) fn leaves_in_cache(&self, request: &Request) -> bool {
        self.cache && request.operation == Operation::Write && !request.fua
    }

    /// The command for `request` at `level`; `None` for a flush that a drive without a cache does
    /// not need.
    ///
    /// For a discard, the data are [`trim_ranges`]; for all else the request's.
    #[inline]
    pub(super) fn encode(
        &self,
        request: &Request,
        level: Level,
    ) -> Result<Option<Command>, IoError> {
        match request.operation {
            Operation::Read | Operation::Write => {
                self.check(request, self.max_blocks)?;
                self.transfer(request, level).map(Some)
            }
            Operation::Flush => Ok(self.flush()),
            Operation::Discard => {
                self.check(request, self.max_discard)?;
                let task = TaskFile {
                    command: opcode::DATA_SET_MANAGEMENT,
                    features: opcode::DSM_TRIM.into(),
                    count: 1,
                    device: device::LBA,
                    ext: true,
                    ..TaskFile::default()
                };
                Ok(Some(Command { task, protocol: Protocol::DmaOut }))
            }
            Operation::WriteZeroes => Err(IoError::Unsupported),
        }
    }

    /// The frame of a queued read under `tag`, or of a queued write that need not be durable at
    /// once; `None` if it is something else or not in order.
    #[inline]
    pub(super) fn queued_words(&self, request: &Request, tag: u8) -> Option<[u64; 2]> {
        let command = match request.operation {
            Operation::Read => opcode::READ_QUEUED,
            Operation::Write if !request.fua => opcode::WRITE_QUEUED,
            _ => return None,
        };
        self.check(request, self.max_blocks).ok()?;
        Some(RegisterToDevice::queued_words(command, tag, request.lba, request.blocks as u16))
    }

    /// Whether `request` has between 1 and `most` blocks, all on the disk.
    #[inline]
    fn check(&self, request: &Request, most: u32) -> Result<(), IoError> {
        // One comparison for both ends: no blocks wrap around to the most of all.
        if request.blocks.wrapping_sub(1) >= most {
            return Err(if most == 0 { IoError::Unsupported } else { IoError::Invalid });
        }
        match request.lba.checked_add(request.blocks.into()) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(IoError::OutOfRange),
        }
    }

    #[inline]
    fn transfer(&self, request: &Request, level: Level) -> Result<Command, IoError> {
        let write = request.operation == Operation::Write;
        let durable = write && request.fua && self.cache;
        if durable && !self.fua {
            return Err(IoError::Unsupported);
        }
        let task = TaskFile {
            count: request.blocks as u16,
            lba: request.lba,
            device: device::LBA,
            ext: true,
            ..TaskFile::default()
        };
        if level == Level::Queued {
            let (command, protocol) = if write {
                (opcode::WRITE_QUEUED, Protocol::QueuedOut)
            } else {
                (opcode::READ_QUEUED, Protocol::QueuedIn)
            };
            let device = device::LBA | if durable { device::FUA } else { 0 };
            return Ok(Command {
                task: TaskFile { command, features: task.count, count: 0, device, ..task },
                protocol,
            });
        }
        // The shorter command where it is enough: half the register writes on an IDE controller.
        let short = request.lba + u64::from(request.blocks) <= LBA28_SECTORS
            && request.blocks <= MAX_COUNT_28
            && !durable;
        if !short && !self.lba48 {
            return Err(IoError::OutOfRange);
        }
        let (command, protocol) = match (level, write) {
            (Level::Pio, false) => (self.pio_read(short), Protocol::PioIn),
            (Level::Pio, true) => (self.pio_write(short, durable)?, Protocol::PioOut),
            (_, false) => {
                (if short { opcode::READ_DMA } else { opcode::READ_DMA_EXT }, Protocol::DmaIn)
            }
            (_, true) if durable => (opcode::WRITE_DMA_FUA_EXT, Protocol::DmaOut),
            (_, true) => {
                (if short { opcode::WRITE_DMA } else { opcode::WRITE_DMA_EXT }, Protocol::DmaOut)
            }
        };
        // 256 sectors of a short command are written as 0 in its eight bits, 65536 of a long one in
        // its sixteen.
        let count = if short { task.count & 0xff } else { task.count };
        Ok(Command { task: TaskFile { command, count, ext: !short, ..task }, protocol })
    }

    fn pio_read(&self, short: bool) -> u8 {
        match (self.multiple, short) {
            (true, true) => opcode::READ_MULTIPLE,
            (true, false) => opcode::READ_MULTIPLE_EXT,
            (false, true) => opcode::READ_PIO,
            (false, false) => opcode::READ_PIO_EXT,
        }
    }

    fn pio_write(&self, short: bool, durable: bool) -> Result<u8, IoError> {
        match (self.multiple, short) {
            (true, _) if durable => Ok(opcode::WRITE_MULTIPLE_FUA_EXT),
            (false, _) if durable => Err(IoError::Unsupported),
            (true, true) => Ok(opcode::WRITE_MULTIPLE),
            (true, false) => Ok(opcode::WRITE_MULTIPLE_EXT),
            (false, true) => Ok(opcode::WRITE_PIO),
            (false, false) => Ok(opcode::WRITE_PIO_EXT),
        }
    }

    /// What makes the drive's cache durable, if it has one.
    pub(super) fn flush(&self) -> Option<Command> {
        let (command, ext) = match self.flush {
            Flush::None => return None,
            Flush::Short => (opcode::FLUSH, false),
            Flush::Ext => (opcode::FLUSH_EXT, true),
        };
        Some(Command {
            task: TaskFile { command, device: device::LBA, ext, ..TaskFile::default() },
            protocol: Protocol::NonData,
        })
    }
}

/// What a discard of `blocks` from `lba` tells TRIM: one unit of 512 bytes as 64-bit words, empty
/// entries at the end.
pub(super) fn trim_ranges(lba: u64, blocks: u32) -> impl Iterator<Item = u64> {
    (0..TrimRange::PER_SECTOR as u64).map(move |entry| {
        let skip = entry * u64::from(TrimRange::MAX_BLOCKS);
        let count = u64::from(blocks).saturating_sub(skip).min(TrimRange::MAX_BLOCKS.into());
        let range = if count == 0 {
            TrimRange::default()
        } else {
            TrimRange { lba: lba + skip, blocks: count as u16 }
        };
        u64::from_le_bytes(range.to_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::block::Data;

    fn encoder() -> Encoder {
        let (blocks, max_blocks, max_discard) = (1 << 40, 65536, 64 * 65535);
        Encoder {
            blocks,
            max_blocks,
            max_discard,
            lba48: true,
            flush: Flush::Ext,
            cache: true,
            fua: true,
            multiple: true,
        }
    }

    fn command(encoder: &Encoder, request: Request, level: Level) -> TaskFile {
        encoder.encode(&request, level).unwrap().unwrap().task
    }

    fn read(lba: u64, blocks: u32) -> Request {
        Request::read(0, lba, blocks, Data::None)
    }

    #[test]
    fn the_words_of_a_queued_command_are_those_of_its_frame() {
        let encoder = encoder();
        for (lba, blocks) in [(0, 1), (0x12_3456_789a, 0x1234), ((1 << 40) - 65536, 65536)] {
            for request in [
                Request::read(0, lba, blocks, Data::None),
                Request::write(0, lba, blocks, Data::None),
            ] {
                let command =
                    encoder.encode(&request, Level::Queued).unwrap().unwrap().with_tag(29);
                let mut frame = [0; 16];
                frame.copy_from_slice(&RegisterToDevice::of(&command.task).0[..16]);
                let words = encoder.queued_words(&request, 29).unwrap();
                assert_eq!(words.map(u64::to_le_bytes).as_flattened(), frame);
            }
        }
        assert_eq!(encoder.queued_words(&Request::write(0, 0, 1, Data::None).with_fua(), 0), None);
        assert_eq!(encoder.queued_words(&Request::read(0, 1 << 40, 1, Data::None), 0), None);
        assert_eq!(encoder.queued_words(&Request::flush(0), 0), None);
    }

    #[test]
    fn a_queued_command_keeps_its_count_in_the_features() {
        let queued = encoder().encode(&read(7, 300), Level::Queued).unwrap().unwrap().with_tag(31);
        assert_eq!(
            (queued.task.command, queued.task.features, queued.task.count),
            (opcode::READ_QUEUED, 300, 31 << 3)
        );
    }

    #[test]
    fn a_short_command_is_used_where_it_is_enough() {
        let short = command(&encoder(), read(LBA28_SECTORS - 256, 256), Level::Dma);
        assert_eq!((short.command, short.count, short.ext), (opcode::READ_DMA, 0, false));
        let long = command(&encoder(), read(LBA28_SECTORS - 255, 256), Level::Dma);
        assert_eq!((long.command, long.count, long.ext), (opcode::READ_DMA_EXT, 256, true));
    }

    #[test]
    fn the_longest_command_counts_zero() {
        assert_eq!(command(&encoder(), read(0, 65536), Level::Dma).count, 0);
        assert_eq!(encoder().encode(&read(0, 65537), Level::Dma), Err(IoError::Invalid));
    }

    #[test]
    fn a_durable_write_is_one_at_every_level() {
        let write = || Request::write(0, 0, 8, Data::None).with_fua();
        assert_eq!(
            command(&encoder(), write(), Level::Pio).command,
            opcode::WRITE_MULTIPLE_FUA_EXT
        );
        assert_eq!(command(&encoder(), write(), Level::Dma).command, opcode::WRITE_DMA_FUA_EXT);
        assert_eq!(command(&encoder(), write(), Level::Queued).device, device::LBA | device::FUA);
    }

    #[test]
    fn without_a_cache_every_write_is_durable() {
        let write = Request::write(0, 0, 8, Data::None).with_fua();
        let encoder = Encoder { cache: false, fua: false, ..encoder() };
        assert_eq!(command(&encoder, write, Level::Dma).command, opcode::WRITE_DMA);
    }

    #[test]
    fn a_drive_that_cannot_write_through_says_so() {
        let write = Request::write(0, 0, 8, Data::None).with_fua();
        assert_eq!(
            Encoder { fua: false, ..encoder() }.encode(&write, Level::Dma),
            Err(IoError::Unsupported)
        );
    }

    #[test]
    fn a_write_leaves_something_in_the_cache_unless_there_is_none_or_it_writes_through() {
        let write = || Request::write(0, 0, 8, Data::None);
        assert!(encoder().leaves_in_cache(&write()) && !encoder().leaves_in_cache(&read(0, 8)));
        assert!(!encoder().leaves_in_cache(&write().with_fua()));
        assert!(!Encoder { cache: false, ..encoder() }.leaves_in_cache(&write()));
    }

    #[test]
    fn what_lies_beyond_the_end_is_refused() {
        assert_eq!(encoder().encode(&read(1 << 40, 1), Level::Dma), Err(IoError::OutOfRange));
        assert_eq!(encoder().encode(&read(u64::MAX, 8), Level::Dma), Err(IoError::OutOfRange));
        assert_eq!(encoder().encode(&read(0, 0), Level::Dma), Err(IoError::Invalid));
    }

    #[test]
    fn a_long_discard_has_several_ranges() {
        let ranges: Vec<_> =
            trim_ranges(100, 65536).map(|word| TrimRange::from_bytes(word.to_le_bytes())).collect();
        assert_eq!(ranges.len(), 64);
        assert_eq!(
            ranges[..3],
            [
                TrimRange { lba: 100, blocks: 65535 },
                TrimRange { lba: 65635, blocks: 1 },
                TrimRange::default(),
            ]
        );
    }

    #[test]
    fn the_longest_discard_fills_the_unit() {
        assert_eq!(trim_ranges(0, 64 * 65535).map(|word| word >> 48).sum::<u64>(), 64 * 65535);
    }
}
