//! Receive: registers, filters, descriptors. [82574 7.1, 10.2.5; 8254x 3.2, 13.4.22]

use crate::fields;
use crate::register::{Reg, Rw};

/// RCTL: receive control. [82574 10.2.5]
pub const CONTROL: Reg<Control, Rw> = Reg::at(0x0100);
/// RXCSUM: which checksums are looked at. [82574 10.2.5]
pub const CHECKSUM: Reg<Checksum, Rw> = Reg::at(0x5000);
/// RFCTL: filters, and the form of descriptors. 82574L. [82574 10.2.5]
pub const FILTER_CONTROL: Reg<FilterControl, Rw> = Reg::at(0x5008);
/// MRQC: how frames are spread over queues; 0 is not at all. 82574L. [82574 10.2.5]
pub const MULTIPLE_QUEUES: Reg<u32, Rw> = Reg::at(0x5818);

macro_rules! queue_registers {
    ($($(#[$meta:meta])* $name:ident: $t:ident @ $offset:literal;)*) => {$(
        $(#[$meta])*
        pub const fn $name(queue: u32) -> Reg<$t, Rw> {
            Reg::at($offset + 0x100 * queue)
        }
    )*};
}
pub(super) use queue_registers;

queue_registers! {
    /// RDBAL: device address of the ring, low half. [82574 10.2.5]
    ring_low: u32 @ 0x2800;
    /// RDBAH: high half.
    ring_high: u32 @ 0x2804;
    /// RDLEN: bytes of the ring, a multiple of 128.
    ring_bytes: u32 @ 0x2808;
    /// RDH: the next descriptor that the controller fills.
    head: u32 @ 0x2810;
    /// RDT: the first descriptor that is not the controller's.
    tail: u32 @ 0x2818;
    /// RDTR: how long a received frame waits for its interrupt, in units of 1.024 us; 0 is not at
    /// all.
    delay: u32 @ 0x2820;
    /// RXDCTL: when descriptors are fetched and written back.
    descriptor_control: DescriptorControl @ 0x2828;
    /// RADV: longest wait when RDTR starts anew with each frame, in units of 1.024 us.
    longest_delay: u32 @ 0x282c;
}

/// MTA: dword `index`, below [`MULTICAST_WORDS`], of the multicast table. [82574 10.2.5]
pub const fn multicast(index: u32) -> Reg<u32, Rw> {
    Reg::at(0x5200 + 4 * index)
}
/// RAL: the first four bytes of address `index`, below [`ADDRESSES`], the first in the low byte.
/// [82574 10.2.5]
pub const fn address_low(index: u32) -> Reg<u32, Rw> {
    Reg::at(0x5400 + 8 * index)
}
/// RAH: the last two bytes, and whether it is valid. [82574 10.2.5]
pub const fn address_high(index: u32) -> Reg<AddressHigh, Rw> {
    Reg::at(0x5404 + 8 * index)
}
/// VFTA: dword `index`, below [`VLAN_WORDS`], of the VLAN table: bit `id % 32` of dword `id / 32`.
/// [82574 10.2.5]
pub const fn vlans(index: u32) -> Reg<u32, Rw> {
    Reg::at(0x5600 + 4 * index)
}

/// Dwords of the multicast table: a bit for each of 4096 hashes.
pub const MULTICAST_WORDS: u32 = 128;
/// Dwords of the VLAN table: a bit for each of 4096 ids.
pub const VLAN_WORDS: u32 = 128;
/// Exact addresses. The last of the 82574L can be management's. [82574 10.2.5]
pub const ADDRESSES: u32 = 15;

/// The bit of the multicast table that `address` has, with RCTL.MO = `offset`. [82574 10.2.5, MTA]
pub const fn multicast_hash(address: &[u8; 6], offset: u32) -> u32 {
    let last = (address[4] as u32) | (address[5] as u32) << 8;
    let shift = match offset & 3 {
        0 => 4,
        1 => 3,
        2 => 2,
        _ => 0,
    };
    last >> shift & 0xfff
}

fields! {
    /// RCTL. [82574 10.2.5]
    pub struct Control(u32) {
        /// EN: receive.
        enable, with_enable: 1..=1;
        /// SBP: bad frames are stored, too.
        store_bad, with_store_bad: 2..=2;
        /// UPE: all unicast frames.
        unicast_promiscuous, with_unicast_promiscuous: 3..=3;
        /// MPE: all multicast frames.
        multicast_promiscuous, with_multicast_promiscuous: 4..=4;
        /// LPE: frames of more than 1522 bytes.
        long_packets, with_long_packets: 5..=5;
        /// LBM: 1 is MAC loopback: what is sent is received.
        loopback, with_loopback: 7..=6;
        /// RDMTS: few descriptors are 1/2, 1/4, 1/8 of the ring.
        low_threshold, with_low_threshold: 9..=8;
        /// MO: which bits of a multicast address are its hash.
        multicast_offset, with_multicast_offset: 13..=12;
        /// BAM: broadcast frames.
        broadcast, with_broadcast: 15..=15;
        /// BSIZE: bytes of a buffer: 2048, 1024, 512, 256; with BSEX 16 times that (0 is reserved
        /// then).
        buffer_size, with_buffer_size: 17..=16;
        /// VFE: frames with a VLAN tag pass only if VFTA has their id.
        vlan_filter, with_vlan_filter: 18..=18;
        /// BSEX: see BSIZE.
        buffer_extension, with_buffer_extension: 25..=25;
        /// SECRC: the FCS is not stored.
        strip_fcs, with_strip_fcs: 26..=26;
    }
}

impl Control {
    /// Bytes of a buffer; `None` for a reserved value.
    pub const fn buffer_bytes(self) -> Option<usize> {
        match (self.buffer_extension(), self.buffer_size()) {
            (0, size) => Some(2048 >> size),
            (_, 0) => None,
            (_, size) => Some(32768 >> size),
        }
    }

    /// The same with buffers of `bytes`: 256 to 16384, a power of two; otherwise of 2048.
    pub const fn with_buffer_bytes(self, bytes: usize) -> Self {
        let (extension, size) = match bytes {
            256 => (0, 3),
            512 => (0, 2),
            1024 => (0, 1),
            4096 => (1, 3),
            8192 => (1, 2),
            16384 => (1, 1),
            _ => (0, 0),
        };
        self.with_buffer_extension(extension).with_buffer_size(size)
    }
}

fields! {
    /// RXCSUM. [82574 10.2.5]
    pub struct Checksum(u32) {
        /// IPOFL: check the IPv4 header.
        ip, with_ip: 8..=8;
        /// TUOFL: check TCP and UDP.
        transport, with_transport: 9..=9;
        /// PCSD: the descriptor has the hash instead of the packet's checksum. 82574L.
        hash, with_hash: 13..=13;
    }
}

fields! {
    /// RFCTL. [82574 10.2.5]
    pub struct FilterControl(u32) {
        /// ACKDIS: segments of TCP that acknowledge are no cause of an interrupt of their own.
        no_acknowledgements, with_no_acknowledgements: 12..=12;
        /// EXSTEN: descriptors are extended ones.
        extended, with_extended: 15..=15;
        /// IPV6_EX_DIS and NEW_IPV6_EXT_DIS: extension headers of IPv6 are not read. 82573. [Linux,
        /// e1000_initialize_hw_bits]
        no_ipv6_extensions, with_no_ipv6_extensions: 17..=16;
    }
}

fields! {
    /// RXDCTL and, with bit 22, TXDCTL. [82574 10.2.5, 10.2.6]
    pub struct DescriptorControl(u32) {
        /// PTHRESH: fetch when fewer than this are on the chip.
        prefetch, with_prefetch: 5..=0;
        /// HTHRESH: and this many are in memory.
        host, with_host: 13..=8;
        /// WTHRESH: write back when this many are done; 0 is each at once.
        write_back, with_write_back: 21..=16;
        /// Of TXDCTL of the 82574L: must be one. [82574 10.2.6]
        count, with_count: 22..=22;
        /// GRAN: the thresholds count descriptors, not cache lines.
        granularity, with_granularity: 24..=24;
    }
}

fields! {
    /// RAH. [82574 10.2.5]
    pub struct AddressHigh(u32) {
        /// Bytes 4 and 5 of the address.
        bytes, with_bytes: 15..=0;
        /// AV: the address is compared.
        valid, with_valid: 31..=31;
    }
}

fields! {
    /// Second word of a legacy descriptor as it is written back; the first is the buffer's address
    /// and stays. [82574 7.1.3; 8254x 3.2.3]
    pub struct Legacy(u64) {
        /// Bytes in this buffer.
        length, with_length: 15..=0;
        /// Checksum of the packet.
        checksum, with_checksum: 31..=16;
        /// What it is: see [`status`].
        status, with_status: 39..=32;
        /// What is wrong with it, as the highest byte of [`Extended::status`].
        errors, with_errors: 47..=40;
        /// The VLAN tag that was taken out.
        vlan, with_vlan: 63..=48;
    }
}

fields! {
    /// Second word of an extended descriptor as it is written back; zero when it is handed to the
    /// controller. [82574 7.1.4]
    pub struct Extended(u64) {
        /// What it is and what is wrong: see [`status`] and [`error`].
        status, with_status: 31..=0;
        /// Bytes in this buffer.
        length, with_length: 47..=32;
        /// The VLAN tag that was taken out.
        vlan, with_vlan: 63..=48;
    }
}

/// Status bits of a written-back descriptor, legacy and extended. [82574 7.1.3, 7.1.4]
pub mod status {
    /// DD: it is written back.
    pub const DONE: u64 = 1 << 0;
    /// EOP: the frame's last buffer.
    pub const END: u64 = 1 << 1;
    /// IXSM: checksums were not looked at.
    pub const UNCHECKED: u64 = 1 << 2;
    /// VP: a VLAN tag was taken out.
    pub const VLAN: u64 = 1 << 3;
    /// UDPCS: the UDP checksum was looked at. 82574L.
    pub const UDP: u64 = 1 << 4;
    /// TCPCS: the TCP (8254x: or UDP) checksum was looked at.
    pub const TCP: u64 = 1 << 5;
    /// IPCS: the IPv4 header's checksum was looked at.
    pub const IP: u64 = 1 << 6;
    /// PIF: it passed a filter that is not exact.
    pub const INEXACT: u64 = 1 << 7;
}

/// Error bits of [`Extended::status`]; those of [`Legacy::errors`] are the highest byte of these.
/// [82574 7.1.3, 7.1.4]
pub mod error {
    /// CE: wrong FCS or alignment.
    pub const FCS: u64 = 1 << 24;
    /// TCPE: wrong TCP or UDP checksum.
    pub const TRANSPORT: u64 = 1 << 29;
    /// IPE: wrong IPv4 header checksum.
    pub const IP: u64 = 1 << 30;
    /// RXE: an error on the wire.
    pub const WIRE: u64 = 1 << 31;
}
