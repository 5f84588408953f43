//! An application of a disk: it asks for what the input says, and knows what it may expect.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, Disk, Operation, Queue, Request};
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::Level;
use ring3_driver::registry::{Controller, Driver, Offer, Opened, Settings};

use crate::hostile::{Deeds, Hostile};
use crate::models::Modelled;
use crate::{Input, clock, memory, models};

/// Operations of one input.
const MOST: usize = 24;
/// Bytes of each buffer.
const BUFFER: usize = 8192;
/// Looks at the queue between which time passes, before a request counts as one that never ends;
/// and how much of it passes. The drivers' longest time-out is 30 s, and they try three times.
const LOOKS: u32 = 400;
const PAUSE: Duration = Duration::from_secs(2);
/// Virtual time of one input.
const LONGEST: Duration = Duration::from_secs(3600);
/// Bytes that a driver allocates.
const MEMORY: usize = 64 << 20;

/// How the requests of an input have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Well.
    pub well: u32,
    /// With an error.
    pub failed: u32,
}

/// The first disk that was opened.
pub fn of(opened: &Opened) -> Option<&dyn Disk> {
    opened.offers.iter().find_map(|offer| match offer {
        Offer::Disk(disk) => Some(&**disk),
        Offer::Nic(_) => None,
    })
}

/// A queue, and what it owes.
pub struct User<'a> {
    disk: &'a dyn Disk,
    queue: Box<dyn Queue>,
    owed: BTreeSet<u64>,
    next: u64,
    ends: Ends,
    /// The driver has given the device up.
    over: bool,
    /// The queue is of a damaged state: it may owe what nobody has asked for.
    doubtful: bool,
}

impl<'a> User<'a> {
    /// Of a new queue of `disk`, if it gives one.
    pub fn new(disk: &'a dyn Disk) -> Result<Self, Error> {
        Ok(Self::over(disk, disk.open_queue(8)?, BTreeSet::new(), false))
    }

    /// Of a `queue` that already owes the requests with the tokens `owed`, or others if that is
    /// `doubtful`.
    pub fn over(
        disk: &'a dyn Disk,
        queue: Box<dyn Queue>,
        owed: BTreeSet<u64>,
        doubtful: bool,
    ) -> Self {
        let next = owed.last().map_or(0, |last| last + 1);
        Self { disk, queue, owed, next, ends: Ends::default(), over: false, doubtful }
    }

    /// Does what `input` says.
    pub fn act(&mut self, input: &mut Input<'_>, controller: &dyn Controller) {
        for _ in 0..input.below(MOST) {
            match input.u8() % 16 {
                0..=9 => self.submit(input),
                10 => self.queue.ring(),
                11 | 12 => self.reap(),
                13 => self.tick(),
                14 => clock::advance(Duration::from_millis(input.u16().into())),
                _ => drop(controller.poll_events()),
            }
            self.check();
        }
        self.finish();
    }

    fn submit(&mut self, input: &mut Input<'_>) {
        let (kind, lba, blocks) = (input.u8(), u64::from(input.u16()), u32::from(input.u8() % 17));
        let lba = if kind & 0x80 == 0 { lba % 512 } else { lba.wrapping_sub(16) };
        let buffer = || self.disk.dma().arena().alloc_pages(BUFFER);
        let request = match kind % 8 {
            0..=2 => buffer().map(|buffer| Request::read(self.next, lba, blocks, buffer)),
            3..=5 => buffer().map(|buffer| Request::write(self.next, lba, blocks, buffer)),
            6 if blocks < 8 => Ok(Request::flush(self.next)),
            6 => Ok(Request::write_zeroes(self.next, lba, blocks)),
            _ => Ok(Request::discard(self.next, lba, blocks)),
        };
        // A driver that cannot stop its device gives buffers up for good.
        let Ok(mut request) = request else { return };
        request.fua = kind & 0x40 != 0;
        if request.operation == Operation::Flush && kind & 0x20 != 0 {
            // A client of a shared disk can name blocks that a flush does not have.
            (request.lba, request.blocks) = (lba, blocks);
        }
        if self.queue.submit(request).is_ok() {
            self.owed.insert(self.next);
            self.next += 1;
        }
    }

    fn reap(&mut self) {
        let mut done: [Completion; 4] = Default::default();
        match self.queue.reap(&mut done) {
            Ok(count) => done[..count].iter().for_each(|end| self.end(end)),
            Err(Error::Gone | Error::Fatal(_)) => self.over = true,
            Err(_) => {}
        }
    }

