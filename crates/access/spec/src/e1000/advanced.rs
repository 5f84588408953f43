//! What the 82576 has of its own: registers of each queue, vectors for many of them, hashes that
//! choose one, and advanced descriptors. [82576 7.1.5, 7.2.2, 7.3.4, 8]
//!
//! An advanced receive descriptor is written back as
//! [`receive::Extended`](super::receive::Extended) says; the buffer's address goes in its first
//! word, and zero in its second.

use crate::fields;
use crate::register::{Reg, Rw, Wo};

/// RLPML: longest frame that is received with RCTL.LPE, FCS included. [82576 8.10.5]
pub const LONGEST: Reg<u32, Rw> = Reg::at(0x5004);
/// GPIE: how messages are made of causes. [82576 8.8.17]
pub const MESSAGES: Reg<Messages, Rw> = Reg::at(0x1514);
/// EIMS: which vectors' causes interrupt, a bit for each vector; ones add. [82576 8.8.4]
pub const VECTOR_MASK_SET: Reg<u32, Rw> = Reg::at(0x1524);
/// EIMC: ones take vectors out of the mask. [82576 8.8.5]
pub const VECTOR_MASK_CLEAR: Reg<u32, Wo> = Reg::at(0x1528);
/// EIAC: vectors whose causes their message clears. [82576 8.8.6]
pub const VECTOR_AUTO_CLEAR: Reg<u32, Rw> = Reg::at(0x152c);
/// IVAR_MISC: the vector of all causes that are no queue's. [82576 8.8.16]
pub const OTHER_VECTOR: Reg<OtherVector, Rw> = Reg::at(0x1740);
/// MRQC: how frames are spread over queues. [82576 8.10.22]
pub const SPREAD: Reg<Spread, Rw> = Reg::at(0x5818);

/// EITR: shortest time between two messages of `vector`, below [`VECTORS`]. [82576 8.8.14]
pub const fn vector_throttle(vector: u32) -> Reg<Throttle, Rw> {
    Reg::at(0x1680 + 4 * vector)
}
/// IVAR: the vectors of queues `index` and `index + 8`, `index` below 8. [82576 8.8.15]
pub const fn queue_vectors(index: u32) -> Reg<QueueVectors, Rw> {
    Reg::at(0x1700 + 4 * index)
}
/// RETA: queues of four hashes each, `index` below [`SPREAD_WORDS`]; each byte a queue. [82576
/// 8.10.23]
pub const fn spread_queues(index: u32) -> Reg<u32, Rw> {
    Reg::at(0x5c00 + 4 * index)
}
/// RSSRK: four bytes of the hash's key, `index` below [`KEY_WORDS`]. [82576 8.10.24]
pub const fn key(index: u32) -> Reg<u32, Rw> {
    Reg::at(0x5c80 + 4 * index)
}

/// Dwords of RETA: 128 hashes.
pub const SPREAD_WORDS: u32 = 32;
/// Dwords of the key.
pub const KEY_WORDS: u32 = 10;
/// Queues of each direction. [82576 1.3]
pub const QUEUES: u16 = 16;
/// MSI-X vectors. [82576 7.3.3]
pub const VECTORS: u16 = 25;

