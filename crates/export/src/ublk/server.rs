//! One queue's thread: requests from the kernel to the class queue, and their ends back.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, Data, IoError, Queue, Request};
use ring3_class::dma::DmaBuffer;
use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::Budget;

use super::descriptors::Descriptors;
use super::ring::{Event, Ring};
use super::stats::Counters;
use super::translate::{self, Geometry};
use super::uapi;

/// The shortest and the longest sleep of a queue without an interrupt while something is in flight.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Between two looks at the clock while polling.
const POLLS_PER_CLOCK: u32 = 8;

/// Between two looks while polling: about a tenth of a microsecond on hardware. A look costs more than a pause, and looking without
/// a pause takes the processor from its other thread, or from the device where that is emulated.
const PAUSES_PER_POLL: u32 = 4;

/// What belongs to a tag for the life of the queue.
struct Slot {
    /// Here, or with the class queue.
    buffer: Option<DmaBuffer>,
    /// Its address, which the kernel is told anew each time.
    addr: u64,
    /// What the present request moves.
    bytes: u32,
    /// Whether the request is ours: fetched and not committed.
    busy: bool,
}

/// Serves one hardware queue.
pub struct Server<'a> {
    ring: Ring<'a>,
    class: &'a mut dyn Queue,
    descriptors: Descriptors,
    geometry: Geometry,
    slots: Vec<Slot>,
    /// Requests for which the class queue had no room.
    backlog: VecDeque<Request>,
    budget: Budget,
    counters: &'a Counters,
    started: Instant,
    /// Tags that the kernel has not aborted.
    live: usize,
    submitted: bool,
    /// The interrupt is watched in the io_uring.
    watching: bool,
    /// A timer is running.
    timing: bool,
    nap: Duration,
}

