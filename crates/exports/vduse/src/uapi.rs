//! The kernel's interface: numbers and structures. [linux/vduse.h, API version 0]

use std::mem::size_of;

/// Where devices are made.
pub const CONTROL: &str = "/dev/vduse/control";
/// Where they are.
pub const FOLDER: &str = "/dev/vduse";
/// Bytes of a name, its end included.
pub const NAME: usize = 256;

const BASE: u32 = 0x81;

const fn number(direction: u32, number: u32, bytes: usize) -> libc::Ioctl {
    (direction << 30 | (bytes as u32) << 16 | BASE << 8 | number) as libc::Ioctl
}

const fn write<T>(nr: u32) -> libc::Ioctl {
    number(1, nr, size_of::<T>())
}

const fn read<T>(nr: u32) -> libc::Ioctl {
    number(2, nr, size_of::<T>())
}

const fn both<T>(nr: u32) -> libc::Ioctl {
    number(3, nr, size_of::<T>())
}

pub const SET_API_VERSION: libc::Ioctl = write::<u64>(0x01);
pub const CREATE_DEV: libc::Ioctl = write::<DeviceConfig>(0x02);
pub const DESTROY_DEV: libc::Ioctl = write::<[u8; NAME]>(0x03);
pub const IOTLB_GET_FD: libc::Ioctl = both::<IotlbEntry>(0x10);
pub const GET_FEATURES: libc::Ioctl = read::<u64>(0x11);
pub const SET_CONFIG: libc::Ioctl = write::<ConfigData>(0x12);
pub const INJECT_CONFIG_IRQ: libc::Ioctl = number(0, 0x13, 0);
pub const VQ_SETUP: libc::Ioctl = write::<QueueConfig>(0x14);
pub const VQ_GET_INFO: libc::Ioctl = both::<QueueInfo>(0x15);
pub const VQ_SETUP_KICKFD: libc::Ioctl = write::<QueueEvent>(0x16);
pub const VQ_INJECT_IRQ: libc::Ioctl = write::<u32>(0x17);

/// `struct vduse_dev_config`, behind which the configuration lies.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceConfig {
    pub name: [u8; NAME],
    pub vendor: u32,
    pub device: u32,
    pub features: u64,
    pub queues: u32,
    pub align: u32,
    pub reserved: [u32; 13],
    pub config_size: u32,
}

/// `struct vduse_iotlb_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IotlbEntry {
    /// Where the region begins in its descriptor.
    pub offset: u64,
    /// Its first address.
    pub start: u64,
    /// Its last address.
    pub last: u64,
    /// [`READ`] and [`WRITE`].
    pub access: u8,
}

/// The device may read.
pub const READ: u8 = 1;
/// The device may write.
pub const WRITE: u8 = 2;

/// `struct vduse_config_data`, behind which the bytes lie.
#[repr(C)]
pub struct ConfigData {
    pub offset: u32,
    pub length: u32,
}

/// `struct vduse_vq_config`.
#[repr(C)]
pub struct QueueConfig {
    pub index: u32,
    pub max_size: u16,
    pub reserved: [u16; 13],
}

/// `struct vduse_vq_info`, of a split virtqueue.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QueueInfo {
    pub index: u32,
    pub size: u32,
    pub descriptors: u64,
    pub driver: u64,
    pub device: u64,
    pub available: u16,
    pub padding: [u16; 3],
    pub ready: u8,
}

/// `struct vduse_vq_eventfd`.
#[repr(C)]
pub struct QueueEvent {
    pub index: u32,
    pub fd: i32,
}

/// `struct vduse_dev_request`, and `struct vduse_dev_response`, which has its result where that has
/// its first reserved word.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    /// Request: its type. Response: the request's id.
    pub first: u32,
    /// Request: its id. Response: its result.
    pub second: u32,
    pub reserved: [u32; 4],
    pub body: [u32; 32],
}

pub const GET_VQ_STATE: u32 = 0;
pub const SET_STATUS: u32 = 1;
pub const UPDATE_IOTLB: u32 = 2;

pub const RESULT_OK: u32 = 0;
pub const RESULT_FAILED: u32 = 1;

const _: () = assert!(size_of::<DeviceConfig>() == 336);
const _: () = assert!(size_of::<IotlbEntry>() == 32);
const _: () = assert!(size_of::<QueueConfig>() == 32);
const _: () = assert!(size_of::<QueueInfo>() == 48);
const _: () = assert!(size_of::<Message>() == 152);
