//! One vector that several owners share: the pin of a function with several queues, or its single
//! message.
//!
//! # Shape
//! A thread sleeps on the vector. When the vector fires, the thread signals every unmasked
//! [subscriber](FanOut::subscribe); each owner checks its own queue. A subscriber is an [`Irq`]
//! like any other, of the vector's kind, with its own mask.
//!
//! # Masking
//! The pin is masked when it fires, and unmasked when the first owner unmasks its interrupt again.
//! If another owner has not served its queue by then, the pin fires at once; the
//! [`StormLimit`](super::StormLimit) of the vector bounds how often. A message that arrives while a
//! subscriber is masked is delivered when the subscriber is unmasked.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::{Irq, IrqControl, IrqKind};
use crate::Error;

/// The thread wakes up this often even if nothing fires.
const REST: Duration = Duration::from_secs(3600);

/// A vector and those who share it.
pub struct FanOut {
    shared: Arc<FanOutShared>,
    thread: Option<JoinHandle<()>>,
}

struct FanOutShared {
    line: Irq,
    stop: AtomicBool,
    /// Signalled when the thread is to stop.
    wake: OwnedFd,
    subscribers: Mutex<Vec<Weak<VectorSubscriber>>>,
}

struct VectorSubscriber {
    fd: OwnedFd,
    state: Mutex<State>,
    shared: Arc<FanOutShared>,
}

struct State {
    open: bool,
    /// It fired while it was not open.
    pending: bool,
}

