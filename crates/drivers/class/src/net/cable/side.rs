//! One side of a cable: its receive buffers, and the notification of its owner.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ring3_device::irq::{Irq, IrqKind};
use ring3_device::wait::{DEFAULT_POLL, Source, Waiter};
use ring3_device::{Deadline, Error};
use rustix::event::{EventfdFlags, eventfd};

use super::super::filter::tag;
use super::super::{Checksum, Counters, Filter, Limits, Mac, Meta, Packet, VLAN_TAG};

/// The receiving half of a card.
pub(super) struct Side {
    pub(super) filter: Filter,
    /// How its queue was opened, while it is.
    pub(super) open: Option<Limits>,
    /// Whether somebody has the queue; not between its detaching and its resumption.
    pub(super) attached: bool,
    pub(super) provided: VecDeque<Packet>,
    pub(super) filled: VecDeque<Packet>,
    /// `filled`, to look at without the lock.
    pub(super) arrived: Arc<Signal>,
    pub(super) watch: Arc<Watch>,
    pub(super) counters: Counters,
}

impl Side {
    pub(super) fn new(address: Mac) -> Result<Self, Error> {
        Ok(Self {
            filter: Filter::own(address),
            open: None,
            attached: false,
            provided: VecDeque::new(),
            filled: VecDeque::new(),
            arrived: Arc::new(Signal::new()?),
            watch: Arc::new(Watch { taken: AtomicBool::new(false), signal: Signal::new()? }),
            counters: Counters::default(),
        })
    }

    /// Takes a frame from the wire, if somebody wants it and there is room.
    pub(super) fn receive(&mut self, frame: &[u8], checksum: Checksum) {
        let Some(limits) = self.open.filter(|_| self.filter.accepts(frame)) else { return };
        if frame.len() > limits.max_frame() as usize {
            self.counters.rx_errors += 1;
            return;
        }
        let vlan = tag(frame).map(|&tag| u16::from_be_bytes(tag));
        let skip = if vlan.is_some() { VLAN_TAG as usize } else { 0 };
        let (addresses, rest) = frame.split_at(12);
        let bytes = [addresses, &rest[skip..]].concat();
        let pieces = bytes.chunks(limits.rx_room() as usize);
        if pieces.len() > self.provided.len() {
            self.counters.rx_missed += 1;
            return;
        }
        let last = pieces.len() - 1;
        for (index, (piece, mut packet)) in pieces.zip(self.provided.drain(..last + 1)).enumerate()
        {
            // Each buffer has room for a piece: that was checked when it was provided.
            if packet.fill(piece).is_err() {
                packet.len = 0;
            }
            packet.meta = if index == 0 {
                Meta::default().with_checksum(checksum).with_vlan(vlan)
            } else {
                Meta::default()
            };
            packet.meta.set_more(index < last);
            self.filled.push_back(packet);
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += bytes.len() as u64;
        self.arrived.set(self.filled.len());
    }
}

/// A number that one thread sets and another waits for.
pub(super) struct Signal {
    number: AtomicUsize,
    irq: Arc<Irq>,
    fd: std::os::fd::OwnedFd,
}

impl Signal {
    fn new() -> Result<Self, Error> {
        let failed = |error| Error::os("creating an eventfd", error);
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(failed)?;
        let ours = fd.try_clone().map_err(|error| Error::os("creating an eventfd", error))?;
        Ok(Self {
            number: AtomicUsize::new(0),
            irq: Arc::new(Irq::new(ours, IrqKind::Msi, 0, None)),
            fd,
        })
    }

    pub(super) fn set(&self, number: usize) {
        let grown = self.number.swap(number, Ordering::AcqRel) < number;
        if grown {
            // Full means that it was raised and nobody has looked.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn get(&self) -> usize {
        self.number.load(Ordering::Acquire)
    }

    pub(super) fn waiter(&self) -> Waiter {
        Waiter::new(Some(self.irq.clone()), DEFAULT_POLL)
    }
}

/// Whether the link has changed since somebody asked.
pub(super) struct Watch {
    taken: AtomicBool,
    signal: Signal,
}

impl Watch {
    pub(super) fn changed(&self) {
        self.signal.set(1);
    }

    pub(super) fn heard(&self) {
        self.signal.set(0);
    }

    pub(super) fn take(this: &Arc<Self>) -> Result<Box<dyn Source + Send>, Error> {
        if this.taken.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy("the link is watched already: drop the other watch".into()));
        }
        Ok(Box::new(Watching { watch: this.clone(), waiter: this.signal.waiter() }))
    }
}

struct Watching {
    watch: Arc<Watch>,
    waiter: Waiter,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watch.taken.store(false, Ordering::Release);
    }
}

impl Source for Watching {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.watch.signal.get() > 0
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let watch = &self.watch;
        self.waiter.arm(|| watch.signal.get() > 0)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.waiter.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let watch = &self.watch;
        self.waiter.wait(deadline, || watch.signal.get() > 0)
    }
}
