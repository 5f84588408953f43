//! Interrupts of a claimed function, as eventfds that the kernel signals.
//!
//! # Masking
//! - INTx: the kernel masks the pin when it fires; mask and unmask are ioctls.
//! - MSI-X: one store to the vector's control word in the table, which the kernel lets us map. What
//!   comes meanwhile is pending in the function and is sent when the word is cleared. [PCI 6.8.2.9]
//! - MSI-X whose table is not mapped: the vector is untied from its eventfd, which makes the kernel
//!   mask it in the table, and tied again.
//! - MSI cannot be masked: VFIO does not offer it [Linux, `drivers/vfio/pci/vfio_pci_intrs.c`], and
//!   a vector that is untied while the function has MSI enabled writes to address 0, an IOMMU fault
//!   for each interrupt.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring3_device::Error;
use ring3_device::irq::{Irq, IrqControl, IrqKind, IrqLimits};
use vfio_bindings::bindings::vfio::*;

use super::bar;
use super::claim::Claim;
use super::ioctl;
use crate::eventfd;

fn index(kind: IrqKind) -> u32 {
    match kind {
        IrqKind::Intx => VFIO_PCI_INTX_IRQ_INDEX,
        IrqKind::Msi => VFIO_PCI_MSI_IRQ_INDEX,
        IrqKind::MsiX => VFIO_PCI_MSIX_IRQ_INDEX,
    }
}

/// How many vectors of each kind can be delivered.
pub(super) fn limits(claim: &Claim) -> IrqLimits {
    let count = |kind| match ioctl::irq_info(claim.device(), index(kind)) {
        Ok(info) if info.flags & VFIO_IRQ_INFO_EVENTFD != 0 => {
            u16::try_from(info.count).unwrap_or(u16::MAX)
        }
        _ => 0,
    };
    IrqLimits { intx: count(IrqKind::Intx), msi: count(IrqKind::Msi), msix: count(IrqKind::MsiX) }
}

/// Disables all interrupts of one kind.
pub(super) fn disable(claim: &Claim, kind: IrqKind) -> Result<(), Error> {
    let done = ioctl::act_on_irqs(claim.device(), index(kind), 0, 0, VFIO_IRQ_SET_ACTION_TRIGGER);
    done.map_err(|error| Error::os(format!("{}: disabling {kind:?}", claim.name()), error))
}

/// Enables `count` vectors of one kind, while none is enabled.
pub(super) fn enable(claim: &Arc<Claim>, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
    let fds = (0..count).map(|_| eventfd::new()).collect::<Result<Vec<_>, _>>()?;
    let tied: Vec<_> = fds.iter().map(|fd| Some(fd.as_fd())).collect();
    ioctl::set_irq_fds(claim.device(), index(kind), 0, &tied).map_err(|error| {
        Error::os(format!("{}: enabling {count} vectors of {kind:?}", claim.name()), error)
    })?;
    vectors(claim, kind, fds, true)
}

/// The vectors of one kind that another process has enabled, on its `fds`.
pub(super) fn adopt(
    claim: &Arc<Claim>,
    kind: IrqKind,
    fds: Vec<OwnedFd>,
) -> Result<Vec<Irq>, Error> {
    vectors(claim, kind, fds, false)
}

fn vectors(
    claim: &Arc<Claim>,
    kind: IrqKind,
    fds: Vec<OwnedFd>,
    tied: bool,
) -> Result<Vec<Irq>, Error> {
    let control = control(claim, kind, &fds, tied)?;
    Ok(fds
        .into_iter()
        .zip(0..)
        .map(|(fd, vector)| Irq::new(fd, kind, vector, control.clone()))
        .collect())
}

/// Disables all vectors `irqs` of `kind` in the kernel, or enables them again. While they are
/// disabled, the IOMMU refuses the function's messages, and the pin stays masked.
pub(super) fn hold_interrupts(
    claim: &Claim,
    kind: IrqKind,
    irqs: &[Irq],
    held: bool,
) -> Result<(), Error> {
    let done = match kind {
        IrqKind::Intx => {
            let action = if held { VFIO_IRQ_SET_ACTION_MASK } else { VFIO_IRQ_SET_ACTION_UNMASK };
            ioctl::act_on_irqs(claim.device(), index(kind), 0, 1, action)
        }
        IrqKind::Msi | IrqKind::MsiX => {
            let fds: Vec<_> = irqs.iter().map(|irq| (!held).then(|| irq.as_fd())).collect();
            ioctl::set_irq_fds(claim.device(), index(kind), 0, &fds)
        }
    };
    done.map_err(|error| {
        Error::os(format!("{}: holding {kind:?} back, or letting it through", claim.name()), error)
    })
}

