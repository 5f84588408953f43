//! Interrupts of functions behind VFIO's interface, by whatever way: eventfds, and masks in the MSI-X table.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_device::irq::IrqControl;
use ring3_device::{Bar, Error};
use ring3_spec::pci;
use rustix::event::{EventfdFlags, eventfd};

use crate::filter::MsixTable;

/// An eventfd that a kernel or a server signals.
pub(crate) fn new_fd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|error| Error::os("creating an eventfd", error))
}

impl MsixTable {
    /// The first byte of its BAR behind the first `vectors` entries.
    pub(crate) fn end(&self, vectors: usize) -> u64 {
        self.offset + pci::MSIX_ENTRY * vectors as u64
    }

    /// What masks its vectors, by writes to `bar`, in which it lies.
    pub(crate) fn control(&self, bar: Bar) -> Arc<dyn IrqControl> {
        Arc::new(Table { bar, offset: self.offset })
    }
}

/// MSI-X with a table that can be written.
struct Table {
    bar: Bar,
    offset: u64,
}

impl Table {
    fn write(&self, vector: u16, masked: bool) {
        let entry = self.offset + pci::MSIX_ENTRY * u64::from(vector);
        self.bar.write32(entry + pci::MSIX_VECTOR_CONTROL, masked.into());
    }
}

impl IrqControl for Table {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.write(vector, true);
        Ok(())
    }
    fn unmask(&self, vector: u16) -> Result<(), Error> {
        self.write(vector, false);
        Ok(())
    }
}
