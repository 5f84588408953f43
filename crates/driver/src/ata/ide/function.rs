//! What both channels of a function share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_device::{Device, Error};
use ring3_spec::pci;

use super::super::options::Options;
use super::chip::Chip;

/// The function under its channels.
pub(super) struct Function {
    pub(super) device: Arc<dyn Device>,
    pub(super) chip: Chip,
    pub(super) options: Options,
    /// Goes up with every reset of the function, which takes the channels' settings and commands away.
    generation: AtomicU32,
    /// It may master the bus. Goes to false, for good, if a transfer can be stopped in no other way.
    dma: AtomicBool,
    /// Held while registers that the channels share are read and written back.
    changing: Mutex<()>,
}

impl Function {
    pub(super) fn new(device: Arc<dyn Device>, chip: Chip, options: Options, dma: bool) -> Self {
        let (generation, dma) = (AtomicU32::new(0), AtomicBool::new(dma));
        Self { device, chip, options, generation, dma, changing: Mutex::default() }
    }

    /// How often it was reset.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether the bus master may be used.
    #[inline]
    pub(super) fn has_dma(&self) -> bool {
        self.dma.load(Ordering::Relaxed)
    }

    /// Whether it answers all ones where it cannot.
    pub(super) fn is_gone(&self) -> bool {
        self.device.config_read(pci::VENDOR_ID, 2) as u16 == u16::MAX
    }

    /// Held while registers that both channels have a part in are changed.
    pub(super) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops a transfer that its own bus master does not stop: by a reset of the function or, where it has none, by taking the bus
    /// away from it. False if neither can be done, so that the device may still write to memory.
    pub(super) fn force_stop(&self) -> bool {
        let name = self.device.name();
        match self.device.reset() {
            Ok(()) => {
                self.generation.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("{name}: the function was reset because a transfer could not be stopped");
                true
            }
            // Its transfers are stopped then.
            Err(Error::Unsupported(_)) => self.do_without_dma(),
            Err(error) => {
                tracing::warn!("{name}: resetting the function: {error}");
                self.device.set_bus_master(false).is_ok() && self.do_without_dma()
            }
        }
    }

    fn do_without_dma(&self) -> bool {
        self.dma.store(false, Ordering::Relaxed);
        tracing::error!(
            "{}: a transfer could only be stopped by taking the bus away; data are moved by the processor from now on",
            self.device.name()
        );
        true
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if let Err(error) = self.device.set_bus_master(false) {
            tracing::warn!("{}: taking bus mastering away: {error}", self.device.name());
        }
    }
}
