//! Transmit: registers and descriptors. [82574 7.2, 7.3, 10.2.6; 8254x 3.3, 13.4.33]

use super::receive::{DescriptorControl, queue_registers};
use crate::fields;
use crate::register::{Reg, Rw};

/// TCTL: transmit control. [82574 10.2.6]
pub const CONTROL: Reg<Control, Rw> = Reg::at(0x0400);
/// TIPG: the gap between frames. [82574 10.2.6]
pub const GAP: Reg<Gap, Rw> = Reg::at(0x0410);

queue_registers! {
    /// TDBAL: device address of the ring, low half. [82574 10.2.6]
    ring_low: u32 @ 0x3800;
    /// TDBAH: high half.
    ring_high: u32 @ 0x3804;
    /// TDLEN: bytes of the ring, a multiple of 128.
    ring_bytes: u32 @ 0x3808;
    /// TDH: the next descriptor that the controller sends.
    head: u32 @ 0x3810;
    /// TDT: the first descriptor that is not the controller's.
    tail: u32 @ 0x3818;
    /// TIDV: how long a sent frame with IDE waits for its interrupt, in units of 1.024 us.
    delay: u32 @ 0x3820;
    /// TXDCTL: when descriptors are fetched and written back.
    descriptor_control: DescriptorControl @ 0x3828;
    /// TADV: longest wait when TIDV starts anew with each frame, in units of 1.024 us.
    longest_delay: u32 @ 0x382c;
    /// TARC: which of the queues sends next.
    arbitration: Arbitration @ 0x3840;
}

fields! {
    /// TARC. [82574 10.2.6]
    pub struct Arbitration(u32) {
        /// Reserved: one in a card that runs. TARC0 of 82574 and 82583. [Linux,
        /// e1000_initialize_hw_bits]
        reserved_one, with_reserved_one: 26..=26;
        /// Reserved: zero in a card that runs. [Linux, e1000_initialize_hw_bits]
        reserved_zero, with_reserved_zero: 30..=27;
    }
}

fields! {
    /// TCTL. [82574 10.2.6]
    pub struct Control(u32) {
        /// EN: transmit.
        enable, with_enable: 1..=1;
        /// PSP: short frames are padded to 64 bytes.
        pad, with_pad: 3..=3;
        /// CT: attempts after collisions, half duplex.
        collision_threshold, with_collision_threshold: 11..=4;
        /// COLD: the time in which a collision can come, in bytes.
        collision_distance, with_collision_distance: 21..=12;
        /// RTLC: late collisions are repeated, too.
        repeat_late, with_repeat_late: 24..=24;
        /// MULR: several reads of memory are under way at a time. 82574L.
        multiple_reads, with_multiple_reads: 28..=28;
    }
}

impl Control {
    /// CT of the standard. [82574 10.2.6]
    pub const COLLISION_THRESHOLD: u32 = 0x0f;
    /// COLD of full duplex. [82574 10.2.6]
    pub const COLLISION_DISTANCE: u32 = 0x3f;
}

fields! {
    /// TIPG. [82574 10.2.6]
    pub struct Gap(u32) {
        /// IPGT: gap between frames that follow each other.
        back_to_back, with_back_to_back: 9..=0;
        /// IPGR1: first part of the gap after a received frame.
        first, with_first: 19..=10;
        /// IPGR2: the whole of it.
        second, with_second: 29..=20;
    }
}

impl Gap {
    /// The values that the data sheet gives for copper. [82574 10.2.6]
    pub const COPPER: Self = Self(0).with_back_to_back(8).with_first(8).with_second(6);
}

fields! {
    /// Second word of a legacy descriptor; the first is the buffer's address. [82574 7.2; 8254x
    /// 3.3.3]
    pub struct Legacy(u64) {
        /// Bytes of the buffer.
        length, with_length: 15..=0;
        /// CSO: where a checksum is put.
        checksum_offset, with_checksum_offset: 23..=16;
        /// What to do: see [`command`].
        command, with_command: 31..=24;
        /// DD: it is done.
        done, with_done: 32..=32;
        /// CSS: where that checksum begins.
        checksum_start, with_checksum_start: 47..=40;
        /// The VLAN tag to put in.
        vlan, with_vlan: 63..=48;
    }
}