impl<'a> Server<'a> {
    /// Serves `class` with one buffer per tag. `started` is when the export began, for the time to the first request.
    pub fn new(
        ring: Ring<'a>,
        class: &'a mut dyn Queue,
        descriptors: Descriptors,
        buffers: Vec<DmaBuffer>,
        budget: Budget,
        (counters, started): (&'a Counters, Instant),
    ) -> Self {
        let buffer_bytes = buffers.iter().map(DmaBuffer::len).min().unwrap_or(0) as u32;
        let geometry = Geometry::new(class.info().block_size, buffer_bytes);
        let backlog = VecDeque::with_capacity(buffers.len());
        let slot = |buffer: DmaBuffer| Slot { addr: buffer.as_ptr() as u64, buffer: Some(buffer), bytes: 0, busy: false };
        let slots: Vec<_> = buffers.into_iter().map(slot).collect();
        let live = slots.len();
        let (submitted, watching, timing, nap) = (false, false, false, NAPS.0);
        Self {
            ring,
            class,
            descriptors,
            geometry,
            slots,
            backlog,
            budget,
            counters,
            started,
            live,
            submitted,
            watching,
            timing,
            nap,
        }
    }

    /// Lends every buffer to the kernel. The device can be started when all queues have done it.
    pub fn offer(&mut self) -> io::Result<()> {
        for tag in 0..self.slots.len() {
            // SAFETY: the buffer has the length that the device was created with. It stays in its slot, or with the class queue,
            // until this value is dropped, and the kernel only touches it from calls that this thread makes.
            unsafe { self.ring.fetch(tag as u16, self.slots[tag].addr)? };
        }
        self.ring.flush()
    }

    /// Serves until the device stops and nothing is in flight.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.take_events()?;
            if self.live == 0 {
                // Every tag was taken back by the kernel, so none is with the driver.
                return Ok(());
            }
            self.submit_backlog()?;
            if std::mem::take(&mut self.submitted) {
                self.class.ring();
                self.counters.batches.add(1);
            }
            self.reap()?;
            self.wait()?;
        }
    }

    fn take_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.ring.next_event() {
            match event {
                Event::Tag(tag, uapi::RES_OK) => self.dispatch(tag)?,
                Event::Tag(_, uapi::RES_ABORT) => self.live -= 1,
                Event::Tag(_, errno) => return Err(io::Error::from_raw_os_error(-errno)),
                Event::Interrupt(more) => {
                    self.watching = more;
                    self.counters.interrupts.add(1);
                    if self.class.in_flight() == 0 {
                        self.count_interrupts();
                    }
                }
                Event::Timer => self.tick(),
            }
        }
        Ok(())
    }

    fn tick(&mut self) {
        self.timing = false;
        self.count_interrupts();
        if self.class.in_flight() > 0
            && let Err(error) = self.class.tick(Instant::now())
        {
            tracing::error!(%error, "the driver cannot recover its device");
        }
    }

    /// Reads the interrupt's count, which finds storms. Not done for each interrupt: a watched descriptor tells of the next one
    /// whether the last was read or not.
    fn count_interrupts(&self) {
        if let Some(Err(error)) = self.class.irq().filter(|irq| irq.kind() != IrqKind::Intx).map(Irq::take) {
            tracing::warn!(%error, "the interrupt cannot be read");
        }
    }

    #[inline]
    fn dispatch(&mut self, tag: u16) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(usize::from(tag)) else { return Ok(()) };
        slot.busy = true;
        match self.geometry.decode(&self.descriptors.read(tag)) {
            Ok(decoded) => {
                slot.bytes = decoded.bytes;
                let data = if decoded.bytes > 0 { slot.buffer.take().map_or(Data::None, Data::Buffer) } else { Data::None };
                let request = Request {
                    operation: decoded.operation,
                    fua: decoded.fua,
                    blocks: decoded.blocks,
                    lba: decoded.lba,
                    token: tag.into(),
                    data,
                };
                self.submit(request)
            }
            Err(error) => {
                slot.bytes = 0;
                self.finish(tag, Err(error))
            }
        }
    }

    #[inline]
    fn submit(&mut self, request: Request) -> io::Result<()> {
        match self.class.submit(request) {
            Ok(()) => {
                self.submitted = true;
                Ok(())
            }
            Err(rejected) => match rejected.error {
                Some(error) => self.complete(rejected.request.token, Err(error), rejected.request.data),
                None => {
                    self.backlog.push_back(rejected.request);
                    Ok(())
                }
            },
        }
    }

    #[inline]
    fn submit_backlog(&mut self) -> io::Result<()> {
        for _ in 0..self.backlog.len() {
            if self.class.in_flight() >= self.class.depth() {
                break;
            }
            let Some(request) = self.backlog.pop_front() else { break };
            self.submit(request)?;
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> io::Result<bool> {
        let mut any = false;
        loop {
            match self.class.reap() {
                Ok(Some(Completion { token, result, data })) => self.complete(token, result, data)?,
                Ok(None) => return Ok(any),
                Err(error) => {
                    tracing::warn!(%error, "the device misbehaved");
                    return Ok(any);
                }
            }
            any = true;
            self.nap = NAPS.0;
        }
    }

    /// Ends the request that `token` names and takes its buffer back.
    #[inline]
    fn complete(&mut self, token: u64, end: Result<(), IoError>, data: Data) -> io::Result<()> {
        let slot = usize::try_from(token).ok().and_then(|token| self.slots.get_mut(token)).filter(|slot| slot.busy);
        let Some(slot) = slot else {
            return Err(io::Error::other(format!("the driver ended request {token:#x}, which it did not have")));
        };
        if let Some(buffer) = data.into_buffer() {
            slot.buffer = Some(buffer);
        }
        if slot.buffer.is_none() {
            return Err(io::Error::other(format!("the driver ended request {token} and kept its buffer")));
        }
        self.finish(token as u16, end)
    }

    #[inline]
    fn finish(&mut self, tag: u16, end: Result<(), IoError>) -> io::Result<()> {
        let slot = &mut self.slots[usize::from(tag)];
        slot.busy = false;
        if end.is_err() {
            self.counters.errors.add(1);
        }
        self.counters.completed(if end.is_ok() { slot.bytes } else { 0 }, self.started);
        // SAFETY: as in `offer`; the buffer is back in its slot.
        unsafe { self.ring.commit(tag, translate::result(end, slot.bytes), slot.addr) }
    }

    /// Sends what was pushed, and returns when there may be something to do.
    fn wait(&mut self) -> io::Result<()> {
        if self.class.in_flight() == 0 && self.backlog.is_empty() {
            self.counters.calls.add(1);
            self.counters.sleeps.add(1);
            return self.ring.sleep();
        }
        if !std::mem::replace(&mut self.timing, true) {
            self.ring.timer()?;
        }
        if self.ring.has_events() {
            self.counters.calls.add(1);
            return self.ring.flush();
        }
        let limit = self.budget.poll_for();
        if !limit.is_zero() && self.poll(limit)? {
            return Ok(());
        }
        self.budget.slept();
        self.sleep()
    }

    /// Looks for completions and events for at most `limit`; true if there are some.
    fn poll(&mut self, limit: Duration) -> io::Result<bool> {
        if self.watching && self.budget.pays() {
            // Each interrupt would cost a system call that brings nothing.
            self.watching = false;
            self.ring.unwatch()?;
            if let Err(error) = self.class.disarm() {
                tracing::warn!(%error, "the interrupt cannot be held back");
            }
        }
        if self.ring.has_unsent() {
            self.counters.calls.add(1);
            self.ring.flush()?;
        }
        let start = Instant::now();
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                if self.reap()? {
                    self.budget.observe(start.elapsed(), true);
                    self.counters.polls_hit.add(1);
                    return Ok(true);
                }
                if self.ring.has_events() {
                    return Ok(true);
                }
                for _ in 0..PAUSES_PER_POLL {
                    std::hint::spin_loop();
                }
            }
            if start.elapsed() >= limit {
                self.counters.polls_missed.add(1);
                return Ok(false);
            }
        }
    }

    /// Sleeps until the interrupt or the kernel has something.
    fn sleep(&mut self) -> io::Result<()> {
        if self.class.irq().is_none() {
            return self.nap();
        }
        if !std::mem::replace(&mut self.watching, true) {
            self.ring.watch()?;
        }
        match self.class.arm() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "the interrupt cannot be armed");
                return self.nap();
            }
        }
        self.counters.calls.add(1);
        self.counters.sleeps.add(1);
        self.ring.sleep()
    }

    /// Sleeps for a while only: there is no interrupt to wake up by.
    fn nap(&mut self) -> io::Result<()> {
        self.counters.calls.add(1);
        self.counters.sleeps.add(1);
        let nap = self.nap;
        self.nap = (nap * 2).min(NAPS.1);
        self.ring.nap(nap)
    }
}
