//! The card as its users see it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use ring3_class::Saved;
use ring3_class::net::{
    Counters, Filter, FilterLimits, Info, Link, Mac, Nic, Offloads, Queue, QueueSettings,
};
use ring3_device::dma::Dma;
use ring3_device::wait::Source;
use ring3_device::{Device, Error};
use ring3_spec::pci;

use super::DRIVER;
use super::card::Card;
use super::counters::Tally;
use super::filter::{GROUPS, UNICAST};
use super::interrupts::Vectors;
use super::link::LinkWatch;
use super::options::Options;
use super::queue::CardQueue;
use super::variant::Variant;
use crate::lifetime::{ControllerState, StopFailed, lock};
use crate::registry::Controller;

/// Most buffers that a queue holds each way.
const MAX_DEPTH: u16 = 1024;
/// Most pieces of a packet that is sent.
const MAX_PIECES: u16 = 32;
/// Most bytes of a packet that is cut, headers included: the IP length of the whole must not wrap.
const MAX_SEGMENTED: u32 = 65535;
/// The least MTU that IPv4 allows. [RFC 791]
const LEAST_MTU: u32 = 68;

/// A card that is driven. Dropping the last of it and its queues resets it.
pub struct E1000 {
    pub(super) shared: Arc<E1000Shared>,
}

/// What a card, its queues and its watch share. A queue's thread takes no lock of it on the way of
/// a packet.
pub(super) struct E1000Shared {
    pub(super) lifetime: ControllerState,
    pub(super) variant: Variant,
    pub(super) vectors: Vectors,
    pub(super) card: Mutex<Card>,
    pub(super) info: Info,
    pub(super) options: Options,
    /// What was last said of the link.
    pub(super) told: Mutex<Link>,
    pub(super) watched: AtomicBool,
    /// What went through each queue, and through those that had its number before.
    pub(super) tallies: Vec<Tally>,
    pub(super) device: Arc<dyn Device>,
}

impl E1000 {
    /// Takes the function over: stops what runs on it, starts it anew, and asks it what it is. It
    /// has a link when it has one; that is not waited for.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        let variant = variant(&*device)?;
        let mut card = Card::new(&*device, variant)?;
        // Whoever had it before may have left it running: it is stopped before it may reach for
        // memory again.
        card.stop(&*device).map_err(|StopFailed { error, .. }| error)?;
        let mac = card.port_address()?;
        let phy = card.start_phy()?;
        tracing::debug!("{}: {mac}, PHY {phy:#010x}", device.name());
        device.set_bus_master(true)?;
        let vectors = Vectors::enable(&*device, card.registers().bar(), variant, &options)?;
        card.set_filter(&Filter::own(mac));
        card.start(&vectors, &options);
        let lifetime = ControllerState::new(device.name());
        Self::with(device, variant, mac, (lifetime, card, vectors, options))
    }

    /// The card with the address `mac` that runs with these.
    pub(super) fn with(
        device: Arc<dyn Device>,
        variant: Variant,
        mac: Mac,
        (lifetime, card, vectors, options): (ControllerState, Card, Vectors, Options),
    ) -> Result<Self, Error> {
        let info = info(variant, mac, vectors.queues(variant.queues));
        let told = Mutex::new(card.link()?);
        let tallies = (0..info.max_queues).map(|_| Tally::default()).collect();
        let (card, watched) = (Mutex::new(card), AtomicBool::new(false));
        let shared = E1000Shared {
            lifetime,
            variant,
            vectors,
            card,
            info,
            options,
            told,
            watched,
            tallies,
            device,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// Which member of the family `device` is.
pub(super) fn variant(device: &dyn Device) -> Result<Variant, Error> {
    DRIVER.check(device)?;
    let id = device.config_read(pci::DEVICE_ID, 2) as u16;
    Variant::of(id).ok_or_else(|| {
        Error::Unsupported(format!("{}: a card {id:04x} is not known to the driver", device.name()))
    })
}

fn info(variant: Variant, mac: Mac, max_queues: u16) -> Info {
    let segments = !variant.errata.hangs_by_headers;
    Info {
        model: variant.model.into(),
        mac,
        mtu: (LEAST_MTU, variant.mtu),
        max_queues,
        max_depth: (MAX_DEPTH, MAX_DEPTH),
        headroom: 0,
        max_pieces: MAX_PIECES,
        receives_pieces: true,
        counts_missed: true,
        max_segmented: if segments { MAX_SEGMENTED } else { 0 },
        offloads: Offloads {
            tx_checksum: true,
            rx_checksum: true,
            tso4: segments,
            tso6: segments,
            vlan_insert: true,
            vlan_strip: true,
            hash: max_queues > 1,
            ..Offloads::default()
        },
        filters: FilterLimits { unicast: UNICAST as u16, multicast: GROUPS as u16, vlan: true },
        shared: false,
    }
}

impl Nic for E1000 {
    fn name(&self) -> String {
        self.shared.device.name().into()
    }

    fn info(&self) -> &Info {
        &self.shared.info
    }

    fn dma(&self) -> &Dma {
        self.shared.device.dma()
    }

    fn link(&self) -> Result<Link, Error> {
        self.shared.lifetime.check()?;
        let link = lock(&self.shared.card).link()?;
        *lock(&self.shared.told) = link;
        Ok(link)
    }

    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        self.shared.lifetime.check()?;
        Ok(Box::new(LinkWatch::new(&self.shared)?))
    }

    fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        self.shared.lifetime.check()?;
        let mut card = lock(&self.shared.card);
        card.set_filter(filter);
        card.status().map(drop)
    }

    fn counters(&self) -> Result<Counters, Error> {
        self.shared.lifetime.check()?;
        let mut card = lock(&self.shared.card);
        card.status()?;
        card.count_missed();
        let mut counters = Counters::default();
        self.shared.tallies.iter().for_each(|tally| counters += tally.get());
        Ok(Counters { rx_missed: card.missed, ..counters })
    }

    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.shared.lifetime.check()?;
        self.shared.info.check_settings(count, settings)?;
        let queues = CardQueue::open(&self.shared, count, settings)?;
        Ok(queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Queue>).collect())
    }

    fn resume_queues(&self, saved: &[Saved]) -> Result<Vec<Box<dyn Queue>>, Error> {
        let queues = CardQueue::resume(&self.shared, saved)?;
        Ok(queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Queue>).collect())
    }
}

impl Drop for E1000Shared {
    fn drop(&mut self) {
        // Without a queue it owns no memory of ours: whoever comes next starts it anew.
        if self.lifetime.check().is_ok()
            && let Ok(card) = self.card.get_mut()
            && let Err(StopFailed { error, .. }) = card.stop(&*self.device)
        {
            tracing::warn!("{}: it could not be reset at the end: {error}", self.device.name());
        }
    }
}

impl Controller for Arc<E1000> {
    fn detach(&mut self) -> Result<Saved, Error> {
        E1000::detach(self)
    }
}
