//! A class queue behind a thread of its own as the target: the distribution of work of Chubb 2004,
//! section 5.
//!
//! # Shape
//! The *interrupt thread* owns the queue: it waits for the interrupt, reaps, and starts new work.
//! The thread that makes the load is the client with its *control thread* in one: it hands requests
//! over and takes their ends. Both talk through bounded queues in memory without locks, and wake
//! each other only when the other sleeps.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, Data, Disk, Queue, Request};
use ring3_device::irq::IrqKind;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Done, Target};
use crate::Error;

/// How long one wait may last.
const WAIT: Duration = Duration::from_millis(100);

/// The client's end.
pub struct Threaded {
    name: String,
    /// `None` once the thread is to end.
    requests: Option<SyncSender<Request>>,
    done: Receiver<Completion>,
    found: Option<Completion>,
    slots: Vec<Option<Data>>,
    bell: Arc<Bell>,
    block_shift: u32,
    capacity: u64,
    thread: Option<JoinHandle<Result<(), ring3_device::Error>>>,
}

/// How the client wakes the interrupt thread, if that sleeps.
struct Bell {
    fd: OwnedFd,
    asleep: AtomicBool,
}

impl Bell {
    fn ring(&self) -> Result<(), Error> {
        if self.asleep.swap(false, Ordering::SeqCst) {
            rustix::io::write(&self.fd, &1u64.to_ne_bytes())
                .map_err(|error| Error::os("waking the interrupt thread", error))?;
        }
        Ok(())
    }
}

impl Threaded {
    /// Opens a queue of `depth` with its thread, and allocates buffers of `bytes` each.
    pub fn open(disk: &dyn Disk, depth: u16, bytes: u32) -> Result<Self, Error> {
        let failed = |source| Error::Device { name: disk.name(), source };
        let queue = disk.open_queue(depth).map_err(failed)?;
        if queue.irq().is_none() {
            return Err(Error::Invalid(format!(
                "{}: it has no interrupt for a thread to wait for",
                disk.name()
            )));
        }
        let slots = (0..depth).map(|_| {
            disk.dma().arena().alloc_pages(bytes as usize).map(|buffer| Some(Data::from(buffer)))
        });
        let slots = slots.collect::<Result<_, _>>().map_err(failed)?;
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::os("making an eventfd", error))?;
        let bell = Arc::new(Bell { fd, asleep: AtomicBool::new(false) });
        let (requests, incoming) = sync_channel(depth.into());
        let (outgoing, done) = sync_channel(depth.into());
        let ends = (0..depth).map(|_| Completion::default()).collect();
        let thread = Interrupts { queue, ends, bell: bell.clone(), incoming, outgoing };
        let thread =
            std::thread::Builder::new().name("ring3-interrupts".into()).spawn(move || thread.run());
        let thread =
            Some(thread.map_err(|error| Error::os("starting the interrupt thread", error))?);
        let (block_shift, capacity) =
            (disk.info().block_size.trailing_zeros(), disk.info().capacity());
        Ok(Self {
            name: disk.name(),
            requests: Some(requests),
            done,
            found: None,
            slots,
            bell,
            block_shift,
            capacity,
            thread,
        })
    }

    fn wait(&mut self, left: Duration) -> Result<(), Error> {
        self.bell.ring()?;
        match self.done.recv_timeout(left) {
            Ok(completion) => self.found = Some(completion),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
        }
        Ok(())
    }

    /// Why the thread is gone.
    fn ended(&mut self) -> Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(source))) => Error::Device { name: self.name.clone(), source },
            _ => Error::Invalid(format!("{}: the interrupt thread is gone", self.name)),
        }
    }

    fn no_buffer(&self, slot: u16) -> Error {
        Error::Invalid(format!("{}: slot {slot} has no buffer: it is in flight", self.name))
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        self.requests = None;
        self.bell.asleep.store(true, Ordering::SeqCst);
        // A bell that cannot be rung is heard at the next tick.
        let _ = self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Target for Threaded {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn depth(&self) -> u16 {
        self.slots.len() as u16
    }

    #[inline]
    fn queue(&mut self, slot: u16, write: bool, offset: u64, len: u32) -> Result<(), Error> {
        let Some(data) = self.slots.get_mut(usize::from(slot)).and_then(Option::take) else {
            return Err(self.no_buffer(slot));
        };
        let (lba, blocks) = (offset >> self.block_shift, len >> self.block_shift);
        let request = match write {
            true => Request::write(u64::from(slot), lba, blocks, data),
            false => Request::read(u64::from(slot), lba, blocks, data),
        };
        // There is room for each slot's request.
        match self.requests.as_ref().map(|requests| requests.send(request)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        self.wait(WAIT)
    }

    fn proceed_until(&mut self, time: Instant) -> Result<(), Error> {
        self.wait(time.saturating_duration_since(Instant::now()))
    }

    #[inline]
    fn finished(&mut self) -> Result<Option<Done>, Error> {
        let Some(completion) = self.found.take().or_else(|| self.done.try_recv().ok()) else {
            return Ok(None);
        };
        let slot = completion.token as u16;
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            *place = Some(completion.data);
        }
        Ok(Some(Done { slot, ok: completion.result.is_ok() }))
    }

    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        match self.slots.get(usize::from(slot)) {
            Some(Some(Data::Buffer(buffer))) => buffer
                .write(0, bytes)
                .map_err(|source| Error::Device { name: self.name.clone(), source }),
            _ => Err(self.no_buffer(slot)),
        }
    }

    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        match self.slots.get(usize::from(slot)) {
            Some(Some(Data::Buffer(buffer))) => buffer
                .read(0, bytes)
                .map_err(|source| Error::Device { name: self.name.clone(), source }),
            _ => Err(self.no_buffer(slot)),
        }
    }
}

