//! What is not packets: the link upwards, and what users want of the interface downwards.
//!
//! # Shape
//! One thread, which sleeps until the card's link or something about the machine's interfaces has
//! changed. It opens the card's queues, and opens them anew when the MTU changes, which a card is
//! told at their opening, or when the card had to be given up and may be started again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::net::{Filter, Info, Link, Multicast, Nic};
use ring3_class::wait::Source;
use ring3_reactor::{Event, Reactor, Registration, Token};
use ring3_stats::{Phase, Recorder};

use super::eventfd::{event, ring};
use super::layout::Layout;
use super::netlink::RequestedSettings;
use super::plane::ControlPlane;
use super::queue::Start;
use super::settings::{EngineSettings, TapThreadOptions};
use super::stats::{self, Counters};
use super::worker::Worker;
use super::{Error, Interface};

/// A card that has failed twice within this time is given up.
const WELL: Duration = Duration::from_secs(10);

/// What the card has lost is shown this often: it is counted in a register of the card.
const SHOW_LOST: Duration = Duration::from_secs(2);

/// A card and its interface.
pub struct Control {
    pub nic: Arc<dyn Nic>,
    pub interface: Arc<Interface>,
    plane: Box<dyn ControlPlane>,
    counters: Arc<[Counters]>,
    recorders: Vec<Arc<Recorder>>,
    engine: EngineSettings,
    joins: bool,
    /// What is wanted of the interface, as it was last asked.
    pub requested: RequestedSettings,
    /// The MTU that the queues were opened with.
    mtu: u32,
    /// What was last said upwards.
    told: Option<Link>,
    workers: Vec<Worker>,
    rings: ring3_reactor::Pool,
    /// Has the open queues end.
    stop: Option<Arc<OwnedFd>>,
    failed: Option<Instant>,
}

/// What the thread waits for.
struct Watched {
    reactor: Reactor,
    link: Box<dyn Source + Send>,
    registration: Registration,
    changed: Token,
    stop: Token,
    ended: Token,
}

impl Control {
    /// The queues are open, and move packets, when this returns. `bell` is rung when one has ended.
    pub fn new(
        (nic, interface): (Arc<dyn Nic>, Arc<Interface>),
        plane: Box<dyn ControlPlane>,
        counters: Arc<[Counters]>,
        manner: &TapThreadOptions,
        bell: &Arc<OwnedFd>,
    ) -> Result<Self, Error> {
        let requested = plane.requested_settings()?;
        let mtu = requested.mtu;
        let recorder = |queue| {
            let few = || Error::Card {
                card: nic.name(),
                reason: format!("there are statistics for {queue} threads, and it has more"),
            };
            Recorder::new(&manner.segment, Some(queue)).map(Arc::new).ok_or_else(few)
        };
        let recorders = (0..=counters.len() as u16).map(recorder).collect::<Result<_, _>>()?;
        let starting = |error| Error::os(format!("{}: starting a thread", interface.name()), error);
        // Each thread's ring is taken here: what is left may be given back before the thread runs.
        let spawn = |number| {
            Worker::spawn(
                format!("{}q{number}", interface.name()),
                (manner.poll, manner.rings.one()?),
                bell,
            )
        };
        let workers = (0..counters.len()).map(spawn).collect::<Result<_, _>>().map_err(starting)?;
        let rings = manner.rings.one().map_err(starting)?;
        let (told, stop, failed) = (None, None, None);
        let (engine, joins) = (manner.engine.clone(), manner.joins);
        let mut control = Self {
            nic,
            interface,
            plane,
            counters,
            recorders,
            engine,
            joins,
            requested,
            mtu,
            told,
            workers,
            rings,
            stop,
            failed,
        };
        control.set_filter()?;
        control.tell_link()?;
        control.open()?;
        Ok(control)
    }

    /// Serves until `stop` is readable, or until the card or the interface is gone.
    pub fn run(mut self, stop: &OwnedFd, bell: &Arc<OwnedFd>) -> Result<(), Error> {
        let watched = self.watch(stop, bell);
        let served = watched.and_then(|mut watched| self.serve(&mut watched, bell));
        self.show(Phase::Ended);
        let ended = self.close();
        served.and(ended)
    }

