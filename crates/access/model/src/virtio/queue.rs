//! The device's side of a virtqueue, split or packed. [virtio 2.7, 2.8]

use ring3_spec::virtio::NO_VECTOR;
use ring3_spec::virtio::ring::{
    INDIRECT, NEXT, NO_INTERRUPT, PACKED_AT, PACKED_AVAILABLE, PACKED_DISABLED, PACKED_USED, WRITE,
    event_at, packed, parts, passes,
};

use crate::{Blocked, Bus};

/// Most entries that a driver can set.
pub(super) const MAX_SIZE: u16 = 256;

/// What a driver has set of a queue, and how far it is.
#[derive(Clone, Copy)]
pub(super) struct Queue {
    pub(super) size: u16,
    pub(super) vector: u16,
    pub(super) enabled: bool,
    /// One ring of descriptors instead of a table and two rings.
    pub(super) packed: bool,
    /// Each side says by a position when it wants to be told.
    pub(super) events: bool,
    pub(super) table: u64,
    pub(super) driver: u64,
    pub(super) device: u64,
    /// Split: entries of the driver's ring that were taken. Packed: descriptors. Either runs free.
    taken: u32,
    /// Split: entries of the device's ring that were written. Packed: descriptors that were given
    /// back. Either runs free.
    used: u32,
    /// Packed: the word that shows the first of the descriptors that were given back, which comes
    /// last.
    withheld: Option<(u64, u64)>,
    /// What was used when the driver was last let see it.
    shown: u32,
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) writable: bool,
}

/// A chain that the driver has made available.
#[derive(Clone)]
pub(super) struct Chain {
    pub(super) id: u16,
    pub(super) pieces: Vec<Piece>,
    /// Descriptors of the queue that it takes.
    descriptors: u16,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            size: MAX_SIZE,
            vector: NO_VECTOR,
            enabled: false,
            packed: false,
            events: false,
            table: 0,
            driver: 0,
            device: 0,
            taken: 0,
            used: 0,
            withheld: None,
            shown: 0,
        }
    }
}

impl Queue {
    /// Takes the next chain; `None` if there is none, or it is no chain: a loop, or a descriptor
    /// that is none.
    pub(super) fn take(&mut self, bus: &Bus) -> Result<Option<Chain>, Blocked> {
        if !self.enabled {
            return Ok(None);
        }
        let next = self.take_next(bus)?;
        if next.is_some() || !self.events {
            return Ok(next);
        }
        // What came before the driver could see where it shall tell is found by another look.
        self.ask(bus)?;
        self.take_next(bus)
    }

    fn take_next(&mut self, bus: &Bus) -> Result<Option<Chain>, Blocked> {
        if self.packed { self.take_packed(bus) } else { self.take_split(bus) }
    }

    /// Asks to be told of the next chain. [virtio 2.7.10, 2.8.10]
    fn ask(&self, bus: &Bus) -> Result<(), Blocked> {
        if !self.packed {
            return bus
                .write(self.device + event_at(self.size, 8), &(self.taken as u16).to_le_bytes());
        }
        let (index, lap) = (
            self.taken % u32::from(self.size),
            (self.taken / u32::from(self.size)).is_multiple_of(2),
        );
        bus.store(self.device, u64::from(index) | u64::from(lap) << 15 | u64::from(PACKED_AT) << 16)
    }

    fn take_split(&mut self, bus: &Bus) -> Result<Option<Chain>, Blocked> {
        if load16(bus, self.driver + 2)? == self.taken as u16 {
            return Ok(None);
        }
        let id = load16(bus, self.driver + 4 + 2 * u64::from(self.taken as u16 % self.size))?;
        self.taken = self.taken.wrapping_add(1);
        let mut chain = Chain { id, pieces: Vec::new(), descriptors: 1 };
        Ok(walk(bus, (self.table, self.size), (id, true), &mut chain.pieces)?.then_some(chain))
    }

