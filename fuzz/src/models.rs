//! Models of devices, each behind the same face.

use std::sync::{Arc, OnceLock};

use ring3_device::dma::Region;
use ring3_device::{Device, OpenOptions};
use ring3_driver::registry::Driver;
use ring3_model::{Blocked, DmaFault, Model, SimDevice, SimHandle};

/// Bytes of a driver's memory.
const ARENA: usize = 2 << 20;

/// A model's device, and what it can be asked beside.
pub struct Modelled {
    /// For the driver.
    pub device: Arc<dyn Device>,
    faults: Faults,
    raise: Raise,
}

/// Raises a message of a device.
pub type Raise = Box<dyn Fn(u16) + Send + Sync>;
/// Says which accesses of a device were blocked.
pub type Faults = Box<dyn Fn() -> Vec<DmaFault>>;

impl Modelled {
    /// The model that `uri` names: `sim:nvme,block=4096`.
    pub fn open(uri: &str) -> Self {
        let uri = uri.parse().expect("the targets' own text");
        let options = |name: &str| {
            let class = match name {
                "nvme" => 0x01_08_02,
                "ahci" => 0x01_06_01,
                "ide" => 0x01_01_80,
                _ => 0,
            };
            let below = if class == 0 { u64::MAX } else { Driver::dma_limit(Some(class), None) };
            OpenOptions { below, memory: Some(memory()), ..OpenOptions::default() }
        };
        let ring3_device::Uri { target, .. } = &uri;
        let asked = options(target);
        match target.as_str() {
            "nvme" => Self::of(ring3_model::nvme::open(&uri, asked)),
            "ahci" => Self::of(ring3_model::ahci::open(&uri, asked)),
            "ide" => Self::of(ring3_model::ide::open(&uri, asked)),
            "virtio-blk" => Self::of(ring3_model::virtio::blk::open(&uri, asked)),
            "virtio-net" => Self::of(ring3_model::virtio::net::open(&uri, asked)),
            "e1000" => Self::of(ring3_model::e1000::open(&uri, asked)),
            other => panic!("there is no model {other}"),
        }
    }

    fn of<M: Model>(opened: Result<SimDevice<M>, ring3_device::Error>) -> Self {
        let device = opened.unwrap_or_else(|error| panic!("a model does not open: {error}"));
        let (handle, for_messages): (SimHandle<M>, _) = (device.handle(), device.handle());
        Self {
            device: Arc::new(device),
            faults: Box::new(move || handle.faults()),
            raise: Box::new(move |vector| for_messages.raise(vector)),
        }
    }

    /// The device, and what raises its messages.
    pub fn parts(self) -> (Arc<dyn Device>, Raise, Faults) {
        (self.device, self.raise, self.faults)
    }
}

/// Zeroed memory for one driver. It is the same each time: to make it costs as much as an input.
fn memory() -> Arc<Region> {
    static MEMORY: OnceLock<Arc<Region>> = OnceLock::new();
    let memory = MEMORY.get_or_init(|| Arc::new(Region::new(ARENA).expect("there is no memory")));
    memory.write(0, &vec![0; ARENA]).expect("the memory has so many bytes");
    memory.clone()
}

/// The accesses among `faults` to addresses that the driver has not mapped. An access with bus
/// mastering off is one that the driver has stopped.
pub fn strays(faults: &[DmaFault]) -> Vec<DmaFault> {
    faults.iter().filter(|fault| fault.reason == Blocked::Unmapped).copied().collect()
}
