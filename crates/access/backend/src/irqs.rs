//! One kind of interrupts at a time.

use std::sync::{Mutex, PoisonError};

use ring3_device::Error;
use ring3_device::irq::{Irq, IrqKind, IrqLimits};

/// Which interrupts a claimed function can raise, and which of them are enabled.
pub(crate) struct Irqs {
    limits: IrqLimits,
    enabled: Mutex<Option<IrqKind>>,
}

impl Irqs {
    /// None is enabled.
    pub(crate) fn new(limits: IrqLimits) -> Self {
        Self { limits, enabled: Mutex::new(None) }
    }

    /// `enabled` is, by another process.
    pub(crate) fn adopt(limits: IrqLimits, enabled: Option<IrqKind>) -> Self {
        Self { limits, enabled: Mutex::new(enabled) }
    }

    pub(crate) fn limits(&self) -> IrqLimits {
        self.limits
    }

    /// Has `disable` end what was enabled before, and `enable` begin `count` vectors of `kind`,
    /// unless that is none; fails if the function, which the user calls `name`, has fewer.
    pub(crate) fn switch(
        &self,
        name: &str,
        (kind, count): (IrqKind, u16),
        disable: impl FnOnce(IrqKind) -> Result<(), Error>,
        enable: impl FnOnce() -> Result<Vec<Irq>, Error>,
    ) -> Result<Vec<Irq>, Error> {
        let limit = self.limits.of(kind);
        if count > limit {
            return Err(Error::Unsupported(format!(
                "{name}: {count} vectors of {kind:?}; it has {limit}"
            )));
        }
        let mut enabled = self.enabled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = enabled.take() {
            disable(before)?;
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        *enabled = Some(kind);
        enable()
    }
}
