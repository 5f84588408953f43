//! One queue's thread: requests from the kernel to the class queue, and their ends back.
//!
//! # Failure
//! The kernel removes a device only when this thread has completed every request that it was given.
//! - No successor ([`OnFailure::Refuse`]): after a forced removal, or when the driver has failed,
//!   the thread keeps running and completes every request with an error.
//! - A successor is to come ([`OnFailure::Keep`]): the thread ends and leaves its requests
//!   incomplete. The kernel re-issues them to the next server.

mod ends;
mod failure;
mod leave;
mod shared;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, Data, IoError, Queue, Request};
use ring3_class::dma::DmaBuffer;
use ring3_reactor::{Event, LoopStats, Registration, Timer, Token};
use ring3_stats::{Operation, Phase, Recorder};

use super::OnFailure;
use super::descriptors::Descriptors;
use super::idle::{self, IdlePoll};
use super::orders::{Order, Orders};
use super::regions::View;
use super::ring::Ring;
use super::scrap::ScratchBuffer;
use super::stats::Counters;
use super::thread::Report;
use super::translate::Geometry;
use super::uapi;

/// What belongs to a tag for the life of the queue.
struct UblkSlot {
    /// Here, or with the class queue.
    buffer: Option<DmaBuffer>,
    /// Its address, which the kernel is told anew each time.
    addr: u64,
    /// What the present request moves.
    bytes: u32,
    /// Whether the request is ours: fetched and not committed.
    busy: bool,
    /// The memory that the present request lies in, if it is a client's.
    region: Option<u16>,
}

/// What becomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// They are done.
    Serving,
    /// New ones fail; what the driver has is waited for.
    Refusing,
    /// All fail; the driver is not asked any more.
    Abandoned,
    /// New ones are kept, for the next server; what the driver has is waited for.
    Leaving,
}

/// To whom a queue's thread accounts for what it does.
pub struct QueueReporting<'a> {
    /// The queue's.
    pub counters: &'a Counters,
    /// The same, for those who watch the process.
    pub recorder: &'a Recorder,
    /// When the export began to start, for the time to the first request.
    pub started: Instant,
    /// Hears of a failure.
    pub report: &'a Report,
}

/// Serves one hardware queue.
pub struct UblkQueueServer<'a> {
    // Dropped before the buffers: the kernel has them by it.
    ring: Ring,
    registration: Registration,
    ordered: Token,
    orders: &'a Orders,
    on_failure: OnFailure,
    class: &'a mut dyn Queue,
    descriptors: Descriptors,
    geometry: Geometry,
    slots: Vec<UblkSlot>,
    /// Clients' memory that requests may lie in.
    view: Option<View>,
    /// Requests for which the class queue had no room.
    backlog: VecDeque<Request>,
    /// Where ends come in: one place for each tag.
    done: Box<[Completion]>,
    counters: &'a Counters,
    recorder: &'a Recorder,
    started: Instant,
    report: &'a Report,
    mode: Mode,
    /// Until when it may take to leave.
    patience: Option<Timer>,
    /// The driver or its device has failed for good.
    failed: bool,
    /// The device is gone.
    gone: bool,
    /// A request has failed: the driver is asked whether its device lives.
    suspicious: bool,
    /// Requests whose ends are no news of the disk if the driver is about to fail: they wait for
    /// what it says of its device.
    doubtful: Vec<(u16, IoError)>,
    scrap: Option<ScratchBuffer>,
    idle: IdlePoll,
    /// Tags that the kernel has not aborted.
    live: usize,
    submitted: bool,
}

