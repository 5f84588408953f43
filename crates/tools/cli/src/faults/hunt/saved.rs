//! A driver that is left damaged state: what the last one has written down of arena, controller and
//! queue, with changes, for a device that runs on; or what one that was killed had recorded, with
//! changes of that and of the memory that it had.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ring3_backend::Uri;
use ring3_class::Saved;
use ring3_class::block::{Disk, Queue, Request, detach};
use ring3_device::dma::{Arena, Dma, SavedArena};
use ring3_device::{Deadline, Decorator, Device};
use ring3_driver::registry::Driver;
use ring3_faults::{Kind, Spec, damage};
use serde::{Deserialize, Serialize};

use super::super::lone::{self, Ends, Load, OTHERS};
use super::super::work::{DEPTH, Work};
use super::PATIENCE;

/// Requests that are under way when the first driver leaves, at most; and the first block that they
/// touch.
const LEFT: u16 = 3;
const BLOCK: u64 = 700;
/// Of each range, the bytes that may be changed.
const PAGE: u64 = 4096;

/// All that the next driver reads.
#[derive(Serialize, Deserialize)]
struct Left {
    arena: SavedArena,
    controller: Saved,
    /// None of a driver that was killed.
    queue: Option<Saved>,
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

/// What is done in life `index` of the hunt with `seed`, to one of the devices that can be left.
pub fn spec(seed: u64, index: u64) -> Spec {
    Spec::in_guest(seed, index, Some(Kind::Memory))
}

/// Drives the device at `uri`, leaves it, and goes on by what is left of that after `spec`.
pub fn drive(spec: &Spec, uri: &Uri, load: &Load) -> Result<Ends> {
    let device = lone::open(uri)?;
    let left = save_device(spec, &device)?;
    go_on(device, &damaged(spec, &left)?, load)
}

/// Drives the device at `uri`, is gone, and adopts it by what was recorded, after `spec`.
pub fn adopt(spec: &Spec, uri: &Uri, load: &Load) -> Result<Ends> {
    let device = lone::open(uri)?;
    let left = damaged(spec, &die(spec, &device)?)?;
    if spec.word(50).is_multiple_of(2) {
        spoil(spec, &device)?;
    }
    go_on(device, &left, load)
}

/// `device` as the next driver has it, with its memory as it is `left`.
fn successor(device: Arc<dyn Device>, left: &Left) -> Result<Arc<dyn Device>> {
    let arena = device.dma().arena();
    if left.queue.is_some()
        && serde_json::to_value(arena.save())? == serde_json::to_value(&left.arena)?
    {
        // What the last driver has left is there to be claimed. A recording follows no other arena.
        return Ok(device);
    }
    let regions = arena.regions().map(|placed| placed.region.clone()).collect();
    let dma = Dma::new(Arena::adopt(regions, &left.arena)?, device.dma().iommu().clone());
    Ok(Arc::new(Successor { inner: device, dma }))
}

/// The next driver, with what is `left` of the last one.
fn go_on(device: Arc<dyn Device>, left: &Left, load: &Load) -> Result<Ends> {
    let successor = successor(device, left)?;
    match &left.queue {
        Some(queue) => {
            let opened = Driver::resume(successor, &lone::settings(), &left.controller)?;
            let disk = lone::disk(&opened)?;
            let work = Work::over(disk, disk.resume_queue(queue)?)?;
            lone::use_disk(&opened, disk, work, load)
        }
        None => {
            let opened = Driver::adopt(successor.clone(), &lone::settings(), &left.controller)?;
            successor.dma().arena().release();
            let disk = lone::disk(&opened)?;
            lone::use_disk(&opened, disk, Work::new(disk, DEPTH + 1)?, load)
        }
    }
}

/// What a driver has recorded that is killed with some requests under way: nothing of it is
/// dropped.
fn die(spec: &Spec, device: &Arc<dyn Device>) -> Result<Left> {
    let opened = Driver::open(device.clone(), None, &lone::settings())?;
    let mut queue = lone::disk(&opened)?.open_queue(DEPTH + 1 + LEFT)?;
    let (controller, arena) = (opened.controller.record()?, device.dma().arena().save());
    begin(spec, &mut *queue, lone::disk(&opened)?)?;
    std::mem::forget((queue, opened));
    Ok(Left { arena, controller, queue: None })
}

/// Changes a few bytes of the memory that the last driver had.
fn spoil(spec: &Spec, device: &Arc<dyn Device>) -> Result<()> {
    let (taken, start) = (device.dma().arena().taken(), device.dma().arena().iova());
    for number in 0..=spec.word(51) % 4 {
        let (at, len, _) = taken[(spec.word(60 + number) % taken.len() as u64) as usize];
        let byte = start + at + spec.word(70 + number) % len.min(PAGE);
        device.dma().write(byte, &[spec.word(80 + number) as u8])?;
    }
    Ok(())
}

/// Saves the state of a first driver, with some completed requests that it has not reaped, and some
/// that are not submitted to the device yet.
fn save_device(spec: &Spec, device: &Arc<dyn Device>) -> Result<Left> {
    let mut opened = Driver::open(device.clone(), None, &lone::settings())?;
    let mut queue = lone::disk(&opened)?.open_queue(DEPTH + 1 + LEFT)?;
    begin(spec, &mut *queue, lone::disk(&opened)?)?;
    let queue = detach(&mut *queue, &mut Vec::new(), Deadline::after(PATIENCE))?;
    let controller = opened.controller.detach()?;
    let arena = device.dma().arena().save();
    Ok(Left { arena, controller, queue: Some(queue) })
}

/// Some requests, of which the device was told of some.
fn begin(spec: &Spec, queue: &mut dyn Queue, disk: &dyn Disk) -> Result<()> {
    for number in 0..spec.word(20) % u64::from(LEFT + 1) {
        submit(queue, disk, number, spec.word(21 + number))?;
        if spec.word(30 + number).is_multiple_of(2) {
            queue.ring();
        }
    }
    Ok(())
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
    use super::super::{REQUESTS, shape};
    use super::*;

    /// The devices that can be left and adopted.
    fn each(life: impl Fn(&Spec, Arc<dyn Device>, &Load) -> Result<Ends>) {
        for index in 0..60 {
            let spec = spec(1, index);
            let device = lone::open(&shape(&spec, "").parse().unwrap()).unwrap();
            let load =
                Load { seed: spec.random, requests: REQUESTS, wide: true, patience: PATIENCE };
            let ends =
                life(&spec, device, &load).unwrap_or_else(|error| panic!("{spec}: {error:#}"));
            assert!(
                ends.well >= REQUESTS && (ends.failed, ends.wrong) == (0, 0),
                "{spec}: {ends:?}"
            );
        }
    }

    /// Otherwise the hunt would look at refusals only.
    #[test]
    fn without_damage_every_shape_of_device_goes_on_and_nothing_is_wrong() {
        each(|spec, device, load| go_on(device.clone(), &save_device(spec, &device)?, load));
    }

    #[test]
    fn without_damage_every_shape_of_device_of_a_killed_driver_is_adopted_and_nothing_is_wrong() {
        each(|spec, device, load| go_on(device.clone(), &die(spec, &device)?, load));
    }
}
