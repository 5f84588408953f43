//! What both channels of a function share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ring3_device::{Device, Error};
use ring3_spec::pci;

use super::super::options::Options;
use super::chip::Chip;
use crate::lifetime::{ControllerState, StopFailed, lock, stop_function};

/// The function under its channels.
pub(super) struct Function {
    pub(super) device: Arc<dyn Device>,
    pub(super) chip: Chip,
    pub(super) options: Options,
    /// A reset of the function, which takes the channels' settings and commands away, begins a
    /// generation.
    pub(super) lifetime: ControllerState,
    /// It may master the bus. Goes to false, for good, if a transfer can be stopped in no other
    /// way.
    dma: AtomicBool,
    /// Held while registers that the channels share are read and written back.
    changing: Mutex<()>,
}

impl Function {
    pub(super) fn new(device: Arc<dyn Device>, chip: Chip, options: Options, dma: bool) -> Self {
        let (lifetime, dma) = (ControllerState::new(device.name()), AtomicBool::new(dma));
        Self { device, chip, options, lifetime, dma, changing: Mutex::default() }
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
        lock(&self.changing)
    }

    /// Stops a transfer that its own bus master does not stop: by a reset of the function or, where
    /// it has none, by taking the bus away from it. False if neither can be done, so that the
    /// device may still write to memory.
    pub(super) fn force_stop(&self) -> bool {
        let stuck = Error::Fatal("a transfer could not be stopped".into());
        let stopped =
            stop_function(&*self.device, stuck).map(|()| self.device.set_bus_master(true));
        if let Ok(Ok(())) = stopped {
            self.lifetime.begin_reset(self.lifetime.generation(), "its function was reset");
            return true;
        }
        let silent = !matches!(stopped, Err(StopFailed { quiesced: false, .. }));
        if silent {
            self.dma.store(false, Ordering::Relaxed);
            let name = self.device.name();
            tracing::error!(
                "{name}: it cannot be trusted with the bus: data are moved by the processor from \
                now on"
            );
        }
        silent
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if let Err(error) = self.device.set_bus_master(false) {
            tracing::warn!("{}: taking bus mastering away: {error}", self.device.name());
        }
    }
}
