//! A function that another process has claimed, and this one goes on with: nothing is reset, and
//! the device notices nothing.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring3_device::Error;
use ring3_device::dma::{Arena, Dma};
use ring3_device::irq::{Irq, IrqKind};
use serde::{Deserialize, Serialize};
use vfio_bindings::bindings::vfio::{VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX};

use super::bar::Windows;
use super::claim::Claim;
use super::way::{Opened, SavedWay, Way};
use super::{Vfio, irq};
use crate::irqs::Irqs;

/// Which function, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    address: String,
    direct_ports: bool,
    #[serde(default)]
    way: SavedWay,
}

/// The kinds of interrupts that a function may have.
const KINDS: [IrqKind; 3] = [IrqKind::Intx, IrqKind::Msi, IrqKind::MsiX];

impl Vfio {
    /// The function at `place`, of whose descriptors `take` gives each by its name, with `arena`
    /// mapped and interrupts of the kind `enabled`; if that is none, all are disabled.
    pub(crate) fn adopt(
        place: &Place,
        arena: Arena,
        below: u64,
        enabled: Option<IrqKind>,
        take: &mut dyn FnMut(&str) -> Result<OwnedFd, Error>,
    ) -> Result<Self, Error> {
        let address = place
            .address
            .parse()
            .map_err(|error: ring3_pci::AddressError| Error::Claim(error.to_string()))?;
        let way = Way::adopt(place.way, address, take)?;
        let iommu = way.iommu();
        let opened = Opened { device: take("device")?, way };
        let claim = Arc::new(Claim::adopt(address, place.direct_ports, opened)?);
        if enabled.is_none() {
            // Those that were never enabled cannot be disabled, and need not.
            KINDS.into_iter().for_each(|kind| drop(irq::disable(&claim, kind)));
        }
        let mut event = |name, index| {
            if irq::has(&claim, index) { take(name).map(irq::edge).map(Some) } else { Ok(None) }
        };
        let (removal, errors) =
            (event("removal", VFIO_PCI_REQ_IRQ_INDEX)?, event("errors", VFIO_PCI_ERR_IRQ_INDEX)?);
        let irqs = Irqs::adopt(irq::limits(&claim), enabled);
        Ok(Self { dma: Dma::new(arena, iommu).below(below), irqs, removal, errors, claim })
    }
}

impl Windows {
    /// What [`Vfio::adopt`] wants to know.
    pub(crate) fn place(&self) -> Place {
        Place {
            address: self.claim().address().to_string(),
            direct_ports: self.claim().direct_ports(),
            way: self.claim().way().save(),
        }
    }

    /// What must stay open as long as the function is claimed, by the names that [`Vfio::adopt`]
    /// knows; the device's events are beside.
    pub(crate) fn descriptors(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        self.claim().descriptors()
    }

    /// The vectors of `kind`, which another process has enabled, over its eventfds.
    pub(crate) fn adopt_irqs(&self, kind: IrqKind, fds: Vec<OwnedFd>) -> Result<Vec<Irq>, Error> {
        irq::adopt(self.claim(), kind, fds)
    }
}
