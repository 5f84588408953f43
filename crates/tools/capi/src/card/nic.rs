//! The card as the class has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ring3_class::dma::{Arena, Dma, NoDevice, Region};
use ring3_class::irq::Irq;
use ring3_class::net::{
    Counters, Filter, FilterLimits, Info, Link, Mac, Nic, Offloads, Queue, QueueSettings,
};
use ring3_class::wait::{Source, Waiter};
use ring3_class::{Deadline, Error};

use super::queue::HostedQueue;
use super::state::CardShared;

/// Bytes of the memory from which the server allocates buffers: what it copies between it and its
/// clients.
const ARENA: usize = 48 << 20;

/// What the program says of its card.
pub(super) struct Description {
    pub(super) model: String,
    pub(super) mac: Mac,
    pub(super) mtu: (u32, u32),
    /// It makes and checks those of TCP and UDP.
    pub(super) checksums: bool,
    /// Most bytes of what it cuts; 0 for nothing.
    pub(super) segmented: u32,
}

pub(super) struct HostedNic {
    info: Info,
    dma: Dma,
    shared: Arc<CardShared>,
}

impl HostedNic {
    pub(super) fn new(description: Description, shared: Arc<CardShared>) -> Result<Self, Error> {
        let Description { model, mac, mtu, checksums, segmented } = description;
        if mtu.0 == 0 || mtu.0 > mtu.1 {
            return Err(Error::Invalid(format!(
                "{model}: packets of {} to {} bytes are none",
                mtu.0, mtu.1
            )));
        }
        let info = Info {
            model,
            mac,
            mtu,
            max_queues: 1,
            max_depth: (1024, 1024),
            headroom: 0,
            max_pieces: 16,
            receives_pieces: false,
            max_segmented: segmented,
            counts_missed: true,
            offloads: Offloads {
                tx_checksum: checksums,
                rx_checksum: checksums,
                tso4: segmented > 0,
                tso6: segmented > 0,
                ..Offloads::default()
            },
            filters: FilterLimits { unicast: 16, multicast: u16::MAX, vlan: false },
            shared: false,
        };
        let dma =
            Dma::new(Arena::new(Region::new(ARENA)?, 0x10_0000), Arc::new(NoDevice::default()));
        Ok(Self { info, dma, shared })
    }
}

impl Nic for HostedNic {
    fn name(&self) -> String {
        self.info.model.clone()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn link(&self) -> Result<Link, Error> {
        self.shared.link.set(0);
        Ok(self.shared.lock().link)
    }

    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        if self.shared.watched.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy("the link is watched already: drop the other watch".into()));
        }
        Ok(Box::new(LinkWatch { waiter: self.shared.link.waiter(), shared: self.shared.clone() }))
    }

    fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        self.shared.set_filter(filter)
    }

    fn counters(&self) -> Result<Counters, Error> {
        Ok(self.shared.counters())
    }

    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.info.check_settings(count, settings)?;
        Ok(vec![Box::new(HostedQueue::open(&self.info, self.shared.clone(), settings)?)])
    }
}

struct LinkWatch {
    shared: Arc<CardShared>,
    waiter: Waiter,
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.shared.watched.store(false, Ordering::Release);
    }
}

impl Source for LinkWatch {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.shared.link.get() > 0
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let shared = &self.shared;
        shared.link.arm(true);
        self.waiter.arm(|| shared.link.get() > 0)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.waiter.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let shared = &self.shared;
        shared.link.arm(true);
        self.waiter.wait(deadline, || shared.link.get() > 0)
    }
}
