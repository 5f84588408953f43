//! Where a driver left its recording, in words.

use std::fmt;

use crate::names;
use crate::recording::{Bytes, CONFIG, Event, Register};

/// Bytes of memory that are shown, from the first that differs on.
const SHOWN: usize = 16;

/// Where a driver left its recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The number of the event in the recording, from 0.
    pub index: u64,
    /// What is there; `None` behind its end.
    pub expected: Option<Event>,
    /// What the driver did instead; `None` if it did nothing more.
    pub found: Option<Event>,
    text: String,
}

impl Divergence {
    pub(super) fn new(
        index: u64,
        class: u32,
        expected: Option<Event>,
        found: Option<Event>,
        place: impl Fn(u64) -> Option<(String, u64)>,
    ) -> Self {
        let skip = match (&expected, &found) {
            (Some(Event::Driver(one)), Some(Event::Driver(other))) => first_difference(one, other),
            _ => 0,
        };
        let say = |event: &Option<Event>| match event {
            None => "nothing more".into(),
            Some(Event::Driver(memory)) => memory_text(memory, skip, &place),
            Some(event) => event.text(class),
        };
        let text = format!(
            "the driver leaves its recording at access {index}: recorded is {}; the driver: {}",
            say(&expected),
            say(&found)
        );
        Self { index, expected, found, text }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The first byte that differs of two that begin at the same address; 0 for others.
fn first_difference(one: &Bytes, other: &Bytes) -> usize {
    let same = one.bytes.iter().zip(&other.bytes).take_while(|(one, other)| one == other).count();
    if one.iova == other.iova { same } else { 0 }
}

fn memory_text(
    memory: &Bytes,
    skip: usize,
    place: &impl Fn(u64) -> Option<(String, u64)>,
) -> String {
    let iova = memory.iova + skip as u64;
    let of = match place(iova) {
        Some((tag, offset)) if !tag.is_empty() => format!(" ({tag} + {offset:#x})"),
        _ => String::new(),
    };
    let bytes: Vec<String> =
        memory.bytes.iter().skip(skip).take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    let more = if memory.bytes.len() > skip + SHOWN { " ..." } else { "" };
    format!(
        "{} in memory at {iova:#x}{of}{more}",
        if bytes.is_empty() { "nothing".into() } else { bytes.join(" ") }
    )
}

impl Event {
    /// It in words, without what a read said; `class` says which registers the device has.
    pub fn text(&self, class: u32) -> String {
        let place = |Register(bar, offset, width): &Register| {
            let space =
                if *bar == CONFIG { "configuration space".into() } else { format!("BAR {bar}") };
            let name = if *bar == CONFIG {
                names::config(*offset)
            } else {
                names::register(class, *bar, *offset)
            };
            let name = name.map_or(String::new(), |name| format!("{name}, "));
            format!("{name}{space} + {offset:#x}, {width} bytes")
        };
        match self {
            Event::Read(register, _) => format!("a read of {}", place(register)),
            Event::Write(register, value) => format!("{value:#x} written to {}", place(register)),
            Event::Irqs(kind, count) => format!("{count} interrupts enabled ({kind:?})"),
            Event::BusMaster(on) => format!("bus master {}", if *on { "on" } else { "off" }),
            Event::Reset => "a reset of the function".into(),
            Event::Refused => "refused".into(),
            Event::Interrupt(vector) => format!("interrupt {vector}"),
            Event::Synced => "a barrier".into(),
            Event::Elapsed => "the end of a sleep".into(),
            Event::Woken => "a sleep that somebody outside ends".into(),
            Event::Answer(bytes) => {
                format!("{} bytes of what the driver was answered from outside", bytes.len())
            }
            Event::Look => "a look at what the device has written".into(),
            Event::Driver(memory) => {
                format!("the driver writes {}", memory_text(memory, 0, &|_| None))
            }
            Event::Device(memory) => {
                format!("the device writes {}", memory_text(memory, 0, &|_| None))
            }
        }
    }
}
