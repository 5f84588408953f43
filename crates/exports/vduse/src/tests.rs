//! The queue against a driver's half.

mod properties;

use super::*;

const TABLE: u64 = 0x1000;
const DRIVER: u64 = 0x4000;
const DEVICE: u64 = 0x8000;
const DATA: u64 = 0x10_0000;
const DATA_BYTES: usize = 1 << 20;
const EVENT: u64 = features::ALL;

/// Address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);

fn vring(size: u32) -> Vring {
    Vring {
        index: 0,
        size,
        descriptors: TABLE,
        driver: DRIVER,
        device: DEVICE,
        available: 0,
        ready: true,
    }
}

fn memory() -> Memory {
    Memory::of_zeroes(&[(TABLE, 0x3000), (DRIVER, 0x4000), (DEVICE, 0x8000), (DATA, DATA_BYTES)])
        .unwrap()
}

/// The driver's half, with one queue.
struct Driver {
    queue: Queue,
    size: u16,
    offered: u16,
    seen: u16,
}

impl Driver {
    fn new(size: u16, features: u64) -> Self {
        Self::with_log(size, features, None)
    }

    fn with_log(size: u16, features: u64, log: Option<Log>) -> Self {
        let queue =
            Queue::open(memory(), &vring(size.into()), features, log, Begin::Fresh).unwrap();
        Self { queue, size, offered: 0, seen: 0 }
    }

    fn write(&mut self, iova: u64, bytes: &[u8]) {
        let memory = self.queue.memory_mut();
        let place = memory.place(iova, bytes.len() as u32, Access::Write).unwrap();
        assert!(memory.write(place, 0, bytes));
    }

    fn read<const N: usize>(&mut self, iova: u64) -> [u8; N] {
        let (memory, mut bytes) = (self.queue.memory_mut(), [0; N]);
        let place = memory.place(iova, N as u32, Access::Read).unwrap();
        assert!(memory.read(place, 0, &mut bytes));
        bytes
    }

    fn describe(&mut self, table: u64, number: u16, (address, len, flags, next): Descriptor) {
        let word = u128::from(address)
            | u128::from(len) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        self.write(table + 16 * u64::from(number), &word.to_le_bytes());
    }

    fn offer(&mut self, head: u16) {
        self.write(DRIVER + 4 + 2 * u64::from(self.offered % self.size), &head.to_le_bytes());
        self.offered = self.offered.wrapping_add(1);
        self.write(DRIVER + 2, &self.offered.to_le_bytes());
    }

    /// What was shown as used since this was asked last.
    fn used(&mut self) -> Vec<(u32, u32)> {
        let index = u16::from_le_bytes(self.read(DEVICE + 2));
        let mut all = Vec::new();
        while self.seen != index {
            let entry: [u8; 8] = self.read(DEVICE + 4 + 8 * u64::from(self.seen % self.size));
            all.push((
                u32::from_le_bytes(entry[..4].try_into().unwrap()),
                u32::from_le_bytes(entry[4..].try_into().unwrap()),
            ));
            self.seen = self.seen.wrapping_add(1);
        }
        all
    }

    fn take(&mut self) -> Result<Option<Chain>, Fault> {
        let mut chain = Chain::with_capacity(8);
        Ok(self.queue.take(&mut chain)?.then_some(chain))
    }

    /// Another process goes on with the same memory.
    fn reborn(self, log: Option<Log>) -> Self {
        let Self { queue, size, offered, seen } = self;
        let queue =
            Queue::open(queue.into_memory(), &vring(size.into()), EVENT, log, Begin::Resume)
                .unwrap();
        Self { queue, size, offered, seen }
    }
}

