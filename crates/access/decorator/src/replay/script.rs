//! What a recorded device does next.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use ring3_device::Error;
use ring3_device::journal::Wake;

use super::Divergence;
use crate::mirror::Mirror;
use crate::recording::{Bytes, Event, Recording, Register};
use crate::verdict;

/// Events between two calls, at most, and their bytes: more is no driver's.
const MOST_EVENTS: usize = 1 << 21;
const MOST_BYTES: usize = 256 << 20;

/// A recording, and how far its driver is in it.
///
/// It is read from one call of the driver to the next. What is between them, a window, is what the
/// device did meanwhile.
pub(super) struct Script {
    recording: Recording,
    pub(super) mirror: Mirror,
    /// Where a driver that waits is told.
    pub(super) signals: Vec<OwnedFd>,
    /// The number of the window's first event.
    first: u64,
    window: Vec<Event>,
    /// How many of the window are over: what they said and did has come to the driver.
    delivered: usize,
    /// What each register said last.
    last: HashMap<Register, u64>,
    /// What the driver writes to memory before its next call, and that call; `None` at the end.
    memory: Vec<Bytes>,
    call: Option<Event>,
    divergence: Option<Divergence>,
    /// Interrupts and answers come when the driver asks for them, so that it must have asked for
    /// all of a window before its next call.
    is_journaled: bool,
}

/// What a device does while its driver makes no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    Now,
    /// Its driver read something before it, and gets with that what was written then. One that
    /// polls will do so again; only one that polls no more is not waited for.
    BehindReads,
}

impl Script {
    pub(super) fn new(recording: Recording, mirror: Mirror) -> Result<Self, Error> {
        let mut script = Self {
            recording,
            mirror,
            signals: Vec::new(),
            first: 0,
            window: Vec::new(),
            delivered: 0,
            last: HashMap::new(),
            memory: Vec::new(),
            call: None,
            divergence: None,
            is_journaled: false,
        };
        script.load()?;
        Ok(script)
    }

    pub(super) fn divergence(&self) -> Option<Divergence> {
        self.divergence.clone()
    }

    pub(super) fn check_end(&self) -> Result<(), Divergence> {
        match (&self.divergence, &self.call) {
            (Some(divergence), _) => Err(divergence.clone()),
            (None, Some(call)) => Err(self.difference(self.next_call(), Some(call.clone()), None)),
            (None, None) => Ok(()),
        }
    }

    /// Reads the next window, and the call behind it.
    fn load(&mut self) -> Result<(), Error> {
        self.deliver_until(self.window.len());
        self.window.clear();
        self.memory.clear();
        (self.delivered, self.call) = (0, None);
        let mut bytes = 0;
        while let Some(event) = self.recording.next_event()? {
            bytes += event.bytes();
            if self.window.len() + self.memory.len() >= MOST_EVENTS || bytes > MOST_BYTES {
                return Err(Error::Protocol(
                    "the recording has more between two calls of its driver than can be replayed"
                        .into(),
                ));
            }
            match event {
                Event::Driver(memory) => self.memory.push(memory),
                call if call.is_call() => {
                    self.call = Some(call);
                    break;
                }
                other => self.window.push(other),
            }
        }
        Ok(())
    }

    /// The number of the next call.
    fn next_call(&self) -> u64 {
        self.first + (self.window.len() + self.memory.len()) as u64
    }

    pub(super) fn read(&mut self, register: Register) -> u64 {
        if self.divergence.is_some() {
            return u64::MAX;
        }
        let rest = &self.window[self.delivered..];
        if let Some(next) =
            rest.iter().position(|event| matches!(event, Event::Read(at, _) if *at == register))
        {
            self.deliver_until(self.delivered + next + 1);
        }
        if let Some(&value) = self.last.get(&register) {
            return value;
        }
        if self.is_cut_off() {
            return u64::MAX;
        }
        let (at, expected) = (self.next_call(), self.call.clone());
        self.diverge(at, expected, Some(Event::Read(register, u64::MAX)));
        u64::MAX
    }

    /// Whether the recording ends here because its process was killed. That process may have done
    /// more than it could record, so whatever the driver does now is no difference.
    fn is_cut_off(&self) -> bool {
        self.divergence.is_none()
            && self.recording.events().is_none()
            && self.call.is_none()
            && self.next_outside().is_none()
    }

    /// Does what the driver chose, if it is what comes next.
    pub(super) fn call(&mut self, event: Event) -> Result<(), Error> {
        if self.is_cut_off() {
            return Err(Error::Gone);
        }
        let (at, expected) = self.due();
        self.deliver_until(self.window.len());
        if self.divergence.is_none() {
            self.check_memory()?;
        }
        if self.divergence.is_some() || expected.as_ref() != Some(&event) {
            self.diverge(at, expected, Some(event));
            return Err(Error::Gone);
        }
        self.first = self.next_call() + 1;
        if let Err(error) = self.load() {
            verdict::record(error.to_string());
            self.diverge(self.first, None, None);
            return Err(error);
        }
        if self.window.first() == Some(&Event::Refused) {
            return Err(Error::Unsupported("it was refused when it was recorded".into()));
        }
        Ok(())
    }

