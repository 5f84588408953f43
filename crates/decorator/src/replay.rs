//! A device made of a recording.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_device::dma::{Arena, Dma, Region, StaticIommu};
use ring3_device::irq::{Irq, IrqKind, IrqLimits};
use ring3_device::{Access, Bar, BarInfo, Device, Error};
use rustix::event::{EventfdFlags, eventfd};

use crate::recording::{CONFIG, Event, Header, Recording, Register};

/// A device that does what a [`Recording`] says, for as long as its driver does what the driver did that was recorded.
///
/// What the driver chooses is checked in the recorded order: writes, interrupts that it enables, bus master, resets. A read says what the
/// register said next since the last of these, and when there is nothing more before the next of them, the same again; so a driver may
/// poll more or less often than it did. Interrupts come when what was before them in the recording has been done.
///
/// At the first difference the device is gone, as if it had been pulled out, and [`divergence`](Self::divergence) says what it was.
///
/// # What it is for
/// Sequences of register accesses by one thread, such as an initialisation. The memory of the device is an arena at the recorded place, so
/// that a driver writes the same addresses, but nobody answers there: what a device writes to memory is not in a recording.
pub struct Replay {
    name: String,
    header: Header,
    dma: Dma,
    state: Arc<Mutex<State>>,
}

/// Where a driver left its recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The line of the recording's file.
    pub line: usize,
    /// What is there; `None` behind its end.
    pub expected: Option<Event>,
    /// What the driver did instead; `None` if it did nothing more.
    pub found: Option<Event>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |event: Option<Event>| event.map_or("nothing more".into(), |event| format!("{event:x?}"));
        write!(f, "line {} of the recording: {}; the driver: {}", self.line, text(self.expected), text(self.found))
    }
}

struct State {
    events: Vec<Event>,
    /// Where in `events` are the ones that the driver chose.
    calls: Vec<usize>,
    /// How many of these it has done.
    done: usize,
    /// By register, where its reads are, and how many of these are used up.
    reads: HashMap<Register, (Vec<usize>, usize)>,
    vectors: Vec<OwnedFd>,
    divergence: Option<Divergence>,
}

struct ReplayBar {
    info: BarInfo,
    index: u8,
    state: Arc<Mutex<State>>,
}

impl Replay {
    /// The device of `recording`, at its beginning. One in which events are missing is refused.
    pub fn new(recording: Recording) -> Result<Self, Error> {
        if recording.lost() > 0 {
            let lost = recording.lost();
            return Err(Error::Invalid(format!("{lost} events are missing in the recording: record it again, to a faster file")));
        }
        let Recording { header, events } = recording;
        let (iova, len) = header.arena;
        let arena = Arena::with_range(Region::new(len as usize)?, iova, 0, len as usize);
        let dma = Dma::new(arena, Arc::new(StaticIommu(iova..=iova + len - 1)));
        let state = Arc::new(Mutex::new(State::new(events)));
        Ok(Self { name: format!("replay:{}", header.device), header, dma, state })
    }

    /// The first difference between the driver and its recording. While there is none and the recording goes on, `None`.
    pub fn divergence(&self) -> Option<Divergence> {
        self.state().divergence
    }