    fn take_packed(&mut self, bus: &Bus) -> Result<Option<Chain>, Blocked> {
        let mut chain = Chain { id: 0, pieces: Vec::new(), descriptors: 0 };
        loop {
            let (at, lap) = self.place(self.taken.wrapping_add(chain.descriptors.into()));
            // The marks come first: an address that was loaded before them may be that of the lap
            // before.
            let (len, id, flags) = parts_packed(bus.load(at + 8)?);
            let address = bus.load(at)?;
            let available =
                (flags & PACKED_AVAILABLE != 0) == lap && (flags & PACKED_USED != 0) != lap;
            if chain.descriptors == 0 && !available || chain.descriptors >= self.size {
                return Ok(None);
            }
            chain.descriptors += 1;
            if flags & INDIRECT != 0 {
                for at in (address..).step_by(16).take((len / 16).min(MAX_SIZE.into()) as usize) {
                    let (address, (len, _, flags)) =
                        (bus.load(at)?, parts_packed(bus.load(at + 8)?));
                    chain.pieces.push(Piece { address, len, writable: flags & WRITE != 0 });
                }
            } else {
                chain.pieces.push(Piece { address, len, writable: flags & WRITE != 0 });
            }
            if flags & NEXT == 0 {
                chain.id = id;
                self.taken = self.taken.wrapping_add(chain.descriptors.into());
                return Ok(Some(chain));
            }
        }
    }

    /// Packed: where descriptor `index`, which runs free, is, and the mark of its lap.
    fn place(&self, index: u32) -> (u64, bool) {
        let size = u32::from(self.size);
        (self.table + 16 * u64::from(index % size), (index / size).is_multiple_of(2))
    }

