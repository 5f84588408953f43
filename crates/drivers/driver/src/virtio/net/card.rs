//! The card: how it starts and stops, what it is, its filters and its link.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::net::{Counters, Filter, Info, Link, Mac, Nic, Queue, QueueSettings};
use ring3_device::dma::Dma;
use ring3_device::irq::Irq;
use ring3_device::wait::{DEFAULT_POLL, Source};
use ring3_device::{Device, Error};
use ring3_spec::virtio::{NO_VECTOR, net};
use serde::{Deserialize, Serialize};

use super::super::Layout;
use super::super::transport::Transport;
use super::super::vectors::vectors;
use super::control::Control;
use super::describe::{card_pairs, describe, has_control, max_queues, receive, transmit};
use super::half::PacketRing;
use super::live::LiveCounters;
use super::pairs::{MAX_PAIRS, Pairs};
use super::queue::Pair;
use super::saved::SavedRunning;
use super::watch::LinkWatch;
use crate::Interrupts;
use crate::lifetime::{lock, stop_function};

/// Vectors: the configuration's, and from the second on the pairs'.
const CONFIG_VECTOR: u16 = 0;
const QUEUE_VECTOR: u16 = 1;
/// What the driver can use.
const WANTED: u64 = net::CSUM
    | net::GUEST_CSUM
    | net::MTU
    | net::MAC
    | net::HOST_TSO4
    | net::HOST_TSO6
    | net::MRG_RXBUF
    | net::STATUS
    | net::CTRL_VQ
    | net::CTRL_RX
    | net::MQ
    | net::CTRL_MAC_ADDR;
/// Most entries of a queue.
pub(super) const MAX_DEPTH: u16 = 1024;

/// How the card is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// How it signals.
    pub interrupts: Interrupts,
    /// How long a wait polls at most before it sleeps.
    pub poll: Duration,
    /// How its queues lie in memory.
    pub layout: Layout,
}

impl Default for Options {
    fn default() -> Self {
        Self { interrupts: Interrupts::Auto, poll: DEFAULT_POLL, layout: Layout::Auto }
    }
}

/// A virtio network card.
pub struct Card {
    pub(super) shared: Arc<VirtioNetShared>,
}

/// What the card, its queue and its watch share.
pub(super) struct VirtioNetShared {
    pub(super) transport: Transport,
    pub(super) options: Options,
    /// The configuration's interrupt and the pairs'.
    pub(super) vectors: Option<Vec<Arc<Irq>>>,
    pub(super) watched: AtomicBool,
    pub(super) info: Info,
    /// Its address, as it was made.
    pub(super) mac: Mac,
    pub(super) features: u64,
    /// It was left to another process.
    pub(super) left: AtomicBool,
    /// Whether the link was last said to be up: 0 no, 1 yes, 2 was never said.
    heard: AtomicU8,
    pub(super) state: Mutex<State>,
    /// Pairs that the card has, opened or not: behind them comes the control queue.
    pub(super) card_pairs: u16,
    /// What went through the queue of each number that is open.
    pub(super) live: Box<[LiveCounters]>,
}

pub(super) struct State {
    pub(super) filter: Filter,
    /// While its queues are open, if the card has one.
    pub(super) control: Option<Control>,
    pub(super) pairs: Pairs,
    /// Where the card has its queues, while it goes; without its control queue.
    pub(super) going: Option<SavedRunning>,
    /// What went through queues that are closed.
    pub(super) counters: Counters,
    /// It could not be stopped.
    pub(super) lost: bool,
}

impl Card {
    /// Takes `device` over, and stops it until its queues are opened.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        let transport = Transport::find(device, net::CONFIG_LEN, options.layout)?;
        transport.reset().or_else(|error| {
            stop_function(&*transport.device, error).map_err(|unstopped| unstopped.error)
        })?;
        let features = transport.negotiate(WANTED)?;
        if features & net::MAC == 0 {
            return Err(Error::Unsupported(format!(
                "{}: it has no address: give it one (mac=)",
                transport.device.name()
            )));
        }
        let (mut info, card_pairs) =
            (describe(&transport, features)?, card_pairs(&transport, features)?);
        let vectors =
            vectors(&*transport.device, options.interrupts, 2, 1 + card_pairs.min(MAX_PAIRS))?;
        info.max_queues = max_queues(card_pairs, vectors.as_deref());
        transport.device.set_bus_master(true)?;
        let (filter, counters) = (Filter::own(info.mac), Counters::default());
        let state = State {
            filter,
            control: None,
            pairs: Pairs::default(),
            going: None,
            counters,
            lost: false,
        };
        let agreed = Negotiated { features, card_pairs };
        Ok(Self {
            shared: Arc::new(VirtioNetShared::of(transport, options, vectors, info, agreed, state)),
        })
    }
}