/// Whether the kernel signals anything at `index`.
pub(super) fn has(claim: &Claim, index: u32) -> bool {
    ioctl::irq_info(claim.device(), index)
        .is_ok_and(|info| info.count > 0 && info.flags & VFIO_IRQ_INFO_EVENTFD != 0)
}

/// An index with one vector that the kernel signals for events outside of the device; `None` if
/// this kernel or bus has it not.
pub(super) fn event(claim: &Claim, index: u32) -> Result<Option<Irq>, Error> {
    if !has(claim, index) {
        return Ok(None);
    }
    let fd = eventfd::new()?;
    ioctl::set_irq_fds(claim.device(), index, 0, &[Some(fd.as_fd())]).map_err(|error| {
        Error::os(format!("{}: asking to be told of events (index {index})", claim.name()), error)
    })?;
    Ok(Some(edge(fd)))
}

/// An edge that cannot be masked, as an MSI would be.
pub(super) fn edge(fd: OwnedFd) -> Irq {
    Irq::new(fd, IrqKind::Msi, 0, None)
}

/// What masks the vectors of this kind, if anything does.
fn control(
    claim: &Arc<Claim>,
    kind: IrqKind,
    fds: &[OwnedFd],
    tied: bool,
) -> Result<Option<Arc<dyn IrqControl>>, Error> {
    match kind {
        IrqKind::Intx => return Ok(Some(Arc::new(Pin { claim: claim.clone() }))),
        IrqKind::Msi => return Ok(None),
        IrqKind::MsiX => {}
    }
    if let Some(table) = claim.config().filter().msix {
        let bar = bar::open(claim, table.bar)?;
        if table.entry(fds.len() as u16) <= bar.mapped_len() {
            return Ok(Some(table.control(bar)));
        }
    }
    Ok(Some(Arc::new(Ties::new(claim.clone(), fds, tied)?)))
}

/// INTx.
struct Pin {
    claim: Arc<Claim>,
}

impl Pin {
    fn act(&self, action: u32) -> Result<(), Error> {
        ioctl::act_on_irqs(self.claim.device(), VFIO_PCI_INTX_IRQ_INDEX, 0, 1, action).map_err(
            |error| Error::os(format!("{}: masking or unmasking INTx", self.claim.name()), error),
        )
    }
}

impl IrqControl for Pin {
    fn mask(&self, _: u16) -> Result<(), Error> {
        self.act(VFIO_IRQ_SET_ACTION_MASK)
    }
    fn unmask(&self, _: u16) -> Result<(), Error> {
        self.act(VFIO_IRQ_SET_ACTION_UNMASK)
    }
}

/// MSI-X vectors that can only be untied from their eventfds.
pub(super) struct Ties {
    claim: Arc<Claim>,
    ties: Vec<Tie>,
}

struct Tie {
    fd: OwnedFd,
    untied: AtomicBool,
}

impl Ties {
    /// Vectors 0 and on, `tied` to `fds` now. Where that is not known they count as untied: they
    /// are tied as soon as somebody wants them open, and until then one that he wants held back may
    /// signal him for nothing.
    pub(super) fn new(claim: Arc<Claim>, fds: &[impl AsFd], tied: bool) -> Result<Self, Error> {
        let tie = |fd: &_| {
            Ok(Tie { fd: AsFd::as_fd(fd).try_clone_to_owned()?, untied: AtomicBool::new(!tied) })
        };
        let ties = fds
            .iter()
            .map(tie)
            .collect::<std::io::Result<_>>()
            .map_err(|error| Error::os("copying an eventfd", error))?;
        Ok(Self { claim, ties })
    }

    /// Ties or unties a vector, if it is not so already: each costs the kernel a new interrupt.
    fn set(&self, vector: u16, untied: bool) -> Result<(), Error> {
        let Some(tie) = self.ties.get(usize::from(vector)) else {
            return Err(Error::Invalid(format!(
                "{}: interrupt vector {vector} is not enabled",
                self.claim.name()
            )));
        };
        if tie.untied.swap(untied, Ordering::AcqRel) == untied {
            return Ok(());
        }
        let fd = (!untied).then(|| tie.fd.as_fd());
        ioctl::set_irq_fds(self.claim.device(), VFIO_PCI_MSIX_IRQ_INDEX, vector.into(), &[fd])
            .map_err(|error| {
                Error::os(
                    format!("{}: masking or unmasking vector {vector}", self.claim.name()),
                    error,
                )
            })
    }
}

impl IrqControl for Ties {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.set(vector, true)
    }
    fn unmask(&self, vector: u16) -> Result<(), Error> {
        self.set(vector, false)
    }
}
