//! The common configuration. [virtio 4.1.4.3]

use crate::register::{Reg, Ro, Rw};

/// Bytes up to the queue's addresses, all of them included.
pub const LEN: u64 = 0x38;

/// Which 32 features the device shows.
pub const DEVICE_FEATURE_SELECT: Reg<u32, Rw> = Reg::at(0x00);
/// These features.
pub const DEVICE_FEATURE: Reg<u32, Ro> = Reg::at(0x04);
/// Which 32 features the driver writes.
pub const DRIVER_FEATURE_SELECT: Reg<u32, Rw> = Reg::at(0x08);
/// These features.
pub const DRIVER_FEATURE: Reg<u32, Rw> = Reg::at(0x0c);
/// The vector of changes of the configuration.
pub const CONFIG_VECTOR: Reg<u16, Rw> = Reg::at(0x10);
/// Most queues.
pub const NUM_QUEUES: Reg<u16, Ro> = Reg::at(0x12);
/// The device's status; zero resets it, and reads zero when that is done.
pub const DEVICE_STATUS: Reg<u8, Rw> = Reg::at(0x14);
/// Changes whenever the device's configuration does.
pub const CONFIG_GENERATION: Reg<u8, Ro> = Reg::at(0x15);
/// The queue of which the registers from here on are.
pub const QUEUE_SELECT: Reg<u16, Rw> = Reg::at(0x16);
/// Its entries: the most at first, zero if there is no such queue.
pub const QUEUE_SIZE: Reg<u16, Rw> = Reg::at(0x18);
/// Its vector.
pub const QUEUE_VECTOR: Reg<u16, Rw> = Reg::at(0x1a);
/// Whether it is enabled; only a reset disables it.
pub const QUEUE_ENABLE: Reg<u16, Rw> = Reg::at(0x1c);
/// Where it is notified, in units of the notification structure's multiplier.
pub const QUEUE_NOTIFY_OFF: Reg<u16, Ro> = Reg::at(0x1e);
/// Where its descriptors are, as two halves.
pub const QUEUE_DESC: Reg<u64, Rw> = Reg::at(0x20);
/// Where the driver's area is, as two halves.
pub const QUEUE_DRIVER: Reg<u64, Rw> = Reg::at(0x28);
/// Where the device's area is, as two halves.
pub const QUEUE_DEVICE: Reg<u64, Rw> = Reg::at(0x30);
