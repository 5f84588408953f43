//! A card and its interface, from the start to the stop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_class::net::{Mac, Nic};
use ring3_reactor::Pool;
use ring3_stats::Segment;

use super::Error;
use super::control::{Control, fits};
use super::eventfd::{event, ring};
use super::interface::{Interface, Shape};
use super::layout::Layout;
use super::load::{Engine, Limits};
use super::place::NamespaceSockets;
use super::plane::{ControlPlane, Rtnetlink};
use super::priority::Priority;
use super::settings::{EngineSettings, TapThreadOptions};
use super::stats::{self, Counters, Stats};
use super::vhost::Workers;

/// How a card is exported.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name; the kernel chooses one if `None`.
    pub name: Option<String>,
    /// The user who may attach to it later, beside root.
    pub owner: Option<u32>,
    /// It stays at the end of the process, without a link.
    pub persist: bool,
    /// Most bytes of a packet without its Ethernet header; what the interface has if `None`.
    pub mtu: Option<u32>,
    /// Queues at most, each of which has a thread; as many as the card has if that is less.
    pub queues: u16,
    /// How long a queue polls at most before it sleeps.
    pub poll: Duration,
    /// What moves packets between the card's memory and the kernel.
    pub engine: Engine,
    /// When [`Engine::Auto`] takes which.
    pub limits: Limits,
    /// Whether received TCP is put together before the kernel has it.
    pub joins: bool,
    /// How soon the threads run that move packets.
    pub priority: Priority,
}

impl Default for Options {
    /// One queue, which polls for 10 microseconds at most and has a high priority; nothing is left
    /// at the end.
    fn default() -> Self {
        let (engine, limits) = (Engine::Auto, Limits::default());
        Self {
            name: None,
            owner: None,
            persist: false,
            mtu: None,
            queues: 1,
            poll: Duration::from_micros(10),
            engine,
            limits,
            joins: true,
            priority: Priority::High,
        }
    }
}

/// A card that is an interface, until this is [stopped](Self::stop) or dropped.
pub struct TapExport {
    nic: Arc<dyn Nic>,
    interface: Arc<Interface>,
    /// Nobody else holds it.
    own: bool,
    address: Mac,
    mtu: u32,
    counters: Arc<[Counters]>,
    stop: Arc<OwnedFd>,
    ended: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl TapExport {
    /// Makes the interface, in the network namespace of the calling thread, and moves packets from
    /// now on. It is down until somebody sets it up.
    pub fn start(nic: Arc<dyn Nic>, options: &Options) -> Result<Self, Error> {
        let info = nic.info().clone();
        let queues = options.queues.clamp(1, info.max_queues.max(1));
        if let Some(mtu) = options.mtu.filter(|&mtu| !fits(&info, mtu)) {
            let reason =
                format!("an MTU of {mtu}: the card takes {} to {}", info.mtu.0, info.mtu.1);
            return Err(Error::Card { card: nic.name(), reason });
        }
        let Options { limits, priority, .. } = *options;
        let engine = EngineSettings {
            engine: engine(options.engine)?,
            limits,
            priority,
            ..EngineSettings::default()
        };
        let Options { name, owner, persist, .. } = options.clone();
        let interface = Arc::new(Interface::open(&Shape { name, queues, owner, persist })?);
        let asking = |error| Error::os("asking the kernel for interfaces (rtnetlink)", error);
        let place = NamespaceSockets::here(interface.name()).map_err(asking)?;
        interface.set_up(&place.netlink, &info, options.mtu)?;
        let plane = Rtnetlink::new(interface.clone(), place).map_err(asking)?;
        let segment = Segment::create(queues + 1)
            .map_err(|error| Error::os("memory for its figures", error))?;
        let (poll, joins) = (options.poll, options.joins);
        let manner = TapThreadOptions {
            poll,
            engine,
            joins,
            rings: Pool::default(),
            segment: Arc::new(segment),
        };
        let mut export = Self::over((nic, interface), Box::new(plane), &manner)?;
        export.own = true;
        Ok(export)
    }

    /// Moves packets from now on between a card and an interface that somebody else has made for
    /// it, as `plane` says. With as many queues as it has.
    pub fn over(
        (nic, interface): (Arc<dyn Nic>, Arc<Interface>),
        plane: Box<dyn ControlPlane>,
        manner: &TapThreadOptions,
    ) -> Result<Self, Error> {
        manner.engine.priority.check()?;
        let counters: Arc<[Counters]> =
            (0..interface.count()).map(|_| Counters::default()).collect();
        let failed = |error| Error::os(format!("{}: starting", interface.name()), error);
        let (stop, ended) =
            (Arc::new(event().map_err(failed)?), Arc::new(event().map_err(failed)?));
        let bell = Arc::new(event().map_err(failed)?);
        let control =
            Control::new((nic.clone(), interface.clone()), plane, counters.clone(), manner, &bell)?;
        let (address, mtu) = (control.requested.address, control.requested.mtu);
        let (order, done) = (stop.clone(), ended.clone());
        let serve = move || {
            let served = control.run(&order, &bell);
            ring(&done);
            served
        };
        let thread = Some(
            thread::Builder::new().name(interface.name().into()).spawn(serve).map_err(failed)?,
        );
        Ok(Self { nic, interface, own: false, address, mtu, counters, stop, ended, thread })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        self.interface.name()
    }

    /// By which the kernel names it.
    pub fn index(&self) -> u32 {
        self.interface.index()
    }

    /// Its address at the start.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// Its MTU at the start.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Queues, and so threads that move packets.
    pub fn queues(&self) -> usize {
        self.counters.len()
    }

    /// What went through so far, and what the card has lost.
    pub fn stats(&self) -> Stats {
        Stats::sum(self.counters.iter()).with_lost(stats::lost(&*self.nic).unwrap_or_default())
    }

    /// Readable once it has ended by itself: [`stop`](Self::stop) says why.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Stops the card, and lets go of the interface; why it had ended before, if it had.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        ring(&self.stop);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let ended = thread.join().unwrap_or_else(|_| Err(Error::Panicked(self.name().into())));
        if self.own {
            // A link is what the card says; nobody says it of an interface that stays.
            let _ = self.interface.set_carrier(false);
        }
        ended
    }
}

