//! A device around a model: the driver's side of it.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ring3_device::dma::{Arena, Dma, Iommu, Region};
use ring3_device::irq::{Irq, IrqKind, IrqLimits};
use ring3_device::{Bar, BarInfo, Device, Error};
use ring3_spec::pci;

use super::bar;
use super::bus::Bus;
use super::doorbells::Doorbells;
use super::handle::SimHandle;
use super::interrupts::signal;
use super::iommu::SimIommu;
use super::model::{Identity, Model};
use super::posted::Posted;
use super::timer::Timer;
use super::vfio_user::VfioUserDevice;

/// The machine that a simulated device stands in.
#[derive(Clone, Debug)]
pub struct Platform {
    /// Bytes of the device's DMA arena.
    pub arena: usize,
    /// Memory for it that somebody gave.
    pub memory: Option<Arc<Region>>,
    /// The arena lies below this device address; above 4 GiB where it may, so that a driver that
    /// truncates addresses is found out.
    pub below: u64,
    /// Device addresses that cannot be used, besides those of message signalled interrupts.
    pub reserved: Vec<RangeInclusive<u64>>,
}

impl Default for Platform {
    fn default() -> Self {
        Self { arena: 16 << 20, memory: None, below: u64::MAX, reserved: Vec::new() }
    }
}

/// What the device, its BARs and its handles share.
pub(super) struct Core<M> {
    pub(super) name: String,
    pub(super) identity: Identity,
    pub(super) model: Mutex<M>,
    pub(super) bus: Bus,
    pub(super) posted: Posted,
    pub(super) doorbells: OnceLock<Doorbells>,
    pub(super) dma: Dma,
    claimed: AtomicBool,
    removal: Irq,
    pub(super) removal_signal: OwnedFd,
    bus_errors: Irq,
    pub(super) bus_error_signal: OwnedFd,
}

impl<M: Model> Core<M> {
    fn new(name: String, model: M, platform: &Platform) -> Result<Arc<Self>, Error> {
        let (identity, capabilities) = (model.identity(), model.capabilities());
        let iommu = Arc::new(SimIommu::new(identity.dma_bits, &platform.reserved));
        let memory = platform
            .memory
            .clone()
            .map_or_else(|| Region::new(platform.arena).map(Arc::new), Ok)?;
        let place = [1 << 32, 1 << 20]
            .into_iter()
            .find_map(|base| iommu.place(memory.len(), base, platform.below));
        let iova = place.ok_or_else(|| {
            Error::Invalid(format!(
                "{name}: no room for an arena of {} bytes between the reserved device addresses",
                memory.len()
            ))
        })?;
        iommu.map(&memory.pages()?, iova)?;
        let ((removal_signal, removal), (bus_error_signal, bus_errors)) = (signal()?, signal()?);
        Ok(Arc::new_cyclic(|core: &Weak<Self>| {
            let core = core.clone();
            let timer = Timer::new(move |now| {
                if let Some(core) = core.upgrade() {
                    core.model().tick(&core.bus, now);
                }
            });
            Self {
                name,
                model: Mutex::new(model),
                bus: Bus::new(&identity, &capabilities, Arc::clone(&iommu), timer),
                identity,
                posted: Posted::new(),
                doorbells: OnceLock::new(),
                dma: Dma::new(Arena::with_persistent_words(memory, iova), iommu)
                    .below(platform.below),
                claimed: AtomicBool::new(false),
                removal: Irq::new(removal, IrqKind::Intx, 0, None),
                removal_signal,
                bus_errors: Irq::new(bus_errors, IrqKind::Intx, 0, None),
                bus_error_signal,
            }
        }))
    }

    /// The model, to itself. A model that panicked under the lock is still a device with some
    /// state, as a crashed firmware is.
    pub(super) fn model(&self) -> MutexGuard<'_, M> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a register of configuration space may be the model's own: behind the header, and
    /// while the device is there. [PCI 6.1]
    fn is_own(&self, offset: u64) -> bool {
        (0x40..0x100).contains(&offset) && !self.bus.is_removed()
    }

    pub(super) fn reset(&self, model: &mut M) {
        while self.posted.take().is_some() {}
        model.reset(&self.bus);
        self.bus.interrupts.reset();
    }
}

/// A device in this process: a [`Model`] with configuration space, BARs, interrupts and an IOMMU
/// around it.
///
/// A reset is a function level reset: the model starts anew, what is enabled of interrupts and bus
/// mastering stays.
pub struct SimDevice<M: Model> {
    core: Arc<Core<M>>,
}

