//! The pin, by the function's uio file.
//!
//! # References
//! - `[UIO]` Linux, `Documentation/driver-api/uio-howto.rst`, "Generic PCI UIO driver"
//!
//! # Masking
//! When the pin fires, the kernel sets the function's interrupt disable bit [PCI 6.2.2] and counts.
//! Clearing the bit opens it again: one write, because the upper byte of COMMAND has nothing else
//! that changes. Without the bit, the kernel does not take a function.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ring3_device::Error;
use ring3_device::irq::{Irq, IrqControl};
use ring3_spec::pci;

use super::claim::Claim;

/// The pin's interrupt, open.
pub(super) fn enable(claim: &Arc<Claim>) -> Result<Irq, Error> {
    // While it is masked, the count stands still.
    claim.config().change_command(0, pci::COMMAND_INTX_DISABLE)?;
    let failed = |error| Error::os(format!("{}: enabling its interrupt", claim.name()), error);
    let file: OwnedFd = claim.uio().as_fd().try_clone_to_owned().map_err(failed)?;
    let irq = Irq::of_uio(file, claim.interrupts()?, Arc::new(Pin(claim.clone())));
    claim.config().change_command(pci::COMMAND_INTX_DISABLE, 0)?;
    Ok(irq)
}

/// Holds the pin back.
pub(super) fn disable(claim: &Claim) -> Result<(), Error> {
    claim.config().change_command(0, pci::COMMAND_INTX_DISABLE)
}

struct Pin(Arc<Claim>);

impl IrqControl for Pin {
    fn mask(&self, _: u16) -> Result<(), Error> {
        self.0.config().set_pin(false)
    }
    fn unmask(&self, _: u16) -> Result<(), Error> {
        self.0.config().set_pin(true)
    }
}