impl<'a> UblkQueueServer<'a> {
    /// Serves `class`, with the kernel's descriptors and one buffer per tag.
    pub fn new(
        mut ring: Ring,
        class: &'a mut dyn Queue,
        (descriptors, buffers): (Descriptors, Vec<DmaBuffer>),
        orders: &'a Orders,
        on_failure: OnFailure,
        QueueReporting { counters, recorder, started, report }: QueueReporting<'a>,
    ) -> io::Result<Self> {
        let (registration, ordered) =
            (Registration::new(&mut ring.reactor, class)?, ring.reactor.add(orders.as_fd())?);
        let buffer_bytes = buffers.iter().map(DmaBuffer::len).min().unwrap_or(0) as u32;
        let geometry = Geometry::new(class.info().block_size, buffer_bytes);
        let backlog = VecDeque::with_capacity(buffers.len());
        let slot = |buffer: DmaBuffer| UblkSlot {
            addr: buffer.as_ptr() as u64,
            buffer: Some(buffer),
            bytes: 0,
            busy: false,
            region: None,
        };
        let slots: Vec<_> = buffers.into_iter().map(slot).collect();
        let live = slots.len();
        let done = slots.iter().map(|_| Completion::default()).collect();
        Ok(Self {
            ring,
            registration,
            ordered,
            orders,
            on_failure,
            class,
            descriptors,
            geometry,
            doubtful: Vec::with_capacity(slots.len()),
            slots,
            view: None,
            backlog,
            done,
            counters,
            recorder,
            started,
            report,
            mode: Mode::Serving,
            patience: None,
            failed: false,
            gone: false,
            suspicious: false,
            scrap: None,
            idle: IdlePoll::new(Duration::ZERO, 0),
            live,
            submitted: false,
        })
    }

    /// Looks for the next request when there is none, as `idle` says.
    pub fn poll_when_idle(&mut self, idle: IdlePoll) {
        self.idle = idle;
    }

    /// Lends every buffer to the kernel. The device can be started when all queues have done it.
    pub fn offer(&mut self) -> io::Result<()> {
        for tag in 0..self.slots.len() {
            // SAFETY: the buffer has the length that the device was created with. It stays in its
            // slot, or with the class queue, until this value is dropped, and the kernel only
            // touches it from calls that this thread makes.
            unsafe { self.ring.fetch(tag as u16, self.slots[tag].addr)? };
        }
        self.ring.push_gathered()?;
        self.ring.reactor.step(Some(Duration::ZERO)).map(drop)
    }

