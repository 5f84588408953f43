//! Functions that the kernel hands to this process through VFIO, confined by the IOMMU.
//!
//! # Shape
//! `way` opens the function, by its `group` or its `node`, and gives descriptors; [`Vfio`] is the
//! device over them. `type1` and `ioas` translate its addresses. `ioctl` and `iommufd` hold the
//! unsafe code, the kernel's interface; with `guard`, mappings that survive the device. The rest is
//! safe.
//!
//! # Giving it up
//! When the last of the device, its BARs and its interrupts is dropped: transfers off, descriptors
//! closed, and with the device's the kernel resets the function. A process that is killed gives it
//! up the same way, because the kernel does both when it closes the descriptors.
//!
//! # Privilege
//! None, once the function is bound (`ring3 bind`) and `/dev/vfio/GROUP` belongs to the user, or
//! both `/dev/iommu` and the function's node do; the arena must fit into what the user may lock
//! (`ulimit -l`).

mod adopt;
mod bar;
mod capability;
mod claim;
mod count;
mod group;
mod ioas;
mod ioctl;
mod iommufd;
mod irq;
mod node;
mod region;
#[cfg(test)]
mod tests;
mod type1;
mod way;
mod window;

use std::sync::Arc;

use ring3_device::dma::{Arena, Dma, Iommu, Region, on_node};
use ring3_device::irq::{Irq, IrqKind, IrqLimits};
use ring3_device::{Bar, BarInfo, Device, Error};
use ring3_pci::{Address, Function, Host};
use vfio_bindings::bindings::vfio::{VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX};

use crate::irqs::Irqs;
use crate::{OpenOptions, Uri};
pub(crate) use adopt::Place;
pub(crate) use bar::{Windows, window};
use claim::Claim;
pub(crate) use type1::USUAL_RANGES;

/// The arena starts on such a boundary, so that the IOMMU can use large pages.
const ARENA_ALIGN: u64 = 2 << 20;

/// A function claimed through VFIO.
pub struct Vfio {
    // First, so that transfers are off before the memory goes.
    claim: Arc<Claim>,
    dma: Dma,
    irqs: Irqs,
    removal: Option<Irq>,
    errors: Option<Irq>,
}

/// Claims the function that `uri` names:
/// `vfio:0000:01:00.0[,arena=SIZE][,below=SIZE][,ports=vfio|direct][,iommu=type1|iommufd]`.
///
/// Ports are reached by VFIO's system calls, which confine them to the function's. `direct` reaches
/// them by instruction, which is much cheaper and takes the capability CAP_SYS_RAWIO; the process
/// could then use them behind the kernel's back. Without it, system calls it is.
///
/// `iommu` is the kernel's way of translation: `type1` goes by the group, `iommufd` by the
/// function's own node. Without it, the node is taken where the kernel has it and this process may
/// open it.
pub fn open(uri: &Uri, options: OpenOptions) -> Result<Vfio, Error> {
    uri.only(&[OpenOptions::KEYS.as_slice(), &["ports", "iommu"]].concat())?;
    let direct_ports = uri.word("ports", &["vfio", "direct"])? == Some("direct");
    let way = uri.word("iommu", &["type1", "iommufd"])?;
    let mut options = options.overridden_by(uri)?;
    let address: Address = uri
        .target
        .parse()
        .map_err(|error: ring3_pci::AddressError| Error::Claim(error.to_string()))?;
    let opened = way::open(&Host::this(), address, way)?;
    let iommu = opened.way.iommu();
    let claim = Arc::new(Claim::new(address, direct_ports, opened)?);
    // All of it is pinned at once, so that it is there afterwards, and where it shall be.
    let node = Function::read(&Host::this(), address).ok().and_then(|found| found.numa_node);
    let arena = on_node(node, || {
        if options.memory.is_none() {
            let bytes = options.arena.next_multiple_of(iommu.page_size());
            options.memory = Some(Arc::new(Region::pinned(bytes)?));
        }
        map_arena(&*iommu, claim.name(), &options)
    })?;
    let dma = Dma::new(arena, iommu).below(options.below);
    let (removal, errors) =
        (irq::event(&claim, VFIO_PCI_REQ_IRQ_INDEX)?, irq::event(&claim, VFIO_PCI_ERR_IRQ_INDEX)?);
    Ok(Vfio { dma, irqs: Irqs::new(irq::limits(&claim)), removal, errors, claim })
}

impl Vfio {
    /// Where another process finds its BARs.
    pub(crate) fn windows(&self) -> Result<Windows, Error> {
        Windows::new(&self.claim)
    }
}

/// Makes the arena and maps it, once for the life of the device.
pub(crate) fn map_arena(
    iommu: &dyn Iommu,
    name: &str,
    options: &OpenOptions,
) -> Result<Arena, Error> {
    let memory = options.region(iommu.page_size())?;
    let ranges = window::reachable(&iommu.ranges(), options.below);
    let iova = window::place(&ranges, memory.len() as u64, ARENA_ALIGN).ok_or_else(|| {
        Error::Claim(format!(
            "{name}: its IOMMU has no free range of {} KiB below {:#x}; to mend it: name a smaller \
            arena (arena=4M)",
            memory.len() >> 10,
            options.below
        ))
    })?;
    iommu.map(&memory.pages()?, iova)?;
    Ok(Arena::with_persistent_words(memory, iova))
}

impl Device for Vfio {
    fn name(&self) -> &str {
        self.claim.name()
    }

    fn config_read(&self, offset: u64, width: usize) -> u32 {
        self.claim.config().read(offset, width)
    }

    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.claim.config().write(offset, width, value)
    }

    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        bar::info(&self.claim, index)
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        bar::open(&self.claim, index)
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn irq_limits(&self) -> IrqLimits {
        self.irqs.limits()
    }

    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let (disable, enable) =
            (|before| irq::disable(&self.claim, before), || irq::enable(&self.claim, kind, count));
        self.irqs.switch(self.name(), (kind, count), disable, enable)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.claim.config().set_bus_master(on)
    }

    fn reset(&self) -> Result<(), Error> {
        self.claim.reset()
    }

    fn removal(&self) -> Option<&Irq> {
        self.removal.as_ref()
    }

    fn bus_errors(&self) -> Option<&Irq> {
        self.errors.as_ref()
    }
}