    fn end(&mut self, end: &Completion) {
        let known = self.owed.remove(&end.token) || self.doubtful;
        assert!(known, "request {} ends and was not asked for", end.token);
        match end.result {
            Ok(()) => self.ends.well += 1,
            Err(_) => self.ends.failed += 1,
        }
    }

    fn tick(&mut self) {
        match self.queue.tick(Instant::now()) {
            Err(Error::Gone | Error::Fatal(_)) => self.over = true,
            _ => self.check(),
        }
    }

    fn check(&self) {
        assert!(
            self.doubtful || usize::from(self.queue.in_flight()) <= self.owed.len(),
            "the queue has {} requests in flight, and {} were asked for and not ended",
            self.queue.in_flight(),
            self.owed.len()
        );
    }

    /// Waits until everything has ended.
    fn finish(&mut self) {
        self.queue.ring();
        for _ in 0..LOOKS {
            let before = self.queue.in_flight();
            self.reap();
            if self.queue.in_flight() == 0 && (self.owed.is_empty() || self.doubtful) {
                return;
            }
            if self.queue.in_flight() == before {
                self.tick();
                clock::advance(PAUSE);
            }
        }
        panic!(
            "{:?} of {} in flight never end (driver given up: {})",
            self.owed,
            self.queue.in_flight(),
            self.over
        );
    }

    /// How the requests have ended.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// The queue, for whoever detaches it.
    pub fn queue_mut(&mut self) -> &mut dyn Queue {
        &mut *self.queue
    }

    /// Tokens of the requests that have not ended.
    pub fn owed(&self) -> BTreeSet<u64> {
        self.owed.clone()
    }

    /// Asks for what `input` says, and does not wait.
    pub fn begin(&mut self, input: &mut Input<'_>) {
        for _ in 0..input.below(5) {
            self.submit(input);
            if input.u8().is_multiple_of(2) {
                self.queue.ring();
            }
        }
    }
}

/// Opens one of `shapes`, a disk's model that the rest of `data` changes, with the driver that fits
/// it, and uses its first disk.
pub fn drive(shapes: &[&str], data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.choose(shapes);
    let settings = settings(input.u8());
    let len = input.u8().into();
    let mut actions = Input::new(input.bytes(len));
    let events = input.rest();
    bounded(shape, events, |device, deeds| {
        let opened = match Driver::open(device, None, &settings) {
            Ok(opened) => opened,
            Err(error) => {
                // Not every model has the interrupts that the user may ask for.
                let asked = matches!(error, Error::Unsupported(_));
                assert!(deeds.has_changed() || asked, "{shape} is refused: {error}");
                return;
            }
        };
        let Some(disk) = of(&opened) else {
            assert!(deeds.has_changed(), "{shape} has no disk: {:?}", opened.refused);
            return;
        };
        match User::new(disk) {
            Ok(mut user) => {
                user.act(&mut actions, &*opened.controller);
                assert!(
                    deeds.has_changed() || user.ends().failed == 0,
                    "requests fail as the model has it"
                );
            }
            Err(error) => assert!(deeds.has_changed(), "{shape} opens no queue: {error}"),
        }
    });
}

/// What the user asks of the driver.
pub fn settings(byte: u8) -> Settings {
    let interrupts = match byte % 4 {
        0 | 1 => Interrupts::Auto,
        2 => Interrupts::Only(IrqKind::Intx),
        _ => Interrupts::Polled,
    };
    let level = if byte & 4 == 0 { Level::Queued } else { Level::Dma };
    let max_transfer = (byte & 8 != 0).then_some(4096);
    Settings { interrupts, level, max_transfer, poll: Some(Duration::ZERO), ..Settings::default() }
}

/// Has `job` use the model `shape` as `events` change it, in virtual time, and checks what holds of
/// every driver: it ends in time, takes a bounded amount of memory, and shows the device no address
/// that it has not mapped for it.
pub fn bounded(shape: &str, events: &[u8], job: impl FnOnce(Arc<dyn Device>, &Deeds)) {
    clock::run(|| {
        let began = clock::elapsed();
        let (device, raise, faults) = Modelled::open(shape).parts();
        let (device, deeds) = Hostile::new(device, raise, events);
        memory::bounded(MEMORY, || job(device, &deeds));
        let strays = models::strays(&faults());
        assert!(
            deeds.has_misled() || strays.is_empty(),
            "the device was shown addresses that are not mapped: {strays:x?}"
        );
        let took = clock::elapsed() - began;
        assert!(took < LONGEST, "the driver has taken {took:?}");
    });
}
