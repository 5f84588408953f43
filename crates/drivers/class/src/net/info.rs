//! The description of a network card.

use ring3_device::Error;
use serde::{Deserialize, Serialize};

use super::{Filter, Mac};

/// A card's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Maker's name for it.
    pub model: String,
    /// The address that the card was made with.
    pub mac: Mac,
    /// The least and the largest packet without its Ethernet header that it can be set to, bytes.
    pub mtu: (u32, u32),
    /// Queues that can be open at the same time, each for both directions.
    pub max_queues: u16,
    /// Most buffers that one queue holds for each direction: receive, transmit.
    pub max_depth: (u16, u16),
    /// Bytes before a packet that the driver needs for itself, and may overwrite in both
    /// directions.
    pub headroom: u32,
    /// Most pieces of one packet that is sent.
    pub max_pieces: u16,
    /// Whether a packet that is longer than a buffer is received in several; otherwise buffers must
    /// have room for the longest.
    pub receives_pieces: bool,
    /// Most bytes of a packet that the card cuts into frames, headers included; 0 if it cuts none.
    pub max_segmented: u32,
    /// Whether it counts packets for which there was no buffer.
    pub counts_missed: bool,
    /// What it does for the packets of its users.
    pub offloads: Offloads,
    /// Addresses that it compares itself; beyond them it lets everything of the kind through.
    pub filters: FilterLimits,
    /// It is one user's part of a card that several share: it sends from [`mac`](Self::mac) alone,
    /// and receives what is for that address, for its groups and for everybody, all without tags.
    /// Another address and promiscuity are [`Error::Unsupported`] in
    /// [`set_filter`](super::Nic::set_filter); packets from another address, or with a tag, come
    /// back [unsent](Counters::tx_lost).
    #[serde(default)]
    pub shared: bool,
}

/// What a card does for the packets of its users. What is false is refused in
/// [`tx_provide`](super::Queue::tx_provide), or never said of a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    /// Checksums of what is sent.
    pub tx_checksum: bool,
    /// Checksums of what is received.
    pub rx_checksum: bool,
    /// Cutting TCP over IPv4.
    pub tso4: bool,
    /// Cutting TCP over IPv6.
    pub tso6: bool,
    /// Cutting UDP.
    pub uso: bool,
    /// Putting frames of one flow together: received packets may have
    /// [`segmentation`](super::Meta::segmentation).
    pub coalescing: bool,
    /// Putting tags into what is sent.
    pub vlan_insert: bool,
    /// Taking tags out of what is received; otherwise they stay in the bytes.
    pub vlan_strip: bool,
    /// A hash of what is received, by which queues are chosen, where several are open: packets of a
    /// flow have the same ([`Meta::hash`](super::Meta::hash)).
    pub hash: bool,
}

/// How much of a [`Filter`](super::Filter) the card keeps exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterLimits {
    /// Unicast addresses, its own included.
    pub unicast: u16,
    /// Multicast addresses.
    pub multicast: u16,
    /// Whether frames of other VLANs than the wanted are dropped.
    pub vlan: bool,
}

/// The state of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Whether there is somebody at the other end.
    pub up: bool,
    /// Megabits per second, if the card knows.
    pub speed: Option<u32>,
    /// Whether both ends may send at once, if the card knows.
    pub full_duplex: Option<bool>,
}

/// How queues are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// Buffers that a queue holds for reception; fewer if the card can do no more.
    pub rx_depth: u16,
    /// The same for transmission.
    pub tx_depth: u16,
    /// Most bytes of a packet without its Ethernet header.
    pub mtu: u32,
    /// Bytes that each buffer for reception has at least, from its packet's start on.
    pub rx_room: u32,
}

impl Default for QueueSettings {
    /// 256 buffers each way, for packets of 1,500 bytes in buffers of 2 KiB.
    fn default() -> Self {
        Self { rx_depth: 256, tx_depth: 256, mtu: 1500, rx_room: 2048 }
    }
}

/// What went through, and what did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets for which there was no buffer. A card that another process drives may count them up
    /// to 0.2 s later.
    pub rx_missed: u64,
    /// Packets that were damaged, or too long, or that the card has described in a way that cannot
    /// be.
    pub rx_errors: u64,
    /// Packets sent, as they were provided.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets that came back and were not sent: without a link, by a reset, by an error of the
    /// card.
    pub tx_lost: u64,
}

impl Info {
    /// Whether a [shared](Self::shared) card's user asks for what is not his; the error that says
    /// so. Cards that are whole allow everything.
    pub fn check_filter(&self, filter: &Filter) -> Result<(), Error> {
        if !self.shared
            || filter.address == self.mac && filter.unicast.is_empty() && !filter.promiscuous
        {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "a shared card receives for {} alone: no other addresses, and not everything",
            self.mac
        )))
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.rx_packets += other.rx_packets;
        self.rx_bytes += other.rx_bytes;
        self.rx_missed += other.rx_missed;
        self.rx_errors += other.rx_errors;
        self.tx_packets += other.tx_packets;
        self.tx_bytes += other.tx_bytes;
        self.tx_lost += other.tx_lost;
    }
}
