//! What a model sees of the machine: memory through the IOMMU, interrupts, and a timer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ring3_device::Error;
use ring3_spec::pci;

use super::config::Config;
use super::interrupts::Interrupts;
use super::iommu::{Blocked, DmaFault, SimIommu};
use super::model::Identity;
use super::timer::{Timer, Waker};

/// The machine around a model.
///
/// # Ordering
/// Accesses reach memory in program order. A driver that sees a word written by
/// [`store`](Bus::store) sees everything that the model wrote before it.
pub struct Bus {
    pub(super) iommu: Arc<SimIommu>,
    pub(super) config: Config,
    pub(super) interrupts: Arc<Interrupts>,
    removed: AtomicBool,
    timer: Timer,
}

impl Bus {
    pub(super) fn new(
        identity: &Identity,
        capabilities: &[Vec<u8>],
        iommu: Arc<SimIommu>,
        timer: Timer,
    ) -> Self {
        let config = Config::new(identity, capabilities);
        let interrupts = Arc::new(Interrupts::new(identity));
        Self { iommu, config, interrupts, removed: AtomicBool::new(false), timer }
    }

    /// Reads memory from device address `iova` on.
    #[inline]
    pub fn read(&self, iova: u64, bytes: &mut [u8]) -> Result<(), Blocked> {
        let len = bytes.len();
        self.may(iova, len, false)?;
        self.iommu.reach(iova, len, false, |window| window.read(iova, bytes).then_some(()))
    }

    /// Writes memory from device address `iova` on.
    #[inline]
    pub fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), Blocked> {
        self.may(iova, bytes.len(), true)?;
        self.iommu.reach(iova, bytes.len(), true, |window| window.write(iova, bytes).then_some(()))
    }

    /// Reads the 64-bit word at `iova`, a multiple of 8, as one access.
    #[inline]
    pub fn load(&self, iova: u64) -> Result<u64, Blocked> {
        self.may(iova, 8, false)?;
        self.iommu.reach(iova, 8, false, |window| window.load(iova))
    }

    /// Writes the 64-bit word at `iova`, a multiple of 8, as one access, after everything that was
    /// written before.
    #[inline]
    pub fn store(&self, iova: u64, value: u64) -> Result<(), Blocked> {
        self.may(iova, 8, true)?;
        self.iommu.reach(iova, 8, true, |window| window.store(iova, value).then_some(()))
    }

    /// Sends message `vector`, if MSI or MSI-X is enabled; otherwise it has no effect, as the pin
    /// is not a message.
    #[inline]
    pub fn raise(&self, vector: u16) {
        if !self.is_removed() && self.config.command() & pci::COMMAND_BUS_MASTER != 0 {
            self.interrupts.raise(vector);
        }
    }

    /// Asserts or releases the pin. It has no effect while messages are enabled, but is remembered.
    #[inline]
    pub fn set_level(&self, asserted: bool) {
        self.set_pin(0, asserted);
    }

    /// The same for pin `pin` of a function with several.
    #[inline]
    pub fn set_pin(&self, pin: u8, asserted: bool) {
        if !self.is_removed() {
            self.interrupts.set_level(pin, asserted);
        }
    }

    /// Calls [`Model::tick`](super::Model::tick) at `when`, from a thread of its own.
    pub fn wake_at(&self, when: Instant) {
        self.timer.wake_at(when);
    }

    /// What others wake the model with.
    pub(super) fn waker(&self) -> Waker {
        self.timer.waker()
    }

    /// Whether the device was pulled out; then it reaches nothing any more.
    #[inline]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Pulls the device out: from now on it reads all ones and reaches nothing.
    pub fn remove(&self) {
        self.removed.store(true, Ordering::Release);
    }

    pub(super) fn config_read(&self, offset: u64, width: usize) -> u32 {
        let ones = if width >= 4 { u32::MAX } else { (1 << (width * 8)) - 1 };
        if self.is_removed() {
            ones
        } else {
            self.config.read(offset, width, &self.interrupts) & ones
        }
    }

    pub(super) fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        if self.is_removed() { Ok(()) } else { self.config.write(offset, width, value) }
    }

    /// See [`Config::platform_write`].
    pub(super) fn platform_write(&self, offset: u64, width: usize, value: u32) {
        self.config.platform_write(offset, width, value);
        self.interrupts.disable_pin(self.config.command() & pci::COMMAND_INTX_DISABLE != 0);
    }

    /// Switches one bit of the command register, as the backend does for its user.
    pub(super) fn set_command(&self, bit: u16, on: bool) {
        self.config.set_command(bit, on);
        self.interrupts.disable_pin(self.config.command() & pci::COMMAND_INTX_DISABLE != 0);
    }

    #[inline]
    fn may(&self, iova: u64, len: usize, write: bool) -> Result<(), Blocked> {
        if self.is_removed() {
            return Err(Blocked::Removed);
        }
        if self.config.command() & pci::COMMAND_BUS_MASTER == 0 {
            return Err(self.iommu.block(DmaFault {
                iova,
                len,
                write,
                reason: Blocked::BusMasterOff,
            }));
        }
        Ok(())
    }
}
