//! virtio over PCI, and what all its devices have: discovery, the common configuration, features,
//! virtqueues.
//!
//! # References
//! - `[virtio]` Virtual I/O Device (VIRTIO) Version 1.2, OASIS Committee Specification 01, 1 July
//!   2022

pub mod blk;
pub mod common;
pub mod net;
pub mod ring;

/// PCI vendor id of all of them. [virtio 4.1.2]
pub const VENDOR: u16 = 0x1af4;
/// PCI device ids of those that speak the drafts before this specification, too. [virtio 4.1.2.1]
pub const TRANSITIONAL: core::ops::RangeInclusive<u16> = 0x1000..=0x103f;
/// PCI device ids are this and the number of the device's type. [virtio 4.1.2]
pub const DEVICE_BASE: u16 = 0x1040;

/// In a vendor's own capability, by which virtio's structures are found: its bytes, 8 bits. [virtio
/// 4.1.4]
pub const CAP_LEN: u64 = 2;
/// What it is of, 8 bits. [virtio 4.1.4]
pub const CAP_TYPE: u64 = 3;
/// The BAR where the structure is, 8 bits. [virtio 4.1.4]
pub const CAP_BAR: u64 = 4;
/// Where it begins in the BAR, 32 bits. [virtio 4.1.4]
pub const CAP_OFFSET: u64 = 8;
/// Its bytes, 32 bits. [virtio 4.1.4]
pub const CAP_LENGTH: u64 = 12;
/// Of the notification structure: what a queue's notify offset is multiplied by, 32 bits. [virtio
/// 4.1.4.4]
pub const CAP_NOTIFY_MULTIPLIER: u64 = 16;

/// The common configuration. [virtio 4.1.4.3]
pub const TYPE_COMMON: u8 = 1;
/// Notifications. [virtio 4.1.4.4]
pub const TYPE_NOTIFY: u8 = 2;
/// Interrupt status. [virtio 4.1.4.5]
pub const TYPE_ISR: u8 = 3;
/// The device's own configuration. [virtio 4.1.4.6]
pub const TYPE_DEVICE: u8 = 4;

/// The status that is a reset. [virtio 2.1, 4.1.4.3.2]
pub const STATUS_RESET: u8 = 0;
/// The driver has found the device. [virtio 2.1]
pub const ACKNOWLEDGE: u8 = 1;
/// It knows how to drive it. [virtio 2.1]
pub const DRIVER: u8 = 2;
/// It is ready to drive it. [virtio 2.1]
pub const DRIVER_OK: u8 = 4;
/// Features are agreed upon. [virtio 2.1]
pub const FEATURES_OK: u8 = 8;
/// The device cannot go on without a reset. [virtio 2.1]
pub const NEEDS_RESET: u8 = 64;
/// The driver has given the device up. [virtio 2.1]
pub const FAILED: u8 = 128;

/// Feature: descriptors may lie in tables of their own. [virtio 6]
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Feature: either side says by a position when it wants to be told. [virtio 2.7.7.1, 2.7.10,
/// 2.8.10]
pub const EVENT_IDX: u64 = 1 << 29;
/// Feature: this specification, and none of the drafts before it. [virtio 6]
pub const VERSION_1: u64 = 1 << 32;
/// Feature: the device is behind the platform's IOMMU. [virtio 6]
pub const ACCESS_PLATFORM: u64 = 1 << 33;

/// Feature: packed virtqueues. [virtio 6]
pub const RING_PACKED: u64 = 1 << 34;

/// Feature: the device orders its accesses as the platform's devices do, not as a processor: the
/// driver orders its own for such a device. A device that offers it may refuse a driver that does
/// not take it. [virtio 6, 6.1, 6.2]
pub const ORDER_PLATFORM: u64 = 1 << 36;

/// A vector that is none. [virtio 4.1.5.1.2]
pub const NO_VECTOR: u16 = 0xffff;