#[test]
fn a_chain_is_its_readable_bytes_and_then_its_writable_ones() {
    let mut driver = Driver::new(8, EVENT);
    driver.write(DATA, b"header");
    driver.describe(TABLE, 5, (DATA, 6, 1, 2));
    driver.describe(TABLE, 2, (DATA + 64, 3, 3, 7));
    driver.describe(TABLE, 7, (DATA + 128, 2, 2, 0));
    driver.offer(5);
    let chain = driver.take().unwrap().unwrap();
    assert_eq!((chain.head(), chain.readable(), chain.writable()), (5, 6, 5));
    let mut header = [0; 4];
    assert_eq!((chain.read(driver.queue.memory(), 2, &mut header), &header), (4, b"ader"));
    assert_eq!(chain.write(driver.queue.memory(), 1, b"1234567"), 4);
    assert_eq!((driver.read(DATA + 65), driver.read(DATA + 128)), (*b"12", *b"34"));
    driver.queue.put(5, 5);
    assert!(driver.used().is_empty());
    driver.queue.publish();
    assert_eq!(driver.used(), [(5, 5)]);
}

#[test]
fn an_indirect_table_is_followed_and_one_within_it_is_refused() {
    let mut driver = Driver::new(4, EVENT);
    driver.describe(TABLE, 1, (DATA, 32, 4, 0));
    driver.describe(DATA, 0, (DATA + 4096, 100, 1, 1));
    driver.describe(DATA, 1, (DATA + 8192, 200, 2, 0));
    driver.offer(1);
    let chain = driver.take().unwrap().unwrap();
    assert_eq!((chain.readable(), chain.writable()), (100, 200));
    driver.describe(DATA, 1, (DATA, 32, 4, 0));
    driver.offer(1);
    assert_eq!(driver.take().unwrap_err(), Fault::Indirect(1));
}

#[test]
fn what_makes_no_sense_is_a_fault_and_stays_one() {
    let unmapped = |iova, len| Fault::Unmapped { iova, len };
    let cases: [(&[(u16, Descriptor)], Fault); 9] = [
        (&[(0, (DATA, 8, 1, 1)), (1, (DATA, 8, 1, 0))], Fault::Loop(0)),
        (&[(0, (DATA, 8, 1, 8))], Fault::Descriptor(8)),
        (&[(0, (0, 8, 0, 0))], unmapped(0, 8)),
        (&[(0, (DATA, u32::MAX, 0, 0))], unmapped(DATA, u32::MAX.into())),
        (&[(0, (u64::MAX - 2, 8, 0, 0))], unmapped(u64::MAX - 2, 8)),
        (&[(0, (DATA, 8, 3, 1)), (1, (DATA, 8, 0, 0))], Fault::Order(0)),
        (&[(0, (DATA, 17, 4, 0))], Fault::Indirect(0)),
        (&[(0, (DATA, 0, 4, 0))], Fault::Indirect(0)),
        (&[(0, (DATA, 32, 5, 0))], Fault::Indirect(0)),
    ];
    for (descriptors, fault) in cases {
        let mut driver = Driver::new(8, EVENT);
        descriptors
            .iter()
            .for_each(|&(number, descriptor)| driver.describe(TABLE, number, descriptor));
        driver.offer(0);
        assert_eq!(driver.take().unwrap_err(), fault);
        assert_eq!(driver.take().unwrap_err(), fault);
    }
}

#[test]
fn a_chain_of_more_pieces_than_there_is_room_for_is_a_fault() {
    let mut driver = Driver::new(16, EVENT);
    (0..9).for_each(|number| {
        driver.describe(TABLE, number, (DATA, 8, u16::from(number < 8), number + 1))
    });
    driver.offer(0);
    assert_eq!(driver.take().unwrap_err(), Fault::Long(0));
}

#[test]
fn an_index_that_is_further_ahead_than_the_ring_is_long_is_a_fault() {
    let mut driver = Driver::new(8, EVENT);
    driver.write(DRIVER + 2, &9u16.to_le_bytes());
    assert_eq!(driver.take().unwrap_err(), Fault::Index { ahead: 9, size: 8 });
}

#[test]
fn a_ring_that_cannot_be_is_not_opened() {
    let open = |vring: Vring| {
        Queue::open(memory(), &vring, EVENT, None, Begin::Fresh).map(drop).unwrap_err()
    };
    for size in [0, 3, 65536] {
        assert_eq!(open(vring(size)), Fault::Shape(size));
    }
    assert_eq!(open(Vring { device: DEVICE + 2, ..vring(8) }), Fault::Shape(8));
    assert!(matches!(open(Vring { driver: 0x9_0000, ..vring(8) }), Fault::Unmapped { .. }));
    assert!(matches!(open(vring(1024)), Fault::Unmapped { iova: TABLE, .. }));
}

