//! The table of MSI-X in memory: the driver writes here, and the device's own is the backend's.

use std::ops::Range;
use std::sync::Arc;

use ring3_device::config::Msix;
use ring3_device::{Access, Bar};
use ring3_spec::pci;

use crate::virtual_config::ConfigShared;

const ENTRY: usize = pci::MSIX_ENTRY as usize;
const CONTROL: usize = pci::MSIX_VECTOR_CONTROL as usize;

/// The entries. Each is masked at first. [PCI 6.8.2.9]
pub(crate) struct Table(Vec<u8>);

impl Table {
    pub(crate) fn new(entries: u16) -> Self {
        let mut entry = [0; ENTRY];
        entry[CONTROL] = 1;
        Self(entry.repeat(entries.into()))
    }

    pub(crate) fn is_masked(&self, vector: u16) -> bool {
        self.0[usize::from(vector) * ENTRY + CONTROL] & 1 != 0
    }

    /// Address and data.
    pub(crate) fn message(&self, vector: u16) -> (u64, u32) {
        let at = usize::from(vector) * ENTRY;
        (self.word(at..at + 8), self.word(at + 8..at + 12) as u32)
    }

    fn word(&self, place: Range<usize>) -> u64 {
        self.0[place].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    fn write(&mut self, place: Range<usize>, value: u64) {
        for (at, byte) in place.zip(value.to_le_bytes()) {
            // Of the control word, the mask alone exists; an address is a multiple of 4.
            self.0[at] = match at % ENTRY {
                0 => byte & !0b11,
                CONTROL => byte & 1,
                reserved if reserved > CONTROL => 0,
                _ => byte,
            };
        }
    }
}

/// A BAR with the table in it. What lies before the table stays as directly reached as it is.
struct TableBar {
    bar: Bar,
    table: Range<u64>,
    shared: Arc<ConfigShared>,
}

pub(crate) fn around(bar: Bar, msix: Msix, shared: Arc<ConfigShared>) -> Bar {
    let table = msix.offset..msix.entry(msix.entries);
    let rest = TableBar { bar: bar.clone(), table, shared };
    bar.with_rest(msix.offset, Arc::new(rest))
}

impl TableBar {
    /// `None`: not in the table. `Some(None)`: in it and beyond it, which reaches nothing.
    fn place(&self, offset: u64, width: usize) -> Option<Option<Range<usize>>> {
        let end = offset.saturating_add(width as u64);
        if end <= self.table.start || self.table.end <= offset {
            return None;
        }
        let start = offset.checked_sub(self.table.start).filter(|_| end <= self.table.end);
        Some(start.map(|start| start as usize..start as usize + width))
    }
}

impl Access for TableBar {
    fn len(&self) -> u64 {
        self.bar.len()
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        // A read of the device's own table says whether it is still there: no control word is all
        // ones.
        let gone = || self.bar.read32(self.table.start + pci::MSIX_VECTOR_CONTROL) == u32::MAX;
        match self.place(offset, width) {
            None => self.bar.read(offset, width),
            Some(Some(place)) if !gone() => self.shared.with_table(|table| table.word(place)),
            Some(_) => u64::MAX,
        }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        match self.place(offset, width) {
            None => self.bar.write(offset, width, value),
            Some(Some(place)) => self.shared.with_table(|table| table.write(place, value)),
            Some(None) => {}
        }
    }
}
