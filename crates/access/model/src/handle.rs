//! The other side of a simulated device: what a test or a benchmark does to it while a driver runs.

use std::sync::Arc;

use ring3_device::Error;

use super::bus::Bus;
use super::device::{Core, SimDevice};
use super::iommu::DmaFault;
use super::model::Model;

/// A way behind a simulated device, for as long as somebody needs it; cloning makes another.
pub struct SimHandle<M: Model> {
    core: Arc<Core<M>>,
}

impl<M: Model> Clone for SimHandle<M> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

impl<M: Model> SimHandle<M> {
    pub(super) fn new(core: Arc<Core<M>>) -> Self {
        Self { core }
    }

    /// Does something to the model, with everything else held off.
    pub fn with<T>(&self, f: impl FnOnce(&mut M, &Bus) -> T) -> T {
        f(&mut self.core.model(), &self.core.bus)
    }

    /// Claims the device again after it was given up, as the next driver process does: media as
    /// they were left.
    pub fn claim(&self) -> Result<SimDevice<M>, Error> {
        SimDevice::claim(Arc::clone(&self.core))
    }

    /// On: 32-bit register writes only record, until [`pump`](Self::pump) or until a register is
    /// read. Off: they act at once; what was recorded acts now. Doorbells of a queue that was
    /// opened meanwhile are stores to memory, as a mapped register is, and never act at once.
    pub fn record(&self, on: bool) {
        self.core.posted.set(on);
        self.pump();
    }

    /// Delivers the recorded writes to the model, in order; returns how many there were.
    pub fn pump(&self) -> usize {
        let mut model = self.core.model();
        self.core.deliver(&mut model)
    }

    /// How many accesses of the device were blocked: outside of what is mapped, or with bus
    /// mastering off.
    pub fn fault_count(&self) -> u64 {
        self.core.bus.iommu.fault_count()
    }

    /// The last blocked accesses, oldest first (at most 64).
    pub fn faults(&self) -> Vec<DmaFault> {
        self.core.bus.iommu.faults()
    }

    /// Raises message `vector` out of the blue.
    pub fn raise(&self, vector: u16) {
        self.core.bus.raise(vector);
    }

    /// Switches one bit of the command register (memory decoding, the pin) behind the driver's
    /// back.
    pub fn set_command(&self, bit: u16, on: bool) {
        let _model = self.core.model();
        self.core.bus.set_command(bit, on);
    }

    /// Pulls the device out: all ones from now on.
    pub fn remove(&self) {
        self.core.bus.remove();
    }

    /// Asks for the device back, as a hot-unplug button does:
    /// [`Device::removal`](ring3_device::Device::removal) is signalled.
    pub fn request_removal(&self) -> Result<(), Error> {
        signal(&self.core.removal_signal, "a request for removal")
    }

    /// Reports an error of the bus, as a root port does:
    /// [`Device::bus_errors`](ring3_device::Device::bus_errors) is signalled.
    pub fn report_bus_error(&self) -> Result<(), Error> {
        signal(&self.core.bus_error_signal, "an error of the bus")
    }
}

fn signal(to: &std::os::fd::OwnedFd, what: &str) -> Result<(), Error> {
    rustix::io::write(to, &1u64.to_ne_bytes())
        .map(drop)
        .map_err(|error| Error::os(format!("signalling {what}"), error))
}
