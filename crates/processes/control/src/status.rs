//! What is known of supervised devices. The field names are stable: docs/json.md describes them.

use serde::{Deserialize, Serialize};

/// Where a device is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The device is not there, or cannot be claimed; it is waited for.
    Absent,
    /// Its driver starts for the first time.
    Starting,
    /// Its disks are served.
    Running,
    /// Its driver has died: it is fenced, and the next one starts. I/O waits.
    Recovering,
    /// The next start waits, because the last ones failed. I/O waits.
    BackingOff,
    /// Its driver is being replaced by way of a hand-over. I/O waits.
    Upgrading,
    /// It was given up; I/O has failed. `ring3 restart` tries again.
    Failed,
    /// A user stops it, or ring3d ends: its disks are taken from their users, unless somebody uses
    /// them.
    Stopping,
    /// A user has stopped it.
    Stopped,
    /// The machine sleeps, or is about to: the device is stopped. I/O waits.
    Sleeping,
}

/// A supervised device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// What its manifest calls it.
    pub name: String,
    /// Its URI: `vfio:0000:01:00.0`; empty while it is absent.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// Where it is.
    pub state: State,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// The driver's process; 0: none.
    pub pid: u32,
    /// The standby's; 0: none.
    pub standby: u32,
    /// Its disks.
    pub disks: Vec<DiskStatus>,
    /// The interfaces of its network cards.
    #[serde(default)]
    pub interfaces: Vec<InterfaceStatus>,
    /// Drivers that have died since the supervisor began.
    pub restarts: u64,
    /// Drivers that were replaced by a hand-over.
    pub upgrades: u64,
    /// How the last one ended, in words.
    pub last_end: Option<String>,
    /// The last outages, the newest first.
    pub outages: Vec<Outage>,
    /// Interrupts of the device since the driver began.
    pub interrupts: u64,
    /// Faults that the IOMMU has reported of it.
    pub iommu_faults: u64,
    /// Processor time of its driver, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory of its driver without the DMA memory, in bytes.
    pub memory: u64,
    /// Requests since the driver began that lay in clients' memory, so that nobody has copied their
    /// bytes.
    #[serde(default)]
    pub shared_hits: u64,
    /// Which of its limits the machine does not keep, in words.
    #[serde(default)]
    pub unlimited: Vec<String>,
}

/// A disk of a supervised device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// `/dev/ublkbN`.
    pub path: String,
    /// `/dev/ring3/NAME`.
    pub link: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// What its driver calls it: device and namespace.
    #[serde(default)]
    pub disk: String,
    /// Bytes of a block.
    #[serde(default)]
    pub block_size: u32,
    /// Queues.
    #[serde(default)]
    pub queues: u16,
    /// Requests that have ended, read and written, as the kernel counts them.
    pub reads: u64,
    /// The same.
    pub writes: u64,
    /// Bytes of them.
    pub bytes_read: u64,
    /// The same.
    pub bytes_written: u64,
    /// Milliseconds that they took, added up.
    pub io_ms: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that the driver has ended with an error.
    pub errors: u64,
    /// Its partitions, as the kernel knows them: `/dev/ublkb0p1`.
    #[serde(default)]
    pub partitions: Vec<String>,
    /// Why its partition table is not used; `None` if it is, or there is none.
    #[serde(default)]
    pub table: Option<String>,
}

/// A network card of a supervised device, as an interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// By which the kernel names it, in its network namespace.
    pub index: u32,
    /// Its address now, in hexadecimal with colons.
    pub mac: String,
    /// Most bytes of a packet without its Ethernet header.
    pub mtu: u32,
    /// Queues.
    pub queues: u16,
    /// Somebody has set it up.
    pub up: bool,
    /// It has a carrier: the card has a link, or had one before its driver died a moment ago.
    pub carrier: bool,
    /// Packets, as the kernel counts them since the interface was made: received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Received packets for which there was no place.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets that waited in vain to be sent.
    pub tx_dropped: u64,
    /// Packets that the card has lost since its driver began, at most two seconds ago: received,
    /// and no buffer was there.
    #[serde(default)]
    pub rx_missed: u64,
    /// Received damaged, or described by the card in a way that makes no sense.
    #[serde(default)]
    pub rx_errors: u64,
    /// Given to the card to be sent, and lost with a reset of it.
    #[serde(default)]
    pub tx_lost: u64,
}

/// A driver that died, and what that cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    /// When, in seconds since 1970.
    pub at: u64,
    /// Why, in words.
    pub cause: String,
    /// Milliseconds from the death being seen to the fence's end.
    pub fence_ms: f64,
    /// To the driver's offers.
    pub driver_ms: f64,
    /// To the kernel having given the export back.
    pub export_ms: f64,
    /// To all disks being served again; `None`: they were not.
    pub total_ms: Option<f64>,
    /// The function was reset, because its controller did not stop.
    pub reset: bool,
    /// The controller was not stopped at all: its queues were adopted by the next driver.
    #[serde(default)]
    pub adopted: bool,
}