    /// Whether the driver has done all that is recorded, and nothing else; if not, the first difference.
    pub fn check_end(&self) -> Result<(), Divergence> {
        let state = self.state();
        match (state.divergence, state.calls.get(state.done)) {
            (Some(divergence), _) => Err(divergence),
            (None, Some(&at)) => Err(state.difference(at, None)),
            (None, None) => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn new(events: Vec<Event>) -> Self {
        let mut reads: HashMap<Register, (Vec<usize>, usize)> = HashMap::new();
        for (at, event) in events.iter().enumerate() {
            if let Event::Read(register, _) = event {
                reads.entry(*register).or_default().0.push(at);
            }
        }
        let calls = events.iter().enumerate().filter(|(_, event)| event.is_call()).map(|(at, _)| at).collect();
        Self { events, calls, done: 0, reads, vectors: Vec::new(), divergence: None }
    }

    /// What was recorded between the driver's last choice and its next.
    fn present(&self) -> Range<usize> {
        let end = self.calls.get(self.done).copied().unwrap_or(self.events.len());
        self.done.checked_sub(1).map_or(0, |last| self.calls[last] + 1)..end
    }

    fn difference(&self, at: usize, found: Option<Event>) -> Divergence {
        Divergence { line: at + 2, expected: self.events.get(at).copied(), found }
    }

    fn diverge(&mut self, at: usize, found: Event) {
        let difference = self.difference(at, Some(found));
        self.divergence.get_or_insert(difference);
    }

    fn read(&mut self, register: Register) -> u64 {
        let present = self.present();
        if self.divergence.is_none()
            && let Some((places, used)) = self.reads.get_mut(&register)
        {
            *used = (*used).max(places.partition_point(|at| *at < present.start));
            if places.get(*used).is_some_and(|at| *at < present.end) {
                *used += 1;
            }
            let last = used.checked_sub(1).map(|last| self.events[places[last]]);
            if let Some(Event::Read(_, value)) = last {
                return value;
            }
        }
        self.diverge(present.start, Event::Read(register, u64::MAX));
        u64::MAX
    }

    /// Does what the driver chose, if it is what comes next.
    fn call(&mut self, event: Event) -> Result<(), Error> {
        let at = self.present().end;
        if self.divergence.is_some() || self.events.get(at) != Some(&event) {
            self.diverge(at, event);
            return Err(Error::Gone);
        }
        self.done += 1;
        let present = self.present();
        for event in &self.events[present.clone()] {
            if let Event::Interrupt(vector) = event
                && let Some(signal) = self.vectors.get(usize::from(*vector))
            {
                // A full counter is a signal, too.
                let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
            }
        }
        let refused = self.events[present].contains(&Event::Refused);
        if refused { Err(Error::Unsupported("it was refused when it was recorded".into())) } else { Ok(()) }
    }
}

impl Access for ReplayBar {
    fn len(&self) -> u64 {
        self.info.len
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        lock(&self.state).read(Register(self.index, offset, width as u8))
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        // What it did not expect, the state remembers.
        let _ = lock(&self.state).call(Event::Write(Register(self.index, offset, width as u8), value));
    }
}

impl Device for Replay {
    fn name(&self) -> &str {
        &self.name
    }
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        self.state().read(Register(CONFIG, offset, width as u8)) as u32
    }
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.state().call(Event::Write(Register(CONFIG, offset, width as u8), value.into()))
    }
    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        self.header.bars.get(usize::from(index)).copied().flatten()
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let info = self.bar_info(index).ok_or_else(|| Error::Unsupported(format!("{} has no BAR {index}", self.name)))?;
        Ok(Bar::new(Arc::new(ReplayBar { info, index, state: self.state.clone() })))
    }
    fn dma(&self) -> &Dma {
        &self.dma
    }
    fn irq_limits(&self) -> IrqLimits {
        self.header.irqs
    }
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let mut state = self.state();
        let signal = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let signals = (0..count).map(signal).collect::<Result<Vec<_>, _>>();
        state.vectors = signals.map_err(|error| Error::os("creating eventfds", error))?;
        state.call(Event::Irqs(kind, count))?;
        let irq = |(vector, signal): (u16, &OwnedFd)| {
            let seen = signal.try_clone().map_err(|error| Error::os("duplicating an eventfd", error))?;
            Ok(Irq::new(seen, kind, vector, None))
        };
        (0..).zip(&state.vectors).map(irq).collect()
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.state().call(Event::BusMaster(on))
    }
    fn reset(&self) -> Result<(), Error> {
        self.state().call(Event::Reset)
    }
}
