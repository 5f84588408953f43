//! What an opcode is: the form of its parameters and the way of its data. [ACS-3 7]

use ring3_spec::ata::{MAX_COUNT_28, MAX_COUNT_48, TaskFile, opcode};

/// How data of a read or write move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// By the processor, this command's blocks one by one.
    Pio,
    /// By the processor, several blocks at a time.
    Multiple,
    /// By the controller.
    Dma,
    /// By the controller, among other commands.
    Queued,
}

/// A read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read(How),
    Write(How),
}

impl Kind {
    /// `None` if it is neither.
    pub(super) fn of(command: u8) -> Option<Self> {
        Some(match command {
            opcode::READ_PIO | opcode::READ_PIO_EXT => Self::Read(How::Pio),
            opcode::READ_MULTIPLE | opcode::READ_MULTIPLE_EXT => Self::Read(How::Multiple),
            opcode::READ_DMA | opcode::READ_DMA_EXT => Self::Read(How::Dma),
            opcode::READ_QUEUED => Self::Read(How::Queued),
            opcode::WRITE_PIO | opcode::WRITE_PIO_EXT => Self::Write(How::Pio),
            opcode::WRITE_MULTIPLE
            | opcode::WRITE_MULTIPLE_EXT
            | opcode::WRITE_MULTIPLE_FUA_EXT => Self::Write(How::Multiple),
            opcode::WRITE_DMA | opcode::WRITE_DMA_EXT | opcode::WRITE_DMA_FUA_EXT => {
                Self::Write(How::Dma)
            }
            opcode::WRITE_QUEUED => Self::Write(How::Queued),
            _ => return None,
        })
    }

    pub(super) fn how(self) -> How {
        match self {
            Self::Read(how) | Self::Write(how) => how,
        }
    }
}

/// Whether it is a 48-bit command.
pub(crate) fn is_ext(command: u8) -> bool {
    matches!(
        command,
        opcode::READ_PIO_EXT
            | opcode::READ_MULTIPLE_EXT
            | opcode::READ_DMA_EXT
            | opcode::READ_QUEUED
            | opcode::WRITE_PIO_EXT
            | opcode::WRITE_MULTIPLE_EXT
            | opcode::WRITE_MULTIPLE_FUA_EXT
            | opcode::WRITE_DMA_EXT
            | opcode::WRITE_DMA_FUA_EXT
            | opcode::WRITE_QUEUED
            | opcode::FLUSH_EXT
            | opcode::DATA_SET_MANAGEMENT
            | opcode::READ_LOG_EXT
            | opcode::READ_LOG_DMA_EXT
    )
}

/// Whether it may be in flight together with others.
pub(crate) fn is_queued(command: u8) -> bool {
    matches!(command, opcode::READ_QUEUED | opcode::WRITE_QUEUED)
}

/// Whether it writes without leaving anything in the cache. [ACS-3 7.55, 7.58.3]
pub(super) fn is_durable(task: &TaskFile) -> bool {
    match task.command {
        opcode::WRITE_DMA_FUA_EXT | opcode::WRITE_MULTIPLE_FUA_EXT => true,
        opcode::WRITE_QUEUED => task.device & ring3_spec::ata::device::FUA != 0,
        _ => false,
    }
}

/// Blocks of a read or write; a count of 0 is the most. [ACS-3 7.1.2, 7.1.3, 7.20.3]
pub(super) fn count(task: &TaskFile) -> u32 {
    let (count, most) = match (is_queued(task.command), is_ext(task.command)) {
        (true, _) => (task.features, MAX_COUNT_48),
        (false, true) => (task.count, MAX_COUNT_48),
        (false, false) => (task.count & 0xff, MAX_COUNT_28),
    };
    if count == 0 { most } else { count.into() }
}
