//! The device's side of a virtqueue: `ring3_vduse::Queue`, with chains and indirect tables.
//!
//! The attacker is the driver in a virtual machine, or the kernel that bounces for it: it writes
//! what it likes to rings, tables and data. The input is a list of such writes, and of what the
//! device does.
//!
//! Promises: no panic; a chain is what the specification says of the driver's memory, which a
//! second reader in this file finds out, and everything else is a fault that stays one; a device
//! that writes to a chain changes the bytes of that chain and of its ring, and no others; no chain
//! is taken that was not offered; with a log, none is taken twice.

use crate::Input;
use ring3_vduse::{Access, Begin, Chain, Inflight, Memory, Place, Queue, Vring, features};

/// The areas of the driver's memory: address and bytes.
const AREAS: [(u64, usize); 4] =
    [(0x1000, 0x1000), (0x4000, 0x1000), (0x8000, 0x1000), (0x10_0000, 0x4000)];
const TABLE: u64 = AREAS[0].0;
const DRIVER: u64 = AREAS[1].0;
const DEVICE: u64 = AREAS[2].0;
const DATA: u64 = AREAS[3].0;
/// Pieces that a chain has room for.
const PIECES: usize = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A copy of the driver's memory, as it must be.
struct Mirror(Vec<Vec<u8>>);

impl Mirror {
    fn place(&self, at: u64, len: usize) -> Option<(usize, usize)> {
        let area = AREAS.iter().position(|&(start, bytes)| {
            at >= start && at - start < bytes as u64 && len as u64 <= bytes as u64 - (at - start)
        })?;
        Some((area, (at - AREAS[area].0) as usize))
    }

