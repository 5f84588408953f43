//! A BAR of a device in QEMU.

use std::sync::Arc;

use ring3_device::Bar;

use super::function::Range;
use super::host::Host;
use super::wire::Wire;

/// Memory or ports of one BAR, reached by lines over the socket.
///
/// A read costs a round trip, about 10 microseconds; a write is posted and costs about 3.
#[derive(Clone)]
pub struct QtestBar {
    wire: Arc<Wire>,
    range: Range,
}

impl QtestBar {
    /// The range of a function in `host`.
    pub(super) fn new(wire: Arc<Wire>, host: &Host, range: Range) -> Self {
        let range = match host.ports {
            Some(base) if range.port => Range { port: false, base: base + range.base, ..range },
            _ => range,
        };
        Self { wire, range }
    }

    fn contains(&self, offset: u64, width: u64) -> bool {
        let (from, to) = self.range.usable;
        offset >= from && offset.checked_add(width).is_some_and(|end| end <= to)
    }

    /// All ones as for a single access.
    fn read_string(&self, verbs: [&'static str; 2], offset: u64, width: usize, bytes: &mut [u8]) {
        let whole = bytes.len() - bytes.len() % width;
        let bytes = &mut bytes[..whole];
        let (verb, at) = self.target(verbs, offset);
        if !self.contains(offset, width as u64) || self.wire.read_stream(&format!("{verb} {at:#x}"), width, bytes).is_err() {
            bytes.fill(0xff);
        }
    }

    fn write_string(&self, verbs: [&'static str; 2], offset: u64, width: usize, bytes: &[u8]) {
        if self.contains(offset, width as u64) {
            let (verb, at) = self.target(verbs, offset);
            self.wire.write_stream(&format!("{verb} {at:#x}"), width, &bytes[..bytes.len() - bytes.len() % width]);
        }
    }

    /// The line's verb, for memory or ports, and where it goes.
    fn target(&self, verbs: [&'static str; 2], offset: u64) -> (&'static str, u64) {
        (verbs[usize::from(self.range.port)], self.range.base.saturating_add(offset))
    }

    /// All ones for what lies outside or is another device's, for a QEMU that is gone, and for an access that it refused.
    fn read(&self, verbs: [&'static str; 2], offset: u64, width: u64) -> u64 {
        if !self.contains(offset, width) {
            return u64::MAX;
        }
        let (verb, at) = self.target(verbs, offset);
        self.wire.ask(format_args!("{verb} {at:#x}")).unwrap_or(u64::MAX)
    }

    fn write(&self, verbs: [&'static str; 2], offset: u64, width: u64, value: u64) {
        if self.contains(offset, width) {
            let (verb, at) = self.target(verbs, offset);
            self.wire.post(format_args!("{verb} {at:#x} {value:#x}"));
        }
    }
}

impl Bar for QtestBar {
    fn len(&self) -> u64 {
        self.range.len
    }
    fn read8(&self, offset: u64) -> u8 {
        self.read(["readb", "inb"], offset, 1) as u8
    }
    fn read16(&self, offset: u64) -> u16 {
        self.read(["readw", "inw"], offset, 2) as u16
    }
    fn read32(&self, offset: u64) -> u32 {
        self.read(["readl", "inl"], offset, 4) as u32
    }
    fn read64(&self, offset: u64) -> u64 {
        match self.range.port {
            false => self.read(["readq", ""], offset, 8),
            true => u64::from(self.read32(offset)) | u64::from(self.read32(offset.saturating_add(4))) << 32,
        }
    }
    fn write8(&self, offset: u64, value: u8) {
        self.write(["writeb", "outb"], offset, 1, value.into());
    }
    fn write16(&self, offset: u64, value: u16) {
        self.write(["writew", "outw"], offset, 2, value.into());
    }
    fn write32(&self, offset: u64, value: u32) {
        self.write(["writel", "outl"], offset, 4, value.into());
    }
    fn write64(&self, offset: u64, value: u64) {
        if !self.range.port {
            return self.write(["writeq", ""], offset, 8, value);
        }
        self.write32(offset, value as u32);
        self.write32(offset.saturating_add(4), (value >> 32) as u32);
    }
    fn read_string16(&self, offset: u64, bytes: &mut [u8]) {
        self.read_string(["readw", "inw"], offset, 2, bytes);
    }
    fn write_string16(&self, offset: u64, bytes: &[u8]) {
        self.write_string(["writew", "outw"], offset, 2, bytes);
    }
    fn read_string32(&self, offset: u64, bytes: &mut [u8]) {
        self.read_string(["readl", "inl"], offset, 4, bytes);
    }
    fn write_string32(&self, offset: u64, bytes: &[u8]) {
        self.write_string(["writel", "outl"], offset, 4, bytes);
    }
}
