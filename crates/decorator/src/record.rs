//! A device that writes down what passes between it and its driver.

use std::io::{BufWriter, Write};
use std::iter;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_device::irq::{FanOut, Irq, IrqKind};
use ring3_device::{Access, Bar, Deadline, Decorator, Device, Error, poll_until};

use crate::recording::{CONFIG, Event, Header, MOST_EVENTS, Register, Stamped};

/// Events that wait to be written: some milliseconds of a driver that does nothing but look at a register.
const WAITING: usize = 1 << 14;
/// How long the end of a recording waits for its file.
const LAST_LINES: Duration = Duration::from_secs(2);

/// A device that records every register access, access to configuration space, change of interrupts, bus master switch, reset and interrupt.
///
/// The driver never waits for the file: a thread writes it, and what it has not written yet is bounded. What does not fit is lost, and counted. The
/// content of memory is not recorded. Interrupts reach the driver through a thread each, some microseconds later.
///
/// The file is complete when the device, its BARs and its interrupts are dropped.
pub struct Record {
    irqs: Mutex<Vec<FanOut>>,
    inner: Arc<dyn Device>,
    tape: Arc<Tape>,
}

struct RecordBar {
    inner: Bar,
    index: u8,
    tape: Arc<Tape>,
}

impl Record {
    /// Records `inner` into `file` from now on.
    pub fn new(inner: Arc<dyn Device>, file: impl Write + Send + 'static) -> Result<Self, Error> {
        let tape = Arc::new(Tape::start(Header::of(&*inner)?, file)?);
        Ok(Self { irqs: Mutex::default(), inner, tape })
    }

    /// Events that could not be written.
    pub fn lost(&self) -> u64 {
        self.tape.lost.load(Ordering::Relaxed)
    }
}

impl Access for RecordBar {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        let value = self.inner.read(offset, width);
        self.tape.note(Event::Read(Register(self.index, offset, width as u8), value));
        value
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        self.tape.note(Event::Write(Register(self.index, offset, width as u8), value));
        self.inner.write(offset, width, value);
    }
}

impl Decorator for Record {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        let value = self.inner.config_read(offset, width);
        self.tape.note(Event::Read(Register(CONFIG, offset, width as u8), value.into()));
        value
    }
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let event = Event::Write(Register(CONFIG, offset, width as u8), value.into());
        self.tape.call(event, || self.inner.config_write(offset, width, value))
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let inner = self.inner.bar(index)?;
        Ok(Bar::new(Arc::new(RecordBar { inner, index, tape: self.tape.clone() })))
    }
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let mut listening = self.irqs.lock().unwrap_or_else(PoisonError::into_inner);
        listening.clear();
        let irqs = self.tape.call(Event::Irqs(kind, count), || self.inner.irqs(kind, count))?;
        for irq in irqs {
            let (vector, tape) = (irq.vector(), self.tape.clone());
            listening.push(FanOut::new(irq, move || tape.note(Event::Interrupt(vector)))?);
        }
        listening.iter().map(FanOut::outlet).collect()
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.tape.call(Event::BusMaster(on), || self.inner.set_bus_master(on))
    }
    fn reset(&self) -> Result<(), Error> {
        self.tape.call(Event::Reset, || self.inner.reset())
    }
}

/// The way of events to the file.
struct Tape {
    start: Instant,
    noted: AtomicUsize,
    lost: Arc<AtomicU64>,
    sender: Option<SyncSender<Stamped>>,
    writer: Option<JoinHandle<()>>,
}

impl Tape {
    fn start(header: Header, file: impl Write + Send + 'static) -> Result<Self, Error> {
        let (sender, receiver) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let for_writer = lost.clone();
        let writer = std::thread::Builder::new().name("ring3-record".into()).spawn(move || {
            if let Err(error) = write(&header, &receiver, &for_writer, BufWriter::new(file)) {
                tracing::warn!("the recording of {} ends early: {error}", header.device);
            }
        });
        let writer = writer.map_err(|error| Error::os("starting the thread that writes the recording", error))?;
        Ok(Self { start: Instant::now(), noted: AtomicUsize::new(0), lost, sender: Some(sender), writer: Some(writer) })
    }

    /// Never waits.
    fn note(&self, event: Event) {
        let stamped = Stamped(self.start.elapsed().as_nanos() as u64, event);
        let full = self.noted.fetch_add(1, Ordering::Relaxed) >= MOST_EVENTS - 1;
        let sent = !full && self.sender.as_ref().is_some_and(|sender| sender.try_send(stamped).is_ok());
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn call<T>(&self, event: Event, job: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.note(event);
        job().inspect_err(|_| self.note(Event::Refused))
    }
}

impl Drop for Tape {
    /// Waits for the last lines, but not for a file that takes none.
    fn drop(&mut self) {
        drop(self.sender.take());
        let Some(writer) = self.writer.take() else { return };
        let ended =
            poll_until(Deadline::after(LAST_LINES), "the recording's last lines", || Ok(writer.is_finished().then_some(())));
        if let Err(error) = ended {
            tracing::warn!("{error}: its file takes them too slowly, and they may be missing");
        }
    }
}

/// Writes what comes until nobody can send any more; what was lost meanwhile is said behind what was not.
fn write(header: &Header, events: &Receiver<Stamped>, lost: &AtomicU64, mut file: BufWriter<impl Write>) -> std::io::Result<()> {
    serde_json::to_writer(&mut file, header)?;
    file.write_all(b"\n")?;
    let mut said = 0;
    while let Ok(first) = events.recv() {
        let mut last = 0;
        for event in iter::once(first).chain(events.try_iter()) {
            last = event.0;
            line(&mut file, &event)?;
        }
        let now = lost.load(Ordering::Relaxed);
        if now > said {
            line(&mut file, &Stamped(last, Event::Lost(now - said)))?;
            said = now;
        }
        file.flush()?;
    }
    Ok(())
}

fn line(file: &mut impl Write, event: &Stamped) -> std::io::Result<()> {
    serde_json::to_writer(&mut *file, event)?;
    file.write_all(b"\n")
}
