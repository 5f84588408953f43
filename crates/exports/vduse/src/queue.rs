//! The device's side of a split virtqueue. [virtio 2.7]
//!
//! # Ordering
//! The driver's index is loaded before what it announces (Acquire), and ours is stored behind what
//! it announces (Release). Before either side looks whether the other wants to be told, its own
//! index is visible to the other: a full fence between the two, on both sides [virtio 2.7.13.4.1,
//! 2.7.14].

use std::sync::atomic::{Ordering, fence};

use crate::area::Area;
use crate::device::Vring;
use crate::inflight::Log;
use crate::memory::{Access, Memory};
use crate::{Chain, Fault, features};

/// Descriptor flags. [virtio 2.7.5]
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Flags of the rings. [virtio 2.7.6, 2.7.8]
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;
/// Most entries. [virtio 2.7]
const MOST: u32 = 32768;

/// How a queue begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The driver has just set it up.
    Fresh,
    /// Another process has served it before, which is no more.
    Resume,
}

/// A virtqueue, for one thread.
///
/// After a [`Fault`] it is of no use until the driver resets its device: whoever takes on gets the
/// same fault.
#[derive(Debug)]
pub struct Queue {
    memory: Memory,
    table: Area,
    driver: Area,
    device: Area,
    size: u16,
    event_index: bool,
    indirect: bool,
    /// What is taken next.
    available: u16,
    /// What is shown as used next, and how much of it the driver sees.
    used: u16,
    shown: u16,
    log: Option<Log>,
}

impl Queue {
    /// The queue that the driver has at `vring`, with the `features` that were agreed upon. With a
    /// `log`, what is in flight is known after this process, too.
    pub fn open(
        mut memory: Memory,
        vring: &Vring,
        features: u64,
        log: Option<Log>,
        begin: Begin,
    ) -> Result<Self, Fault> {
        let (size, has) = (vring.size, |feature| features & feature != 0);
        let aligned = vring.descriptors.is_multiple_of(16)
            && vring.driver.is_multiple_of(2)
            && vring.device.is_multiple_of(4);
        let logged = log.as_ref().is_none_or(|log| size <= u32::from(log.size()));
        if !size.is_power_of_two() || size > MOST || !aligned || !logged {
            return Err(Fault::Shape(size));
        }
        let entries = size as usize;
        let table = Area::new(&mut memory, vring.descriptors, 16 * entries, Access::Read)?;
        let driver = Area::new(&mut memory, vring.driver, 6 + 2 * entries, Access::Read)?;
        let device = Area::new(&mut memory, vring.device, 6 + 8 * entries, Access::Write)?;
        let (event_index, indirect) = (has(features::EVENT_IDX), has(features::INDIRECT));
        let mut queue = Self {
            memory,
            table,
            driver,
            device,
            size: size as u16,
            event_index,
            indirect,
            available: vring.available,
            used: 0,
            shown: 0,
            log,
        };
        queue.begin(begin);
        Ok(queue)
    }

    fn begin(&mut self, begin: Begin) {
        let used = u16::from_le(self.device.word16(2).load(Ordering::Acquire));
        (self.used, self.shown) = (used, used);
        match (&self.log, begin) {
            (Some(log), Begin::Resume) => {
                // Shown as used, and not noted any more.
                let mut at = log.settled();
                while at != used {
                    log.give_back(self.used_head(at));
                    at = at.wrapping_add(1);
                }
                log.settle(used);
                self.available = used.wrapping_add(log.heads().count() as u16);
            }
            (None, Begin::Resume) => self.available = used,
            (Some(log), Begin::Fresh) => {
                log.clear();
                log.settle(used);
            }
            (None, Begin::Fresh) => {}
        }
    }

