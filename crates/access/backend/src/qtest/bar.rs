//! A BAR of a device in QEMU.

use std::sync::Arc;

use ring3_device::{Access, Bar};

use super::function::Range;
use super::host::Host;
use super::wire::Wire;

/// Memory or ports of one BAR, reached by lines over the socket.
///
/// A read costs a round trip, about 10 microseconds; a write is posted and costs about 3.
pub(super) struct QtestBar {
    wire: Arc<Wire>,
    range: Range,
}

impl QtestBar {
    /// The BAR that is `range` of a function in `host`.
    pub(super) fn open(wire: Arc<Wire>, host: &Host, range: Range) -> Bar {
        let range = match host.ports {
            Some(base) if range.port => Range { port: false, base: base + range.base, ..range },
            _ => range,
        };
        Bar::new(Arc::new(Self { wire, range }))
    }

    fn contains(&self, offset: u64, width: u64) -> bool {
        let (from, to) = self.range.usable;
        offset >= from && offset.checked_add(width).is_some_and(|end| end <= to)
    }

    /// The line that reads or writes (`verb`) `width` bytes at `offset`: of memory or of a port.
    fn line(&self, verb: Verb, offset: u64, width: usize) -> String {
        let (memory, port) = match verb {
            Verb::Read => ("read", "in"),
            Verb::Write => ("write", "out"),
        };
        let size = ["b", "w", "l", "q"][width.trailing_zeros() as usize % 4];
        format!(
            "{}{size} {:#x}",
            if self.range.port { port } else { memory },
            self.range.base.saturating_add(offset)
        )
    }

    /// Ports move at most 4 bytes at once.
    fn in_halves(&self, width: usize) -> bool {
        self.range.port && width == 8
    }
}

/// Which way an access goes.
#[derive(Clone, Copy)]
enum Verb {
    Read,
    Write,
}

/// All ones for what lies outside or is another device's, for a QEMU that is gone, and for an
/// access that it refused.
impl Access for QtestBar {
    fn len(&self) -> u64 {
        self.range.len
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        match self.contains(offset, width as u64) {
            false => u64::MAX,
            true if self.in_halves(width) => self.read_halves(offset),
            true => self
                .wire
                .ask(format_args!("{}", self.line(Verb::Read, offset, width)))
                .unwrap_or(u64::MAX),
        }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        match self.contains(offset, width as u64) {
            false => {}
            true if self.in_halves(width) => self.write_halves(offset, value),
            true => {
                self.wire.post(format_args!("{} {value:#x}", self.line(Verb::Write, offset, width)))
            }
        }
    }

    fn read_string(&self, offset: u64, width: usize, bytes: &mut [u8]) {
        let whole = bytes.len() - bytes.len() % width;
        let bytes = &mut bytes[..whole];
        let inside = self.contains(offset, width as u64);
        if !inside
            || self.wire.read_stream(&self.line(Verb::Read, offset, width), width, bytes).is_err()
        {
            bytes.fill(0xff);
        }
    }

    fn write_string(&self, offset: u64, width: usize, bytes: &[u8]) {
        if self.contains(offset, width as u64) {
            self.wire.write_stream(
                &self.line(Verb::Write, offset, width),
                width,
                &bytes[..bytes.len() - bytes.len() % width],
            );
        }
    }
}
