//! The BARs of a simulated device.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ring3_device::{Access, Bar, Error};
use ring3_spec::pci;

use super::device::Core;
use super::doorbells::Doorbells;
use super::model::{BarLayout, Model, MsixLayout};

/// Bytes of an MSI-X table entry: address, data, control. [PCI 6.8.2]
const ENTRY: u64 = 16;
/// Where in an entry its control word lies; bit 0 is the mask.
const ENTRY_CONTROL: u64 = 12;

/// One BAR of a simulated device.
struct SimBar<M> {
    core: Arc<Core<M>>,
    layout: BarLayout,
}

pub(super) fn open<M: Model>(core: &Arc<Core<M>>, index: u8) -> Result<Bar, Error> {
    let layout = core.identity.bars.iter().find(|bar| bar.index == index);
    let layout =
        *layout.ok_or_else(|| Error::Unsupported(format!("{} has no BAR {index}", core.name)))?;
    let bar = Arc::new(SimBar { core: Arc::clone(core), layout });
    if !core.posted.is_on() || core.model().doorbell_bar() != Some(index) {
        return Ok(Bar::new(bar));
    }
    /// Whoever reads is always told to ask the model.
    static ASK: AtomicBool = AtomicBool::new(true);
    let (base, len) =
        core.doorbells.get_or_init(|| Doorbells::new(layout.index, layout.len)).window();
    // SAFETY: the core, which `bar` keeps, keeps the words, aligned to 8 bytes; this side of them
    // only swaps whole words.
    Ok(unsafe { Bar::mapped(bar, base, len, &ASK) })
}

impl<M: Model> Access for SimBar<M> {
    fn len(&self) -> u64 {
        self.layout.len
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        if !self.core.answers(&self.layout, offset, width) {
            return u64::MAX;
        }
        let mut model = self.core.model();
        self.core.deliver(&mut model);
        match self.core.msix_read(self.layout.index, offset, width) {
            Some(value) => value,
            None => model.read(&self.core.bus, self.layout.index, offset, width),
        }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        let recorded = width == 4
            && offset < self.layout.len
            && self.core.posted.record((self.layout.index, offset, value as u32));
        if recorded || !self.core.answers(&self.layout, offset, width) {
            return;
        }
        let mut model = self.core.model();
        self.core.deliver(&mut model);
        self.core.write(&mut model, self.layout.index, offset, width, value);
    }
}

impl<M: Model> Core<M> {
    /// Whether an access meets the device: it lies within the BAR, which is decoded, and the device
    /// is there.
    #[inline]
    fn answers(&self, layout: &BarLayout, offset: u64, width: usize) -> bool {
        let decoding = if layout.ports { pci::COMMAND_IO } else { pci::COMMAND_MEMORY };
        let inside = offset.checked_add(width as u64).is_some_and(|end| end <= layout.len);
        inside && !self.bus.is_removed() && self.bus.config.command() & decoding != 0
    }

    /// Delivers recorded writes; returns how many.
    #[inline]
    pub(super) fn deliver(&self, model: &mut M) -> usize {
        let mut count = 0;
        while let Some((bar, offset, value)) = self.posted.take() {
            if self
                .identity
                .bars
                .iter()
                .any(|layout| layout.index == bar && self.answers(layout, offset, 4))
            {
                self.write(model, bar, offset, 4, value.into());
            }
            count += 1;
        }
        if let Some(doorbells) = self.doorbells.get() {
            doorbells.take(|bar, offset, value| {
                self.write(model, bar, offset, 4, value.into());
                count += 1;
            });
        }
        count
    }

    #[inline]
    fn write(&self, model: &mut M, bar: u8, offset: u64, width: usize, value: u64) {
        match self.identity.msix {
            Some(msix) if bar == msix.bar && in_msix(&msix, offset) => {
                self.msix_write(&msix, offset, value)
            }
            _ => model.write(&self.bus, bar, offset, width, value),
        }
    }

    fn msix_read(&self, bar: u8, offset: u64, width: usize) -> Option<u64> {
        let msix = self.identity.msix.filter(|msix| msix.bar == bar && in_msix(msix, offset))?;
        let aligned = offset & !7;
        let word = if let Some(at) = within(aligned, msix.pba, pba_len(&msix)) {
            self.bus.interrupts.bits(at as usize * 8).1
        } else {
            // Addresses and data are the backend's business and read as zero; the mask bit is the
            // upper half of the second word.
            let entry = aligned - u64::from(msix.table);
            let (masked, _) = self.bus.interrupts.bits((entry / ENTRY) as usize);
            if entry % ENTRY == 8 { (masked & 1) << 32 } else { 0 }
        };
        let shifted = word >> ((offset % 8) * 8);
        Some(if width >= 8 { shifted } else { shifted & ((1 << (width * 8)) - 1) })
    }

    /// Only the mask bits can be written.
    fn msix_write(&self, msix: &MsixLayout, offset: u64, value: u64) {
        if let Some(at) = within(offset, msix.table, u64::from(msix.vectors) * ENTRY)
            && at % ENTRY == ENTRY_CONTROL
        {
            self.bus.interrupts.set_mask((at / ENTRY) as usize, value & 1 != 0);
        }
    }
}

fn in_msix(msix: &MsixLayout, offset: u64) -> bool {
    within(offset, msix.table, u64::from(msix.vectors) * ENTRY).is_some()
        || within(offset, msix.pba, pba_len(msix)).is_some()
}

/// One pending bit per entry, in whole 64-bit words. [PCI 6.8.2.2]
fn pba_len(msix: &MsixLayout) -> u64 {
    u64::from(msix.vectors).div_ceil(64) * 8
}

fn within(offset: u64, start: u32, len: u64) -> Option<u64> {
    offset.checked_sub(start.into()).filter(|&at| at < len)
}
