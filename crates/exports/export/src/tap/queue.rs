//! One queue's thread: packets both ways between a queue of the card and one of the TAP.
//!
//! # Waiting
//! In one io_uring, which watches the TAP's descriptor and the card's interrupt, and polls the
//! card's memory before it sleeps as long as that has paid lately. Packets themselves go by `read`
//! and `write`: reads that are armed in the ring would all be woken by each packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::dma::Arena;
use ring3_class::net::{Nic, Queue};
use ring3_reactor::{Event, Reactor, Registration, Token};
use ring3_stats::{Phase, Recorder};
use rustix::thread::sched_getaffinity;

use super::layout::Layout;
use super::load::{self, Done, Engine, Load};
use super::port::Watched;
use super::priority::PriorityBoost;
use super::receive::Receiver;
use super::send::Sender;
use super::stats::Counters;
use super::vhost::{Vhost, Workers};
use super::{EngineSettings, Error, Interface};

/// A busy thread looks this rarely (in turns) for what is not packets.
const LOOK: u32 = 16;
/// While there is no room for what the card has received, its interrupt is not waited for; so often
/// it is asked for buffers by which sending goes on.
const BLOCKED: Duration = Duration::from_millis(1);

/// What a thread serves.
pub struct Start {
    pub nic: Arc<dyn Nic>,
    pub interface: Arc<Interface>,
    /// Its number, of the card and of the interface.
    pub number: usize,
    pub queue: Box<dyn Queue>,
    pub layout: Layout,
    pub engine: EngineSettings,
    /// Whether received TCP is put together.
    pub joins: bool,
    pub counters: Arc<[Counters]>,
    /// Where it shows that it lives.
    pub recorder: Arc<Recorder>,
    /// Readable when it shall end.
    pub stop: Arc<OwnedFd>,
}

impl Start {
    /// Moves packets until it shall end. The reactor is as it was then.
    pub fn run(self, reactor: &mut Reactor) -> Result<(), Error> {
        let Self {
            nic,
            interface,
            number,
            mut queue,
            layout,
            engine,
            joins,
            counters,
            recorder,
            stop,
        } = self;
        let (name, card) = (interface.name(), nic.name());
        let failed = |what: &str| {
            let what = format!("{name}: {what}");
            move |error: io::Error| Error::os(what, error)
        };
        let (Some((receive, send)), Some(counters)) =
            (interface.ports(number), counters.get(number))
        else {
            return Ok(());
        };
        let tap = interface.queue(number);
        let arena = nic.dma().arena();
        let driver = |cause| Error::Driver { card: card.clone(), cause };
        let watched = Watched::new((&receive, &send), reactor).map_err(failed("watching it"))?;
        let receiver = Receiver::new(receive, &mut *queue, (layout, arena), counters, joins)
            .map_err(driver)?;
        let sender = Sender::new(send, (layout, arena), counters).map_err(driver)?;
        let registration =
            Registration::new(reactor, &*queue).map_err(failed("watching the card's interrupt"))?;
        let stop = reactor.add(stop.as_fd()).map_err(failed("watching its end"))?;
        let queue = &mut *queue;
        // As many of the processors are the threads' of all queues, if they are full.
        let spare = sched_getaffinity(None)
            .is_ok_and(|processors| processors.count() as usize > interface.count());
        let EngineSettings { engine, limits, workers, priority } = engine;
        let load = Load::new(limits, spare, Instant::now(), done(counters, reactor));
        let vhost = None;
        let mut server = TapQueueServer {
            reactor,
            registration,
            queue,
            receiver,
            sender,
            arena,
            counters,
            recorder: &recorder,
            tap,
            watched,
            stop,
            engine,
            workers,
            load,
            ahead: PriorityBoost::new(priority),
            vhost,
            turns: 0,
        };
        let ran = server.run();
        server.release_ring();
        recorder.phase(Phase::New);
        ran.map_err(|end| match end {
            End::QueueError(turned) => turned.error(name, &card),
            End::Failed(error) => error,
            End::Os(error) => Error::os(format!("{name}: waiting for packets"), error),
        })
    }
}

