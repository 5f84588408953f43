//! Queues that are left to another process while the device goes on, and taken up there.
//!
//! Neither side of it writes a register or a command: the device does not notice. What it does
//! meanwhile lies in the rings and is found by the first look.
//!
//! # Who has what
//! Under the controller's lock nobody resets it. A queue that was detached keeps its number, which
//! nobody else can have, and its memory stays taken in the arena. If the controller is reset before
//! the queue is resumed, its generation says so, and it repeats what was in flight, as every queue
//! does.
//!
//! # Form
//! Fields are only ever added, each with a default, so that a later version reads what an earlier
//! one has saved. All of it is input to whoever reads it.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::block::{IoError, Operation, SavedRequest};
use ring3_device::Error;
use ring3_device::dma::Claims;
use ring3_device::irq::Irq;
use serde::{Deserialize, Serialize};

use super::queue::DiskQueue;
use super::slots::{MAX_SLOTS, Slot, Slots};
use super::write_cache::{SavedListener, WriteCache};
use super::{Controller, Hardware, Timeouts};
use crate::lifetime::GENERATION_DETACHED;

/// A queue, with what is saved of its rings.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedQueue<R> {
    /// The disk's serial number and blocks, by which another disk is told apart.
    pub(crate) serial: String,
    #[serde(default)]
    pub(crate) blocks: u64,
    #[serde(default)]
    pub(crate) generation: u32,
    /// How many slots it has.
    #[serde(alias = "depth")]
    pub(crate) slots: u16,
    /// The command id whose turn it is.
    #[serde(default)]
    pub(crate) next: u16,
    pub(crate) held: Vec<SavedSlot>,
    /// Slots whose requests have ended without a completion.
    #[serde(default)]
    pub(crate) ended: Vec<(u16, IoError)>,
    /// What it was told of losses.
    #[serde(default)]
    told: SavedListener,
    #[serde(flatten)]
    pub(crate) rings: R,
}

/// A request in flight.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedSlot {
    /// The command id by which the device knows it.
    #[serde(alias = "number")]
    pub(crate) id: u16,
    /// Epochs since it was handed to the device.
    age: i32,
    #[serde(alias = "failures")]
    attempts: u8,
    /// The device was asked to end it.
    #[serde(default, rename = "aborted")]
    cancelled: bool,
    #[serde(default)]
    flush: u64,
    pub(crate) request: SavedRequest,
}

impl<R> SavedQueue<R> {
    /// The slots, a bit for each, that hold a request of which `is` is so. Only for queues of up to
    /// 32 slots.
    pub(crate) fn slots_of(&self, is: impl Fn(&SavedRequest) -> bool) -> u32 {
        let mask = self.slots.max(1).next_power_of_two() - 1;
        let slots = self.held.iter().filter(|held| is(&held.request));
        slots.fold(0, |slots, held| slots | 1u32.unbounded_shl((held.id & mask).into()))
    }
}

impl<H: Hardware> DiskQueue<H> {
    /// See [`Queue::detach`](ring3_class::block::Queue::detach).
    pub(super) fn save_and_detach(&mut self) -> Result<Saved, Error> {
        self.check_attached()?;
        let controller = self.hardware.controller().clone();
        let mut nobody_resets = controller.lock();
        controller.lifetime().check()?;
        // Ends without an error are not written down.
        let has_ends = self.ended.iter().any(|(_, result)| result.is_ok());
        if !self.is_current_generation() || self.hardware.damage().is_some() || has_ends {
            return Err(Error::Busy(
                "the queue has something to give out or to recover from: reap and tick, then \
                detach again"
                    .into(),
            ));
        }
        // What waits for its repetition is not written down as such: it goes to the device now.
        self.send_delayed(|_| true);
        let saved = Saved::new(H::FORMAT.0, H::FORMAT.1, &self.state()?)?;
        // From here on nothing fails.
        self.hardware.release_to_successor(&mut nobody_resets);
        for slot in 0..self.slots.count() {
            if let Some(end) = self.end(slot, Ok(())) {
                end.data.release_to_successor();
            }
        }
        self.slots = Slots::none();
        self.ended.clear();
        self.generation = GENERATION_DETACHED;
        Ok(saved)
    }

