//! Interrupt pins: levels that QEMU reports, turned into eventfds that are masked by each signal,
//! as VFIO does it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ring3_device::Error;
use ring3_device::irq::{Irq, IrqControl, IrqKind};
use rustix::event::{PollFd, PollFlags, poll};

use super::wire::Wire;
use crate::eventfd;

/// One pin of the interrupt controller.
pub(super) struct Pin {
    number: u32,
    event: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    level: bool,
    masked: bool,
}

impl Pin {
    /// Pin `number` of the I/O APIC, low and unmasked.
    pub(super) fn new(number: u32) -> Result<Self, Error> {
        Ok(Self { number, event: eventfd::new()?, state: Mutex::default() })
    }

    /// Its number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Takes the level that QEMU reports; a high one signals unless masked.
    pub(super) fn set_level(&self, level: bool) {
        let mut state = self.state();
        state.level = level;
        self.settle(&mut state);
    }

    /// Signals whatever the level is, so that a waiter looks at the device and finds it gone.
    pub(super) fn wake(&self) {
        eventfd::signal(&self.event);
    }

    fn set_masked(&self, masked: bool) {
        let mut state = self.state();
        state.masked = masked;
        self.settle(&mut state);
    }

    /// Signals once for a high level and masks, so that a level is not a storm.
    fn settle(&self, state: &mut State) {
        if state.level && !state.masked {
            state.masked = true;
            eventfd::signal(&self.event);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pins that are listened to: lines about them arrive also while nobody talks to the device.
pub(super) struct Listener {
    pins: Arc<Vec<Pin>>,
    wire: Arc<Wire>,
    stop: Arc<OwnedFd>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts to listen for `pins`, one for each vector.
    pub(super) fn start(wire: Arc<Wire>, pins: Vec<Pin>) -> Result<Self, Error> {
        // QEMU does this once per machine and says OK again if it is done already.
        wire.ask(format_args!("irq_intercept_in ioapic"))?;
        let pins = Arc::new(pins);
        wire.watch(Some(pins.clone()));
        let (stop, stopped) = (Arc::new(eventfd::new()?), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (wire, stop, stopped) = (wire.clone(), stop.clone(), stopped.clone());
            std::thread::Builder::new()
                .name("ring3-qtest-intx".into())
                .spawn(move || listen(&wire, &stop, &stopped))
                .map_err(|error| Error::os("starting a thread for INTx", error))?
        };
        Ok(Self { pins, wire, stop, stopped, thread: Some(thread) })
    }

    /// The interrupts of these pins.
    pub(super) fn irqs(&self) -> Result<Vec<Irq>, Error> {
        let control = Arc::new(Control { pins: self.pins.clone(), wire: self.wire.clone() });
        let irq = |(pin, vector): (&Pin, u16)| {
            Ok(Irq::new(eventfd::share(&pin.event)?, IrqKind::Intx, vector, Some(control.clone())))
        };
        self.pins.iter().zip(0..).map(irq).collect()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.wire.watch(None);
        self.stopped.store(true, Ordering::Release);
        eventfd::signal(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Takes lines as they come. Replies to posted writes come this way, too, and are collected.
fn listen(wire: &Wire, stop: &OwnedFd, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Acquire) && !wire.is_gone() {
        let mut ready = [
            PollFd::new(wire, PollFlags::IN),
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
        ];
        if poll(&mut ready, None).is_ok() && !stopped.load(Ordering::Acquire) {
            wire.pump();
        }
    }
}

struct Control {
    pins: Arc<Vec<Pin>>,
    wire: Arc<Wire>,
}

impl Control {
    fn set_masked(&self, vector: u16, masked: bool) {
        if let Some(pin) = self.pins.get(usize::from(vector)) {
            pin.set_masked(masked);
        }
    }
}

impl IrqControl for Control {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.set_masked(vector, true);
        Ok(())
    }

    fn unmask(&self, vector: u16) -> Result<(), Error> {
        // The acknowledgement may still be under way. A reply (to a read of a port that nobody
        // decodes) comes behind everything that it caused, so the level is current when the mask
        // opens.
        self.wire.ask(format_args!("inb 0x80"))?;
        self.set_masked(vector, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(pin: &Pin) -> u64 {
        Irq::new(eventfd::share(&pin.event).unwrap(), IrqKind::Intx, 0, None).take().unwrap()
    }

    #[test]
    fn a_level_signals_once_until_it_is_unmasked() {
        let pin = Pin::new(20).unwrap();
        pin.set_level(true);
        pin.set_level(true);
        assert_eq!(signals(&pin), 1);
        pin.set_masked(false);
        assert_eq!(signals(&pin), 1);
    }

    #[test]
    fn a_level_that_fell_before_the_mask_opened_does_not_signal() {
        let pin = Pin::new(20).unwrap();
        pin.set_level(true);
        assert_eq!(signals(&pin), 1);
        pin.set_level(false);
        pin.set_masked(false);
        assert_eq!(signals(&pin), 0);
    }

    #[test]
    fn a_level_that_rose_under_the_mask_signals_when_it_opens() {
        let pin = Pin::new(20).unwrap();
        pin.set_masked(true);
        pin.set_level(true);
        assert_eq!(signals(&pin), 0);
        pin.set_masked(false);
        assert_eq!(signals(&pin), 1);
    }
}
