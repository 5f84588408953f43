//! Driver of virtio disks. [virtio 5.2]
//!
//! # Shape
//! `device` holds what queues share. What becomes of a request is the engine's business
//! (`disk/`), to which `queue` gives the virtqueue; `describe` writes a request down.
//!
//! # Start
//! All virtqueues are made before the device goes, as they can be at no other time [virtio 3.1.1]:
//! opening a queue takes one of them.
//!
//! # Trust
//! An id of nothing in flight, a request that is used without a status, more bytes than there is
//! room for: each is an error value or the request's error, and the queue lives. An index that
//! leaps makes the queue useless, and the device is reset.
//!
//! # Recovery
//! A request cannot be aborted. One that takes too long, a device that says that it needs a reset
//! or was reset by somebody else: it is reset, and every queue repeats what it has in flight.
//!
//! # Hand-over
//! `resume` leaves the disk and its queues as they go to another process, and goes on with them
//! there; `saved` is what is written down.
//!
//! # Waiting
//! MSI-X with a vector for each queue, or looking.

mod describe;
mod device;
mod disk;
mod driver;
mod identity;
mod queue;
mod resume;
mod saved;

pub use disk::{Disk, Options};
pub use driver::DRIVER;