    /// Fails if it was detached.
    #[inline]
    pub(super) fn check_attached(&self) -> Result<(), Error> {
        match self.generation {
            GENERATION_DETACHED => {
                Err(Error::Fatal("the queue was detached: resume it, and use that one".into()))
            }
            _ => Ok(()),
        }
    }

    fn state(&mut self) -> Result<SavedQueue<H::Saved>, Error> {
        let slot = |number: u16| {
            let slot = self.slots.get(number)?;
            let (id, age) = (slot.id(), self.timeouts.age(slot.epoch));
            let (attempts, cancelled) = (slot.attempts, slot.cancelled);
            // Of others, the number is that of their slot's last flush.
            let flush = if slot.request.operation == Operation::Flush { slot.flush } else { 0 };
            Some(slot.request.save().map(|request| SavedSlot {
                id,
                age,
                attempts,
                cancelled,
                flush,
                request,
            }))
        };
        let held = (0..self.slots.count()).filter_map(slot).collect::<Result<_, _>>()?;
        let failed = |&(slot, result): &(u16, Result<(), IoError>)| Some((slot, result.err()?));
        Ok(SavedQueue {
            rings: self.hardware.save(self.slots.in_flight())?,
            serial: self.hardware.info().serial.clone(),
            blocks: self.hardware.info().blocks,
            generation: self.generation,
            slots: self.slots.count(),
            next: self.slots.next(),
            held,
            ended: self.ended.iter().filter_map(failed).collect(),
            told: SavedListener::of(&self.listener),
        })
    }

    /// The queue that was detached as `saved`, with the `hardware` that was made of it, and whose
    /// memory is in `claims`. It is input.
    pub(crate) fn resume(
        saved: &SavedQueue<H::Saved>,
        hardware: H,
        irq: Option<Arc<Irq>>,
        mut claims: Claims,
    ) -> Result<Self, Error> {
        let slots = restore(saved, &hardware, &mut claims)?;
        // From here on nothing fails.
        claims.commit();
        let listener = hardware.cache().map(|cache| saved.told.resume(cache)).unwrap_or_default();
        let mut queue = Self::of(hardware, irq, slots, saved.generation, listener);
        queue.ended.extend(saved.ended.iter().map(|&(slot, error)| (slot, Err(error))));
        Ok(queue)
    }
}

/// The slots of the queue that was saved as `saved`, with what they hold.
fn restore<H: Hardware>(
    saved: &SavedQueue<H::Saved>,
    hardware: &H,
    claims: &mut Claims,
) -> Result<Slots, Error> {
    if !(1..=MAX_SLOTS).contains(&saved.slots) || saved.generation >= GENERATION_DETACHED {
        return Err(Error::Invalid(format!(
            "a saved queue of {} requests in generation {}",
            saved.slots, saved.generation
        )));
    }
    let timeouts = Timeouts::new(hardware.controller().timeout(Operation::Read));
    let mut slots = Slots::new(saved.slots);
    slots.resume_at(saved.next);
    for SavedSlot { id, age, attempts, cancelled, flush, request } in &saved.held {
        let request = request.claim(claims, hardware.info())?;
        // Of others, the number means nothing: it is their slot's last flush's.
        let cache = hardware.cache().filter(|_| request.operation == Operation::Flush);
        if cache.is_some_and(|cache: &WriteCache| !cache.has_begun(*flush)) {
            return Err(Error::Invalid(format!(
                "the saved queue has command {id:#06x} as a flush that was not begun"
            )));
        }
        let slot = Slot::of(request, timeouts.epoch_of(*age), (*attempts, *cancelled), *flush);
        if !slots.restore(*id, slot) {
            return Err(Error::Invalid(format!(
                "the saved queue has command {id:#06x} twice, or has no such slot"
            )));
        }
    }
    Ok(slots)
}