macro_rules! queue_registers {
    ($($(#[$meta:meta])* $name:ident: $t:ident @ $offset:literal;)*) => {$(
        $(#[$meta])*
        pub const fn $name(queue: u32) -> Reg<$t, Rw> {
            Reg::at($offset + 0x40 * queue)
        }
    )*};
}

queue_registers! {
    /// RDBAL: device address of the receive ring, low half. [82576 8.10.5]
    receive_low: u32 @ 0xc000;
    /// RDBAH: high half.
    receive_high: u32 @ 0xc004;
    /// RDLEN: its bytes, a multiple of 128.
    receive_bytes: u32 @ 0xc008;
    /// SRRCTL: how frames are stored. [82576 8.10.2]
    store: Store @ 0xc00c;
    /// RDH: the next descriptor that the controller fills.
    receive_head: u32 @ 0xc010;
    /// RDT: the first descriptor that is not the controller's.
    receive_tail: u32 @ 0xc018;
    /// RXDCTL: whether the queue runs. [82576 8.10.10]
    receive_control: QueueControl @ 0xc028;
    /// TDBAL: device address of the transmit ring, low half. [82576 8.12.11]
    transmit_low: u32 @ 0xe000;
    /// TDBAH: high half.
    transmit_high: u32 @ 0xe004;
    /// TDLEN: its bytes, a multiple of 128.
    transmit_bytes: u32 @ 0xe008;
    /// TDH: the next descriptor that the controller sends.
    transmit_head: u32 @ 0xe010;
    /// TDT: the first descriptor that is not the controller's.
    transmit_tail: u32 @ 0xe018;
    /// TXDCTL: whether the queue runs. [82576 8.12.16]
    transmit_control: QueueControl @ 0xe028;
}

fields! {
    /// GPIE. [82576 8.8.17]
    pub struct Messages(u32) {
        /// NSICR: reading ICR clears it, whatever is masked.
        clear_on_read, with_clear_on_read: 0..=0;
        /// Multiple_MSIX: causes have vectors by IVAR.
        many, with_many: 4..=4;
        /// EIAME: a message masks its vector, where EIAM says so.
        auto_mask, with_auto_mask: 30..=30;
        /// PBA_support: a message clears its pending bit itself.
        pending_clear, with_pending_clear: 31..=31;
    }
}

fields! {
    /// IVAR. [82576 8.8.15]
    pub struct QueueVectors(u32) {
        /// INT_Alloc of the receive queue: its vector and [`QueueVectors::VALID`].
        receive, with_receive: 7..=0;
        /// The same of the transmit queue.
        transmit, with_transmit: 15..=8;
    }
}

impl QueueVectors {
    /// In each field: it has a vector.
    pub const VALID: u32 = 1 << 7;
}

fields! {
    /// IVAR_MISC. [82576 8.8.16]
    pub struct OtherVector(u32) {
        /// INT_Alloc of all causes but the timer's: a vector and [`QueueVectors::VALID`].
        other, with_other: 15..=8;
    }
}

fields! {
    /// First word of a receive descriptor as it is written back, with RXCSUM.PCSD set. [82576
    /// 7.1.5.2]
    pub struct Flow(u64) {
        /// RSS type: what was hashed; 0 is nothing.
        hashed, with_hashed: 3..=0;
        /// RSS hash.
        hash, with_hash: 63..=32;
    }
}

fields! {
    /// EITR. [82576 8.8.14]
    pub struct Throttle(u32) {
        /// Interval in microseconds; 0 is none.
        interval, with_interval: 14..=2;
    }
}

fields! {
    /// MRQC. [82576 8.10.22]
    pub struct Spread(u32) {
        /// Multiple receive queues: 0 none, or [`Spread::HASHED`].
        queues, with_queues: 2..=0;
        /// RSS field enable: [`Spread::FLOWS`].
        fields, with_fields: 31..=16;
    }
}

impl Spread {
    /// By their hash.
    pub const HASHED: u32 = 2;
    /// TCP over IPv4, IPv4, IPv6, TCP over IPv6, UDP over IPv4 and IPv6.
    pub const FLOWS: u32 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7;
}

fields! {
    /// SRRCTL. [82576 8.10.2]
    pub struct Store(u32) {
        /// BSIZEPACKET: KiB of a buffer; 0 is what RCTL.BSIZE says.
        buffer_kib, with_buffer_kib: 6..=0;
        /// DESCTYPE: [`Store::ADVANCED`].
        form, with_form: 27..=25;
        /// Drop_En: a frame without a descriptor is lost at once, and does not hold up those of
        /// other queues.
        drop, with_drop: 31..=31;
    }
}

impl Store {
    /// DESCTYPE: advanced, one buffer.
    pub const ADVANCED: u32 = 1;
}

fields! {
    /// RXDCTL and TXDCTL. [82576 8.10.10, 8.12.16]
    pub struct QueueControl(u32) {
        /// PTHRESH: fetch when fewer than this are on the chip.
        prefetch, with_prefetch: 4..=0;
        /// HTHRESH: and this many are in memory.
        host, with_host: 12..=8;
        /// WTHRESH: write back when this many are done; 0 is each at once.
        write_back, with_write_back: 20..=16;
        /// ENABLE: the queue runs. It reads as it is: some time passes after a write.
        enable, with_enable: 25..=25;
    }
}

fields! {
    /// Second word of an advanced data descriptor; the first is the buffer's address. [82576
    /// 7.2.2.3]
    pub struct Data(u64) {
        /// DTALEN: bytes of the buffer.
        length, with_length: 15..=0;
        /// DTYP: [`Data::TYPE`].
        kind, with_kind: 23..=20;
        /// DCMD: see [`command`](super::transmit::command), and [`Data::SEGMENTATION`].
        command, with_command: 31..=24;
        /// DD: it is done.
        done, with_done: 32..=32;
        /// POPTS.IXSM: put the IPv4 header's checksum in.
        insert_ip, with_insert_ip: 40..=40;
        /// POPTS.TXSM: put the TCP or UDP checksum in.
        insert_transport, with_insert_transport: 41..=41;
        /// PAYLEN: bytes of the whole packet, of a large send without its headers.
        payload, with_payload: 63..=46;
    }
}

impl Data {
    /// DTYP of an advanced data descriptor.
    pub const TYPE: u64 = 3;
    /// DCMD.TSE: part of a large send.
    pub const SEGMENTATION: u64 = 1 << 7;
}

fields! {
    /// First word of an advanced context descriptor. [82576 7.2.2.2]
    pub struct ContextPlaces(u64) {
        /// IPLEN: bytes of the IP header.
        ip, with_ip: 8..=0;
        /// MACLEN: bytes before it.
        mac, with_mac: 15..=9;
        /// VLAN: the tag to put in.
        vlan, with_vlan: 31..=16;
    }
}

fields! {
    /// Second word of an advanced context descriptor. It is never written back. [82576 7.2.2.2]
    pub struct Context(u64) {
        /// TUCMD.IPV4: IPv4, otherwise IPv6.
        ipv4, with_ipv4: 10..=10;
        /// TUCMD.L4T: 0 UDP, 1 TCP.
        tcp, with_tcp: 12..=11;
        /// DTYP: [`Context::TYPE`].
        kind, with_kind: 23..=20;
        /// DEXT: always one.
        extended, with_extended: 29..=29;
        /// L4LEN: bytes of the transport's header.
        transport, with_transport: 47..=40;
        /// MSS: payload bytes of a segment.
        segment, with_segment: 63..=48;
    }
}

impl Context {
    /// DTYP of an advanced context descriptor.
    pub const TYPE: u64 = 2;
}

/// A queue stops and starts within this, in milliseconds. The data sheet names no time; what is
/// under way is at most a frame. [82576 4.5.9]
pub const QUEUE_MILLIS: u64 = 10;
