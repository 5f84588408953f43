//! The control device: makes devices, and ends them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::uapi::{CONTROL, CREATE_DEV, DESTROY_DEV, DeviceConfig, NAME, SET_API_VERSION};
use crate::{Error, check_name};

/// The version that is spoken: of one group of virtqueues, one address space. All kernels have it.
const API_VERSION: u64 = 0;

/// What a device is to be.
#[derive(Clone, Debug)]
pub struct Shape<'a> {
    /// By which it is found, below `/dev/vduse`.
    pub name: &'a str,
    /// virtio's number of its type: 1 a network card, 2 a disk. [virtio 5]
    pub kind: u32,
    /// Who makes it, which its driver is told: any number, by which its maker [knows it
    /// again](crate::vdpa::vendor).
    pub vendor: u32,
    /// What it offers. The kernel wants VERSION_1 and ACCESS_PLATFORM.
    pub features: u64,
    /// Virtqueues.
    pub queues: u32,
    /// Its configuration space.
    pub config: &'a [u8],
}

/// `/dev/vduse/control`.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// [`Error::Missing`] without VDUSE, [`Error::Permission`] without the right.
    pub fn open() -> Result<Self, Error> {
        let opened = File::options().read(true).write(true).open(CONTROL);
        let version = API_VERSION;
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing,
            io::ErrorKind::PermissionDenied => Error::Permission,
            _ => Error::os(CONTROL, error),
        })?;
        // SAFETY: the operation reads one word, which outlives the call.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), SET_API_VERSION, &raw const version) };
        if set < 0 {
            Err(Error::os("VDUSE_SET_API_VERSION", io::Error::last_os_error()))
        } else {
            Ok(Self(file))
        }
    }

    /// Makes a device, which nobody serves yet, and which is not on the vDPA bus.
    pub fn create(&self, shape: &Shape<'_>) -> Result<(), Error> {
        let head = DeviceConfig {
            name: padded(shape.name)?,
            vendor: shape.vendor,
            device: shape.kind,
            features: shape.features,
            queues: shape.queues,
            align: rustix::param::page_size() as u32,
            reserved: [0; 13],
            config_size: shape.config.len() as u32,
        };
        // SAFETY: the structure has no padding, so that all its bytes are defined.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const head).cast::<u8>(), size_of::<DeviceConfig>())
        };
        let whole = [bytes, shape.config].concat();
        // SAFETY: the operation reads the structure and as many bytes behind it as it says.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), CREATE_DEV, whole.as_ptr()) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::EEXIST) => Error::Exists(shape.name.into()),
            Some(libc::EPERM | libc::EACCES) => Error::Permission,
            _ => Error::os(format!("VDUSE_CREATE_DEV {}", shape.name), error),
        })
    }

    /// Ends a device, which may not be on the bus. [`Error::Served`] if a process has it open,
    /// [`Error::Absent`] if it is not there.
    pub fn destroy(&self, name: &str) -> Result<(), Error> {
        let padded = padded(name)?;
        // SAFETY: the operation reads that array.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), DESTROY_DEV, padded.as_ptr()) };
        if done >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::EBUSY) => Error::Served(name.into()),
            Some(libc::EINVAL) => Error::Absent(name.into()),
            _ => Error::os(format!("VDUSE_DESTROY_DEV {name}"), error),
        })
    }
}

fn padded(name: &str) -> Result<[u8; NAME], Error> {
    check_name(name)?;
    let mut padded = [0; NAME];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    Ok(padded)
}
