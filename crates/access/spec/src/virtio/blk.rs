//! Disks. [virtio 5.2]

use crate::layout;
use crate::register::{Reg, Ro, Rw};

/// The device's type. [virtio 5.2.1]
pub const TYPE: u16 = 2;
/// PCI device id. [virtio 4.1.2]
pub const DEVICE: u16 = super::DEVICE_BASE + TYPE;

/// Feature: says how long a segment may be. [virtio 5.2.3]
pub const SIZE_MAX: u64 = 1 << 1;
/// Feature: says how many segments a request may have. [virtio 5.2.3]
pub const SEG_MAX: u64 = 1 << 2;
/// Feature: is read only. [virtio 5.2.3]
pub const RO: u64 = 1 << 5;
/// Feature: says how long its blocks are. [virtio 5.2.3]
pub const BLK_SIZE: u64 = 1 << 6;
/// Feature: flushes its cache. [virtio 5.2.3]
pub const FLUSH: u64 = 1 << 9;
/// Feature: says what is good for it. [virtio 5.2.3]
pub const TOPOLOGY: u64 = 1 << 10;
/// Feature: its cache may be switched off. [virtio 5.2.3]
pub const CONFIG_WCE: u64 = 1 << 11;
/// Feature: several queues. [virtio 5.2.3]
pub const MQ: u64 = 1 << 12;
/// Feature: discards. [virtio 5.2.3]
pub const DISCARD: u64 = 1 << 13;
/// Feature: writes zeroes. [virtio 5.2.3]
pub const WRITE_ZEROES: u64 = 1 << 14;

/// Whatever its blocks are, its capacity and the places of requests are counted in these bytes.
/// [virtio 5.2.4]
pub const SECTOR: u32 = 512;

/// Configuration: sectors, as two halves. [virtio 5.2.4]
pub const CONFIG_CAPACITY: Reg<u64, Ro> = Reg::at(0);
/// Configuration: most bytes of a segment. [virtio 5.2.4]
pub const CONFIG_SIZE_MAX: Reg<u32, Ro> = Reg::at(8);
/// Configuration: most segments of a request. [virtio 5.2.4]
pub const CONFIG_SEG_MAX: Reg<u32, Ro> = Reg::at(12);
/// Configuration: bytes of a block. [virtio 5.2.4]
pub const CONFIG_BLK_SIZE: Reg<u32, Ro> = Reg::at(20);
/// Configuration: log2 of the blocks of a physical one. [virtio 5.2.4]
pub const CONFIG_PHYSICAL_EXPONENT: Reg<u8, Ro> = Reg::at(24);
/// Configuration: whether its cache holds writes back. [virtio 5.2.4]
pub const CONFIG_WRITEBACK: Reg<u8, Rw> = Reg::at(32);
/// Configuration: how many queues. [virtio 5.2.4]
pub const CONFIG_QUEUES: Reg<u16, Ro> = Reg::at(34);
/// Configuration: most sectors of a discard. [virtio 5.2.4]
pub const CONFIG_MAX_DISCARD: Reg<u32, Ro> = Reg::at(36);
/// Configuration: what a discard is aligned to, in sectors. [virtio 5.2.4]
pub const CONFIG_DISCARD_ALIGNMENT: Reg<u32, Ro> = Reg::at(44);
/// Configuration: most sectors of a write of zeroes. [virtio 5.2.4]
pub const CONFIG_MAX_WRITE_ZEROES: Reg<u32, Ro> = Reg::at(48);
/// Bytes of the configuration that every disk has. [virtio 5.2.4]
pub const CONFIG_LEAST: u64 = 8;
/// Bytes of the configuration up to writes of zeroes.
pub const CONFIG_LEN: u64 = 60;

/// Type of a request: read. [virtio 5.2.6]
pub const IN: u32 = 0;
/// Type of a request: write. [virtio 5.2.6]
pub const OUT: u32 = 1;
/// Type of a request: flush. [virtio 5.2.6]
pub const FLUSH_REQUEST: u32 = 4;
/// Type of a request: say what the disk is called. [virtio 5.2.6]
pub const GET_ID: u32 = 8;
/// Type of a request: discard. [virtio 5.2.6]
pub const DISCARD_REQUEST: u32 = 11;
/// Type of a request: write zeroes. [virtio 5.2.6]
pub const WRITE_ZEROES_REQUEST: u32 = 13;

/// Bytes of what a disk is called; shorter ones end with a zero. [virtio 5.2.6]
pub const ID_LEN: usize = 20;

layout! {
    /// What a request begins with. [virtio 5.2.6]
    pub struct Header[16] {
        /// Its type.
        kind, set_kind: u32 @ 0;
        /// The first sector.
        sector, set_sector: u64 @ 8;
    }
}

layout! {
    /// The data of a discard or of a write of zeroes. [virtio 5.2.6]
    pub struct Range[16] {
        /// The first sector.
        sector, set_sector: u64 @ 0;
        /// How many.
        sectors, set_sectors: u32 @ 8;
        /// Bit 0: may be freed.
        flags, set_flags: u32 @ 12;
    }
}

/// Status: done. [virtio 5.2.6]
pub const OK: u8 = 0;
/// Status: not done. [virtio 5.2.6]
pub const IO_ERROR: u8 = 1;
/// Status: the device cannot. [virtio 5.2.6]
pub const UNSUPPORTED: u8 = 2;
