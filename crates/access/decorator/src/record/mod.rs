//! A device that writes down what passes between it and its driver.

mod journal;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ring3_device::dma::{Arena, Dma, DmaBuffer, Region, StaticIommu};
use ring3_device::irq::{FanOut, Irq, IrqKind};
use ring3_device::journal::Journal;
use ring3_device::{Access, Bar, Decorator, Device, Error};

use self::journal::Lines;
use crate::mirror::Mirror;
use crate::recording::{Bytes, CONFIG, Event, Header, Register};
use crate::tape::Tape;
use crate::threads::Threads;

const PAGE: usize = 4096;
/// The arena of a recorded driver, at most.
const LARGEST_ARENA: usize = 1 << 30;
/// Where a driver finds its memory, recorded and replayed: a pointer to it that it leaves in memory
/// that the device has is the same again.
const NEAR: usize = 0x2000_0000_0000;
/// How long a driver may run before an interrupt comes that waits for it to sleep; its polling is
/// far shorter.
pub(crate) const BUSY: Duration = Duration::from_millis(20);
/// How often memory is looked at for a driver with interrupts, in case that one is lost.
pub(crate) const LOOK: Duration = Duration::from_millis(10);
/// The same without interrupts: nothing else tells.
pub(crate) const POLL: Duration = Duration::from_micros(200);

/// A device that records every register access, access to configuration space, change of
/// interrupts, bus master switch, reset and interrupt, and what driver and device write to memory.
///
/// The driver has an arena of its own: what it writes there reaches the device with its next call,
/// and what the device writes reaches the driver before the answer of the next read of a register,
/// with an interrupt, or else some milliseconds later; with an interrupt only once the driver's
/// threads sleep. So a replay can give it back at the same place. Foreign memory is not mapped, but
/// copied.
///
/// The driver waits for the file while it takes anything. One that takes nothing for two seconds,
/// or has no room, ends the recording, not the driver; [`take_failure`](crate::take_failure) says
/// so.
///
/// The file is complete when the device, its BARs and its interrupts are dropped.
pub struct Record {
    irqs: Mutex<Vec<FanOut>>,
    lines: Mutex<Lines>,
    looks: Option<JoinHandle<()>>,
    dma: Dma,
    session: Arc<Session>,
    inner: Arc<dyn Device>,
}

struct RecordBar {
    inner: Bar,
    index: u8,
    session: Arc<Session>,
}

/// What accesses, interrupts and looks share.
struct Session {
    threads: Threads,
    mirror: Mutex<Mirror>,
    tape: Tape,
    has_irqs: AtomicBool,
    /// The driver has what comes from the device when it asks, and at no other time.
    is_journaled: AtomicBool,
    over: AtomicBool,
}

impl Record {
    /// Records `inner` into `file` from now on, for a driver that has not started yet. `command`
    /// are the words that a user of the recording needs to drive it again.
    pub fn new(
        inner: Arc<dyn Device>,
        file: impl Write + Send + 'static,
        command: Vec<String>,
    ) -> Result<Self, Error> {
        let memory = all_of(inner.dma().arena())?;
        let place = (memory.iova(), memory.len() as u64);
        let dma = arena_at(place, inner.dma().iommu().is_bypassable())?;
        let tape = Tape::start(Header::of(&*inner, place, command), file)?;
        let mirror = Mutex::new(Mirror::new(dma.clone(), Some(memory)));
        let [has_irqs, is_journaled, over] = [false; 3].map(AtomicBool::new);
        let session = Arc::new(Session {
            threads: Threads::default(),
            mirror,
            tape,
            has_irqs,
            is_journaled,
            over,
        });
        let for_looks = Arc::clone(&session);
        let looks = std::thread::Builder::new()
            .name("ring3-record".into())
            .spawn(move || for_looks.poll_until_dropped());
        let looks = looks.map_err(|error| {
            Error::os("starting the thread that looks at a recorded device's memory", error)
        })?;
        Ok(Self {
            irqs: Mutex::default(),
            lines: Mutex::default(),
            looks: Some(looks),
            dma,
            session,
            inner,
        })
    }

    /// Events that could not be written.
    pub fn lost(&self) -> u64 {
        self.session.tape.lost()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.session.over.store(true, Ordering::Release);
        if let Some(looks) = self.looks.take() {
            looks.thread().unpark();
            let _ = looks.join();
        }
    }
}

/// Memory for a driver at the device addresses of `place`: where the first address is, and bytes.
/// `bypassable`: see [`Iommu::is_bypassable`](ring3_device::dma::Iommu::is_bypassable).
pub(crate) fn arena_at((iova, len): (u64, u64), bypassable: bool) -> Result<Dma, Error> {
    let arena = Arena::with_range(Region::new_near(len as usize, NEAR)?, iova, 0, len as usize);
    Ok(Dma::new(arena, Arc::new(StaticIommu { range: iova..=iova + (len - 1), bypassable })))
}