/// What the card and the driver go by.
#[derive(Clone, Copy)]
pub(super) struct Negotiated {
    pub(super) features: u64,
    pub(super) card_pairs: u16,
}

impl VirtioNetShared {
    pub(super) fn of(
        transport: Transport,
        options: Options,
        vectors: Option<Vec<Arc<Irq>>>,
        info: Info,
        Negotiated { features, card_pairs }: Negotiated,
        state: State,
    ) -> Self {
        let (watched, left, heard) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicU8::new(2));
        let (mac, state, live) = (
            info.mac,
            Mutex::new(state),
            (0..info.max_queues).map(|_| LiveCounters::default()).collect(),
        );
        Self {
            transport,
            options,
            vectors,
            watched,
            info,
            mac,
            features,
            left,
            heard,
            state,
            card_pairs,
            live,
        }
    }

    /// Fails if the card was left to another process.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.left.load(Ordering::Acquire) {
            let name = self.transport.device.name();
            return Err(Error::Fatal(format!(
                "{name}: it was left to another process: resume it there"
            )));
        }
        Ok(())
    }

    /// Whether a received packet may take several buffers.
    #[inline]
    pub(super) fn merges(&self) -> bool {
        self.features & net::MRG_RXBUF != 0
    }

    /// Fails if the card has a control queue and does not answer there.
    pub(super) fn answers(&self) -> Result<(), Error> {
        let State { control, filter, .. } = &mut *lock(&self.state);
        control.as_mut().map_or(Ok(()), |control| control.probe(filter))
    }

    /// The configuration's interrupt.
    pub(super) fn config_irq(&self) -> Option<Arc<Irq>> {
        self.vectors.as_ref()?.get(usize::from(CONFIG_VECTOR)).cloned()
    }

    /// The interrupt of pair `index`.
    pub(super) fn queue_irq(&self, index: u16) -> Option<Arc<Irq>> {
        self.vectors.as_ref()?.get(usize::from(QUEUE_VECTOR + index)).cloned()
    }

    /// The control queue. [virtio 5.1.2]
    pub(super) fn control(&self) -> u16 {
        2 * self.card_pairs
    }

    fn link_up(&self) -> bool {
        // Without the feature it is always up. [virtio 5.1.4.2]
        self.features & net::STATUS == 0
            || self.transport.config(net::CONFIG_STATUS) & net::LINK_UP != 0
    }

    pub(super) fn link_changed(&self) -> bool {
        self.heard.load(Ordering::Relaxed) != u8::from(self.link_up())
    }

    /// From a stopped device to one that goes, with the rings of `count` pairs of queues.
    fn start(
        &self,
        state: &mut State,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Pair>, Error> {
        self.transport.reset()?;
        let features = self.transport.negotiate(WANTED)?;
        if features != self.features {
            return Err(Error::Protocol(format!(
                "its features have become {features:#x}, and were {:#x}",
                self.features
            )));
        }
        let vector = |vector| if self.vectors.is_some() { vector } else { NO_VECTOR };
        self.transport.signal_config(vector(CONFIG_VECTOR))?;
        let size = |depth: u16, most: u16| {
            depth.checked_next_power_of_two().map_or(most, |size| size.clamp(2, most))
        };
        let make = |queue, depth, pair| {
            let most = self.transport.queue_size(queue).min(MAX_DEPTH);
            // The device says its size anew for each open, and it had more at the first.
            if most < 2 {
                return Err(Error::Protocol(format!(
                    "the device now says that queue {queue} has {most} entries"
                )));
            }
            let made = self.transport.make_queue(
                queue,
                size(depth, most),
                vector(QUEUE_VECTOR + pair),
                features,
            )?;
            Ok::<_, Error>(made.ring_in(self.transport.doorbells()?))
        };
        let pair = |pair| {
            let (receive, transmit) = (receive(pair), transmit(pair));
            Ok(Pair {
                receive: make(receive, settings.rx_depth, pair)?,
                transmit: make(transmit, settings.tx_depth, pair)?,
            })
        };
        let pairs = (0..count).map(pair).collect::<Result<Vec<_>, Error>>()?;
        if has_control(features) {
            state.control = Some(Control::new(&self.transport, self.control(), features)?);
        }
        // Up to here the device touches no memory, whatever it was told. [virtio 2.1.2]
        state.going = SavedRunning::of(
            pairs.iter().map(|pair| [pair.receive.places(), pair.transmit.places()]),
        );
        self.transport.set_driver_ok();
        if let Err(error) = self.command(state, count) {
            let quiesced = self.stop(state);
            pairs.into_iter().filter(|_| !quiesced).for_each(Pair::abandon);
            return Err(error);
        }
        Ok(pairs)
    }

    /// Tells a card that goes what it lets through, and how many pairs it uses.
    fn command(&self, state: &mut State, count: u16) -> Result<(), Error> {
        let Some(control) = &mut state.control else { return Ok(()) };
        control.filter(&state.filter, self.mac)?;
        // One is used without a word. [virtio 5.1.6.5.5]
        if count > 1 { control.use_pairs(count) } else { Ok(()) }
    }

    /// Stops the device; whether it uses no memory any more.
    fn stop(&self, state: &mut State) -> bool {
        let stopped = self.transport.reset().or_else(|error| {
            stop_function(&*self.transport.device, error)?;
            // The reset may have left bus mastering off.
            drop(self.transport.device.set_bus_master(true));
            Ok(())
        });
        let quiesced = stopped
            .as_ref()
            .err()
            .is_none_or(|unstopped: &crate::lifetime::StopFailed| unstopped.quiesced);
        state.lost |= stopped.is_err();
        if let Some(mut control) = state.control.take().filter(|_| !quiesced) {
            control.abandon();
        }
        state.pairs.stop(quiesced);
        state.going = None;
        quiesced
    }

    /// Ends the queue of pair `index`, of which `counters` are. With the last one the card stops;
    /// before that it may still write to the memory of `halves`, which is kept.
    pub(super) fn close(&self, index: u16, counters: Counters, halves: [&mut PacketRing; 2]) {
        let mut state = lock(&self.state);
        state.counters += counters;
        self.live[usize::from(index)].set(&Counters::default());
        if !state.pairs.end(index) {
            halves.into_iter().for_each(|half| state.pairs.park(half));
        } else if !self.stop(&mut state) {
            halves.into_iter().for_each(PacketRing::abandon);
        }
    }
}