#[test]
fn interrupts_come_as_the_driver_asks_for_them() {
    let mut driver = Driver::new(8, EVENT);
    let used_event = DRIVER + 4 + 2 * 8;
    let put = |driver: &mut Driver, count: usize| {
        (0..count).for_each(|_| driver.queue.put(0, 0));
        driver.queue.publish()
    };
    assert!(put(&mut driver, 1));
    assert!(!put(&mut driver, 1));
    driver.write(used_event, &4u16.to_le_bytes());
    assert!(!put(&mut driver, 2));
    assert!(put(&mut driver, 3));
    assert!(!driver.queue.publish());
    let mut plain = Driver::new(8, features::VERSION_1);
    assert!(put(&mut plain, 1));
    plain.write(DRIVER, &1u16.to_le_bytes());
    assert!(!put(&mut plain, 1));
}

#[test]
fn kicks_are_asked_for_what_comes_next() {
    let mut driver = Driver::new(8, EVENT);
    driver.describe(TABLE, 0, (DATA, 8, 0, 0));
    let available_event = DEVICE + 4 + 8 * 8;
    assert!(!driver.queue.want_kicks());
    driver.offer(0);
    assert!(driver.queue.want_kicks());
    driver.take().unwrap().unwrap();
    assert!(!driver.queue.want_kicks());
    assert_eq!(u16::from_le_bytes(driver.read(available_event)), 1);
    let mut plain = Driver::new(8, features::VERSION_1);
    plain.queue.refuse_kicks();
    assert_eq!(plain.read(DEVICE), [1, 0]);
    plain.queue.want_kicks();
    assert_eq!(plain.read(DEVICE), [0, 0]);
}

#[test]
fn a_kick_can_be_asked_for_several_chains_and_comes_with_the_last_of_them() {
    let mut driver = Driver::new(8, EVENT);
    driver.describe(TABLE, 0, (DATA, 8, 0, 0));
    let available_event = DEVICE + 4 + 8 * 8;
    driver.offer(0);
    driver.take().unwrap().unwrap();
    assert!(!driver.queue.want_kicks_for(3));
    assert_eq!(u16::from_le_bytes(driver.read(available_event)), 3);
    (0..3).for_each(|_| driver.offer(0));
    assert_eq!(driver.queue.offered(), 3);
    assert!(driver.queue.want_kicks_for(3) && !driver.queue.want_kicks_for(4));
    (0..5).for_each(|_| driver.offer(0));
    assert!(driver.queue.want_kicks_for(u16::MAX), "more than the ring has are never offered");
}

#[test]
fn a_head_that_is_in_flight_is_not_offered_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = Inflight::create(&folder.path().join("log"), (1, 8), b"").unwrap();
    let mut driver = Driver::with_log(8, EVENT, log.queue(0));
    driver.describe(TABLE, 0, (DATA, 8, 0, 0));
    driver.offer(0);
    driver.offer(0);
    assert!(driver.take().unwrap().is_some());
    assert_eq!(driver.take().unwrap_err(), Fault::Twice(0));
}

#[test]
fn a_log_for_a_shorter_ring_than_the_drivers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = Inflight::create(&folder.path().join("log"), (1, 8), b"").unwrap();
    let opened = Queue::open(memory(), &vring(16), EVENT, log.queue(0), Begin::Fresh);
    assert_eq!(opened.map(drop).unwrap_err(), Fault::Shape(16));
}

#[test]
fn without_a_log_the_next_process_begins_where_the_ring_says() {
    let mut driver = Driver::new(8, EVENT);
    driver.describe(TABLE, 0, (DATA, 8, 0, 0));
    (0..3).for_each(|_| driver.offer(0));
    (0..2).for_each(|_| drop(driver.take().unwrap().unwrap()));
    driver.queue.put(0, 0);
    driver.queue.publish();
    let mut driver = driver.reborn(None);
    assert_eq!(driver.queue.available(), 1);
    assert!(driver.take().unwrap().is_some());
    driver.queue.undo_take(1);
    assert_eq!(driver.queue.available(), 1);
}
