//! The fence: what makes sure that nothing which a driver started goes on after it.
//!
//! Bus mastering that is off is none: a controller goes on with its commands, and those whose data it has reach the medium. A controller that is seen to
//! be disabled is, and so is a function that was reset, which takes 100 ms. [PCIe 6.6.2]

use std::time::{Duration, Instant};

use ring3_device::{Bar, Deadline, Device, Error, poll_until};
use ring3_lease::{Quiesce, Step};

/// What a fence did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The controller did not stop, or nobody knew how to stop it: its function was reset.
    pub reset: bool,
    /// How long it took.
    pub took: Duration,
}

/// Stops `device` as `quiesce` says, or resets it.
///
/// The controller comes first, so that it ends its transfers itself and meets no bus that refuses them. What they move meanwhile is memory of the claim,
/// which nobody uses before the fence is over.
pub(super) fn fence(device: &dyn Device, quiesce: Option<&Quiesce>) -> Result<Fenced, Error> {
    let since = Instant::now();
    let stopped = match quiesce {
        Some(quiesce) if !quiesce.step.is_empty() => stop(device, quiesce),
        _ => Err(Error::Unsupported("its driver's manifest has no [quiesce]".into())),
    };
    device.set_bus_master(false)?;
    if let Err(error) = &stopped {
        tracing::warn!("{} is reset, as it cannot be stopped otherwise: {error}", device.name());
        device.reset()?;
    }
    Ok(Fenced { reset: stopped.is_err(), took: since.elapsed() })
}

fn stop(device: &dyn Device, quiesce: &Quiesce) -> Result<(), Error> {
    let bar = device.bar(quiesce.bar)?;
    quiesce.step.iter().try_for_each(|step| take(&bar, step))
}

fn take(bar: &Bar, step: &Step) -> Result<(), Error> {
    let wide = step.width == 32;
    let all_ones = if wide { u32::MAX } else { u8::MAX.into() };
    let read = |at| match if wide { bar.read32(at) } else { bar.read8(at).into() } {
        value if value == all_ones => Err(Error::Gone),
        value => Ok(value),
    };
    let (old, is_there) = (read(step.at)?, |value: u32| value & step.until.mask == step.until.value);
    let new = old & !step.clear | step.set;
    if wide {
        bar.write32(step.at, new)
    } else {
        bar.write8(step.at, new as u8)
    }
    poll_until(Deadline::after(Duration::from_millis(step.limit_ms.into())), "the controller to stop", || {
        Ok(is_there(read(step.until.at)?).then_some(()))
    })
}
