//! A drive as a disk.

use std::sync::Arc;

use ring3_class::block::{Disk, Info, Queue};
use ring3_device::Error;
use ring3_device::dma::Dma;

use super::super::identity::Identity;
use super::channel::drive_name;
use super::controller::IdeShared;
use super::queue::DriveQueue;
use super::stats::Stats;

/// One drive of a controller. Clones are handles to the same one.
pub struct Drive {
    shared: Arc<IdeShared>,
    place: (u8, u8),
    identity: Arc<Identity>,
    info: Arc<Info>,
}

impl Drive {
    pub(super) fn new(
        shared: Arc<IdeShared>,
        place: (u8, u8),
        identity: Identity,
        info: Info,
    ) -> Self {
        Self { shared, place, identity: Arc::new(identity), info: Arc::new(info) }
    }

    /// What it says about itself; `multiple` is what was agreed upon.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its channel (0 is the primary, 1 the secondary), and whether it is the channel's master (0)
    /// or slave (1).
    pub fn place(&self) -> (u8, u8) {
        self.place
    }

    /// How its data move now, in words: the transfer mode.
    pub fn mode(&self) -> String {
        let mode = self
            .shared
            .channel(self.place.0)
            .and_then(|mut channel| channel.state(self.place.1).map(|state| state.mode));
        mode.map_or_else(String::new, |mode| mode.to_string())
    }

    /// What its channel has met so far.
    pub fn stats(&self) -> Stats {
        self.shared.channel(self.place.0).map(|channel| channel.stats).unwrap_or_default()
    }
}

impl Clone for Drive {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            place: self.place,
            identity: self.identity.clone(),
            info: self.info.clone(),
        }
    }
}

impl Disk for Drive {
    fn name(&self) -> String {
        drive_name(self.shared.function.device.name(), self.place.0, self.place.1)
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        self.shared.function.device.dma()
    }

    fn max_queues(&self) -> u16 {
        1
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(DriveQueue::open(self.shared.clone(), self.place, self.info.clone(), depth)?))
    }
}