    fn used_head(&self, index: u16) -> u16 {
        u32::from_le(self.device.word32(4 + 8 * self.slot(index)).load(Ordering::Relaxed)) as u16
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The memory in which its chains are.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The available index that is taken next.
    pub fn available(&self) -> u16 {
        self.available
    }

    /// Heads of chains that a process before this one has taken and not given back: each is [taken
    /// again](Self::retake). Those whom no log knows are lost.
    pub fn in_flight(&self) -> Vec<u16> {
        self.log.as_ref().map(|log| log.heads().collect()).unwrap_or_default()
    }

    /// Whether there is something to take.
    #[inline]
    pub fn pending(&self) -> bool {
        self.offered() != 0
    }

    /// Chains that the driver has offered and that were not taken: of a hostile one, more than
    /// there can be, of which [`take`](Self::take) says so.
    #[inline]
    pub fn offered(&self) -> u16 {
        u16::from_le(self.driver.word16(2).load(Ordering::Acquire)).wrapping_sub(self.available)
    }

    /// Takes what the driver has offered next into `chain`; false if there is nothing.
    #[inline]
    pub fn take(&mut self, chain: &mut Chain) -> Result<bool, Fault> {
        let ahead = self.offered();
        if ahead == 0 {
            return Ok(false);
        }
        if ahead > self.size {
            return Err(Fault::Index { ahead, size: self.size });
        }
        let head = u16::from_le(
            self.driver.word16(4 + 2 * self.slot(self.available)).load(Ordering::Relaxed),
        );
        self.follow(head, chain)?;
        if let Some(log) = &self.log {
            if log.has(head) {
                return Err(Fault::Twice(head));
            }
            log.take(head);
        }
        self.available = self.available.wrapping_add(1);
        Ok(true)
    }

    /// Takes one of [`in_flight`](Self::in_flight).
    pub fn retake(&mut self, head: u16, chain: &mut Chain) -> Result<(), Fault> {
        self.follow(head, chain)
    }

    /// Forgets the last `count` that were [put](Self::put) and not shown.
    #[inline]
    pub fn undo_put(&mut self, count: u16) {
        self.used = self.used.wrapping_sub(count.min(self.used.wrapping_sub(self.shown)));
    }

    /// Gives the last `count` back that were taken, as if they were not: nothing of a queue with a
    /// log.
    #[inline]
    pub fn undo_take(&mut self, count: u16) {
        if self.log.is_none() {
            self.available = self.available.wrapping_sub(count);
        }
    }

    fn follow(&mut self, head: u16, chain: &mut Chain) -> Result<(), Fault> {
        chain.begin(head);
        let (mut table, mut entries, mut at) = (None, self.size, head);
        let mut left = self.size;
        loop {
            if at >= entries {
                return Err(Fault::Descriptor(at));
            }
            left = left.checked_sub(1).ok_or(Fault::Loop(head))?;
            let (address, word) = match table {
                None => {
                    let descriptor = 16 * usize::from(at);
                    let load =
                        |at: usize| u64::from_le(self.table.word64(at).load(Ordering::Relaxed));
                    (load(descriptor), load(descriptor + 8))
                }
                Some(place) => {
                    let mut bytes = [0; 16];
                    self.memory.read(place, 16 * u32::from(at), &mut bytes);
                    let word = u128::from_le_bytes(bytes);
                    (word as u64, (word >> 64) as u64)
                }
            };
            let (len, flags, next) = (word as u32, (word >> 32) as u16, (word >> 48) as u16);
            if flags & INDIRECT != 0 {
                let count = len / 16;
                if !self.indirect
                    || table.is_some()
                    || flags & NEXT != 0
                    || !len.is_multiple_of(16)
                    || count == 0
                    || count > MOST
                {
                    return Err(Fault::Indirect(at));
                }
                table = Some(self.memory.place(address, len, Access::Read)?);
                (entries, left, at) = (count as u16, count as u16, 0);
                continue;
            }
            if len > 0 {
                let access = if flags & WRITE == 0 { Access::Read } else { Access::Write };
                chain.push(self.memory.place(address, len, access)?, access)?;
            }
            if flags & NEXT == 0 {
                return Ok(());
            }
            at = next;
        }
    }

    /// The chain of `head` is done, of which `written` bytes were written. The driver sees it after
    /// [`publish`](Self::publish).
    #[inline]
    pub fn put(&mut self, head: u16, written: u32) {
        let at = 4 + 8 * self.slot(self.used);
        self.device.word32(at).store(u32::from(head).to_le(), Ordering::Relaxed);
        self.device.word32(at + 4).store(written.to_le(), Ordering::Relaxed);
        self.used = self.used.wrapping_add(1);
    }

    /// Shows the driver what was put; whether it wants to be interrupted for that.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (before, now) = (self.shown, self.used);
        if before == now {
            return false;
        }
        self.device.word16(2).store(now.to_le(), Ordering::Release);
        self.shown = now;
        if let Some(log) = &self.log {
            let mut at = before;
            while at != now {
                log.give_back(self.used_head(at));
                at = at.wrapping_add(1);
            }
            log.settle(now);
        }
        fence(Ordering::SeqCst);
        if self.event_index {
            let event = u16::from_le(
                self.driver.word16(4 + 2 * usize::from(self.size)).load(Ordering::Relaxed),
            );
            return now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before);
        }
        u16::from_le(self.driver.word16(0).load(Ordering::Relaxed)) & NO_INTERRUPT == 0
    }

    /// Asks the driver to kick for what it offers next; whether there is something already, so that
    /// it is no use to wait.
    #[inline]
    pub fn want_kicks(&mut self) -> bool {
        self.want_kicks_for(1)
    }

    /// Asks the driver to kick once it has offered `count` chains that were not taken (without
    /// EVENT_IDX, for each); whether there are so many already.
    #[inline]
    pub fn want_kicks_for(&mut self, count: u16) -> bool {
        let count = count.clamp(1, self.size);
        if self.event_index {
            let event = self.available.wrapping_add(count - 1);
            self.device
                .word16(4 + 8 * usize::from(self.size))
                .store(event.to_le(), Ordering::Relaxed);
        } else {
            self.device.word16(0).store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.offered() >= count
    }

    /// Kicks are of no use now. The driver may kick nevertheless.
    #[inline]
    pub fn refuse_kicks(&mut self) {
        // With EVENT_IDX they are refused as long as nothing is asked for.
        if !self.event_index {
            self.device.word16(0).store(NO_NOTIFY.to_le(), Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(crate) fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    #[cfg(test)]
    pub(crate) fn into_memory(self) -> Memory {
        self.memory
    }

    /// What a process does that dies between showing and noting.
    #[cfg(test)]
    pub(crate) fn publish_and_die(&mut self) {
        self.device.word16(2).store(self.used.to_le(), Ordering::Release);
    }
}
