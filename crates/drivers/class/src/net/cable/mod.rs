//! Two cards and the cable between them, in memory. Everything above a driver can be tested with
//! them, and they define the meaning of the class's terms.

mod queue;
mod side;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_device::Error;
use ring3_device::dma::{Arena, Dma, NoDevice, Region};
use ring3_device::wait::Source;

use super::{Counters, Filter, FilterLimits, Info, Link, Mac, Nic, Offloads, Queue, QueueSettings};
use crate::Saved;
use queue::CableQueue;
use side::{Side, Watch};

/// A cable, of which the two ends are cards. Pulling it out is a link that is down for both.
pub struct Cable {
    shared: Arc<CableShared>,
}

/// One end: a card with one queue.
pub struct End {
    info: Info,
    dma: Dma,
    side: usize,
    shared: Arc<CableShared>,
}

struct CableShared {
    plugged: AtomicBool,
    sides: [Mutex<Side>; 2],
}

impl CableShared {
    /// One lock for a batch; a cable is no fast path.
    fn side(&self, side: usize) -> MutexGuard<'_, Side> {
        self.sides[side].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plugged(&self) -> bool {
        self.plugged.load(Ordering::Acquire)
    }
}

impl Cable {
    /// A cable with its ends, which have addresses `02:00:00:00:00:01` and `…:02`, and `arena`
    /// bytes of memory each.
    pub fn new(arena: usize) -> Result<(Self, End, End), Error> {
        let addresses = [1, 2].map(|last| Mac([2, 0, 0, 0, 0, last]));
        let sides = [Side::new(addresses[0])?, Side::new(addresses[1])?].map(Mutex::new);
        let shared = Arc::new(CableShared { plugged: AtomicBool::new(true), sides });
        let end = |side: usize| -> Result<End, Error> {
            let dma =
                Dma::new(Arena::new(Region::new(arena)?, 0x10_0000), Arc::new(NoDevice::default()));
            Ok(End { info: info(addresses[side]), dma, side, shared: shared.clone() })
        };
        let (one, other) = (end(0)?, end(1)?);
        Ok((Self { shared }, one, other))
    }

    /// Pulls it out, or plugs it in again.
    pub fn plug(&self, plugged: bool) {
        if self.shared.plugged.swap(plugged, Ordering::AcqRel) != plugged {
            (0..2).for_each(|side| self.shared.side(side).watch.changed());
        }
    }
}

fn info(mac: Mac) -> Info {
    Info {
        model: "ring3 cable".into(),
        mac,
        mtu: (68, 9000),
        max_queues: 1,
        max_depth: (1024, 1024),
        headroom: 0,
        max_pieces: 16,
        receives_pieces: true,
        max_segmented: 0,
        counts_missed: true,
        offloads: Offloads {
            tx_checksum: true,
            rx_checksum: true,
            vlan_insert: true,
            vlan_strip: true,
            ..Offloads::default()
        },
        filters: FilterLimits { unicast: u16::MAX, multicast: u16::MAX, vlan: true },
        shared: false,
    }
}

impl Nic for End {
    fn name(&self) -> String {
        format!("cable end {}", self.side)
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn link(&self) -> Result<Link, Error> {
        self.shared.side(self.side).watch.heard();
        Ok(Link { up: self.shared.plugged(), speed: None, full_duplex: Some(true) })
    }

    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        Watch::take(&self.shared.side(self.side).watch)
    }

    fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        self.shared.side(self.side).filter = filter.clone();
        Ok(())
    }

    fn counters(&self) -> Result<Counters, Error> {
        Ok(self.shared.side(self.side).counters)
    }

    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.info.check_settings(count, settings)?;
        Ok(vec![Box::new(CableQueue::open(self, settings)?)])
    }

    fn resume_queues(&self, saved: &[Saved]) -> Result<Vec<Box<dyn Queue>>, Error> {
        let [saved] = saved else {
            return Err(Error::Invalid(format!("{}: it has one queue", self.name())));
        };
        Ok(vec![Box::new(CableQueue::resume(self, saved)?)])
    }
}
