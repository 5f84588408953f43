//! The drive behind an ATA controller, whichever carries its commands.
//!
//! A controller gives the drive a [`TaskFile`](ring3_spec::ata::TaskFile) and is told by a [`Plan`]
//! what data go which way; it moves them as it can, and asks the drive how the command ended.
//!
//! # References
//! - `[ACS-3]` ATA/ATAPI Command Set 3, T13/2161-D, Revision 5, October 2013
//! - `[ACS-4]` ATA/ATAPI Command Set 4, T13/BSR INCITS 529, Revision 14, 2016
//! - `[ATA-6]` AT Attachment with Packet Interface 6, T13/1410-D, Revision 3b, February 2002

mod command;
mod data;
mod drive;
mod identify;
mod plan;
mod quirk;
mod record;
mod shape;

pub(super) use command::{is_ext, is_queued};
pub(super) use drive::{Drive, End};
pub(super) use plan::{Plan, Protocol};
pub use quirk::Quirk;
pub use record::Counters;
pub(super) use record::Record;
pub use shape::{DriveShape, Link, Statistics};
pub(super) use shape::{KEYS, of_options};

use ring3_spec::ata::opcode;

use super::fault::{CommandName, Event, Queues};

/// The commands that a fault rule can name. Queue 0 is that of commands which are about the drive,
/// the others that of its data: queue 1 belongs to the first drive, and so on.
pub(super) const COMMANDS: [CommandName; 9] = [
    ("read", Queues::Io, FAULT_READ),
    ("write", Queues::Io, FAULT_WRITE),
    ("flush", Queues::Io, FAULT_FLUSH),
    ("discard", Queues::Io, opcode::DATA_SET_MANAGEMENT),
    ("identify", Queues::Admin, opcode::IDENTIFY),
    ("set-features", Queues::Admin, opcode::SET_FEATURES),
    ("log", Queues::Admin, FAULT_LOG),
    ("smart", Queues::Admin, opcode::SMART),
    ("standby", Queues::Admin, opcode::STANDBY_IMMEDIATE),
];

/// Opcode by which a fault rule means all commands that read, whatever their own opcodes are.
pub const FAULT_READ: u8 = opcode::READ_DMA;
/// The same for all commands that write.
pub const FAULT_WRITE: u8 = opcode::WRITE_DMA;
/// The same for both commands that flush.
pub const FAULT_FLUSH: u8 = opcode::FLUSH;
/// The same for both commands that read a log.
pub const FAULT_LOG: u8 = opcode::READ_LOG_EXT;

/// What the fault hooks see of a command to drive `number`.
pub(super) fn describe(number: usize, task: &ring3_spec::ata::TaskFile) -> Event {
    let (code, io, blocks) = match command::Kind::of(task.command) {
        Some(command::Kind::Read(_)) => {
            (FAULT_READ, true, Some((task.lba, command::count(task).into())))
        }
        Some(command::Kind::Write(_)) => {
            (FAULT_WRITE, true, Some((task.lba, command::count(task).into())))
        }
        _ => match task.command {
            opcode::FLUSH | opcode::FLUSH_EXT => (FAULT_FLUSH, true, None),
            opcode::DATA_SET_MANAGEMENT => (task.command, true, None),
            opcode::READ_LOG_EXT | opcode::READ_LOG_DMA_EXT => (FAULT_LOG, false, None),
            other => (other, false, None),
        },
    };
    Event::Command { queue: if io { number as u16 + 1 } else { 0 }, opcode: code, blocks }
}