    fn read(&self, at: u64, len: usize) -> Option<&[u8]> {
        let (area, at) = self.place(at, len)?;
        Some(&self.0[area][at..at + len])
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        if let Some((area, at)) = self.place(at, bytes.len()) {
            self.0[area][at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn u16(&self, at: u64) -> u16 {
        self.read(at, 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// The pieces of the chain of `head`, by the specification: address, bytes, to be written.
    /// `None` if there is no such chain.
    fn chain(&self, size: u16, head: u16, indirect: bool) -> Option<Vec<(u64, u32, bool)>> {
        let (mut pieces, mut at) = (Vec::new(), head);
        let (mut table, mut entries, mut is_indirect) = (TABLE, u32::from(size), false);
        let mut left = entries;
        loop {
            if u32::from(at) >= entries || left == 0 {
                return None;
            }
            left -= 1;
            let bytes = self.read(table + 16 * u64::from(at), 16)?;
            let word = u128::from_le_bytes(bytes.try_into().unwrap());
            let (address, len) = (word as u64, (word >> 64) as u32);
            let (flags, next) = ((word >> 96) as u16, (word >> 112) as u16);
            if flags & INDIRECT != 0 {
                let whole = len > 0 && len.is_multiple_of(16) && len / 16 <= 32768;
                if !indirect || is_indirect || flags & NEXT != 0 || !whole {
                    return None;
                }
                self.read(address, len as usize)?;
                (table, entries, is_indirect, at) = (address, len / 16, true, 0);
                left = entries;
                continue;
            }
            let writes = flags & WRITE != 0;
            if len > 0 {
                self.read(address, len as usize)?;
                if !writes && pieces.last().is_some_and(|&(_, _, writes)| writes) {
                    return None;
                }
                pieces.push((address, len, writes));
                if pieces.len() > PIECES {
                    return None;
                }
            }
            if flags & NEXT == 0 {
                return Some(pieces);
            }
            at = next;
        }
    }
}

struct Bench {
    queue: Queue,
    places: Vec<Place>,
    mirror: Mirror,
    size: u16,
    indirect: bool,
    logged: bool,
    /// Chains that were taken and not given back.
    held: Vec<(u16, u32)>,
    /// Chains that were given back and not shown: a log still has them.
    hidden: Vec<u16>,
    used: u16,
    shown: u16,
}

impl Bench {
    /// The driver writes.
    fn write(&mut self, at: u64, bytes: &[u8]) {
        if let Some((area, offset)) = self.mirror.place(at, bytes.len()) {
            assert!(self.queue.memory().write(self.places[area], offset as u32, bytes));
            self.mirror.write(at, bytes);
        }
    }

    fn address(input: &mut Input<'_>) -> u64 {
        let ends = [TABLE, DRIVER, DEVICE, DATA].map(|start| start + 0x1000);
        match input.u8() % 8 {
            0..=4 => DATA + u64::from(input.u16() % 0x3000),
            5 => input.near(&[TABLE, DRIVER, DEVICE, DATA, DATA + 0x4000, 0, u64::MAX]),
            6 => input.near(&ends),
            _ => input.u64(),
        }
    }

    fn describe(&mut self, input: &mut Input<'_>) {
        let (table, kind) = (input.u8(), input.u8());
        let address = Self::address(input);
        let len = match kind >> 4 {
            0..=8 => u32::from(input.u8()) * 16,
            9..=12 => u32::from(input.u16()),
            _ => input.u32(),
        };
        let (flags, next) = (u16::from(kind & 7), u16::from(input.u8()));
        let word = u128::from(address)
            | u128::from(len) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        let number = u64::from(table & 0x3f);
        let at = if table & 0x80 == 0 {
            TABLE + 16 * (number % u64::from(self.size))
        } else {
            DATA + 16 * number
        };
        self.write(at, &word.to_le_bytes());
    }

    fn offer(&mut self, input: &mut Input<'_>) {
        let (head, index) = (u16::from(input.u8()), self.mirror.u16(DRIVER + 2));
        let slot = u64::from(index & (self.size - 1));
        self.write(DRIVER + 4 + 2 * slot, &head.to_le_bytes());
        self.write(DRIVER + 2, &index.wrapping_add(1).to_le_bytes());
    }

    /// Whether the chain of `head` is in flight.
    fn has(&self, head: u16) -> bool {
        self.hidden.contains(&head) || self.held.iter().any(|&(held, _)| held == head)
    }

    fn take(&mut self) {
        let (before, mut chain) = (self.queue.available(), Chain::with_capacity(PIECES));
        let ahead = self.mirror.u16(DRIVER + 2).wrapping_sub(before);
        let slot = u64::from(before & (self.size - 1));
        let head = self.mirror.u16(DRIVER + 4 + 2 * slot);
        let wanted = (ahead <= self.size)
            .then(|| self.mirror.chain(self.size, head, self.indirect))
            .flatten()
            .filter(|_| !self.logged || !self.has(head));
        match self.queue.take(&mut chain) {
            Ok(false) => assert_eq!(ahead, 0, "an offer is not seen"),
            Ok(true) => {
                let wanted = wanted.expect("a chain that is none was taken");
                assert_eq!(self.queue.available(), before.wrapping_add(1));
                self.check(&chain, head, &wanted);
                self.held.push((head, chain.writable()));
            }
            Err(fault) => {
                let sum = |of: bool| {
                    let of = wanted.iter().flatten().filter(|piece| piece.2 == of);
                    of.map(|piece| u64::from(piece.1)).sum::<u64>()
                };
                let fits = sum(false).max(sum(true)) <= u32::MAX.into();
                assert!(ahead > 0 && (wanted.is_none() || !fits), "a chain is refused: {fault}");
                assert_eq!(self.queue.take(&mut chain), Err(fault), "a fault does not stay");
            }
        }
    }

    /// `chain` has the bytes of `pieces`.
    fn check(&mut self, chain: &Chain, head: u16, pieces: &[(u64, u32, bool)]) {
        let bytes = |writes: bool| -> u32 {
            pieces.iter().filter(|piece| piece.2 == writes).map(|piece| piece.1).sum()
        };
        assert_eq!(
            (chain.head(), chain.readable(), chain.writable()),
            (head, bytes(false), bytes(true))
        );
        let mut wanted = Vec::new();
        for &(at, len, _) in pieces.iter().filter(|piece| !piece.2) {
            wanted.extend_from_slice(self.mirror.read(at, len as usize).unwrap_or(&[]));
        }
        let mut read = vec![0; wanted.len() + 1];
        assert_eq!(chain.read(self.queue.memory(), 0, &mut read) as usize, wanted.len());
        assert_eq!(read[..wanted.len()], wanted);
        // A pattern that says where it is.
        let pattern: Vec<u8> =
            (0..chain.writable() as usize + 3).map(|at| at as u8 ^ 0x5a).collect();
        let written = chain.write(self.queue.memory(), 0, &pattern);
        assert_eq!(written, chain.writable());
        let mut done = 0;
        for &(at, len, _) in pieces.iter().filter(|piece| piece.2) {
            self.mirror.write(at, &pattern[done..done + len as usize]);
            done += len as usize;
        }
    }

    fn put(&mut self, input: &mut Input<'_>) {
        if self.held.is_empty() {
            return;
        }
        let (head, written) = self.held.remove(input.below(self.held.len()));
        let at = DEVICE + 4 + 8 * u64::from(self.used & (self.size - 1));
        self.mirror.write(at, &u64::to_le_bytes(u64::from(head) | u64::from(written) << 32));
        self.hidden.push(head);
        self.queue.put(head, written);
        self.used = self.used.wrapping_add(1);
    }

    fn publish(&mut self) {
        self.queue.publish();
        self.hidden.clear();
        if self.shown != self.used {
            self.mirror.write(DEVICE + 2, &self.used.to_le_bytes());
            self.shown = self.used;
        }
    }

    /// What the device asks of kicks stands where the specification says, and nowhere else.
    fn ask(&mut self, input: &mut Input<'_>) {
        let before: Vec<_> = self.mirror.0.clone();
        let count = input.u16();
        if count.is_multiple_of(4) {
            self.queue.refuse_kicks()
        } else {
            self.queue.want_kicks_for(count);
        }
        let event = DEVICE + 4 + 8 * u64::from(self.size);
        for at in [DEVICE, event] {
            let mut word = [0; 2];
            let offset = (at - DEVICE) as u32;
            assert!(self.queue.memory().read(self.places[2], offset, &mut word));
            self.mirror.write(at, &word);
        }
        assert_eq!(before[..2], self.mirror.0[..2]);
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (shape, flags) = (input.u8(), input.u8());
    let size = 1u16 << (shape % 7);
    let indirect = flags & 1 == 0;
    let mut agreed = features::VERSION_1 | features::ACCESS_PLATFORM;
    agreed |= if indirect { features::INDIRECT } else { 0 };
    agreed |= if flags & 2 == 0 { features::EVENT_IDX } else { 0 };
    let mut memory = Memory::of_zeroes(&AREAS).unwrap();
    let place = |&(at, len)| memory.place(at, len as u32, Access::Write).unwrap();
    let places: Vec<_> = AREAS.iter().map(place).collect();
    let vring = Vring {
        index: 0,
        size: size.into(),
        descriptors: TABLE,
        driver: DRIVER,
        device: DEVICE,
        available: if flags & 4 == 0 { 0 } else { 0xfff8 },
        ready: true,
    };
    let logged = flags & 0x30 == 0x30;
    let folder = logged.then(|| tempfile::tempdir().unwrap());
    let log = folder
        .as_ref()
        .map(|folder| Inflight::create(&folder.path().join("log"), (1, size), b"").unwrap());
    let log = log.as_ref().and_then(|log| log.queue(0));
    let queue = Queue::open(memory, &vring, agreed, log, Begin::Fresh).unwrap();
    let mirror = Mirror(AREAS.iter().map(|&(_, bytes)| vec![0; bytes]).collect());
    let (held, hidden, [used, shown]) = (Vec::new(), Vec::new(), [0; 2]);
    let mut bench =
        Bench { queue, places, mirror, size, indirect, logged, held, hidden, used, shown };
    bench.write(DRIVER + 2, &vring.available.to_le_bytes());
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        match input.u8() % 16 {
            0..=4 => bench.describe(&mut input),
            5..=7 => bench.offer(&mut input),
            8..=10 => bench.take(),
            11 => bench.put(&mut input),
            12 => bench.publish(),
            13 => bench.ask(&mut input),
            14 => {
                let at = Bench::address(&mut input);
                let len = usize::from(input.u8() % 32);
                let bytes = input.bytes(len).to_vec();
                // The device's ring is the device's: what a driver writes there is lost.
                if !(DEVICE - 32..DEVICE + 0x1000).contains(&at) {
                    bench.write(at, &bytes);
                }
            }
            _ => {
                let index = input.u16();
                bench.write(DRIVER + 2, &index.to_le_bytes());
            }
        }
    }
    for (&place, bytes) in bench.places.iter().zip(&bench.mirror.0) {
        let mut now = vec![0; bytes.len()];
        assert!(bench.queue.memory().read(place, 0, &mut now));
        assert!(now == *bytes, "bytes have changed that are in no chain");
    }
}