/// The driver's end.
struct Interrupts {
    queue: Box<dyn Queue>,
    /// Where ends come in.
    ends: Box<[Completion]>,
    bell: Arc<Bell>,
    incoming: Receiver<Request>,
    outgoing: SyncSender<Completion>,
}

impl Interrupts {
    fn run(mut self) -> Result<(), ring3_device::Error> {
        let mut ticked = Instant::now();
        loop {
            let Some(taken) = self.take()? else { return Ok(()) };
            let reaped = self.reap()?;
            if !taken && !reaped {
                self.sleep()?;
            }
            if ticked.elapsed() >= WAIT {
                ticked = Instant::now();
                self.queue.tick(ticked)?;
            }
        }
    }

    /// Submits what the client has handed over; `None` when it is gone.
    fn take(&mut self) -> Result<Option<bool>, ring3_device::Error> {
        let mut any = false;
        loop {
            match self.incoming.try_recv() {
                Ok(request) => self.submit(request)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Ok(None),
            }
            any = true;
        }
        if any {
            self.queue.ring();
        }
        Ok(Some(any))
    }

    fn submit(&mut self, request: Request) -> Result<(), ring3_device::Error> {
        let Err(rejected) = self.queue.submit(request) else { return Ok(()) };
        let Some(error) = rejected.error else {
            return Err(ring3_device::Error::Busy("a queue has fewer slots than it said".into()));
        };
        self.hand_back(Completion {
            token: rejected.request.token,
            result: Err(error),
            data: rejected.request.data,
        });
        Ok(())
    }

    fn reap(&mut self) -> Result<bool, ring3_device::Error> {
        let count = self.queue.reap(&mut self.ends)?;
        for place in 0..count {
            let end = std::mem::take(&mut self.ends[place]);
            self.hand_back(end);
        }
        Ok(count > 0)
    }

    /// There is room for each slot's end; a client that is gone wants none.
    fn hand_back(&self, completion: Completion) {
        let _ = self.outgoing.send(completion);
    }

    /// Sleeps until the interrupt, the bell, or a tick.
    fn sleep(&mut self) -> Result<(), ring3_device::Error> {
        self.bell.asleep.store(true, Ordering::SeqCst);
        // What was handed over before that is seen now; what comes after it rings.
        let (taken, quiet) =
            (self.take()? != Some(false), self.queue.in_flight() == 0 || self.queue.arm()?);
        if taken || !quiet {
            self.bell.asleep.store(false, Ordering::SeqCst);
            return Ok(());
        }
        let Some(irq) = self.queue.irq() else { return Ok(()) };
        let mut fds = [PollFd::new(irq, PollFlags::IN), PollFd::new(&self.bell.fd, PollFlags::IN)];
        let patience = irq.storm_pause().map_or(WAIT, |held| held.min(WAIT));
        // A signal ends the sleep early, which does no harm.
        let _ = poll(&mut fds, Timespec::try_from(patience).ok().as_ref());
        irq.rearm()?;
        let (fired, rung) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        self.bell.asleep.store(false, Ordering::SeqCst);
        if rung {
            let _ = rustix::io::read(&self.bell.fd, &mut [0; 8]);
        }
        match (fired, irq.kind()) {
            (true, IrqKind::Intx) => self.queue.disarm(),
            (true, _) => irq.take().map(drop),
            (false, _) => Ok(()),
        }
    }
}