impl Drop for TapExport {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The engine that can be had: where vhost-net is not and need not be, that is known from the
/// start.
fn engine(wanted: Engine) -> Result<Engine, Error> {
    match (wanted, if wanted == Engine::Tap { Ok(()) } else { Workers::check() }) {
        (Engine::Auto, Err(error)) => {
            tracing::warn!(%error, "packets go by read and write at any load");
            Ok(Engine::Tap)
        }
        (wanted, checked) => checked.map(|()| wanted),
    }
}

/// Bytes of DMA memory of a card whose queues are exported.
pub fn arena_bytes(queues: u16) -> usize {
    Layout::arena_bytes(queues)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use ring3_class::net::Cable;

    use super::super::netlink::RequestedSettings;
    use super::super::plane::Relay;
    use super::*;

    #[test]
    fn an_exports_threads_have_their_rings_though_the_pool_is_trimmed_before_they_run() {
        let (_cable, card, _other) = Cable::new(4 << 20).unwrap();
        let (queue, _kernel) = UnixDatagram::pair().unwrap();
        queue.set_nonblocking(true).unwrap();
        let interface = Arc::new(Interface::of("lan".into(), 0, vec![queue.into()]));
        let relay = Relay::new(RequestedSettings {
            mtu: 1500,
            address: card.info().mac,
            ..RequestedSettings::default()
        })
        .unwrap();
        let engine = EngineSettings { engine: Engine::Tap, ..EngineSettings::default() };
        let (rings, segment) =
            (Pool::filled(4, 8, &[]).unwrap(), Arc::new(Segment::create(2).unwrap()));
        let manner = TapThreadOptions {
            poll: Duration::ZERO,
            engine,
            joins: false,
            rings: rings.clone(),
            segment,
        };
        let export =
            TapExport::over((Arc::new(card), interface), Box::new(relay), &manner).unwrap();
        rings.trim(0);
        thread::sleep(Duration::from_millis(100));
        export.stop().unwrap();
    }
}