impl<M: Model> SimDevice<M> {
    /// Puts `model` into a machine of its own and claims it. `name` is what messages call it.
    pub fn new(name: impl Into<String>, model: M, platform: &Platform) -> Result<Self, Error> {
        Self::claim(Core::new(name.into(), model, platform)?)
    }

    pub(super) fn claim(core: Arc<Core<M>>) -> Result<Self, Error> {
        if core.claimed.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy(format!(
                "{} is claimed already: drop its device first",
                core.name
            )));
        }
        Ok(Self { core })
    }

    /// The test's side of the device. It stays good after the device was given up.
    pub fn handle(&self) -> SimHandle<M> {
        SimHandle::new(Arc::clone(&self.core))
    }
}

impl<M: Model> Device for SimDevice<M> {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn config_read(&self, offset: u64, width: usize) -> u32 {
        let bus = &self.core.bus;
        let own = if self.core.is_own(offset) {
            self.core.model().config_read(bus, offset, width)
        } else {
            None
        };
        own.unwrap_or_else(|| bus.config_read(offset, width))
    }

    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let bus = &self.core.bus;
        let own =
            self.core.is_own(offset) && self.core.model().config_write(bus, offset, width, value);
        if own { Ok(()) } else { bus.config_write(offset, width, value) }
    }

    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        let bar = self.core.identity.bars.iter().find(|bar| bar.index == index)?;
        Some(BarInfo { len: bar.len, ports: bar.ports })
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        bar::open(&self.core, index)
    }

    fn dma(&self) -> &Dma {
        &self.core.dma
    }

    fn irq_limits(&self) -> IrqLimits {
        let identity = &self.core.identity;
        IrqLimits {
            intx: identity.pins.into(),
            msi: identity.msi,
            msix: identity.msix.map_or(0, |msix| msix.vectors),
        }
    }

    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let most = self.irq_limits().of(kind);
        if count == 0 || count > most {
            return Err(Error::Unsupported(format!(
                "{}: {count} {kind:?} interrupts, it has {most}",
                self.name()
            )));
        }
        let bus = &self.core.bus;
        bus.set_command(pci::COMMAND_INTX_DISABLE, kind != IrqKind::Intx);
        bus.interrupts.enable(kind, count)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        if self.core.bus.is_removed() {
            return Err(Error::Gone);
        }
        // Under the model's lock, so that nothing is under way any more when it is off.
        let _model = self.core.model();
        self.core.bus.set_command(pci::COMMAND_BUS_MASTER, on);
        Ok(())
    }

    fn reset(&self) -> Result<(), Error> {
        if self.core.bus.is_removed() {
            return Err(Error::Gone);
        }
        self.core.reset(&mut self.core.model());
        Ok(())
    }

    fn removal(&self) -> Option<&Irq> {
        Some(&self.core.removal)
    }

    fn bus_errors(&self) -> Option<&Irq> {
        Some(&self.core.bus_errors)
    }
}

impl<M: Model> VfioUserDevice for SimDevice<M> {
    fn platform_write(&self, offset: u64, width: usize, value: u32) {
        // Under the model's lock, so that nothing is under way any more when bus mastering is off.
        let bus = &self.core.bus;
        let mut model = self.core.model();
        if !self.core.is_own(offset) || !model.config_write(bus, offset, width, value) {
            bus.platform_write(offset, width, value);
        }
    }

    fn tie(&self, kind: IrqKind, first: u16, signals: Vec<Option<OwnedFd>>) {
        let _model = self.core.model();
        self.core.bus.set_command(pci::COMMAND_INTX_DISABLE, kind != IrqKind::Intx);
        self.core.bus.interrupts.tie(kind, first, signals);
    }

    fn untie(&self) {
        self.core.bus.interrupts.disable();
    }

    fn set_mask(&self, vector: u16, masked: bool) {
        self.core.bus.interrupts.set_mask(vector.into(), masked);
    }

    fn restore(&self) {
        // All under the model's lock: nothing is under way in between, and nothing afterwards.
        let mut model = self.core.model();
        self.core.bus.config.restore();
        self.core.bus.interrupts.disable();
        self.core.reset(&mut model);
    }
}

impl<M: Model> Drop for SimDevice<M> {
    fn drop(&mut self) {
        let _ = self.set_bus_master(false);
        let _ = self.reset();
        self.core.claimed.store(false, Ordering::Release);
    }
}
