//! Which vectors a device signals with. [virtio 4.1.5.1.2]

use std::sync::Arc;

use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Device, Error};

use crate::Interrupts;

/// `count` vectors at most and `least` at least, as `interrupts` wants them; `None` to look
/// instead. Only MSI-X has a vector for each queue.
pub(super) fn vectors(
    device: &dyn Device,
    interrupts: Interrupts,
    least: u16,
    count: u16,
) -> Result<Option<Vec<Arc<Irq>>>, Error> {
    let limits = device.irq_limits();
    match interrupts {
        Interrupts::Polled => return Ok(None),
        Interrupts::Auto if limits.msix < least => return Ok(None),
        Interrupts::Auto | Interrupts::Only(IrqKind::MsiX) => {}
        Interrupts::Only(kind) => {
            return Err(Error::Unsupported(format!(
                "{kind:?} interrupts of a virtio device: msix, or poll"
            )));
        }
    }
    let vectors = device.irqs(IrqKind::MsiX, count.min(limits.msix).max(least))?;
    if vectors.len() < usize::from(least) {
        return Err(Error::Protocol(format!(
            "{least} vectors were asked for, and {} came",
            vectors.len()
        )));
    }
    Ok(Some(vectors.into_iter().map(Arc::new).collect()))
}