    /// From now on the driver asks, and says what it shares.
    pub(super) fn begin_journal(&mut self) {
        self.is_journaled = true;
        self.mirror.look_at_shared();
    }

    /// What has ended the driver's sleep, which has come to it now.
    pub(super) fn wait(&mut self) -> Result<Wake, Error> {
        if self.call == Some(Event::Synced) && self.next_outside().is_none() {
            self.call(Event::Synced)?;
        }
        if let Some((at, Event::Interrupt(vector))) = self.next_outside() {
            let vector = *vector;
            self.deliver_until(at + 1);
            return Ok(Wake::Interrupt(vector));
        }
        match self.call {
            None if self.divergence.is_none() && self.next_outside().is_none() => Err(Error::Gone),
            Some(Event::Woken) => self.call(Event::Woken).map(|()| Wake::Other),
            _ => self.call(Event::Elapsed).map(|()| Wake::Elapsed),
        }
    }

    /// What the outside answers to the driver.
    pub(super) fn answer(&mut self) -> Result<Vec<u8>, Error> {
        if let Some((at, Event::Answer(bytes))) = self.next_outside() {
            let bytes = bytes.clone();
            self.deliver_until(at + 1);
            return Ok(bytes);
        }
        let (at, expected) = self.due();
        if expected.is_some() {
            self.diverge(at, expected, Some(Event::Answer(Vec::new())));
        }
        Err(Error::Gone)
    }

    /// What the driver must do next, and where that stands.
    fn due(&self) -> (u64, Option<Event>) {
        match self.next_outside().filter(|_| self.is_journaled) {
            Some((at, event)) => (self.first + at as u64, Some(event.clone())),
            None => (self.next_call(), self.call.clone()),
        }
    }

    /// What comes next in the window that is neither the device's answer nor its memory, and where
    /// it stands.
    fn next_outside(&self) -> Option<(usize, &Event)> {
        let rest = self.window.iter().enumerate().skip(self.delivered);
        rest.into_iter().find(|(_, event)| matches!(event, Event::Interrupt(_) | Event::Answer(_)))
    }

    /// Compares what the driver has written to memory since its last call with what it wrote then.
    fn check_memory(&mut self) -> Result<(), Error> {
        let written = self.mirror.publish()?;
        let same = self
            .memory
            .iter()
            .zip(&written)
            .take_while(|(expected, found)| expected == found)
            .count();
        if same == self.memory.len() && same == written.len() {
            return Ok(());
        }
        let expected =
            self.memory.get(same).cloned().map(Event::Driver).or_else(|| self.call.clone());
        let at = self.first + (self.window.len() + same) as u64;
        self.diverge(at, expected, written.get(same).cloned().map(Event::Driver));
        Ok(())
    }

    fn difference(&self, index: u64, expected: Option<Event>, found: Option<Event>) -> Divergence {
        let class = self.recording.header.class;
        Divergence::new(index, class, expected, found, |iova| self.mirror.place(iova))
    }

    fn diverge(&mut self, index: u64, expected: Option<Event>, found: Option<Event>) {
        if self.divergence.is_none() {
            let divergence = self.difference(index, expected, found);
            tracing::error!("{divergence}");
            verdict::record(divergence.to_string());
            self.divergence = Some(divergence);
        }
    }

    /// What the device does next by itself before the next call.
    pub(super) fn next(&self) -> Next {
        let (rest, end) = self.next_own();
        if self.divergence.is_some() || !rest.iter().any(is_the_devices) {
            Next::Nothing
        } else if rest[..end].iter().any(|event| matches!(event, Event::Read(..))) {
            Next::BehindReads
        } else {
            Next::Now
        }
    }

    /// What the device wrote up to its next interrupt or [`Event::Look`], and that; all that it
    /// wrote if there is neither.
    pub(super) fn deliver_next(&mut self) {
        if self.next() != Next::Nothing {
            self.deliver_until(self.delivered + self.next_own().1);
        }
    }

    /// What is left of the window, and how much of it ends with something that the device did by
    /// itself.
    fn next_own(&self) -> (&[Event], usize) {
        let rest = &self.window[self.delivered..];
        let end = rest.iter().position(|event| matches!(event, Event::Interrupt(_) | Event::Look));
        (rest, end.map_or(rest.len(), |at| at + 1))
    }

    fn deliver_until(&mut self, end: usize) {
        for at in self.delivered..end {
            match &self.window[at] {
                Event::Device(memory) => {
                    if let Err(error) = self.mirror.deliver(memory) {
                        tracing::error!("the recorded device wrote outside of the arena: {error}");
                    }
                }
                Event::Interrupt(vector) => {
                    if let Some(signal) = self.signals.get(usize::from(*vector)) {
                        // A full counter is a signal, too.
                        let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
                    }
                }
                Event::Read(register, value) => {
                    self.last.insert(*register, *value);
                }
                _ => {}
            }
        }
        self.delivered = self.delivered.max(end);
    }
}

fn is_the_devices(event: &Event) -> bool {
    matches!(event, Event::Device(_) | Event::Interrupt(_))
}
