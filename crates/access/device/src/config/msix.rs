//! MSI-X: the location of its table, and masking by its entries.

use std::sync::Arc;

use ring3_spec::pci;

use crate::irq::IrqControl;
use crate::{Bar, Error};

/// The MSI-X capability. [PCI 6.8.2]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// Where it starts.
    pub at: u64,
    /// The BAR that holds the table.
    pub bar: u8,
    /// The table's first byte in it.
    pub offset: u64,
    /// Entries of 16 bytes.
    pub entries: u16,
}

impl Msix {
    /// Where entry `vector` starts in its BAR.
    pub fn entry(&self, vector: u16) -> u64 {
        self.offset + pci::MSIX_ENTRY * u64::from(vector)
    }

    /// What masks its vectors, by writes to `bar`, in which it lies: one posted write. The device
    /// remembers what comes meanwhile.
    pub fn control(&self, bar: Bar) -> Arc<dyn IrqControl> {
        Arc::new(Masks { bar, table: *self })
    }
}

struct Masks {
    bar: Bar,
    table: Msix,
}

impl Masks {
    fn set(&self, vector: u16, masked: bool) {
        self.bar.write32(self.table.entry(vector) + pci::MSIX_VECTOR_CONTROL, masked.into());
    }
}

impl IrqControl for Masks {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.set(vector, true);
        Ok(())
    }
    fn unmask(&self, vector: u16) -> Result<(), Error> {
        self.set(vector, false);
        Ok(())
    }
}
