//! The interrupts of a simulated function: pin, MSI and MSI-X with masks and pending bits,
//! delivered to real eventfds.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_device::Error;
use ring3_device::irq::{Irq, IrqControl, IrqKind};
use rustix::event::{EventfdFlags, eventfd};

use super::model::Identity;

/// Pins that a function can have.
const PINS: usize = 2;

/// One vector of the kind that is enabled, or one entry of the MSI-X table.
struct Vector {
    /// Where it is delivered; an entry of the table that nobody enabled has none.
    signal: Option<OwnedFd>,
    masked: bool,
    pending: bool,
}

#[derive(Default)]
struct State {
    kind: Option<IrqKind>,
    vectors: Vec<Vector>,
    /// What the model says of its pins.
    levels: [bool; PINS],
    /// Command register: the pin is not asserted.
    pin_disabled: bool,
    /// Pins are edges: one that comes while it is masked is kept until it is unmasked.
    edges: bool,
    /// Counts calls of `enable`, so that a handle of an earlier one changes nothing.
    generation: u64,
}

/// All interrupts of one function.
pub(super) struct Interrupts {
    state: Mutex<State>,
    msix_entries: u16,
    /// Pins are edges, not levels.
    edges: bool,
}

impl Interrupts {
    pub(super) fn new(identity: &Identity) -> Self {
        let msix_entries = identity.msix.map_or(0, |msix| msix.vectors);
        Self { state: Mutex::default(), msix_entries, edges: identity.pins > 1 }
    }

    /// Enables `count` vectors of `kind` and disables everything else.
    pub(super) fn enable(self: &Arc<Self>, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let (signals, seen): (Vec<_>, Vec<_>) =
            (0..count).map(|_| signal()).collect::<Result<_, _>>()?;
        self.disable();
        let generation = self.tie(kind, 0, signals.into_iter().map(Some).collect());
        let control: Arc<dyn IrqControl> =
            Arc::new(Control { interrupts: Arc::clone(self), generation });
        let irq = |(seen, vector)| Irq::new(seen, kind, vector, Some(Arc::clone(&control)));
        Ok(seen.into_iter().zip(0..).map(irq).collect())
    }

    /// Delivers nothing any more.
    pub(super) fn disable(&self) {
        let mut state = self.state();
        *state = state.without_vectors();
    }

    /// Delivers vectors `first` and on of `kind` to `signals`, and holds back those without one;
    /// disables every other kind. What was held back is delivered. Returns the generation of what
    /// is enabled now.
    pub(super) fn tie(&self, kind: IrqKind, first: u16, signals: Vec<Option<OwnedFd>>) -> u64 {
        let mut state = self.state();
        if state.kind != Some(kind) {
            *state = State { kind: Some(kind), edges: self.edges, ..state.without_vectors() };
        }
        let entries = if kind == IrqKind::MsiX { self.msix_entries.into() } else { 0 };
        let len = state.vectors.len().max(usize::from(first) + signals.len()).max(entries);
        state.vectors.resize_with(len, || Vector { signal: None, masked: true, pending: false });
        for (index, signal) in (usize::from(first)..).zip(signals) {
            state.vectors[index].signal = signal;
            let masked = state.vectors[index].signal.is_none();
            state.set_mask(index, masked);
            // An edge that nobody took is still latched in the interrupt controller.
            if state.edges && state.levels.get(index).is_some_and(|level| *level) {
                state.deliver_edge(index);
            }
        }
        state.generation
    }

    /// A message of `vector`. Without effect unless MSI or MSI-X is enabled; MSI with fewer vectors
    /// than asked for wraps.
    #[inline]
    pub(super) fn raise(&self, vector: u16) {
        let mut state = self.state();
        let index = match state.kind {
            Some(IrqKind::MsiX) => usize::from(vector),
            Some(IrqKind::Msi) if !state.vectors.is_empty() => {
                usize::from(vector) % state.vectors.len()
            }
            _ => return,
        };
        if let Some(vector) = state.vectors.get_mut(index) {
            if vector.masked {
                vector.pending = true;
            } else {
                vector.signal();
            }
        }
    }

    /// The level of a pin.
    #[inline]
    pub(super) fn set_level(&self, pin: u8, level: bool) {
        let mut state = self.state();
        let pin = usize::from(pin);
        let Some(old) = state.levels.get_mut(pin) else { return };
        let rose = !std::mem::replace(old, level) && level;
        if !self.edges {
            state.deliver_level(pin);
        } else if rose {
            state.deliver_edge(pin);
        }
    }