    fn watch(&self, stop: &OwnedFd, bell: &OwnedFd) -> Result<Watched, Error> {
        let failed = |error| self.failed("watching it", error);
        let mut reactor = self.rings.reactor(0, Duration::ZERO).map_err(failed)?;
        let link = self.nic.link_watch().map_err(|cause| self.driver(cause))?;
        let registration = Registration::new(&mut reactor, &*link).map_err(failed)?;
        let changed = reactor.add(self.plane.changes()).map_err(failed)?;
        let (stop, ended) = (
            reactor.add(stop.as_fd()).map_err(failed)?,
            reactor.add(bell.as_fd()).map_err(failed)?,
        );
        Ok(Watched { reactor, link, registration, changed, stop, ended })
    }

    fn serve(&mut self, watched: &mut Watched, bell: &Arc<OwnedFd>) -> Result<(), Error> {
        // What has changed before somebody watched is seen now.
        self.poll_settings()?;
        let period = self.plane.period();
        let mut next = period.map(|period| watched.reactor.set_timer(Instant::now() + period));
        let mut shown = watched.reactor.set_timer(Instant::now() + SHOW_LOST);
        loop {
            self.tell_link()?;
            if watched.registration.timer().is_none() {
                self.tick(watched, Instant::now())?;
            }
            let Watched { reactor, registration, link, .. } = &mut *watched;
            self.show(Phase::Idle);
            let waited = reactor.wait(&mut [(registration, &mut **link)], None);
            self.show(Phase::Working);
            waited.map_err(|error| self.failed("waiting", error))?;
            while let Some(event) = watched.reactor.next_event() {
                match event {
                    Event::Ready(token) if token == watched.stop => return Ok(()),
                    Event::Ready(token) if token == watched.ended => self.reopen_failed(bell)?,
                    Event::Ready(token) if token == watched.changed => {
                        self.plane.acknowledge();
                        self.poll_settings()?;
                    }
                    Event::Timer(timer, now) if Some(timer) == next => {
                        self.poll_settings()?;
                        next = period.map(|period| watched.reactor.set_timer(now + period));
                    }
                    Event::Timer(timer, now) if timer == shown => {
                        self.show_lost();
                        shown = watched.reactor.set_timer(now + SHOW_LOST);
                    }
                    Event::Timer(_, now) => self.tick(watched, now)?,
                    Event::Lost(_, error) => return Err(self.failed("waiting", error)),
                    Event::Ready(_) | Event::Command { .. } => {}
                }
            }
        }
    }

    fn tick(&self, watched: &mut Watched, now: Instant) -> Result<(), Error> {
        watched
            .registration
            .tick(&mut watched.reactor, &mut *watched.link, now)
            .map_err(|cause| self.driver(cause))
    }

    /// Says upwards how the link is.
    fn tell_link(&mut self) -> Result<(), Error> {
        let link = self.nic.link().map_err(|cause| self.driver(cause))?;
        if self.told != Some(link) {
            self.plane.set_link(link)?;
            self.told = Some(link);
        }
        Ok(())
    }

    /// Asks what is wanted of the interface, and says it downwards if it is new.
    fn poll_settings(&mut self) -> Result<(), Error> {
        let requested = self.plane.requested_settings()?;
        if requested == self.requested {
            return Ok(());
        }
        self.requested = requested;
        self.set_filter()?;
        if self.requested.mtu == self.mtu { Ok(()) } else { self.set_mtu() }
    }

    fn set_filter(&self) -> Result<(), Error> {
        let info = self.nic.info();
        let mut filter = filter(&self.requested);
        if let Err(error) = info.check_filter(&filter) {
            // The interface goes on with what it may have.
            tracing::warn!(
                "{}: {error}: what is sent from another address is lost",
                self.interface.name()
            );
            filter = Filter { multicast: filter.multicast, ..Filter::own(info.mac) };
        }
        self.nic.set_filter(&filter).map_err(|cause| self.driver(cause))
    }

