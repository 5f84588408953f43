//! A device that does what the input says.
//!
//! A model stands behind it, so that a driver comes far: a device of random bytes alone fails at
//! the driver's first question. The input is a list of events. A byte below `PASS` lets so many
//! accesses through as the model does them; any other byte changes the next access. Behind the end
//! of the input the model is alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring3_device::dma::Dma;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Access, Bar, Decorator, Device, Error};

use crate::Input;
use crate::models::Raise;

/// Accesses that one byte lets through, at most.
const PASS: u8 = 160;
/// Configuration space up to here says what the function is: another device has another driver.
const IDENTITY: u64 = 0x40;

/// What becomes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Pass,
    /// A read says this; a write writes this.
    Value(u64),
    /// Bits are flipped.
    Flip(u64),
    /// So much is added.
    Add(i8),
    /// The read says what the one before has said; the write is lost.
    Stale,
    /// Memory is changed before the access, at a place in one of the driver's buffers.
    Memory {
        range: u8,
        offset: u16,
        width: u8,
        value: u64,
    },
    /// A message comes.
    Message(u8),
    /// The device is gone.
    Gone,
    /// The call is refused.
    Refuse,
}

/// The events of an input.
struct Script {
    bytes: Vec<u8>,
    at: usize,
    pass: u8,
    last: u64,
}

impl Script {
    fn next(&mut self) -> Deed {
        if self.pass > 0 {
            self.pass -= 1;
            return Deed::Pass;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut input = Input::new(bytes.get(self.at..).unwrap_or(&[]));
        let left = input.clone().rest().len();
        let deed = self.take(&mut input);
        self.at += left - input.rest().len();
        self.bytes = bytes;
        deed
    }

    fn take(&mut self, input: &mut Input<'_>) -> Deed {
        if input.is_empty() {
            return Deed::Pass;
        }
        let byte = input.u8();
        if byte < PASS {
            self.pass = byte;
            return Deed::Pass;
        }
        match byte % 16 {
            0 => Deed::Value(u64::MAX),
            1 => Deed::Value(0),
            2 => Deed::Value(input.u8().into()),
            3 => Deed::Value(input.u32().into()),
            4 => Deed::Value(input.u64()),
            5 | 6 => Deed::Flip(1 << (input.u8() % 64)),
            7 => Deed::Add(input.u8() as i8),
            8 => Deed::Stale,
            9..=12 => {
                let (range, offset) = (input.u8(), input.u16());
                let width = [1, 2, 4, 8][usize::from(byte % 4)];
                let value = match width {
                    1 => input.u8().into(),
                    2 => input.u16().into(),
                    4 => input.u32().into(),
                    _ => input.u64(),
                };
                Deed::Memory { range, offset, width, value }
            }
            13 => Deed::Message(input.u8()),
            14 => Deed::Refuse,
            _ if input.u8() == 0xff => Deed::Gone,
            _ => Deed::Pass,
        }
    }
}

/// What the input has done so far.
#[derive(Default)]
pub struct Deeds {
    /// Something was not as the model does it.
    changed: AtomicBool,
    /// Memory was changed, or a write was: addresses that the model then uses are no driver's.
    misled: AtomicBool,
    gone: AtomicBool,
}

impl Deeds {
    /// Whether the device was other than the model is.
    pub fn has_changed(&self) -> bool {
        self.changed.load(Ordering::SeqCst)
    }

    /// Whether the model may have taken addresses from somebody else than the driver.
    pub fn has_misled(&self) -> bool {
        self.misled.load(Ordering::SeqCst)
    }
}

/// What the device and its BARs share.
struct Shared {
    inner: Arc<dyn Device>,
    raise: Raise,
    script: Mutex<Script>,
    deeds: Arc<Deeds>,
}

impl Shared {
    /// The next deed, with what it does beside the access done.
    fn next(&self) -> Deed {
        if self.deeds.gone.load(Ordering::Relaxed) {
            return Deed::Gone;
        }
        let deed = self.script.lock().unwrap_or_else(PoisonError::into_inner).next();
        if deed != Deed::Pass {
            self.deeds.changed.store(true, Ordering::SeqCst);
        }
        match deed {
            Deed::Memory { range, offset, width, value } => {
                self.change_memory(range, offset, width, value);
                Deed::Pass
            }
            Deed::Message(vector) => {
                (self.raise)(vector.into());
                Deed::Pass
            }
            Deed::Gone => {
                self.deeds.gone.store(true, Ordering::Relaxed);
                Deed::Gone
            }
            deed => deed,
        }
    }

