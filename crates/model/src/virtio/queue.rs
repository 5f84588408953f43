//! The device's side of a split virtqueue. [virtio 2.7]

use ring3_spec::virtio::NO_VECTOR;
use ring3_spec::virtio::ring::{NEXT, NO_INTERRUPT, WRITE, parts};

use crate::{Blocked, Bus};

/// Most entries that a driver can set.
pub(super) const MAX_SIZE: u16 = 256;

/// What a driver has set of a queue, and how far it is.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    pub(super) size: u16,
    pub(super) vector: u16,
    pub(super) enabled: bool,
    pub(super) table: u64,
    pub(super) driver: u64,
    pub(super) device: u64,
    /// Entries of the driver's ring that were taken; runs free.
    pub(super) taken: u16,
    /// Entries of the device's ring that were written; runs free.
    pub(super) used: u16,
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) writable: bool,
}

/// A chain that the driver has made available.
pub(super) struct Chain {
    pub(super) head: u16,
    pub(super) pieces: Vec<Piece>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { size: MAX_SIZE, vector: NO_VECTOR, enabled: false, table: 0, driver: 0, device: 0, taken: 0, used: 0 }
    }
}

impl Queue {
    /// Chains that are available and were not taken.
    pub(super) fn available(&self, bus: &Bus) -> Result<u16, Blocked> {
        Ok(load16(bus, self.driver + 2)?.wrapping_sub(self.taken))
    }

    /// Takes the next chain; `None` if there is none, or it is no chain: a loop, or a descriptor that is none.
    pub(super) fn take(&mut self, bus: &Bus) -> Result<Option<Chain>, Blocked> {
        if !self.enabled || self.available(bus)? == 0 {
            return Ok(None);
        }
        let head = load16(bus, self.driver + 4 + 2 * u64::from(self.taken % self.size))?;
        self.taken = self.taken.wrapping_add(1);
        let (mut pieces, mut next) = (Vec::new(), Some(head));
        while let Some(descriptor) = next {
            if descriptor >= self.size || pieces.len() >= self.size.into() {
                return Ok(None);
            }
            let at = self.table + 16 * u64::from(descriptor);
            let (address, (len, flags, after)) = (bus.load(at)?, parts(bus.load(at + 8)?));
            pieces.push(Piece { address, len, writable: flags & WRITE != 0 });
            next = (flags & NEXT != 0).then_some(after);
        }
        Ok(Some(Chain { head, pieces }))
    }

    /// Writes an entry of the device's ring; the driver sees it after [`publish`](Self::publish).
    pub(super) fn put(&mut self, bus: &Bus, id: u32, len: u32) -> Result<(), Blocked> {
        let at = self.device + 4 + 8 * u64::from(self.used % self.size);
        bus.write(at, &id.to_le_bytes())?;
        bus.write(at + 4, &len.to_le_bytes())?;
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Lets the driver see what was put, and says whether it wants an interrupt.
    pub(super) fn publish(&self, bus: &Bus) -> Result<bool, Blocked> {
        // Flags and index with the first entry behind them, as one access that comes after all others.
        let word = bus.load(self.device)?;
        bus.store(self.device, word & !0xffff_0000 | u64::from(self.used) << 16)?;
        Ok(load16(bus, self.driver)? & NO_INTERRUPT == 0)
    }
}

fn load16(bus: &Bus, at: u64) -> Result<u16, Blocked> {
    let mut bytes = [0; 2];
    bus.read(at, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}
