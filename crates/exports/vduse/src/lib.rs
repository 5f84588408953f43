//! VDUSE: virtio devices of the running kernel that are ordinary programs. [Linux,
//! Documentation/userspace-api/vduse.rst]
//!
//! # Shape
//! A [`Control`] makes and ends devices. A [`Device`] is one of them, open: what its driver agreed
//! to, kicks and interrupts, the [`Message`]s of the kernel, which are to be answered. [`vdpa`]
//! attaches it to the bus, where the kernel's `virtio_vdpa` finds it (a disk, an interface), and
//! takes it away. A [`Queue`] is the device's side of one split virtqueue, with EVENT_IDX and
//! indirect descriptors, over the driver's [`Memory`]; a [`Chain`] is what it takes. What is in
//! flight stands in an [`Inflight`] file, so that a device survives its server.
//!
//! # A server's life
//! Make the device; open it; [`set_up`](Device::set_up) each queue; answer messages in a thread of
//! their own; [`vdpa::attach`], which returns when the driver is there. At the status
//! [`DRIVER_OK`](status::DRIVER_OK), [`vring`](Device::vring) says where the queues are, and each
//! is told where to [kick](Device::kicks); at status 0 they are no more. The end: [`vdpa::detach`]
//! while the server still serves; drop the device; [`Control::destroy`].
//!
//! A process that dies leaves all this but the last step. The next one opens the device, which
//! works as soon as the kernel has let go of the dead one's memory, opens its queues as
//! [`Begin::Resume`], does what is [in flight](Queue::in_flight), and
//! [interrupts](Device::interrupt) once for each queue: what the dead one has shown may not have
//! been announced. Kicks that nobody has heard are no loss, because who opens a queue looks.
//!
//! # Trust
//! What the driver writes is input: a chain without an end, a length beyond, an address that is not
//! mapped is a [`Fault`] of that queue. Version 0 of the interface has no way to say to the driver
//! that a device needs a reset, so such a queue stands still until there is one. Nothing the driver
//! writes panics, or makes a queue wait.
//!
//! # Limits
//! Split virtqueues; one group of them, one address space (API version 0). Memory is the kernel's
//! bounce buffers, which are mapped; a device's own (`VDUSE_IOTLB_REG_UMEM`) is not registered.
//! Little-endian rings, so VERSION_1.

mod area;
mod chain;
mod control;
mod device;
mod error;
mod inflight;
mod memory;
mod message;
mod queue;
mod uapi;
pub mod vdpa;

#[cfg(test)]
mod tests;

pub use chain::Chain;
pub use control::{Control, Shape};
pub use device::{Device, Vring};
pub use error::{Error, Fault};
pub use inflight::{IDENTITY, Inflight, Log};
pub use memory::{Access, Memory, Place};
pub use message::{Message, Request};
pub use queue::{Begin, Queue};

/// Features of every device. [virtio 6]
pub mod features {
    /// Descriptors may lie in tables of their own.
    pub const INDIRECT: u64 = 1 << 28;
    /// Each side says when it wants to be told.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// This specification, and none of the drafts before it.
    pub const VERSION_1: u64 = 1 << 32;
    /// Addresses are those of the platform's IOMMU: VDUSE has no others.
    pub const ACCESS_PLATFORM: u64 = 1 << 33;
    /// What every VDUSE device of this crate can offer.
    pub const ALL: u64 = INDIRECT | EVENT_IDX | VERSION_1 | ACCESS_PLATFORM;
}

/// Bits of the status that matter here. [virtio 2.1]
pub mod status {
    /// The driver is ready: queues are where they are.
    pub const DRIVER_OK: u8 = 4;
}

/// Whether a device can have that name: it becomes that of a file, and of a device of the bus.
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..64).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('.')
        && name != "control"
}

fn check_name(name: &str) -> Result<(), Error> {
    if is_name(name) { Ok(()) } else { Err(Error::Name(name.into())) }
}
