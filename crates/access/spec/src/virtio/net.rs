//! Network cards. [virtio 5.1]

use crate::layout;
use crate::register::{Reg, Ro};

/// The device's type. [virtio 5.1.1]
pub const TYPE: u16 = 1;
/// PCI device id. [virtio 4.1.2]
pub const DEVICE: u16 = super::DEVICE_BASE + TYPE;

/// Feature: makes checksums of what is sent. [virtio 5.1.3]
pub const CSUM: u64 = 1 << 0;
/// Feature: the driver takes packets with partial checksums. [virtio 5.1.3]
pub const GUEST_CSUM: u64 = 1 << 1;
/// Feature: says the largest MTU. [virtio 5.1.3]
pub const MTU: u64 = 1 << 3;
/// Feature: has an address. [virtio 5.1.3]
pub const MAC: u64 = 1 << 5;
/// Feature: the driver takes TCP over IPv4 that was put together. [virtio 5.1.3]
pub const GUEST_TSO4: u64 = 1 << 7;
/// Feature: the same over IPv6. [virtio 5.1.3]
pub const GUEST_TSO6: u64 = 1 << 8;
/// Feature: cuts TCP over IPv4. [virtio 5.1.3]
pub const HOST_TSO4: u64 = 1 << 11;
/// Feature: the same over IPv6. [virtio 5.1.3]
pub const HOST_TSO6: u64 = 1 << 12;
/// Feature: a received packet may take several buffers. [virtio 5.1.3]
pub const MRG_RXBUF: u64 = 1 << 15;
/// Feature: says the state of the link. [virtio 5.1.3]
pub const STATUS: u64 = 1 << 16;
/// Feature: a control queue. [virtio 5.1.3]
pub const CTRL_VQ: u64 = 1 << 17;
/// Feature: filters by it. [virtio 5.1.3]
pub const CTRL_RX: u64 = 1 << 18;
/// Feature: filters VLANs by it. [virtio 5.1.3]
pub const CTRL_VLAN: u64 = 1 << 19;
/// Feature: several pairs of queues. [virtio 5.1.3]
pub const MQ: u64 = 1 << 22;
/// Feature: another address by it. [virtio 5.1.3]
pub const CTRL_MAC_ADDR: u64 = 1 << 23;

/// Configuration: the address, six bytes. [virtio 5.1.4]
pub const CONFIG_MAC: u32 = 0;
/// Configuration: the state of the link. [virtio 5.1.4]
pub const CONFIG_STATUS: Reg<u16, Ro> = Reg::at(6);
/// Configuration: most pairs of queues. [virtio 5.1.4]
pub const CONFIG_MAX_PAIRS: Reg<u16, Ro> = Reg::at(8);
/// Configuration: the largest MTU. [virtio 5.1.4]
pub const CONFIG_MTU: Reg<u16, Ro> = Reg::at(10);
/// Bytes of the configuration up to there.
pub const CONFIG_LEN: u64 = 12;
/// `CONFIG_STATUS`: the link is up. [virtio 5.1.4]
pub const LINK_UP: u16 = 1;

/// Bytes of the header before each packet. [virtio 5.1.6]
pub const HEADER: u32 = 12;

layout! {
    /// The header before each packet. [virtio 5.1.6]
    pub struct Header[12] {
        /// What is known of the checksum.
        flags, set_flags: u8 @ 0;
        /// What the packet is to be cut as.
        gso_type, set_gso_type: u8 @ 1;
        /// Bytes of all headers.
        header_len, set_header_len: u16 @ 2;
        /// Bytes of payload of each frame.
        gso_size, set_gso_size: u16 @ 4;
        /// Where summing begins.
        csum_start, set_csum_start: u16 @ 6;
        /// Where the field is from there.
        csum_offset, set_csum_offset: u16 @ 8;
        /// Received: how many buffers it took.
        buffers, set_buffers: u16 @ 10;
    }
}

/// Header flag: the checksum is partial. [virtio 5.1.6]
pub const NEEDS_CSUM: u8 = 1;
/// Header flag: the checksum was found right. [virtio 5.1.6]
pub const DATA_VALID: u8 = 2;
/// Header type: one frame. [virtio 5.1.6]
pub const GSO_NONE: u8 = 0;
/// Header type: TCP over IPv4. [virtio 5.1.6]
pub const GSO_TCP4: u8 = 1;
/// Header type: TCP over IPv6. [virtio 5.1.6]
pub const GSO_TCP6: u8 = 4;

/// Control: filters. [virtio 5.1.6.5.1]
pub const CONTROL_RX: u8 = 0;
/// Filters: everything, on or off. [virtio 5.1.6.5.1]
pub const RX_PROMISCUOUS: u8 = 0;
/// Filters: all groups, on or off. [virtio 5.1.6.5.1]
pub const RX_ALL_MULTICAST: u8 = 1;
/// Control: addresses. [virtio 5.1.6.5.2]
pub const CONTROL_MAC: u8 = 1;
/// Addresses: a table of unicast and one of groups, each with its length before it. [virtio
/// 5.1.6.5.2]
pub const MAC_TABLE_SET: u8 = 0;
/// Addresses: the card's own. [virtio 5.1.6.5.2]
pub const MAC_ADDR_SET: u8 = 1;
/// Control: VLANs. [virtio 5.1.6.5.3]
pub const CONTROL_VLAN: u8 = 2;
/// VLANs: lets one through. [virtio 5.1.6.5.3]
pub const VLAN_ADD: u8 = 0;
/// VLANs: does not any more. [virtio 5.1.6.5.3]
pub const VLAN_DEL: u8 = 1;
/// Control: pairs of queues. [virtio 5.1.6.5.5]
pub const CONTROL_MQ: u8 = 4;
/// Pairs of queues: how many are used. [virtio 5.1.6.5.5]
pub const MQ_PAIRS_SET: u8 = 0;
/// The answer to a command that was done. [virtio 5.1.6.5]
pub const CONTROL_OK: u8 = 0;
/// The answer to one that was not. [virtio 5.1.6.5]
pub const CONTROL_ERROR: u8 = 1;
