//! The supervisor and one driver process.
//!
//! # Order
//! [`DriverCommand::Prepare`] comes first, and is answered by [`DriverMessage::Standby`] once the
//! process is confined and waits. [`DriverCommand::Drive`] brings the lease: the process opens or
//! resumes the device and answers with [`DriverMessage::Offers`]. For each disk comes
//! [`DriverCommand::Serve`] with its `/dev/ublkcN`, answered by [`DriverMessage::Serving`] when all
//! queues wait for requests: only then the supervisor starts the kernel's device. For each network
//! card comes [`DriverCommand::Connect`] with its interface's queues, answered the same way; then
//! [`DriverCommand::Wish`] and [`DriverMessage::Link`] come whenever something has changed.
//! [`DriverCommand::Region`] comes before a disk is served, and after, and
//! [`DriverCommand::Forget`] after; both are answered by [`DriverMessage::Heard`] if they have a
//! number. [`DriverCommand::Share`] comes in place of both, and is answered by
//! [`DriverMessage::Shared`] and [`DriverMessage::Serving`]; with [`Prepare::beside`] it comes
//! before [`DriverCommand::Serve`], and is answered by [`DriverMessage::Shared`] alone.
//! [`DriverMessage::Adoptable`] follows the last disk, if it was wanted. [`DriverCommand::Leave`],
//! [`DriverCommand::Stop`] and [`DriverCommand::Rest`] end it. [`DriverMessage::Failed`] may come
//! at any time and is the last word.

use serde::{Deserialize, Serialize};

/// The protocol's version.
pub const VERSION: u32 = 1;

/// What a process is to be, known before there is a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// [`VERSION`].
    pub version: u32,
    /// What the user calls the device.
    pub name: String,
    /// The family of drivers; the one for the device's class if `None`.
    #[serde(default)]
    pub family: Option<String>,
    /// The one namespace or drive that is wanted; all if `None`.
    #[serde(default)]
    pub part: Option<u32>,
    /// How the device signals: `auto`, `msix`, `msi`, `intx` or `poll`.
    pub interrupts: String,
    /// How often a network card may interrupt; as its driver thinks best if `None`.
    #[serde(default)]
    pub throttle: Option<String>,
    /// What the user wants otherwise than the driver's table of quirks has it: `NAME` or `no-NAME`.
    #[serde(default)]
    pub quirks: Vec<String>,
    /// Most bytes of memory that an NVMe controller gets for itself; the driver's usual limit if
    /// `None`.
    #[serde(default)]
    pub host_memory: Option<u64>,
    /// Milliseconds that an NVMe controller may take to leave a power state that it enters by
    /// itself; the driver's usual limit if `None`.
    #[serde(default)]
    pub power_latency_ms: Option<u32>,
    /// Queues of each disk.
    pub queues: u16,
    /// Requests of each queue.
    pub depth: u16,
    /// Most bytes of a request.
    pub max_bytes: u32,
    /// Microseconds for which a queue polls before it sleeps.
    pub poll_us: u64,
    /// The user whom the process becomes; one who owns nothing if `None`.
    #[serde(default)]
    pub user: Option<u32>,
    /// The same: its group.
    #[serde(default)]
    pub group: Option<u32>,
    /// It does without its sandbox, because who starts it has no right to make one: on models only.
    #[serde(default)]
    pub unconfined: bool,
    /// [`DriverMessage::Adoptable`] is wanted.
    #[serde(default)]
    pub adoptable: bool,
    /// What it offers is shared with clients ([`DriverCommand::Share`]), and the kernel has none of
    /// it.
    #[serde(default)]
    pub shared: bool,
    /// The one disk is shared with clients beside the kernel's device.
    #[serde(default)]
    pub beside: bool,
    /// Commands are for many requests at once, where the kernel's device has them.
    #[serde(default)]
    pub batch: bool,
    /// Requests to its disks may lie in clients' memory ([`DriverCommand::Region`]).
    #[serde(default)]
    pub lent: bool,
    /// What moves the packets of network cards: `auto`, `tap` or `vhost`. As `tap` if `None`.
    #[serde(default)]
    pub engine: Option<String>,
}