impl FanOut {
    /// Shares `line`. `fired` is called whenever it fires, before the subscribers are signalled.
    pub fn new(line: Irq, mut fired: impl FnMut() + Send + 'static) -> Result<Self, Error> {
        let shared = Arc::new(FanOutShared {
            line,
            stop: AtomicBool::new(false),
            wake: new_fd()?,
            subscribers: Mutex::default(),
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("ring3-irq".into())
            .spawn(move || for_thread.run(&mut fired))
            .map_err(|error| Error::os("starting the thread that shares an interrupt", error))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The kind of the vector.
    pub fn kind(&self) -> IrqKind {
        self.shared.line.kind()
    }

    /// Signals the owners that sleep as if it had fired: for one who has served the device for
    /// another, and has taken the signal with that.
    pub fn wake(&self) {
        self.shared.deliver();
    }

    /// Subscribes a new owner: its interrupt, which is unsubscribed when it is dropped.
    pub fn subscribe(&self) -> Result<Irq, Error> {
        let line = &self.shared.line;
        let fd = new_fd()?;
        let for_owner =
            fd.try_clone().map_err(|error| Error::os("duplicating an eventfd", error))?;
        let state = Mutex::new(State { open: line.kind() != IrqKind::Intx, pending: false });
        let subscriber = Arc::new(VectorSubscriber { fd, state, shared: self.shared.clone() });
        let mut subscribers = lock(&self.shared.subscribers);
        subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        subscribers.push(Arc::downgrade(&subscriber));
        Ok(Irq::new(for_owner, line.kind(), line.vector(), Some(subscriber)))
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        signal(&self.shared.wake);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl FanOutShared {
    fn run(&self, fired: &mut dyn FnMut()) {
        while !self.stop.load(Ordering::Acquire) {
            match self.next() {
                Ok(0) => {}
                Ok(_) => {
                    fired();
                    self.deliver();
                }
                Err(error) => {
                    tracing::error!(
                        "an interrupt that queues share cannot be waited for any more: {error}"
                    );
                    return;
                }
            }
        }
    }

    /// Waits until the line fires, or it is time to stop, or for long; the count.
    fn next(&self) -> Result<u64, Error> {
        match self.line.take()? {
            0 => self.line.sleep_unless(REST, Some(&self.wake)).and_then(|()| self.line.take()),
            count => Ok(count),
        }
    }

    fn deliver(&self) {
        for subscriber in lock(&self.subscribers).iter().filter_map(Weak::upgrade) {
            let mut state = lock(&subscriber.state);
            if state.open {
                // A pin is masked when it fires; the owner opens it again when it has served its
                // queue.
                state.open = self.line.kind() != IrqKind::Intx;
                signal(&subscriber.fd);
            } else {
                state.pending = self.line.kind() != IrqKind::Intx;
            }
        }
    }
}

impl IrqControl for VectorSubscriber {
    fn mask(&self, _: u16) -> Result<(), Error> {
        lock(&self.state).open = false;
        Ok(())
    }

    fn unmask(&self, _: u16) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.open = true;
        if std::mem::take(&mut state.pending) {
            signal(&self.fd);
        }
        drop(state);
        if self.shared.line.kind() == IrqKind::Intx { self.shared.line.unmask() } else { Ok(()) }
    }
}

fn new_fd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .map_err(|error| Error::os("creating an eventfd", error))
}

/// A full counter is a signal, too, so the result does not matter.
fn signal(fd: &impl AsFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deadline;

    const SOON: Duration = Duration::from_secs(5);
    const NOT_AT_ALL: Duration = Duration::from_millis(30);

    struct Line(AtomicBool);

    impl IrqControl for Line {
        fn mask(&self, _: u16) -> Result<(), Error> {
            self.0.store(false, Ordering::SeqCst);
            Ok(())
        }
        fn unmask(&self, _: u16) -> Result<(), Error> {
            self.0.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    fn shared(kind: IrqKind) -> (FanOut, OwnedFd, Arc<Line>) {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let device = fd.try_clone().unwrap();
        let line = Arc::new(Line(AtomicBool::new(false)));
        (FanOut::new(Irq::new(fd, kind, 0, Some(line.clone())), || {}).unwrap(), device, line)
    }

    fn count(irq: &Irq, limit: Duration) -> u64 {
        irq.wait(Deadline::after(limit)).unwrap()
    }

    #[test]
    fn every_unmasked_subscriber_is_signalled() {
        let (fan_out, device, _) = shared(IrqKind::Msi);
        let (one, two) = (fan_out.subscribe().unwrap(), fan_out.subscribe().unwrap());
        signal(&device);
        assert_eq!((count(&one, SOON), count(&two, SOON)), (1, 1));
    }

    #[test]
    fn a_message_that_comes_while_masked_is_delivered_at_unmask() {
        let (fan_out, device, _) = shared(IrqKind::Msi);
        let (open, masked) = (fan_out.subscribe().unwrap(), fan_out.subscribe().unwrap());
        masked.mask().unwrap();
        signal(&device);
        assert_eq!(count(&open, SOON), 1);
        assert_eq!(count(&masked, NOT_AT_ALL), 0);
        masked.unmask().unwrap();
        assert_eq!(count(&masked, SOON), 1);
    }

    #[test]
    fn a_pin_is_opened_by_the_first_owner_that_waits_for_it() {
        let (fan_out, _device, line) = shared(IrqKind::Intx);
        let (one, _two) = (fan_out.subscribe().unwrap(), fan_out.subscribe().unwrap());
        assert!(!line.0.load(Ordering::SeqCst));
        one.unmask().unwrap();
        assert!(line.0.load(Ordering::SeqCst));
    }

    #[test]
    fn a_pin_signals_an_owner_once_until_it_is_opened_again() {
        let (fan_out, device, _) = shared(IrqKind::Intx);
        let irq = fan_out.subscribe().unwrap();
        irq.unmask().unwrap();
        signal(&device);
        assert_eq!(count(&irq, SOON), 1);
        signal(&device);
        assert_eq!(count(&irq, NOT_AT_ALL), 0);
        irq.unmask().unwrap();
        signal(&device);
        assert_eq!(count(&irq, SOON), 1);
    }

    #[test]
    fn dropping_it_ends_its_thread() {
        let (fan_out, _device, line) = shared(IrqKind::Msi);
        let weak = Arc::downgrade(&line);
        drop((fan_out, line));
        assert_eq!(weak.strong_count(), 0);
    }
}