    /// Opens the queues with the MTU that the interface has now. One that is not the card's is
    /// taken back.
    fn set_mtu(&mut self) -> Result<(), Error> {
        let (wanted, (least, most)) = (self.requested.mtu, self.nic.info().mtu);
        if !(least..=most).contains(&wanted) {
            let name = self.interface.name();
            tracing::warn!(
                "{name}: an MTU of {wanted} is not the card's, which takes {least} to {most}: it \
                stays at {}",
                self.mtu
            );
            if let Err(error) = self.plane.set_mtu(self.mtu) {
                tracing::warn!(
                    %error,
                    "{name}: its MTU cannot be set back: longer packets are lost"
                );
            }
            return Ok(());
        }
        self.close()?;
        self.mtu = wanted;
        self.open()
    }

    /// Opens the queues of a card that has failed, once. `Err` if it had failed a moment before, or
    /// cannot be started.
    fn reopen_failed(&mut self, bell: &Arc<OwnedFd>) -> Result<(), Error> {
        let _ = rustix::io::read(&**bell, &mut [0; 8]);
        if !self.workers.iter_mut().any(Worker::has_ended) {
            return Ok(());
        }
        let Err(error) = self.close() else { return self.open() };
        let again = matches!(
            &error,
            Error::Driver { cause, .. } if !matches!(cause, ring3_class::Error::Gone)
        );
        if !again || self.failed.is_some_and(|failed| failed.elapsed() < WELL) {
            return Err(error);
        }
        self.failed = Some(Instant::now());
        tracing::warn!(%error, "the card's queues are opened again");
        self.set_filter()?;
        self.open()
    }

    fn open(&mut self) -> Result<(), Error> {
        self.show(Phase::Recovering);
        let layout = Layout::new(self.nic.info(), self.mtu);
        let count = self.counters.len() as u16;
        let opened =
            self.nic.open_queues(count, &layout.settings).map_err(|cause| self.driver(cause))?;
        let stop = Arc::new(event().map_err(|error| self.failed("starting its queues", error))?);
        self.stop = Some(stop.clone());
        let workers = self.workers.iter_mut().zip(&self.recorders);
        for ((number, queue), (worker, recorder)) in opened.into_iter().enumerate().zip(workers) {
            let (nic, interface, counters) =
                (self.nic.clone(), self.interface.clone(), self.counters.clone());
            let (recorder, stop) = (recorder.clone(), stop.clone());
            let (engine, joins) = (self.engine.clone(), self.joins);
            worker.start(Start {
                nic,
                interface,
                number,
                queue,
                layout,
                engine,
                joins,
                counters,
                recorder,
                stop,
            });
        }
        Ok(())
    }

    /// Ends the queues, which are dropped in their threads; why one of them has ended before.
    fn close(&mut self) -> Result<(), Error> {
        self.stop.take().iter().for_each(|stop| ring(stop));
        self.workers.iter_mut().map(Worker::end).fold(Ok(()), Result::and)
    }

    /// Shows how this thread is: the last of the card's.
    fn show(&self, phase: Phase) {
        self.recorders.last().iter().for_each(|recorder| {
            recorder.phase(phase);
            recorder.beat();
        });
    }

    /// Shows what the card has lost.
    fn show_lost(&self) {
        if let (Some(recorder), Some(lost)) = (self.recorders.last(), stats::lost(&*self.nic)) {
            recorder.lost(lost);
        }
    }

    fn failed(&self, what: &str, error: io::Error) -> Error {
        Error::os(format!("{}: {what}", self.interface.name()), error)
    }

    fn driver(&self, cause: ring3_class::Error) -> Error {
        Error::Driver { card: self.nic.name(), cause }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// What an interface's users want, as a card is told.
fn filter(requested: &RequestedSettings) -> Filter {
    Filter {
        address: requested.address,
        unicast: requested.unicast.clone(),
        multicast: if requested.all_groups {
            Multicast::All
        } else {
            Multicast::Of(requested.groups.clone())
        },
        promiscuous: requested.promiscuous,
        vlans: None,
    }
}

/// Whether the card has an MTU like that.
pub fn fits(info: &Info, mtu: u32) -> bool {
    (info.mtu.0..=info.mtu.1).contains(&mtu)
}
