//! Driver of virtio network cards. [virtio 5.1]
//!
//! # Shape
//! [`Card`] is the [`Nic`](ring3_class::net::Nic); `queue` moves packets through two `half`s, a
//! pair of virtqueues; `wait` waits for them; `control` sets filters and how many `pairs` are used.
//! # Start
//! The device goes while its queues are open: opening them resets it, agrees on features and makes
//! rings; dropping them resets it and sees that it has stopped.
//! # Hand-over
//! `resume` leaves card and queue as they go to another process, and goes on with them there;
//! `saved` is what is written down.
//! # Recovery
//! None: a card that says that it needs a reset, or does not answer, is given up, and its user
//! opens it anew.
//! # Waiting  MSI-X with a vector for the configuration and one for each pair, or looking.

mod card;
mod control;
mod describe;
mod driver;
mod half;
mod header;
mod live;
mod pairs;
mod queue;
mod resume;
mod saved;
mod wait;
mod watch;

pub use card::{Card, Options};
pub use driver::DRIVER;
