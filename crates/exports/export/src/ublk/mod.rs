//! A [`Disk`](ring3_class::block::Disk) as `/dev/ublkbN`.
//!
//! # Shape
//! A [`Device`] is the kernel's half: an identity, parameters, a state, and the commands that need
//! CAP_SYS_ADMIN. [`Threads`] are the serving half: one per hardware queue, each with one io_uring
//! and one class queue, sharing nothing; an open `/dev/ublkcN` and plain data ([`Layout`]) are all
//! that they need. The two are apart because a device can outlive the process that serves it: who
//! holds the device need not be who serves it, and dropping it ends nothing unless its holder
//! [owns](Device::own) the end. An [`UblkExport`] is both in one process.
//!
//! # The way of a request
//! The kernel copies a write's bytes into the tag's buffer, which lies in the device's arena, and
//! completes a command of the io_uring. The thread decodes the descriptor, submits to the class
//! queue, and rings once per batch. What the class queue has finished goes back in one system call,
//! which also waits for what comes next; on a read the kernel copies from the buffer then. That
//! copy is the only one.
//!
//! # Waiting
//! Nothing in flight: the thread sleeps in its io_uring, with no timer. Something in flight: it
//! polls for as long as polling has paid lately (see [`Budget`](ring3_class::wait::Budget)), then
//! sleeps with the queue's interrupt watched in the same io_uring. Both are the
//! [`Reactor`](ring3_reactor::Reactor)'s.
//!
//! # Trust
//! Descriptors are written by the kernel, which is trusted, and are still checked: a request that
//! does not fit its buffer ends with an errno. The kernel hands on whatever applications ask for;
//! range checks against the disk are the driver's.

mod affinity;
mod batches;
mod control;
mod descriptors;
mod device;
mod error;
pub(crate) mod export;
pub mod features;
mod frozen_queue;
pub mod identities;
mod idle;
pub mod limits;
mod merges;
mod queues;
pub mod regions;
mod ring;
mod scheduler;
mod scrap;
mod server;
mod server_id;
mod shape;
mod thread;
mod threads;
pub mod translate;
pub mod uapi;
mod user;
pub(crate) mod users;

pub use control::Control;
pub use device::Device;
pub use error::Error;
pub use export::{Options, UblkExport};
pub use frozen_queue::FrozenQueue;
pub use merges::MergeControl;
pub use queues::Queues;
pub use regions::{Memory, Regions};
pub use ring::rings;
pub use scheduler::Scheduler;
pub use shape::{Recovery, Shape};
pub use threads::{Layout, QueueThreadOptions, Threads};
pub use uapi::MAX_ID;
pub use user::User;
pub use users::Nodes;

pub use crate::serving::{OnFailure, Stats, await_users, flush};