fields! {
    /// Second word of a data descriptor; the first is the buffer's address. [82574 7.2; 8254x
    /// 3.3.7]
    pub struct Data(u64) {
        /// DTALEN: bytes of the buffer.
        length, with_length: 19..=0;
        /// DTYP: [`Data::TYPE`].
        kind, with_kind: 23..=20;
        /// DCMD: see [`command`].
        command, with_command: 31..=24;
        /// DD: it is done.
        done, with_done: 32..=32;
        /// IXSM: put the IPv4 header's checksum in. Of a frame's first descriptor.
        insert_ip, with_insert_ip: 40..=40;
        /// TXSM: put the TCP or UDP checksum in. Of a frame's first descriptor.
        insert_transport, with_insert_transport: 41..=41;
        /// The VLAN tag to put in. Of a frame's last descriptor on some, so of all.
        vlan, with_vlan: 63..=48;
    }
}

impl Data {
    /// DTYP of a data descriptor.
    pub const TYPE: u64 = 1;
}

fields! {
    /// First word of a context descriptor: where checksums begin, go and end. [82574 7.2; 8254x
    /// 3.3.6]
    pub struct ContextPlaces(u64) {
        /// IPCSS: first byte of the IP header.
        ip_start, with_ip_start: 7..=0;
        /// IPCSO: where its checksum is put.
        ip_offset, with_ip_offset: 15..=8;
        /// IPCSE: its last byte.
        ip_end, with_ip_end: 31..=16;
        /// TUCSS: first byte of the TCP or UDP header.
        transport_start, with_transport_start: 39..=32;
        /// TUCSO: where its checksum is put.
        transport_offset, with_transport_offset: 47..=40;
        /// TUCSE: its last byte; 0 is the frame's end.
        transport_end, with_transport_end: 63..=48;
    }
}

fields! {
    /// Second word of a context descriptor. [82574 7.2; 8254x 3.3.6]
    pub struct Context(u64) {
        /// PAYLEN: bytes of a large send without its headers.
        payload, with_payload: 19..=0;
        /// DTYP: 0.
        kind, with_kind: 23..=20;
        /// TUCMD.TCP: TCP, otherwise UDP.
        tcp, with_tcp: 24..=24;
        /// TUCMD.IP: IPv4, otherwise IPv6.
        ipv4, with_ipv4: 25..=25;
        /// TUCMD.TSE: it is of a large send.
        segmentation, with_segmentation: 26..=26;
        /// TUCMD.RS: write it back.
        report, with_report: 27..=27;
        /// TUCMD.DEXT: always one.
        extended, with_extended: 29..=29;
        /// DD: it is done.
        done, with_done: 32..=32;
        /// HDRLEN: bytes of all headers.
        headers, with_headers: 47..=40;
        /// MSS: payload bytes of a segment.
        segment, with_segment: 63..=48;
    }
}

/// Bits of [`Legacy::command`] and [`Data::command`]. [82574 7.2]
pub mod command {
    /// EOP: the frame's last descriptor.
    pub const END: u64 = 1 << 0;
    /// IFCS: put the FCS behind the frame.
    pub const FCS: u64 = 1 << 1;
    /// IC: of a legacy descriptor: put in a checksum.
    pub const CHECKSUM: u64 = 1 << 2;
    /// TSE: of a data descriptor: part of a large send.
    pub const SEGMENTATION: u64 = 1 << 2;
    /// RS: say in DD that it is done.
    pub const REPORT: u64 = 1 << 3;
    /// DEXT: it is no legacy descriptor.
    pub const EXTENDED: u64 = 1 << 5;
    /// VLE: put in the VLAN tag.
    pub const VLAN: u64 = 1 << 6;
    /// IDE: the interrupt waits as TIDV says.
    pub const DELAY: u64 = 1 << 7;
}

/// Most bytes of one data descriptor's buffer that the 82574L sends: its share of the packet buffer
/// must hold them. [82574 7.2]
pub const MAX_BUFFER: usize = 16 << 10;
/// Most payload bytes of a large send: PAYLEN has 20 bits, and the IP header 16. [82574 7.3]
pub const MAX_SEND: usize = 65535;