    /// Gives `chain` back as `id`, with `len` bytes written; the driver sees it after
    /// [`publish`](Self::publish).
    pub(super) fn put(
        &mut self,
        bus: &Bus,
        chain: &Chain,
        id: u32,
        len: u32,
    ) -> Result<(), Blocked> {
        if self.packed {
            let (at, lap) = self.place(self.used);
            let word = packed(len, id as u16, if lap { PACKED_AVAILABLE | PACKED_USED } else { 0 });
            match self.withheld {
                None => self.withheld = Some((at + 8, word)),
                Some(_) => bus.store(at + 8, word)?,
            }
            self.used = self.used.wrapping_add(chain.descriptors.into());
            return Ok(());
        }
        let at = self.device + 4 + 8 * u64::from(self.used as u16 % self.size);
        bus.write(at, &id.to_le_bytes())?;
        bus.write(at + 4, &len.to_le_bytes())?;
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Split: says that `more` entries were used that were not.
    pub(super) fn leap(&mut self, more: u16) {
        self.used = self.used.wrapping_add(more.into());
    }

    /// Lets the driver see what was put, and says whether it wants an interrupt.
    pub(super) fn publish(&mut self, bus: &Bus) -> Result<bool, Blocked> {
        if self.packed {
            if let Some((at, word)) = self.withheld.take() {
                bus.store(at, word)?;
            }
            let shown = std::mem::replace(&mut self.shown, self.used);
            return self.wanted_packed(bus, shown);
        }
        // Flags and index with the first entry behind them, as one access that comes after all
        // others.
        let word = bus.load(self.device)?;
        bus.store(self.device, word & !0xffff_0000 | u64::from(self.used as u16) << 16)?;
        let shown = std::mem::replace(&mut self.shown, self.used);
        if !self.events {
            return Ok(load16(bus, self.driver)? & NO_INTERRUPT == 0);
        }
        Ok(passes(
            load16(bus, self.driver + event_at(self.size, 2))?,
            shown as u16,
            self.used as u16,
        ))
    }

    /// Packed: whether the driver wants to be told of what was used since `shown`. [virtio 2.8.10]
    fn wanted_packed(&self, bus: &Bus, shown: u32) -> Result<bool, Blocked> {
        let (place, flags) = (load16(bus, self.driver)?, load16(bus, self.driver + 2)? & 3);
        if flags != PACKED_AT || !self.events {
            return Ok(flags != PACKED_DISABLED);
        }
        let size = u32::from(self.size);
        let (now, lap) = ((self.used % size) as u16, (self.used / size).is_multiple_of(2));
        let (at, wrap) = (place & 0x7fff, place >> 15 == 1);
        let at = if wrap == lap { at } else { at.wrapping_sub(self.size) };
        Ok(passes(at, now.wrapping_sub(self.used.wrapping_sub(shown) as u16), now))
    }
}

/// Collects the chain that begins at `first` of a table, which may name other tables if it is the
/// queue's own; false if it is none.
fn walk(
    bus: &Bus,
    (table, size): (u64, u16),
    (first, may_nest): (u16, bool),
    pieces: &mut Vec<Piece>,
) -> Result<bool, Blocked> {
    let mut next = Some(first);
    while let Some(descriptor) = next {
        if descriptor >= size || pieces.len() >= MAX_SIZE.into() {
            return Ok(false);
        }
        let at = table + 16 * u64::from(descriptor);
        let (address, (len, flags, after)) = (bus.load(at)?, parts(bus.load(at + 8)?));
        if flags & INDIRECT != 0 {
            // It ends a chain, and its table has none such. [virtio 2.7.5.3]
            let entries = (len / 16).min(u32::from(MAX_SIZE)) as u16;
            return Ok(may_nest
                && flags & NEXT == 0
                && walk(bus, (address, entries), (0, false), pieces)?);
        }
        pieces.push(Piece { address, len, writable: flags & WRITE != 0 });
        next = (flags & NEXT != 0).then_some(after);
    }
    Ok(true)
}

/// Length, id and flags of a packed descriptor.
fn parts_packed(word: u64) -> (u32, u16, u16) {
    (word as u32, (word >> 32) as u16, (word >> 48) as u16)
}

fn load16(bus: &Bus, at: u64) -> Result<u16, Blocked> {
    let mut bytes = [0; 2];
    bus.read(at, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ring3_device::dma::{Iommu, Region};
    use ring3_spec::pci;

    use super::*;
    use crate::iommu::SimIommu;
    use crate::model::Identity;
    use crate::timer::Timer;

    const MEMORY: u64 = 1 << 20;

    /// A bus with a page at [`MEMORY`].
    fn bus() -> Bus {
        let identity = Identity {
            vendor: 0x1af4,
            device: 0x1042,
            revision: 1,
            class: 0,
            bars: Vec::new(),
            pins: 0,
            msi: 0,
            msix: None,
            express: false,
            dma_bits: 64,
        };
        let iommu = Arc::new(SimIommu::new(64, &[]));
        iommu.map(&Arc::new(Region::new(4096).unwrap()).pages().unwrap(), MEMORY).unwrap();
        let bus = Bus::new(&identity, &[], iommu, Timer::new(|_| ()));
        bus.set_command(pci::COMMAND_BUS_MASTER, true);
        bus
    }

    #[test]
    fn a_packed_descriptor_that_is_written_while_the_device_looks_is_taken_whole() {
        const CHAINS: u64 = 100_000;
        let bus = bus();
        let mut queue = Queue {
            size: 1,
            enabled: true,
            packed: true,
            table: MEMORY,
            device: MEMORY + 16,
            ..Queue::default()
        };
        queue.driver = queue.device;
        // The other side may have no processor of its own.
        let turn = |turn: usize| {
            if turn % 64 == 63 { std::thread::yield_now() } else { std::hint::spin_loop() }
        };
        let until = |chain: u64, marks: [u16; 2]| {
            let is_back = |word: u64| {
                (word >> 48) as u16 & (PACKED_AVAILABLE | PACKED_USED) == marks[chain as usize % 2]
            };
            (0..).take_while(|_| !is_back(bus.load(MEMORY + 8).unwrap())).for_each(turn);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for chain in 0..CHAINS {
                    bus.store(MEMORY, chain).unwrap();
                    bus.store(
                        MEMORY + 8,
                        packed(64, 0, [PACKED_AVAILABLE, PACKED_USED][chain as usize % 2]),
                    )
                    .unwrap();
                    until(chain, [PACKED_AVAILABLE | PACKED_USED, 0]);
                }
            });
            let taken = (0..CHAINS).map(|_| {
                let look = |at| {
                    turn(at);
                    queue.take(&bus).unwrap()
                };
                let chain = (0..).find_map(look).unwrap();
                queue.put(&bus, &chain, 0, 0).unwrap();
                queue.publish(&bus).unwrap();
                chain.pieces[0].address
            });
            // All are taken, or the driver would wait for ever.
            let torn = taken.zip(0..).filter(|(address, chain)| address != chain).count();
            assert_eq!(torn, 0);
        });
    }
}
