//! What the servers of class queues share: [`ublk`](crate::ublk) and [`vduse`](crate::vduse) have a
//! thread for each queue of a disk, and differ only in the kernel's side of it.
//!
//! # Shape
//! A queue's thread is a [`QueueServer`]: the driver's side is a [`ClassQueue`], the kernel's side
//! is the server's own. [`State`] says what becomes of requests. The thread's owner gives it
//! commands by a [`CommandChannel`] and sees its events, counters and failures by a
//! [`ThreadMonitor`].

mod class_queue;
pub mod command;
mod monitor;
mod start;
mod state;
pub mod stats;
mod thread;

pub use class_queue::{ClassQueue, QueueServer};
pub use command::{CommandChannel, QueueCommand};
pub use monitor::{ThreadMonitor, await_users, end_flushed, failed, flush};
pub use start::{Report, ThreadEvent, ThreadStart};
pub use state::{Failure, OnFailure, State};
pub use stats::Stats;
pub use thread::{run, run_to_end};
