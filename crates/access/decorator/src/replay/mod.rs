//! A device made of a recording.

mod divergence;
mod journal;
mod script;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_device::dma::Dma;
use ring3_device::irq::{Irq, IrqKind, IrqLimits};
use ring3_device::journal::Journal;
use ring3_device::{Access, Bar, BarInfo, Device, Error};
use rustix::event::{EventfdFlags, eventfd};

use crate::mirror::Mirror;
use crate::record::{BUSY, POLL, arena_at};
use crate::recording::{CONFIG, Event, Header, Recording, Register};
use crate::threads::Threads;
use crate::verdict;
pub use divergence::Divergence;
use script::{Next, Script};

/// After this time without a call a driver is taken for one that has polled less often than it did
/// when it was recorded.
const PATIENCE: Duration = Duration::from_millis(100);

/// A device that does what a [`Recording`] says, for as long as its driver does what the driver did
/// that was recorded.
///
/// What the driver chooses is checked in the recorded order: writes, with what it has written to
/// memory before; interrupts that it enables, bus master, resets. A read says what the register
/// said next since the last of these, and when there is nothing more before the next of them, the
/// same again; so a driver may poll more or less often than it did. What the device wrote to
/// memory, and its interrupts, come before the answer of the read that they came before, or when
/// the driver's threads sleep, as they did when it was recorded.
///
/// At the first difference the device is gone, as if it had been pulled out;
/// [`divergence`](Self::divergence) says what it was, and so does
/// [`take_failure`](crate::take_failure), which also says it of a driver that has done less than
/// was recorded when the device is dropped.
///
/// # What it is for
/// Drivers that one thread uses. A recording of several threads is one order of many, and its
/// replay is too strict.
pub struct Replay {
    name: String,
    header: Header,
    dma: Dma,
    shared: Arc<ReplayShared>,
    deliverer: Option<JoinHandle<()>>,
}

struct ReplayShared {
    threads: Threads,
    script: Mutex<Script>,
    has_irqs: AtomicBool,
    /// The driver has what comes from the device when it asks, and at no other time.
    is_journaled: AtomicBool,
    over: AtomicBool,
}

struct ReplayBar {
    info: BarInfo,
    index: u8,
    shared: Arc<ReplayShared>,
}

impl Replay {
    /// The device that was recorded in the file at `path`, at its beginning.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::new(Recording::open(path)?)
    }

    /// The device of `recording`, at its beginning.
    pub fn new(recording: Recording) -> Result<Self, Error> {
        let header = recording.header.clone();
        let dma = arena_at(header.arena, false)?;
        let script = Mutex::new(Script::new(recording, Mirror::new(dma.clone(), None))?);
        let [has_irqs, is_journaled, over] = [false; 3].map(AtomicBool::new);
        let shared = Arc::new(ReplayShared {
            threads: Threads::default(),
            script,
            has_irqs,
            is_journaled,
            over,
        });
        let for_deliverer = Arc::clone(&shared);
        let deliverer = std::thread::Builder::new()
            .name("ring3-replay".into())
            .spawn(move || for_deliverer.deliver());
        let deliverer = deliverer
            .map_err(|error| Error::os("starting the thread that stands for a device", error))?;
        let name = format!("replay:{}", header.device);
        Ok(Self { name, header, dma, shared, deliverer: Some(deliverer) })
    }

    /// The first difference between the driver and its recording. While there is none and the
    /// recording goes on, `None`.
    pub fn divergence(&self) -> Option<Divergence> {
        self.shared.script().divergence()
    }

    /// Whether the driver has done all that is recorded, and nothing else; if not, the first
    /// difference.
    pub fn check_end(&self) -> Result<(), Divergence> {
        self.shared.script().check_end()
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        if let Some(deliverer) = self.deliverer.take() {
            deliverer.thread().unpark();
            let _ = deliverer.join();
        }
        if let Err(divergence) = self.check_end() {
            verdict::record(divergence.to_string());
        }
    }
}

impl ReplayShared {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, event: Event) -> Result<(), Error> {
        let _inside = self.threads.enter();
        self.script().call(event)
    }

    fn read(&self, register: Register) -> u64 {
        let _inside = self.threads.enter();
        self.script().read(register)
    }

    /// Brings what the device did by itself to a driver that waits, until the device is dropped.
    fn deliver(&self) {
        let (mut seen, mut since) = (0, Instant::now());
        while !self.over.load(Ordering::Acquire) && !self.is_journaled.load(Ordering::Acquire) {
            std::thread::park_timeout(POLL);
            let (next, calls) = (self.script().next(), self.threads.calls());
            if calls != seen || next != Next::BehindReads {
                (seen, since) = (calls, Instant::now());
            }
            if next == Next::Now || (next == Next::BehindReads && since.elapsed() >= PATIENCE) {
                self.threads.wait_until_quiet(if self.has_irqs.load(Ordering::Acquire) {
                    BUSY
                } else {
                    POLL
                });
                let mut script = self.script();
                if !self.is_journaled.load(Ordering::Acquire) && script.next() == next {
                    script.deliver_next();
                }
            }
        }
    }
}

impl Access for ReplayBar {
    fn len(&self) -> u64 {
        self.info.len
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        self.shared.read(Register(self.index, offset, width as u8))
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        // What it did not expect, the script remembers.
        let _ = self.shared.call(Event::Write(Register(self.index, offset, width as u8), value));
    }
}

impl Device for Replay {
    fn name(&self) -> &str {
        &self.name
    }
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        self.shared.read(Register(CONFIG, offset, width as u8)) as u32
    }
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.shared.call(Event::Write(Register(CONFIG, offset, width as u8), value.into()))
    }
    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        self.header.bars.get(usize::from(index)).copied().flatten()
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let info = self
            .bar_info(index)
            .ok_or_else(|| Error::Unsupported(format!("{} has no BAR {index}", self.name)))?;
        Ok(Bar::new(Arc::new(ReplayBar { info, index, shared: Arc::clone(&self.shared) })))
    }
    fn dma(&self) -> &Dma {
        &self.dma
    }
    fn irq_limits(&self) -> IrqLimits {
        self.header.irqs
    }
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let signal = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let signals = (0..count).map(signal).collect::<Result<Vec<_>, _>>();
        let signals = signals.map_err(|error| Error::os("creating eventfds", error))?;
        let irq = |(vector, signal): (u16, &OwnedFd)| {
            let seen =
                signal.try_clone().map_err(|error| Error::os("duplicating an eventfd", error))?;
            Ok(Irq::new(seen, kind, vector, None))
        };
        let irqs = (0..).zip(&signals).map(irq).collect();
        self.shared.script().signals = signals;
        self.shared.call(Event::Irqs(kind, count))?;
        self.shared.has_irqs.store(count > 0, Ordering::Release);
        irqs
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.shared.call(Event::BusMaster(on))
    }
    fn reset(&self) -> Result<(), Error> {
        self.shared.call(Event::Reset)
    }
    fn journal(&self) -> Option<&dyn Journal> {
        Some(self)
    }
}
