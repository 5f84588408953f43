//! What a recording is made of, and its file.
//!
//! # Format, version 4
//! Eight bytes `R3RECORD`, the version in four (little endian), then blocks: kind (one byte), bytes
//! of its packed content (four), CRC-32 of these (four), and the content, packed by zstd. The first
//! block is the [`Header`], the last says how many events there were and how many were lost, and
//! those between hold events, each with the nanoseconds since the one before; all in postcard's
//! encoding. A register is BAR (7 for configuration space, as VFIO numbers regions), offset and
//! width in bytes. A later version may add events; a reader refuses versions that it does not know.
//! Of those before, which are read, too, version 3 has nothing of
//! [`Journal`](ring3_device::journal::Journal), and version 2 no [`Event::Look`] either.
//!
//! A recording without its last block is one whose process was killed: it is whole up to its end.
//! Anything else that is cut off or changed is refused when it is opened.
//!
//! # Trust
//! A file is input: its blocks, its events, what is kept of it in memory at a time and the arena
//! that it asks for are bounded.

mod clean;
mod file;
mod reader;

use ring3_device::irq::{IrqKind, IrqLimits};
use ring3_device::{BarInfo, Device, Error};
use ring3_spec::pci;
use serde::{Deserialize, Serialize};

pub use clean::clean;
pub(crate) use file::Writer;
pub use reader::Recording;

/// Bytes of the arena that a recording can ask for.
const LARGEST_ARENA: u64 = 1 << 30;
/// Where it may start.
const HIGHEST_ARENA: u64 = u64::MAX >> 1;
const PAGE: u64 = 4096;

/// Configuration space, where [`Register`] has a BAR.
pub const CONFIG: u8 = 7;

/// A register: BAR or [`CONFIG`], offset, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Register(pub u8, pub u64, pub u8);

/// Bytes in memory that the device reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// The device address of the first.
    pub iova: u64,
    /// What was written there.
    pub bytes: Vec<u8>,
}

/// Something that a driver did with its device, or the device with its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A read, and what it said.
    Read(Register, u64),
    /// A write.
    Write(Register, u64),
    /// So many interrupts were enabled.
    Irqs(IrqKind, u16),
    /// The bus master was switched.
    BusMaster(bool),
    /// The function was reset.
    Reset,
    /// The call before, or the write to configuration space, failed.
    Refused,
    /// The interrupt of this vector came.
    Interrupt(u16),
    /// The driver wrote this to memory before its next call.
    Driver(Bytes),
    /// The device wrote this to memory.
    Device(Bytes),
    /// What the device wrote before this came to a driver that did not ask, and not with the read
    /// behind it.
    Look,
    /// Driver and device have had what the other one has written.
    Synced,
    /// The driver's sleep was over.
    Elapsed,
    /// Somebody outside wanted something of the driver.
    Woken,
    /// What the outside has answered to the driver.
    Answer(Vec<u8>),
}

impl Event {
    /// Whether the driver chose it, so that a replay can check it.
    pub(crate) fn is_call(&self) -> bool {
        matches!(
            self,
            Self::Write(..)
                | Self::Irqs(..)
                | Self::BusMaster(_)
                | Self::Reset
                | Self::Synced
                | Self::Elapsed
                | Self::Woken
        )
    }

    /// Bytes that it has beside itself.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Driver(memory) | Self::Device(memory) => memory.bytes.len(),
            Self::Answer(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// An event, and the nanoseconds since the one before.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stamped(pub(crate) u64, pub(crate) Event);

/// What stands in the last block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) events: u64,
    pub(crate) lost: u64,
}

/// What the device was, as far as a driver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Its URI.
    pub device: String,
    /// Its class code (24 bits).
    pub class: u32,
    /// Its BARs.
    pub bars: [Option<BarInfo>; pci::BAR_COUNT as usize],
    /// Its interrupts.
    pub irqs: IrqLimits,
    /// Device address and bytes of the driver's arena, so that a driver writes the same addresses
    /// again.
    pub arena: (u64, u64),
    /// The words of the command that drove it, for who replays it; empty if it was none.
    pub command: Vec<String>,
}

impl Header {
    pub(crate) fn of(device: &dyn Device, arena: (u64, u64), command: Vec<String>) -> Self {
        Self {
            device: device.name().into(),
            class: device.config_read(pci::REVISION, 4) >> 8,
            bars: std::array::from_fn(|index| device.bar_info(index as u8)),
            irqs: device.irq_limits(),
            arena,
            command,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let (iova, len) = self.arena;
        let whole_pages = iova.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        if whole_pages && (PAGE..=LARGEST_ARENA).contains(&len) && iova <= HIGHEST_ARENA {
            return Ok(());
        }
        Err(Error::Claim(
            "the recording's arena is not of whole pages, larger than 1 GiB or too high".into(),
        ))
    }
}
