//! Faults of real drives, which drivers must know.

use ring3_spec::ata::log::{self, DIRECTORY};
use ring3_spec::ata::{TaskFile, opcode};

use super::command::{self, How, Kind};
use crate::fault::Action;

/// Bytes of the longest TRIM that such a drive takes.
const LONG_TRIM: u64 = 128 << 20;

/// One such fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// Data that are written by DMA are damaged.
    DmaCorrupts,
    /// Data of queued writes are damaged.
    NcqCorrupts,
    /// Data of a write of more than 128 blocks are damaged.
    Over128Corrupts,
    /// Data of a write of more than 255 blocks are damaged.
    Over255Corrupts,
    /// Data of a write of more than 1024 blocks are damaged.
    Over1024Corrupts,
    /// Data of a write of more than 8191 blocks are damaged.
    Over8191Corrupts,
    /// TRIM frees other blocks.
    TrimCorrupts,
    /// TRIM of more than 128 MiB breaks the drive.
    LongTrimFails,
    /// It answers no more once its log directory was read.
    LogDirectoryHangs,
    /// FUA does not write through.
    FuaLies,
    /// Transfers by DMA fail on a link of more than 1.5 Gbit/s.
    FastLinkFails,
    /// They fail on one of more than 3 Gbit/s.
    FastestLinkFails,
}

/// All of them by their names.
pub(super) const QUIRKS: [(&str, Quirk); 12] = [
    ("dma-corrupts", Quirk::DmaCorrupts),
    ("ncq-corrupts", Quirk::NcqCorrupts),
    ("over-128-corrupts", Quirk::Over128Corrupts),
    ("over-255-corrupts", Quirk::Over255Corrupts),
    ("over-1024-corrupts", Quirk::Over1024Corrupts),
    ("over-8191-corrupts", Quirk::Over8191Corrupts),
    ("trim-corrupts", Quirk::TrimCorrupts),
    ("long-trim-fails", Quirk::LongTrimFails),
    ("log-directory-hangs", Quirk::LogDirectoryHangs),
    ("fua-lies", Quirk::FuaLies),
    ("fast-link-fails", Quirk::FastLinkFails),
    ("fastest-link-fails", Quirk::FastestLinkFails),
];

impl Quirk {
    /// What becomes of a command by it.
    pub(super) fn fault(self, task: &TaskFile) -> Option<Action> {
        let writes = match Kind::of(task.command) {
            Some(Kind::Write(how)) => Some(how),
            _ => None,
        };
        let is_longer = |blocks| writes.is_some() && command::count(task) > blocks;
        let is_log = task.command == opcode::READ_LOG_EXT;
        let corrupts = match self {
            Self::DmaCorrupts => writes == Some(How::Dma),
            Self::NcqCorrupts => writes == Some(How::Queued),
            Self::Over128Corrupts => is_longer(128),
            Self::Over255Corrupts => is_longer(255),
            Self::Over1024Corrupts => is_longer(1024),
            Self::Over8191Corrupts => is_longer(8191),
            // The first range is another one than it was.
            Self::TrimCorrupts => task.command == opcode::DATA_SET_MANAGEMENT,
            Self::LogDirectoryHangs if is_log && log::at_address(task.lba).0 == DIRECTORY => {
                return Some(Action::Busy);
            }
            Self::LongTrimFails
            | Self::LogDirectoryHangs
            | Self::FuaLies
            | Self::FastLinkFails
            | Self::FastestLinkFails => false,
        };
        corrupts.then_some(Action::Corrupt)
    }

    /// Whether a transfer of `task` fails on a link of this generation.
    pub(super) fn fails_at(self, task: &TaskFile, speed: u32) -> bool {
        let fastest = match self {
            Self::FastLinkFails => 1,
            Self::FastestLinkFails => 2,
            _ => return false,
        };
        let is_dma = matches!(
            Kind::of(task.command),
            Some(Kind::Read(How::Dma | How::Queued) | Kind::Write(How::Dma | How::Queued))
        );
        is_dma && speed > fastest
    }

    /// Whether a TRIM of `bytes` breaks the drive.
    pub(super) fn breaks_at(self, bytes: u64) -> bool {
        self == Self::LongTrimFails && bytes > LONG_TRIM
    }
}
