//! Devices that wrap other devices.

use crate::dma::Dma;
use crate::irq::{Irq, IrqKind, IrqLimits};
use crate::journal::Journal;
use crate::{Bar, BarInfo, Device, Error};

/// A device that is another one with something changed: implement [`inner`](Self::inner) and what
/// differs.
///
/// Decorators compose, over any backend; a driver cannot see them. What one does to registers it
/// does in a [`Bar`] over its own [`Access`](crate::Access).
pub trait Decorator: Send + Sync + 'static {
    /// The device underneath.
    fn inner(&self) -> &dyn Device;
    /// See [`Device::name`].
    fn name(&self) -> &str {
        self.inner().name()
    }
    /// See [`Device::config_read`].
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        self.inner().config_read(offset, width)
    }
    /// See [`Device::config_write`].
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.inner().config_write(offset, width, value)
    }
    /// See [`Device::bar_info`].
    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        self.inner().bar_info(index)
    }
    /// See [`Device::bar`].
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        self.inner().bar(index)
    }
    /// See [`Device::dma`].
    fn dma(&self) -> &Dma {
        self.inner().dma()
    }
    /// See [`Device::irq_limits`].
    fn irq_limits(&self) -> IrqLimits {
        self.inner().irq_limits()
    }
    /// See [`Device::irqs`].
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        self.inner().irqs(kind, count)
    }
    /// See [`Device::set_bus_master`].
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.inner().set_bus_master(on)
    }
    /// See [`Device::reset`].
    fn reset(&self) -> Result<(), Error> {
        self.inner().reset()
    }
    /// See [`Device::removal`].
    fn removal(&self) -> Option<&Irq> {
        self.inner().removal()
    }
    /// See [`Device::bus_errors`].
    fn bus_errors(&self) -> Option<&Irq> {
        self.inner().bus_errors()
    }
    /// See [`Device::journal`].
    fn journal(&self) -> Option<&dyn Journal> {
        self.inner().journal()
    }
}

impl<T: Decorator> Device for T {
    fn name(&self) -> &str {
        Decorator::name(self)
    }
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        Decorator::config_read(self, offset, width)
    }
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        Decorator::config_write(self, offset, width, value)
    }
    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        Decorator::bar_info(self, index)
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        Decorator::bar(self, index)
    }
    fn dma(&self) -> &Dma {
        Decorator::dma(self)
    }
    fn irq_limits(&self) -> IrqLimits {
        Decorator::irq_limits(self)
    }
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        Decorator::irqs(self, kind, count)
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        Decorator::set_bus_master(self, on)
    }
    fn reset(&self) -> Result<(), Error> {
        Decorator::reset(self)
    }
    fn removal(&self) -> Option<&Irq> {
        Decorator::removal(self)
    }
    fn bus_errors(&self) -> Option<&Irq> {
        Decorator::bus_errors(self)
    }
    fn journal(&self) -> Option<&dyn Journal> {
        Decorator::journal(self)
    }
}
