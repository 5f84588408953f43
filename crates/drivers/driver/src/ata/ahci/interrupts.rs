//! The controller's one vector, and how each drive gets its interrupt from it.
//!
//! # Masking
//! A port's interrupt is held back in the port (PxIE): a register write, where holding back the
//! vector would be a system call or, for MSI behind VFIO, not possible at all.
//!
//! # Acknowledging
//! A port signals once and then no more until PxIS and its bit of IS are cleared. So nothing needs
//! to be acknowledged while its owner polls; whoever is about to sleep acknowledges first and looks
//! afterwards, see `queue.rs`.

use std::sync::Arc;

use ring3_device::irq::{FanOut, Irq, IrqControl, IrqKind, IrqLimits};
use ring3_device::{Device, Error};
use ring3_quirks::Quirks;

use super::super::quirks::HBA_BROKEN_MSI;
use super::port::PortInterruptMask;
use crate::Interrupts;

/// The interrupt of a controller.
pub(super) enum Vector {
    /// None: completions are found by looking.
    Polled,
    /// One drive's own.
    Own(Arc<Irq>),
    /// One for several drives.
    Shared(FanOut),
}

impl Vector {
    /// Enables what the user wants and the function has, for `drives`.
    pub(super) fn enable(
        device: &dyn Device,
        wanted: Interrupts,
        drives: usize,
        quirks: &Quirks,
    ) -> Result<Self, Error> {
        let mut limits = device.irq_limits();
        if quirks.has(HBA_BROKEN_MSI) {
            limits = IrqLimits { msi: 0, msix: 0, ..limits };
        }
        let Some((kind, _)) = wanted.choose(limits)? else { return Ok(Self::Polled) };
        let mut vectors = device.irqs(kind, 1)?;
        let Some(irq) = vectors.pop() else {
            return Err(Error::Protocol(format!("no vector came of {kind:?} interrupts")));
        };
        Ok(if drives > 1 {
            Self::Shared(FanOut::new(irq, || {})?)
        } else {
            Self::Own(Arc::new(irq))
        })
    }

    /// How it is signalled.
    pub(super) fn kind(&self) -> Option<IrqKind> {
        match self {
            Self::Polled => None,
            Self::Own(irq) => Some(irq.kind()),
            Self::Shared(fan_out) => Some(fan_out.kind()),
        }
    }

    /// Lets it through, as whoever enables it the next time finds it.
    pub(super) fn open(&self) -> Result<(), Error> {
        match self {
            Self::Own(irq) if irq.kind() != IrqKind::Intx => irq.unmask(),
            _ => Ok(()),
        }
    }

    /// The interrupt of the port behind `gate`, which holds it back. Open, unless it is the pin.
    pub(super) fn of_port(&self, gate: PortInterruptMask) -> Result<Option<Arc<Irq>>, Error> {
        let line = match self {
            Self::Polled => return Ok(None),
            Self::Own(irq) => irq.clone(),
            Self::Shared(fan_out) => Arc::new(fan_out.subscribe()?),
        };
        let gated = Arc::new(MaskedVector { gate, line: line.clone() });
        if line.kind() != IrqKind::Intx {
            gated.unmask(line.vector())?;
        }
        Ok(Some(Arc::new(line.behind(gated)?)))
    }
}

/// A vector behind the gate of one port.
struct MaskedVector {
    gate: PortInterruptMask,
    line: Arc<Irq>,
}

impl IrqControl for MaskedVector {
    fn mask(&self, _: u16) -> Result<(), Error> {
        self.gate.close();
        // The pin closes itself when it fires, and a closed gate does not raise it.
        if self.line.kind() == IrqKind::Intx { Ok(()) } else { self.line.mask() }
    }

    fn unmask(&self, _: u16) -> Result<(), Error> {
        // First the device: a pin that is still asserted would fire at once.
        self.gate.open();
        self.line.unmask()
    }
}