    fn change_memory(&self, range: u8, offset: u16, width: u8, value: u64) {
        let (dma, width) = (self.inner.dma(), usize::from(width));
        let taken = dma.arena().taken();
        let Some(&(at, len, _)) = taken.get(usize::from(range) % taken.len().max(1)) else {
            return;
        };
        let offset = u64::from(offset) % len.max(1);
        let (from, bytes) = (dma.arena().iova() + at + offset, value.to_le_bytes());
        let width = width.min((len - offset) as usize);
        if dma.write(from, &bytes[..width]).is_ok() {
            self.deeds.misled.store(true, Ordering::SeqCst);
        }
    }

    fn read(&self, natural: impl FnOnce() -> u64) -> u64 {
        let value = match self.next() {
            Deed::Value(value) => value,
            Deed::Flip(bits) => natural() ^ bits,
            Deed::Add(number) => natural().wrapping_add_signed(number.into()),
            Deed::Stale => self.script.lock().unwrap_or_else(PoisonError::into_inner).last,
            Deed::Gone => u64::MAX,
            _ => natural(),
        };
        self.script.lock().unwrap_or_else(PoisonError::into_inner).last = value;
        value
    }

    /// The value to write; `None` if the write is lost.
    fn written(&self, value: u64) -> Option<u64> {
        let changed = match self.next() {
            Deed::Flip(bits) => Some(value ^ bits),
            Deed::Stale | Deed::Gone => None,
            // A device cannot make the driver write another address, only lose the write.
            _ => return Some(value),
        };
        self.deeds.misled.store(true, Ordering::SeqCst);
        changed
    }

    fn call(&self, what: &str) -> Result<(), Error> {
        match self.next() {
            Deed::Gone => Err(Error::Gone),
            Deed::Refuse => Err(Error::Unsupported(format!("{what}: the input refuses it"))),
            _ => Ok(()),
        }
    }
}

/// A device that does what the input says.
pub struct Hostile(Arc<Shared>);

impl Hostile {
    /// `inner` as `events` change it, and what they have done.
    pub fn new(inner: Arc<dyn Device>, raise: Raise, events: &[u8]) -> (Arc<Self>, Arc<Deeds>) {
        let script = Script { bytes: events.to_vec(), at: 0, pass: 0, last: 0 };
        let deeds = Arc::new(Deeds::default());
        let shared = Shared { inner, raise, script: script.into(), deeds: deeds.clone() };
        (Arc::new(Self(Arc::new(shared))), deeds)
    }
}

struct HostileBar {
    inner: Bar,
    shared: Arc<Shared>,
}

impl Access for HostileBar {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        self.shared.read(|| self.inner.read(offset, width))
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        if let Some(value) = self.shared.written(value) {
            self.inner.write(offset, width, value);
        }
    }
}

impl Decorator for Hostile {
    fn inner(&self) -> &dyn Device {
        &*self.0.inner
    }

    fn config_read(&self, offset: u64, width: usize) -> u32 {
        let natural = || self.0.inner.config_read(offset, width);
        if offset < IDENTITY { natural() } else { self.0.read(|| natural().into()) as u32 }
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let inner = self.0.inner.bar(index)?;
        Ok(Bar::new(Arc::new(HostileBar { inner, shared: self.0.clone() })))
    }

    fn dma(&self) -> &Dma {
        self.0.inner.dma()
    }

    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        self.0.call("enabling interrupts")?;
        self.0.inner.irqs(kind, count)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.0.call("switching the bus master")?;
        self.0.inner.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), Error> {
        self.0.call("a reset")?;
        self.0.inner.reset()
    }
}