/// What the supervisor tells a driver process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverCommand {
    /// Be ready. Beside it: the stats segment.
    Prepare(Box<Prepare>),
    /// Drive the device of the lease beside the message. If `resume` or `adopt`, a file follows the
    /// lease beside it, with what the last driver has saved.
    Drive {
        /// Go on with a device that was left running.
        resume: bool,
        /// Go on with one whose driver was killed, and which was not fenced; if that cannot be,
        /// stop it, and start it.
        #[serde(default)]
        adopt: bool,
    },
    /// Serve a disk. Beside it: its `/dev/ublkcN`.
    Serve(Serve),
    /// Requests of a disk may lie in a client's memory from now on. Beside it: that, a memory file.
    Region(Region),
    /// They do not any more: the kernel has forgotten it. The device does not reach it when this is
    /// answered.
    Forget(Region),
    /// Move packets between a network card and its interface. Beside it: a descriptor of each queue
    /// of the TAP.
    Connect(Connect),
    /// Share the one disk, or network card, with clients. Beside it: the sockets, which listen.
    Share(Share),
    /// What is wanted of a card's interface has changed.
    Wish {
        /// The card's place in [`DriverMessage::Offers`].
        nic: u16,
        /// All that is wanted now.
        settings: InterfaceSettings,
    },
    /// End every request of users with an error from now on, but for those that are with the
    /// device: the kernel's devices are taken from them.
    Refuse,
    /// Finish what is with the device, take nothing more, and leave the device as it runs:
    /// [`DriverMessage::Left`].
    Leave,
    /// Flush, stop the device, and end: [`DriverMessage::Stopped`]. The kernel's devices are
    /// stopped before.
    Stop,
    /// The same, while the kernel's devices stay for another process: end what is with the device,
    /// take nothing more, flush, stop the device, and end.
    Rest,
}

/// How a disk is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serve {
    /// Its place in [`DriverMessage::Offers`].
    pub disk: u16,
    /// N in `/dev/ublkbN`.
    pub id: u32,
    /// Hardware queues.
    pub queues: u16,
    /// Tags of each.
    pub depth: u16,
    /// Bytes of each tag's buffer.
    pub buffer: u32,
    /// The CPUs that submit to each queue.
    pub cpus: Vec<Vec<usize>>,
    /// How commands are numbered: see the export.
    pub encoded: bool,
    /// Commands are for many requests at once.
    #[serde(default)]
    pub batches: bool,
}

/// A client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// The disk's place in [`DriverMessage::Offers`].
    pub disk: u16,
    /// As the kernel calls it.
    pub index: u16,
    /// The order's number, by which it is answered; 0 is not answered. An order may come twice.
    pub number: u64,
}

/// How a network card becomes an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connect {
    /// Its place in [`DriverMessage::Offers`].
    pub nic: u16,
    /// The interface's name, for messages.
    pub interface: String,
    /// What is wanted of it.
    pub settings: InterfaceSettings,
}

/// How a disk or a network card is shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// It is a network card.
    pub card: bool,
    /// Of each socket, its path and terms as users write them: `PATH[,KEY=VALUE]...`.
    pub sockets: Vec<String>,
    /// Requests of all clients together in a disk's hands.
    pub depth: u16,
    /// Copy, also where the device could reach clients' memory.
    pub copy: bool,
}

/// Bytes of the arena of a device that is shared: buffers to copy through, where clients' memory is
/// not reached, and those that a card receives into.
pub const SHARED_ARENA: usize = 48 << 20;

/// What the users of an interface want of its card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceSettings {
    /// Its Ethernet address.
    pub address: [u8; 6],
    /// Most bytes of a packet without its Ethernet header.
    pub mtu: u32,
    /// Further addresses of its users.
    pub unicast: Vec<[u8; 6]>,
    /// Groups; `None`: all.
    pub groups: Option<Vec<[u8; 6]>>,
    /// Every packet, whoever it is for.
    pub promiscuous: bool,
}

