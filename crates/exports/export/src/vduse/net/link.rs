//! A virtio card as its interface has it.

use std::sync::Arc;

use ring3_spec::virtio::net;
use ring3_vduse::{Device, vdpa};

use super::half::VduseRing;
use crate::vduse::gate::QueueHandover;

/// The kernel's side of an interface that is a virtio card.
#[derive(Clone, Debug)]
pub struct Link {
    pub(super) device: Arc<Device>,
    pub(super) gates: [Arc<QueueHandover>; 2],
}

impl Link {
    /// What the card receives, and what it sends.
    pub fn halves(&self) -> (VduseRing, VduseRing) {
        let half = |number: u16| {
            VduseRing::new(self.device.clone(), self.gates[usize::from(number)].clone(), number)
        };
        (half(0), half(1))
    }

    /// What the virtio bus calls the card; `None` of one that was taken from the vDPA bus.
    pub fn device(&self) -> Option<String> {
        vdpa::device(self.device.name())
    }

    /// Whether there is somebody at the other end of the card's wire.
    pub fn set_carrier(&self, up: bool) -> Result<(), ring3_vduse::Error> {
        self.device.set_config(
            net::CONFIG_STATUS.offset() as u32,
            &u16::to_le_bytes(if up { net::LINK_UP } else { 0 }),
        )
    }
}