impl Nic for Card {
    fn name(&self) -> String {
        self.shared.transport.device.name().into()
    }

    fn info(&self) -> &Info {
        &self.shared.info
    }

    fn dma(&self) -> &Dma {
        self.shared.transport.device.dma()
    }

    fn link(&self) -> Result<Link, Error> {
        self.shared.check()?;
        let up = self.shared.link_up();
        self.shared.heard.store(up.into(), Ordering::Relaxed);
        Ok(Link { up, speed: None, full_duplex: None })
    }

    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        self.shared.check()?;
        Ok(Box::new(LinkWatch::new(self.shared.clone())?))
    }

    fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        self.shared.check()?;
        if self.shared.info.filters.unicast == 0 && filter.promiscuous {
            return Err(Error::Unsupported(format!(
                "{}: it has no control queue for filters",
                self.name()
            )));
        }
        let mut state = lock(&self.shared.state);
        if let Some(control) = &mut state.control {
            control.filter(filter, self.shared.mac)?;
        }
        state.filter = filter.clone();
        Ok(())
    }

    fn counters(&self) -> Result<Counters, Error> {
        self.shared.check()?;
        let mut counters = lock(&self.shared.state).counters;
        self.shared.live.iter().for_each(|live| counters += live.get());
        Ok(counters)
    }

    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.shared.check()?;
        self.shared.info.check_settings(count, settings)?;
        let mut state = lock(&self.shared.state);
        if state.pairs.any_detached() {
            return Err(Error::Busy(format!(
                "{}: its queues were detached: resume them",
                self.name()
            )));
        }
        if state.pairs.any_open() {
            return Err(Error::Busy(format!(
                "{}: its queues are open: drop them first",
                self.name()
            )));
        }
        if state.lost {
            return Err(Error::Fatal(format!(
                "{}: it could not be stopped; open it again",
                self.name()
            )));
        }
        match self.shared.start(&mut state, count, settings) {
            Ok(pairs) => {
                state.pairs.open(pairs.len());
                drop(state);
                let open = |(index, pair): (u16, Pair)| {
                    Box::new(pair.open(self.shared.clone(), index, settings)) as Box<dyn Queue>
                };
                Ok((0..).zip(pairs).map(open).collect())
            }
            Err(error) => {
                self.shared.stop(&mut state);
                Err(error)
            }
        }
    }

    fn resume_queues(&self, saved: &[Saved]) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.resume_all(saved)
    }
}

impl Drop for VirtioNetShared {
    fn drop(&mut self) {
        if *self.left.get_mut() {
            return;
        }
        // Of no queue: that has stopped it. It was left with agreed features and no memory, or with
        // those of queues that nobody has resumed.
        let stopped = self.transport.reset().is_ok();
        lock(&self.state).pairs.stop(stopped);
    }
}
