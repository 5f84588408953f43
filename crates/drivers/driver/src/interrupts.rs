//! Which interrupts a driver uses.

use ring3_device::Error;
use ring3_device::irq::{IrqKind, IrqLimits};

/// What the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interrupts {
    /// The best that the function has: MSI-X, then MSI, then the pin, then none.
    #[default]
    Auto,
    /// This kind and no other.
    Only(IrqKind),
    /// None: completions are found by looking.
    Polled,
}

impl Interrupts {
    /// The kind to use of a function with `limits`, and how many vectors of it there are; `None` to
    /// poll.
    pub(crate) fn choose(self, limits: IrqLimits) -> Result<Option<(IrqKind, u16)>, Error> {
        let mut available = [
            (IrqKind::MsiX, limits.msix),
            (IrqKind::Msi, limits.msi),
            (IrqKind::Intx, limits.intx),
        ]
        .into_iter();
        match self {
            Self::Polled => Ok(None),
            Self::Auto => Ok(available.find(|&(_, count)| count > 0)),
            Self::Only(kind) => match available.find(|&(one, count)| one == kind && count > 0) {
                Some(found) => Ok(Some(found)),
                None => Err(Error::Unsupported(format!("the function has no {kind:?} interrupts"))),
            },
        }
    }
}