/// The largest piece of `arena` that is easily had.
fn all_of(arena: &Arena) -> Result<DmaBuffer, Error> {
    let mut len = (arena.free_bytes() / PAGE * PAGE).min(LARGEST_ARENA);
    loop {
        match arena.alloc(len.max(PAGE), PAGE) {
            Err(Error::NoMemory { .. }) if len > PAGE => len = len * 3 / 4 / PAGE * PAGE,
            other => return other,
        }
    }
}

impl Session {
    fn mirror(&self) -> MutexGuard<'_, Mirror> {
        self.mirror.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the driver chooses to do.
    fn call<T>(&self, event: Event, job: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let _inside = self.threads.enter();
        // Held to the end, so that the order of the recording is the device's.
        let mut mirror = self.mirror();
        self.record_all(mirror.publish()?, Event::Driver);
        self.tape.record(event);
        job().inspect_err(|_| self.tape.record(Event::Refused))
    }

    fn read(&self, register: Register, job: impl FnOnce() -> u64) -> u64 {
        let _inside = self.threads.enter();
        let mut mirror = self.mirror();
        let value = job();
        // A read pushes what the device has written before it to memory. [PCI 3.2.5]
        self.fetch(&mut mirror);
        self.tape.record(Event::Read(register, value));
        value
    }

    fn interrupt(&self, vector: u16) {
        self.threads.wait_until_quiet(BUSY);
        let mut mirror = self.mirror();
        self.fetch(&mut mirror);
        self.tape.record(Event::Interrupt(vector));
    }

    /// Brings the driver what the device has written, and says whether that was anything.
    fn fetch(&self, mirror: &mut Mirror) -> bool {
        let written = mirror.fetch().unwrap_or_else(|error| {
            // Only a mistake of ours: all ranges are of one arena.
            tracing::error!("what the device wrote is not seen: {error}");
            Vec::new()
        });
        let any = !written.is_empty();
        self.record_all(written, Event::Device);
        any
    }

    fn record_all(&self, written: Vec<Bytes>, event: impl Fn(Bytes) -> Event) {
        written.into_iter().for_each(|bytes| self.tape.record(event(bytes)));
    }

    /// Until the device is dropped.
    fn poll_until_dropped(&self) {
        let mut seen = 0;
        while !self.over.load(Ordering::Acquire) && !self.is_journaled.load(Ordering::Acquire) {
            let has_irqs = self.has_irqs.load(Ordering::Acquire);
            std::thread::park_timeout(if has_irqs { LOOK } else { POLL });
            if !has_irqs {
                self.threads.wait_until_quiet(POLL);
            }
            // One that polls registers gets what was written with their answers. It sleeps for
            // moments between them, of which none lasts.
            let calls = std::mem::replace(&mut seen, self.threads.calls());
            if calls == seen && (!has_irqs || self.threads.are_quiet()) {
                let mut mirror = self.mirror();
                if !self.is_journaled.load(Ordering::Acquire) && self.fetch(&mut mirror) {
                    self.tape.record(Event::Look);
                }
            }
        }
    }
}

impl Access for RecordBar {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        self.session
            .read(Register(self.index, offset, width as u8), || self.inner.read(offset, width))
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        let event = Event::Write(Register(self.index, offset, width as u8), value);
        let written = self.session.call(event, || {
            self.inner.write(offset, width, value);
            Ok(())
        });
        if let Err(error) = written {
            tracing::error!("a write of a recorded device is not done: {error}");
        }
    }
}

impl Decorator for Record {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        let register = Register(CONFIG, offset, width as u8);
        self.session.read(register, || self.inner.config_read(offset, width).into()) as u32
    }
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let event = Event::Write(Register(CONFIG, offset, width as u8), value.into());
        self.session.call(event, || self.inner.config_write(offset, width, value))
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let inner = self.inner.bar(index)?;
        Ok(Bar::new(Arc::new(RecordBar { inner, index, session: Arc::clone(&self.session) })))
    }
    fn dma(&self) -> &Dma {
        &self.dma
    }
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let mut listening = self.irqs.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the call, whose lock their threads may wait for.
        listening.clear();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.replace(Vec::new())?;
        let irqs = self.session.call(Event::Irqs(kind, count), || self.inner.irqs(kind, count))?;
        self.session.has_irqs.store(count > 0, Ordering::Release);
        if self.session.is_journaled.load(Ordering::Acquire) {
            return lines.replace(irqs);
        }
        for irq in irqs {
            let (vector, session) = (irq.vector(), Arc::clone(&self.session));
            listening.push(FanOut::new(irq, move || session.interrupt(vector))?);
        }
        listening.iter().map(FanOut::subscribe).collect()
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.session.call(Event::BusMaster(on), || self.inner.set_bus_master(on))
    }
    fn reset(&self) -> Result<(), Error> {
        self.session.call(Event::Reset, || self.inner.reset())
    }
    fn journal(&self) -> Option<&dyn Journal> {
        Some(self)
    }
}
