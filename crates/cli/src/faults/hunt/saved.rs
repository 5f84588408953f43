//! A driver that is left damaged state: what the last one has written down of arena, controller and queue, with changes, for a device that runs on.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ring3_backend::Uri;
use ring3_class::Saved;
use ring3_class::block::{Disk, Queue, Request, detach};
use ring3_device::dma::{Arena, Dma, SavedArena};
use ring3_device::{Deadline, Decorator, Device};
use ring3_driver::registry::Driver;
use ring3_faults::{Spec, damage};
use serde::{Deserialize, Serialize};

use super::super::lone::{self, Ends, Load, OTHERS};
use super::super::work::{DEPTH, Work};
use super::PATIENCE;

/// Requests that are under way when the first driver leaves, at most; and the first block that they touch.
const LEFT: u16 = 3;
const BLOCK: u64 = 700;

/// All that the next driver reads.
#[derive(Serialize, Deserialize)]
struct Left {
    arena: SavedArena,
    controller: Saved,
    queue: Saved,
}

/// The device as the next driver has it.
struct Successor {
    inner: Arc<dyn Device>,
    dma: Dma,
}

impl Decorator for Successor {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }
}

/// Drives the device at `uri`, leaves it, and goes on by what is left of that after `spec`.
pub fn drive(spec: &Spec, uri: &Uri, load: &Load) -> Result<Ends> {
    let device = lone::open(uri)?;
    let left = leave(spec, &device)?;
    go_on(device, &damaged(spec, &left)?, load)
}

/// The next driver, with what is `left` of the last one.
fn go_on(device: Arc<dyn Device>, left: &Left, load: &Load) -> Result<Ends> {
    let regions = device.dma().arena().regions().map(|placed| placed.region.clone()).collect();
    let dma = Dma::new(Arena::adopt(regions, &left.arena)?, device.dma().iommu().clone());
    let opened = Driver::resume(Arc::new(Successor { inner: device, dma }), &lone::settings(), &left.controller)?;
    let disk = lone::disk(&opened)?;
    let work = Work::over(disk, disk.resume_queue(&left.queue)?)?;
    lone::use_disk(&opened, disk, work, load)
}

/// What the first driver leaves, with some requests that have ended and that it has not seen, and some that the device was not told of.
fn leave(spec: &Spec, device: &Arc<dyn Device>) -> Result<Left> {
    let mut opened = Driver::open(device.clone(), None, &lone::settings())?;
    let mut queue = lone::disk(&opened)?.open_queue(DEPTH + 1 + LEFT)?;
    for number in 0..spec.word(20) % u64::from(LEFT + 1) {
        submit(&mut *queue, lone::disk(&opened)?, number, spec.word(21 + number))?;
        if spec.word(30 + number).is_multiple_of(2) {
            queue.ring();
        }
    }
    let queue = detach(&mut *queue, &mut Vec::new(), Deadline::after(PATIENCE))?;
    let controller = opened.controller.detach()?;
    let arena = device.dma().arena().save();
    Ok(Left { arena, controller, queue })
}

fn submit(queue: &mut dyn Queue, disk: &dyn Disk, number: u64, word: u64) -> Result<()> {
    let buffer = disk.dma().arena().alloc_pages(disk.info().block_size as usize)?;
    let (token, block) = (2 * OTHERS + number, BLOCK + number);
    let request = match word % 3 {
        0 => Request::flush(token),
        1 => Request::read(token, block, 1, buffer),
        _ => Request::write(token, block, 1, buffer),
    };
    ensure!(queue.submit(request).is_ok(), "a request is not taken before the driver leaves");
    Ok(())
}

/// `left` as it is read again: one to three values are others, or a byte of its text.
fn damaged(spec: &Spec, left: &Left) -> Result<Left> {
    let mut number = 100;
    let mut random = || {
        number += 1;
        spec.word(number)
    };
    let mut value = serde_json::to_value(left)?;
    let mut text = if random().is_multiple_of(8) {
        let mut text = serde_json::to_vec(&value)?;
        damage::bytes(&mut text, &mut random);
        text
    } else {
        for _ in 0..=random() % 3 {
            damage::value(&mut value, &mut random);
        }
        Vec::new()
    };
    if text.is_empty() {
        text = serde_json::to_vec(&value)?;
    }
    serde_json::from_slice(&text).context("what is left cannot be read")
}

#[cfg(test)]
mod tests {
    use ring3_faults::Kind;

    use super::super::{REQUESTS, shape};
    use super::*;

    /// Otherwise the hunt would look at refusals only.
    #[test]
    fn without_damage_every_shape_of_device_goes_on_and_nothing_is_wrong() {
        for index in 0..60 {
            let spec = Spec::in_guest(1, index, Some(Kind::Memory));
            let device = lone::open(&shape(&spec, "").parse().unwrap()).unwrap();
            let left = leave(&spec, &device).unwrap();
            let load = Load { seed: spec.random, requests: REQUESTS, wide: true, patience: PATIENCE };
            let ends = go_on(device, &left, &load).unwrap_or_else(|error| panic!("{spec}: {error:#}"));
            assert!(ends.well >= REQUESTS && (ends.failed, ends.wrong) == (0, 0), "{spec}: {ends:?}");
        }
    }
}