/// What a driver process tells the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverMessage {
    /// It is confined and waits for a lease.
    Standby,
    /// The device is driven.
    Offers {
        /// What it offers, at most 128.
        disks: Vec<OfferedDisk>,
        /// The same: network cards.
        #[serde(default)]
        nics: Vec<OfferedNic>,
        /// What of it cannot be used, and why.
        refused: Vec<String>,
        /// The device was adopted from a driver that was killed, without a reset.
        #[serde(default)]
        adopted: bool,
    },
    /// If this process is killed from now on, its device can be adopted by what is in the file
    /// beside the message.
    Adoptable,
    /// All queues of a disk wait for requests, or those of a network card move packets.
    Serving {
        /// Its place among the disks, or the cards.
        disk: u16,
    },
    /// What was ordered of a client's memory is so.
    Heard {
        /// The order's number.
        number: u64,
        /// It is not so, and why.
        #[serde(default)]
        refused: Option<String>,
    },
    /// It is shared. [`DriverMessage::Serving`] follows.
    Shared {
        /// The device reaches clients' memory by itself.
        mapped: bool,
        /// Of a card: the addresses of all clients' places, socket by socket.
        addresses: Vec<[u8; 6]>,
    },
    /// The link of a network card is so now.
    Link {
        /// Its place.
        nic: u16,
        /// There is somebody at the other end of the wire.
        up: bool,
        /// Megabits per second, if the card knows.
        #[serde(default)]
        speed: Option<u32>,
        /// Whether both ends may send at once, if the card knows.
        #[serde(default)]
        full_duplex: Option<bool>,
    },
    /// The device has reported something.
    Event {
        /// In words.
        text: String,
    },
    /// It has left the device running, and holds nothing of it any more, its lease included. Beside
    /// it: a file with what is saved. The process is ended.
    Left,
    /// The device is stopped. The process ends.
    Stopped,
    /// It cannot go on, and ends.
    Failed {
        /// Why, in words.
        error: String,
        /// The device is gone: another start will not help before it is back.
        gone: bool,
    },
}

/// A disk that a driver offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedDisk {
    /// In messages: `vfio:0000:01:00.0 namespace 1`.
    pub name: String,
    /// What it calls itself.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// What tells it from other disks; empty if the driver is of a version that does not say.
    #[serde(default)]
    pub identity: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Queues that can be open at the same time.
    pub max_queues: u16,
    /// Most bytes of a request.
    pub max_transfer: u32,
    /// The size in bytes at which it works best.
    pub optimal_io: u32,
    /// The bytes whose multiples requests are best kept from crossing; 0: none.
    #[serde(default)]
    pub boundary: u32,
    /// It has a cache that loses its content without power.
    pub volatile_cache: bool,
    /// It can write through that.
    pub fua: bool,
    /// Most blocks of a write of zeroes; 0: none.
    pub max_write_zeroes_blocks: u32,
    /// Blocks can be discarded: the most at once, and the granularity in bytes.
    pub discard: Option<(u32, u32)>,
    /// It cannot be written.
    pub read_only: bool,
    /// It turns.
    pub rotates: bool,
}

impl OfferedDisk {
    /// Whether it is the disk that was offered as `before`, maybe with another size.
    pub fn is(&self, before: &Self) -> bool {
        if self.identity.is_empty() || before.identity.is_empty() {
            return (&self.model, &self.serial) == (&before.model, &before.serial);
        }
        self.identity == before.identity
    }
}

/// A network card that a driver offers: what its interface is made by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedNic {
    /// In messages: `vfio:0000:01:00.0`.
    pub name: String,
    /// What it calls itself.
    pub model: String,
    /// The address that it was made with.
    pub mac: [u8; 6],
    /// The least and the largest packet without its Ethernet header that it can be set to, in
    /// bytes.
    pub mtu: (u32, u32),
    /// Queues that can be open at the same time.
    pub max_queues: u16,
    /// Most bytes of a packet that it cuts into frames; 0: none.
    pub max_segmented: u32,
    /// It makes checksums of what is sent.
    pub tx_checksum: bool,
    /// It cuts TCP over IPv4, TCP over IPv6, and UDP.
    pub cuts: (bool, bool, bool),
}

/// What a device offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Its disks.
    pub disks: Vec<OfferedDisk>,
    /// Its network cards.
    pub nics: Vec<OfferedNic>,
}

impl Offered {
    /// How many there are of either.
    pub fn len(&self) -> usize {
        self.disks.len() + self.nics.len()
    }

    /// Whether it offers nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