struct TapQueueServer<'a> {
    reactor: &'a mut Reactor,
    registration: Registration,
    queue: &'a mut dyn Queue,
    receiver: Receiver<'a>,
    sender: Sender<'a>,
    arena: &'a Arena,
    counters: &'a Counters,
    recorder: &'a Recorder,
    /// The interface, if it is a TAP.
    tap: Option<BorrowedFd<'a>>,
    /// By which it is known where `read` and `write` are of use.
    watched: Watched,
    stop: Token,
    engine: Engine,
    workers: Workers,
    load: Load,
    ahead: PriorityBoost,
    /// What moves packets in place of `read` and `write`.
    vhost: Option<(Vhost, Registration)>,
    turns: u32,
}

/// What the calling thread has done so far, by what it has counted.
fn done(counters: &Counters, reactor: &Reactor) -> Done {
    let Counters { rx_packets, rx_joined, rx_bytes, tx_packets, tx_bytes, .. } = counters;
    Done {
        worked: load::processor_time().saturating_sub(reactor.polled()),
        packets: rx_packets.get() - rx_joined.get() + tx_packets.get(),
        bytes: rx_bytes.get() + tx_bytes.get(),
    }
}

enum End {
    QueueError(super::error::QueueError),
    Failed(Error),
    Os(io::Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<super::error::QueueError> for End {
    fn from(turned: super::error::QueueError) -> Self {
        Self::QueueError(turned)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

impl TapQueueServer<'_> {
    fn run(&mut self) -> Result<(), End> {
        if self.engine == Engine::Vhost {
            self.begin_vhost()?;
        }
        loop {
            if self.take_events()? {
                return Ok(());
            }
            let (received, sent) = self.run_once()?;
            if self.engine == Engine::Auto && self.load.count_turn(received || sent) {
                self.judge()?;
            }
            self.turns = self.turns.wrapping_add(1);
            if received || sent {
                self.recorder.beat();
                self.recorder.passed(1);
            }
            if (received || sent) && self.has_more() {
                // The kernel says that packets wait by work that it leaves to this thread: a call,
                // and of no use while they are read anyway.
                if (!self.sender.readable || self.turns.is_multiple_of(LOOK))
                    && self.reactor.has_events()
                {
                    self.reactor.step(Some(Duration::ZERO))?;
                }
                self.ahead.worked();
                continue;
            }
            self.wait()?;
        }
    }

    /// Moves a batch each way; whether there was something.
    #[inline]
    fn run_once(&mut self) -> Result<(bool, bool), End> {
        let Some((vhost, _)) = &mut self.vhost else {
            return Ok((
                self.receiver.poll_batch(self.queue, None)?,
                self.sender.poll_batch(self.queue)?,
            ));
        };
        Ok((
            self.receiver.poll_batch(self.queue, Some(vhost))?,
            self.sender.poll_vhost(self.queue, vhost)?,
        ))
    }

    /// Whether the next turn would move something. Behind vhost-net, that is found by another turn.
    #[inline]
    fn has_more(&self) -> bool {
        self.vhost.is_some() || self.sender.readable || self.queue.pending()
    }

    /// Takes the engine that pays for what has come lately.
    #[cold]
    fn judge(&mut self) -> Result<(), End> {
        let pays = self
            .load
            .judge(self.vhost.is_some(), Instant::now(), || done(self.counters, self.reactor));
        match &self.vhost {
            None if pays => {
                if let Err(error) = self.begin_vhost() {
                    tracing::warn!(%error, "packets go on by read and write");
                    self.engine = Engine::Tap;
                }
            }
            // What the kernel has not taken would be lost.
            Some((vhost, _)) if !pays && vhost.to_kernel.outstanding() == 0 => self.end_vhost()?,
            _ => {}
        }
        Ok(())
    }

    fn begin_vhost(&mut self) -> Result<(), Error> {
        let no_memory = |cause| Error::Driver { card: "memory for vhost-net".into(), cause };
        let failed = |error| Error::os("watching vhost-net", error);
        let Some(tap) = self.tap else { return Ok(()) };
        let vhost = Vhost::start(tap, self.arena, &self.workers)?;
        let registration = Registration::new(self.reactor, &vhost).map_err(failed)?;
        self.sender.begin_vhost(self.arena).map_err(no_memory)?;
        self.receiver.begin_vhost(self.arena).map_err(no_memory)?;
        if let Some(token) = self.watched.readable.take() {
            self.reactor.remove(token).map_err(failed)?;
        }
        self.vhost = Some((vhost, registration));
        self.counters.vhost.set(1);
        self.counters.switches.add(1);
        Ok(())
    }

    fn end_vhost(&mut self) -> Result<(), End> {
        let Some((mut vhost, registration)) = self.vhost.take() else { return Ok(()) };
        vhost.end();
        self.counters.vhost.set(0);
        self.counters.switches.add(1);
        self.receiver.end_vhost(self.queue, &mut vhost);
        registration.remove(self.reactor)?;
        self.watched.readable = self.tap.map(|tap| self.reactor.add(tap)).transpose()?;
        Ok(self.sender.end_vhost(&mut vhost)?)
    }

    /// Removes everything that the ring watches: the kernel destroys a ring some time after it is
    /// closed, and would keep the interface until then. The next queue uses the same interface.
    fn release_ring(self) {
        let Self { reactor, registration, counters, watched, stop, vhost, .. } = self;
        counters.vhost.set(0);
        let its = vhost.map(|(vhost, registration)| {
            drop(vhost);
            registration
        });
        let gone = [Some(registration), its]
            .into_iter()
            .flatten()
            .try_for_each(|registration| registration.remove(reactor));
        let gone = gone.and_then(|()| {
            watched.tokens().chain([stop]).try_for_each(|token| reactor.remove(token))
        });
        if let Err(error) = gone.and_then(|()| reactor.step(Some(Duration::ZERO))) {
            tracing::debug!(%error, "the ring keeps the interface until its own end");
        }
        while reactor.next_event().is_some() {}
    }

    #[inline]
    fn wait(&mut self) -> Result<(), End> {
        if self.registration.timer().is_none() {
            self.check_card(Instant::now())?;
        }
        // Who waits for a card that takes nothing more is not idle: the driver's own time limits
        // see to that.
        self.recorder.phase(if self.sender.is_blocked() { Phase::Recovering } else { Phase::Idle });
        let turn = match &mut self.vhost {
            // What the card has cannot go on before there is room for it.
            None if self.receiver.full => {
                self.reactor.wait(&mut [], self.sender.is_blocked().then_some(BLOCKED))?
            }
            None => self.reactor.wait(&mut [(&self.registration, self.queue)], None)?,
            Some((vhost, registration)) if vhost.full => {
                self.reactor.wait(&mut [(registration, vhost)], None)?
            }
            Some((vhost, registration)) => self
                .reactor
                .wait(&mut [(&self.registration, self.queue), (registration, vhost)], None)?,
        };
        self.recorder.phase(Phase::Working);
        self.recorder.beat();
        self.counters.sleeps.add(turn.slept.into());
        self.ahead.waited(turn.slept);
        Ok(())
    }

    /// Takes what has happened; true if it is the end.
    #[inline]
    fn take_events(&mut self) -> Result<bool, End> {
        while let Some(event) = self.reactor.next_event() {
            match event {
                Event::Ready(token) if token == self.stop => return Ok(true),
                Event::Ready(token) if Some(token) == self.watched.readable => {
                    self.sender.readable = true
                }
                Event::Ready(token) if self.watched.changed.contains(&Some(token)) => {
                    self.apply_queue_change()
                }
                Event::Ready(token) if Some(token) == self.registration.token() => {
                    self.recorder.interrupted()
                }
                Event::Timer(_, now) => {
                    // What was sent is done with: a card that has nothing to send wants to be
                    // looked after more rarely.
                    self.sender.take_back(self.queue)?;
                    self.check_card(now)?;
                }
                Event::Lost(_, error) => return Err(error.into()),
                Event::Ready(_) | Event::Command { .. } => {}
            }
        }
        Ok(false)
    }

    /// A virtqueue has been set up, or reset.
    #[cold]
    fn apply_queue_change(&mut self) {
        self.receiver.port.apply_queue_change();
        self.sender.port.apply_queue_change();
        self.sender.readable = true;
    }

    /// Lets the driver see to what takes too long. What it cannot mend it says again when packets
    /// are taken from it.
    fn check_card(&mut self, now: Instant) -> Result<(), End> {
        use ring3_class::Error::{Fatal, Gone};
        match self.registration.tick(self.reactor, self.queue, now) {
            Err(error @ (Gone | Fatal(_))) => Err(super::error::QueueError::Card(error).into()),
            Err(error) => {
                tracing::warn!(%error, "the card is not well");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
