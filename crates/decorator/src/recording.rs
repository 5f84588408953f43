//! What a recording is made of, and its file.
//!
//! # Format, version 1
//! Lines of JSON. The first is the [`Header`]: `{"ring3-recording":1,"device":"sim:nvme",...}`. Each further one is an event with its time, in
//! nanoseconds since the recording began: `[48210,{"write":[[0,20,4],4587521]}]`. A register is BAR (7 for configuration space, as VFIO numbers
//! regions), offset and width in bytes. What stands behind the last line's end was being written when the process ended, and is ignored.
//! A later version may add events; a reader refuses versions that it does not know.
//!
//! # What is not in it
//! Memory. What a driver and its device tell each other there, queues and data, is not recorded; words that pass through a data port are.
//!
//! # Trust
//! A file is input: its lines, its events and the arena that it asks for are bounded.

use std::io::{BufRead, Read};

use ring3_device::irq::{IrqKind, IrqLimits};
use ring3_device::{BarInfo, Device, Error};
use ring3_spec::pci;
use serde::{Deserialize, Serialize};

/// The version that is written.
const VERSION: u32 = 1;
/// Events of one recording; what comes later is lost.
pub(crate) const MOST_EVENTS: usize = 1 << 20;
/// Bytes of one line.
const LONGEST_LINE: u64 = 4096;
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

/// Something that a driver did with its device, or the device with its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// So many events are missing before here, or anywhere since the one before.
    Lost(u64),
}

impl Event {
    /// Whether the driver chose it, so that a replay can check it.
    pub(crate) fn is_call(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Irqs(..) | Self::BusMaster(_) | Self::Reset)
    }
}

/// An event and its time.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stamped(pub(crate) u64, pub(crate) Event);

/// What the device was, as far as a driver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the format.
    #[serde(rename = "ring3-recording")]
    version: u32,
    /// Its URI.
    pub device: String,
    /// Its BARs.
    pub bars: [Option<BarInfo>; pci::BAR_COUNT as usize],
    /// Its interrupts.
    pub irqs: IrqLimits,
    /// Device address and bytes of what was free of its arena, so that a driver writes the same addresses again.
    pub arena: (u64, u64),
}

impl Header {
    pub(crate) fn of(device: &dyn Device) -> Result<Self, Error> {
        let arena = device.dma().arena();
        // Where the first free page is, the driver's first buffer will be.
        let start = arena.alloc(PAGE as usize, PAGE as usize)?.iova();
        let free = arena.free_bytes() as u64 / PAGE * PAGE;
        Ok(Self {
            version: VERSION,
            device: device.name().into(),
            bars: std::array::from_fn(|index| device.bar_info(index as u8)),
            irqs: device.irq_limits(),
            arena: (start, free.min(LARGEST_ARENA)),
        })
    }

    fn is_sound(&self) -> bool {
        let (iova, len) = self.arena;
        let whole_pages = iova.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        whole_pages && (PAGE..=LARGEST_ARENA).contains(&len) && iova <= HIGHEST_ARENA
    }
}

/// A recording that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// What the device was.
    pub header: Header,
    /// What happened. Event `n` is line `n + 2` of the file.
    pub events: Vec<Event>,
}

impl Recording {
    /// Reads a file. [`Error::Protocol`] names the line that is none of this format.
    pub fn read(mut file: impl BufRead) -> Result<Self, Error> {
        let first = line(&mut file, 1)?.ok_or_else(|| bad(1, "it is empty"))?;
        let header: Header = serde_json::from_slice(&first).map_err(|error| bad(1, &error.to_string()))?;
        if header.version != VERSION {
            return Err(bad(1, &format!("version {}; this program reads version {VERSION}", header.version)));
        }
        if !header.is_sound() {
            return Err(bad(1, "the arena is not of whole pages, larger than 1 GiB or too high"));
        }
        let mut events = Vec::new();
        while let Some(bytes) = line(&mut file, events.len() + 2)? {
            if events.len() == MOST_EVENTS {
                return Err(bad(events.len() + 2, "more events than a recording has"));
            }
            let Stamped(_, event) = serde_json::from_slice(&bytes).map_err(|error| bad(events.len() + 2, &error.to_string()))?;
            events.push(event);
        }
        Ok(Self { header, events })
    }

    /// Events that are missing.
    pub fn lost(&self) -> u64 {
        let lost = self.events.iter().map(|event| if let Event::Lost(count) = event { *count } else { 0 });
        lost.fold(0, u64::saturating_add)
    }
}

fn bad(number: usize, what: &str) -> Error {
    Error::Protocol(format!("line {number} of the recording: {what}"))
}

/// The next line that has its end.
fn line(file: &mut impl BufRead, number: usize) -> Result<Option<Vec<u8>>, Error> {
    let mut bytes = Vec::new();
    let read = file.take(LONGEST_LINE).read_until(b'\n', &mut bytes);
    let read = read.map_err(|error| Error::os("reading the recording", error))?;
    match bytes.pop() {
        Some(b'\n') => Ok(Some(bytes)),
        Some(_) if read as u64 == LONGEST_LINE => Err(bad(number, "it is longer than a line of a recording")),
        _ => Ok(None),
    }
}
