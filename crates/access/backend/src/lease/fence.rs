//! The fence: what makes sure that nothing which a driver started goes on after it.
//!
//! Bus mastering that is off is none: a controller goes on with its commands, and those whose data
//! it has reach the medium. A controller that is seen to be disabled is, and so is a function that
//! was reset, which takes 100 ms. [PCIe 6.6.2]
//!
//! Before anything is done it looks whether the device still runs as its driver has left it, and
//! writes that down for the next one: whether a disk has lost its cache
//! cannot be told from a device that was stopped.

use std::time::{Duration, Instant};

use ring3_device::config::virtio_structure;
use ring3_device::found::Found;
use ring3_device::{Bar, Deadline, Device, Error, poll_until};
use ring3_lease::{Quiesce, RegisterCheck, Step};
use ring3_spec::virtio;

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
/// The controller comes first, so that it ends its transfers itself and meets no bus that refuses
/// them. What they move meanwhile is memory of the claim, which nobody uses before the fence is
/// over.
pub(super) fn fence(device: &dyn Device, quiesce: Option<&Quiesce>) -> Result<Fenced, Error> {
    let since = Instant::now();
    if let Some(kept) = device.dma().arena().persistent_words() {
        let runs = quiesce.is_some_and(|quiesce| runs(device, quiesce).unwrap_or(false));
        let found = if runs { Found::Running } else { Found::Disturbed };
        found.record(&kept);
    }
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

/// Whether the device is seen to run as its driver has left it.
fn runs(device: &dyn Device, quiesce: &Quiesce) -> Result<bool, Error> {
    let (bar, from) = registers(device, quiesce)?;
    let says = |look: &RegisterCheck, number: u32| {
        let (at, width) = (
            from.saturating_add(look.at + u64::from(number) * look.stride),
            u64::from(look.width / 8),
        );
        if number > 0 && at.saturating_add(width) > bar.len() {
            return true;
        }
        let value = if look.width == 32 { bar.read32(at) } else { bar.read8(at).into() };
        let all_ones = if look.width == 32 { u32::MAX } else { u8::MAX.into() };
        value != all_ones && value & look.mask == look.value
    };
    let all_say = |look: &RegisterCheck| (0..look.times).all(|number| says(look, number));
    Ok(!quiesce.running.is_empty() && quiesce.running.iter().all(all_say))
}

/// The BAR with the registers, and where they begin in it.
fn registers(device: &dyn Device, quiesce: &Quiesce) -> Result<(Bar, u64), Error> {
    let (index, from) =
        quiesce.structure.map_or(Ok((quiesce.bar, 0)), |kind| place(device, kind))?;
    Ok((device.bar(index)?, from))
}

fn stop(device: &dyn Device, quiesce: &Quiesce) -> Result<(), Error> {
    let (bar, from) = registers(device, quiesce)?;
    quiesce.step.iter().try_for_each(|step| take(&bar, from, step))
}

/// BAR and offset of the virtio structure of a type. [virtio 4.1.4]
fn place(device: &dyn Device, kind: u8) -> Result<(u8, u64), Error> {
    let read = |offset, width| device.config_read(offset, width);
    let at = virtio_structure(read, kind)
        .ok_or_else(|| Error::Unsupported(format!("it has no virtio structure {kind}")))?;
    Ok((read(at + virtio::CAP_BAR, 1) as u8, read(at + virtio::CAP_OFFSET, 4).into()))
}

fn take(bar: &Bar, from: u64, step: &Step) -> Result<(), Error> {
    let wide = step.width == 32;
    let all_ones = if wide { u32::MAX } else { u8::MAX.into() };
    let (at, until) = (from.saturating_add(step.at), from.saturating_add(step.until.at));
    let read = |at| match if wide { bar.read32(at) } else { bar.read8(at).into() } {
        value if value == all_ones => Err(Error::Gone),
        value => Ok(value),
    };
    // All ones say nothing, and the step finds that out.
    let own =
        step.limit_from.map_or(0, |own| own.millis(read(from.saturating_add(own.at)).unwrap_or(0)));
    let limit = Duration::from_millis(step.limit_ms.max(own).into());
    let (old, is_there) = (read(at)?, |value: u32| value & step.until.mask == step.until.value);
    let new = old & !step.clear | step.set;
    if wide {
        bar.write32(at, new)
    } else {
        bar.write8(at, new as u8)
    }
    poll_until(Deadline::after(limit), "the controller to stop", || {
        Ok(is_there(read(until)?).then_some(()))
    })
}