    pub(super) fn disable_pin(&self, disabled: bool) {
        let mut state = self.state();
        state.pin_disabled = disabled;
        state.deliver_level(0);
    }

    /// Forgets what was pending; what is enabled stays so.
    pub(super) fn reset(&self) {
        let mut state = self.state();
        state.levels = [false; PINS];
        state.vectors.iter_mut().for_each(|vector| vector.pending = false);
    }

    pub(super) fn kind(&self) -> Option<IrqKind> {
        self.state().kind
    }

    /// Whether the function's own pin is asserted.
    pub(super) fn level(&self) -> bool {
        !self.edges && self.state().levels[0]
    }

    /// Masks (`.0`) and pending bits (`.1`) of vectors `first` to `first + 63`.
    pub(super) fn bits(&self, first: usize) -> (u64, u64) {
        let state = self.state();
        let mut bits = (0, 0);
        for (i, vector) in state.vectors.iter().skip(first).take(64).enumerate() {
            bits.0 |= u64::from(vector.masked) << i;
            bits.1 |= u64::from(vector.pending) << i;
        }
        bits
    }

    /// Masks or unmasks a vector, as a driver's write to the MSI-X table does.
    pub(super) fn set_mask(&self, vector: usize, masked: bool) {
        self.state().set_mask(vector, masked);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What stays when everything is disabled: the pins, as the model drives them.
    fn without_vectors(&self) -> Self {
        let Self { levels, pin_disabled, edges, generation, .. } = *self;
        Self {
            kind: None,
            vectors: Vec::new(),
            levels,
            pin_disabled,
            edges,
            generation: generation + 1,
        }
    }

    fn set_mask(&mut self, index: usize, masked: bool) {
        let Some(vector) = self.vectors.get_mut(index) else { return };
        vector.masked = masked;
        if !masked && std::mem::take(&mut vector.pending) {
            // A delivered pin is masked again, as VFIO does; a message is not.
            vector.masked = self.kind == Some(IrqKind::Intx);
            vector.signal();
        }
        self.deliver_level(index);
    }

    /// A pin that is a level: as long as it is asserted, each unmask delivers again.
    fn deliver_level(&mut self, pin: usize) {
        let asserted = self.levels.get(pin).is_some_and(|level| *level);
        if self.kind != Some(IrqKind::Intx) || self.edges || !asserted || self.pin_disabled {
            return;
        }
        if let Some(pin) = self.vectors.get_mut(pin)
            && !pin.masked
        {
            pin.masked = true;
            pin.signal();
        }
    }

    /// A pin that is an edge: it is delivered once, and kept while it is masked, as the PC's
    /// interrupt controller does.
    fn deliver_edge(&mut self, pin: usize) {
        if self.kind != Some(IrqKind::Intx) {
            return;
        }
        if let Some(pin) = self.vectors.get_mut(pin) {
            if pin.masked {
                pin.pending = true;
            } else {
                pin.masked = true;
                pin.signal();
            }
        }
    }
}

impl Vector {
    fn signal(&self) {
        if let Some(signal) = &self.signal {
            // It can only fail when the count is at its maximum, and then there is someone to wake
            // already.
            let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
        }
    }
}

struct Control {
    interrupts: Arc<Interrupts>,
    generation: u64,
}

impl Control {
    fn set(&self, vector: u16, masked: bool) -> Result<(), Error> {
        let mut state = self.interrupts.state();
        if state.generation != self.generation {
            return Err(Error::Invalid(format!("interrupt {vector} is not enabled any more")));
        }
        state.set_mask(vector.into(), masked);
        Ok(())
    }
}

impl IrqControl for Control {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.set(vector, true)
    }

    fn unmask(&self, vector: u16) -> Result<(), Error> {
        self.set(vector, false)
    }
}

/// An eventfd, twice: for who signals and for who waits.
pub(super) fn signal() -> Result<(OwnedFd, OwnedFd), Error> {
    let signal = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .map_err(|error| Error::os("creating an eventfd for an interrupt", error))?;
    let seen = signal
        .try_clone()
        .map_err(|error| Error::os("duplicating an interrupt's eventfd", error))?;
    Ok((signal, seen))
}
