//! What a device model is: an identity, registers, and a [`Bus`] through which it reaches memory
//! and interrupts.

use std::time::{Duration, Instant};

use super::Bus;

/// The inside of a device: what it does when its registers are read and written.
///
/// The device around it takes care of configuration space, the MSI-X table, masking, bus mastering
/// and the IOMMU. All methods run under one lock, so a model is ordinary sequential code; none of
/// them may block.
pub trait Model: Send + 'static {
    /// What the function says about itself; asked once, when the device is made.
    fn identity(&self) -> Identity;

    /// Capabilities of the vendor's own: for each what follows its header of two bytes, at most 22
    /// bytes, of four capabilities at most. Asked once, when the device is made. [PCI 6.7]
    fn capabilities(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// A read of `width` (1, 2, 4 or 8) bytes at `offset` of BAR `bar`, which lies within the BAR
    /// but need not be aligned.
    fn read(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize) -> u64;

    /// A write of `width` (1, 2, 4 or 8) bytes.
    fn write(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize, value: u64);

    /// Back to the state after power-on, media kept. What was under way is forgotten: after it,
    /// nothing may write to memory.
    fn reset(&mut self, bus: &Bus);

    /// A read of `width` bytes at `offset` of configuration space; `None` where the device has no
    /// register of its own. It may cut across several of them.
    fn config_read(&mut self, _bus: &Bus, _offset: u64, _width: usize) -> Option<u32> {
        None
    }

    /// A write there; false where the device has no register of its own.
    fn config_write(&mut self, _bus: &Bus, _offset: u64, _width: usize, _value: u32) -> bool {
        false
    }

    /// A time that was asked for by [`Bus::wake_at`] has come (or some earlier one: ask again if
    /// there is still something to wait for).
    fn tick(&mut self, _bus: &Bus, _now: Instant) {}

    /// The BAR that may be mapped for who opens it while writes are
    /// [recorded](super::SimHandle::record): all that is written there then are doorbells, of which
    /// the last value counts.
    fn doorbell_bar(&self) -> Option<u8> {
        None
    }
}

/// What a PCI function says about itself in its configuration space.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Revision, 8 bits.
    pub revision: u8,
    /// Class code, 24 bits: base class, sub-class, interface.
    pub class: u32,
    /// The BARs that exist.
    pub bars: Vec<BarLayout>,
    /// Interrupt pins: 1 for the function's own, a level; 2 for the ISA interrupts of an IDE
    /// function in compatibility mode, which are edges; 0 for none.
    pub pins: u8,
    /// MSI vectors: 0, or a power of two up to 32.
    pub msi: u16,
    /// The MSI-X table, if there is one.
    pub msix: Option<MsixLayout>,
    /// Whether it is a PCI Express endpoint (with function level reset).
    pub express: bool,
    /// How many address bits its DMA engine has.
    pub dma_bits: u32,
}

/// One BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarLayout {
    /// 0 to 5.
    pub index: u8,
    /// Bytes, a power of two.
    pub len: u64,
    /// I/O ports instead of memory.
    pub ports: bool,
}

/// Where the MSI-X table and its pending bits lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixLayout {
    /// Table entries, 1 to 2048.
    pub vectors: u16,
    /// The BAR that holds both.
    pub bar: u8,
    /// Offset of the table in that BAR; 16 bytes per entry.
    pub table: u32,
    /// Offset of the pending bits in that BAR.
    pub pba: u32,
}

/// When a model does the work that it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    /// At once, inside of the register write that starts it: no thread, the same order every time.
    #[default]
    Inline,
    /// When the test releases it by hand.
    Held,
    /// This much later, from a timer thread.
    After(Duration),
}