    /// Serves until the device stops and nothing is in flight, or until it has left.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.recorder.beat();
            self.take_events()?;
            if self.live == 0 {
                // Every tag was taken back by the kernel, so none is with the driver.
                return Ok(());
            }
            if self.mode != Mode::Abandoned {
                self.drive()?;
            }
            if self.mode == Mode::Leaving && self.in_flight() == 0 {
                return self.send_last();
            }
            self.wait()?;
        }
    }

    /// One turn with the driver: what came goes down, what is done comes up.
    #[inline]
    fn drive(&mut self) -> io::Result<()> {
        self.submit_backlog()?;
        if std::mem::take(&mut self.submitted) {
            self.class.ring();
            self.counters.batches.add(1);
        }
        self.reap()?;
        if std::mem::take(&mut self.suspicious) {
            self.look_after(Instant::now())?;
            self.settle()?;
        }
        Ok(())
    }

    fn take_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.ring.reactor.next_event() {
            match event {
                Event::Command { name, result, flags } if self.ring.is_batched() => {
                    self.hear(name, result, flags)?
                }
                Event::Command { name, result: uapi::RES_OK, .. } => self.dispatch(name as u16)?,
                Event::Command { result: uapi::RES_ABORT, .. } => self.live -= 1,
                Event::Command { result, .. } => return Err(io::Error::from_raw_os_error(-result)),
                Event::Ready(token) if token == self.ordered => self.obey()?,
                Event::Ready(_) => {
                    self.recorder.interrupted();
                    self.rest();
                }
                Event::Timer(timer, _) if self.patience == Some(timer) => {
                    return Err(self.quiesce_timeout_error());
                }
                Event::Timer(_, now) if self.in_flight() > 0 => self.look_after(now)?,
                Event::Timer(..) => self.rest(),
                Event::Lost(_, error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A command of many tags has said something.
    fn hear(&mut self, name: u64, result: i32, flags: u32) -> io::Result<()> {
        self.live -= self.ring.hear(name, result, flags)?;
        while let Some(tag) = self.ring.next() {
            self.dispatch(tag)?;
        }
        Ok(())
    }

    /// Does what is ordered now.
    #[cold]
    fn obey(&mut self) -> io::Result<()> {
        self.look_at_regions();
        match self.orders.present() {
            Order::Serve => Ok(()),
            Order::Refuse => self.refuse(),
            Order::Leave(until) => self.leave(until),
        }
    }

    /// Nothing is waited for, if that is so.
    fn rest(&mut self) {
        if self.in_flight() == 0 && self.mode != Mode::Abandoned {
            self.registration.rest(&mut self.ring.reactor, self.class);
        }
    }

    /// Sends what was pushed, and returns when there may be something to do.
    fn wait(&mut self) -> io::Result<()> {
        self.ring.push_gathered()?;
        let LoopStats { calls, slept, polled } = if self.in_flight() == 0 && self.backlog.is_empty()
        {
            self.recorder.phase(Phase::Idle);
            self.rest_or_look()?
        } else {
            if self.registration.timer().is_none() {
                self.look_after(Instant::now())?;
            }
            self.recorder.phase(if self.mode == Mode::Leaving {
                Phase::Draining
            } else {
                Phase::Waiting
            });
            self.ring.reactor.wait(&mut [(&self.registration, self.class)], None)?
        };
        self.recorder.phase(Phase::Working);
        self.counters.calls.add(calls.into());
        self.counters.sleeps.add(slept.into());
        self.counters.polls_hit.add((polled == Some(true)).into());
        self.counters.polls_missed.add((polled == Some(false)).into());
        Ok(())
    }

    /// With nothing in flight: sends what was pushed, and returns when there is something. It looks
    /// for the next request as long as that pays, then it sleeps.
    #[inline]
    fn rest_or_look(&mut self) -> io::Result<LoopStats> {
        let most = self.idle.poll_for();
        if most.is_zero() || self.mode != Mode::Serving {
            self.idle.slept();
            return self.ring.reactor.step(None);
        }
        let reactor = &mut self.ring.reactor;
        let sent = if reactor.has_unsent() { reactor.step(Some(Duration::ZERO))?.calls } else { 0 };
        let (found, looked) = reactor.look_for_events(most);
        self.idle.looked(looked, found, idle::preemptions);
        let turn = reactor.step(if found { Some(Duration::ZERO) } else { None })?;
        Ok(LoopStats { calls: sent + turn.calls, polled: Some(found), ..turn })
    }

    /// Requests in the driver's hands.
    #[inline]
    fn in_flight(&self) -> u16 {
        if self.mode == Mode::Abandoned { 0 } else { self.class.in_flight() }
    }

    #[inline]
    fn dispatch(&mut self, tag: u16) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(usize::from(tag)) else { return Ok(()) };
        slot.busy = true;
        match self.mode {
            Mode::Serving => {}
            Mode::Leaving => return Ok(()),
            Mode::Refusing | Mode::Abandoned => return self.reject(tag, IoError::Transport),
        }
        let descriptor = self.descriptors.read(tag);
        match self.geometry.decode(&descriptor) {
            Ok(decoded) => {
                slot.bytes = decoded.bytes;
                self.recorder.started(
                    tag,
                    recorded(decoded.operation),
                    decoded.lba,
                    decoded.blocks,
                );
                let data = match decoded.bytes {
                    0 => Data::None,
                    _ if self.view.is_some() => match self.find(tag, &descriptor, decoded.bytes) {
                        Some(data) => data,
                        // The kernel names memory that nobody has, or bytes beyond its end.
                        None => return self.finish(tag, Err(IoError::Transport)),
                    },
                    _ => slot.buffer.take().map_or(Data::None, Data::Buffer),
                };
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
            Err(error) => self.reject(tag, error),
        }
    }

    /// Ends a request that the driver does not see.
    #[cold]
    fn reject(&mut self, tag: u16, error: IoError) -> io::Result<()> {
        self.slots[usize::from(tag)].bytes = 0;
        self.recorder.started(tag, Operation::Other, 0, 0);
        self.finish(tag, Err(error))
    }

    #[inline]
    fn submit(&mut self, request: Request) -> io::Result<()> {
        match self.class.submit(request) {
            Ok(()) => {
                self.submitted = true;
                Ok(())
            }
            Err(rejected) => match rejected.error {
                Some(error) => {
                    self.complete(rejected.request.token, Err(error), rejected.request.data)
                }
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
}

#[inline]
pub fn recorded(operation: ring3_class::block::Operation) -> Operation {
    use ring3_class::block::Operation as Class;
    match operation {
        Class::Read => Operation::Read,
        Class::Write => Operation::Write,
        Class::Flush => Operation::Flush,
        Class::WriteZeroes => Operation::WriteZeroes,
        Class::Discard => Operation::Discard,
    }
}
