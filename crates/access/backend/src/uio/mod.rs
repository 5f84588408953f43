//! Functions without an IOMMU, by the kernel's uio_pci_generic: nothing confines what they
//! transfer.
//!
//! # Shape
//! `claim` has the function's files and the lock on it, [`Uio`] is the device over them. `huge`
//! finds memory whose physical addresses are known, `run` chooses among it; `warden` is the process
//! that stops the device when this one is gone. `huge` and `warden` hold the unsafe code; with
//! `guard` and `ports`, which other backends use, too.
//!
//! # Protection
//! None: the device reaches every byte of memory at its physical address. So a function is opened
//! only for who says that this is meant ([`OpenOptions::unprotected`]), and never while an IOMMU
//! would translate.
//!
//! # Giving it up
//! When the last of the device, its BARs and its interrupts is dropped: transfers off, reset, lock
//! released. If the process ends without that, however it ends, the warden switches transfers off
//! and only then lets the memory go.
//!
//! # Privilege
//! Root: physical addresses, sysfs' `config` and ports are for nobody else.

mod bar;
mod claim;
mod huge;
mod irq;
mod run;
mod warden;

use std::sync::Arc;

use ring3_device::dma::{Arena, Dma, StaticIommu, on_node};
use ring3_device::irq::{Irq, IrqKind, IrqLimits};
use ring3_device::{Bar, BarInfo, Device, Error};
use ring3_pci::{Address, Function, Host, Obstacle};

#[cfg(test)]
pub(crate) use claim::Silent;

use crate::irqs::Irqs;
use crate::ports::PortRange;
use crate::{OpenOptions, Uri};
use claim::Claim;

/// A function claimed through uio_pci_generic.
pub struct Uio {
    // First, so that transfers are off before the memory goes.
    claim: Arc<Claim>,
    dma: Dma,
    irqs: Irqs,
}

/// Claims the function that `uri` names: `uio:0000:01:00.0[,arena=SIZE][,below=SIZE]`.
pub fn open(uri: &Uri, options: OpenOptions) -> Result<Uio, Error> {
    uri.only(&OpenOptions::KEYS)?;
    let options = options.overridden_by(uri)?;
    options.check_own_memory(uri)?;
    let address: Address = uri
        .target
        .parse()
        .map_err(|error: ring3_pci::AddressError| Error::Claim(error.to_string()))?;
    let host = Host::this();
    let mut claim = Claim::open(&host, address, options.unprotected)?;
    let function = Function::read(&host, address).map_err(|obstacle| blocked(address, obstacle))?;
    let (memory, physical) = on_node(function.numa_node, || {
        huge::allocate(&host, address, options.arena, options.below)
    })?;
    claim.guard(&memory)?;
    let reachable = physical..=physical + memory.len() as u64 - 1;
    let dma = Dma::new(Arena::new(memory, physical), Arc::new(StaticIommu::identity(reachable)));
    let limits = IrqLimits { intx: function.has_pin(&host).into(), ..IrqLimits::default() };
    Ok(Uio { claim: Arc::new(claim), dma, irqs: Irqs::new(limits) })
}

/// An obstacle as an error of the device layer.
fn blocked(address: Address, obstacle: Obstacle) -> Error {
    let busy = matches!(obstacle, Obstacle::Busy { .. });
    let text = format!("uio:{}", obstacle.at(address));
    if busy { Error::Busy(text) } else { Error::Claim(text) }
}

impl Device for Uio {
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
        let (function, resource) = self.claim.resource(index).ok()?;
        let len = if resource.port {
            PortRange::of(&function, &resource).ok()?.len
        } else {
            resource.size
        };
        Some(BarInfo { len, ports: resource.port })
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
            (|_| irq::disable(&self.claim), || Ok(vec![irq::enable(&self.claim)?]));
        self.irqs.switch(self.name(), (kind, count), disable, enable)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.claim.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), Error> {
        self.claim.reset()
    }
}
