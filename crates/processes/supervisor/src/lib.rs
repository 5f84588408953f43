//! The supervisor: it holds devices, keeps a driver process alive on each, and answers for them.
//!
//! # Shape
//! A [`manifest`] says which devices, and its restart policy. Each has a [`keeper`], a thread that
//! holds its claim and its disks' identities, and does what the [`policy`] decides: a state machine
//! without I/O. What the disks become is behind [`export::Export`], so that the keeper runs on
//! models, too. [`supervisor`] is all of them together, and [`admin`] the users' way to it. A
//! [`half`] is the user half of a split driver, which has no device of its own and is kept alive
//! likewise.
//!
//! [`store`] is what survives ring3d itself, with systemd or with [`hold`]; [`notify`] and
//! [`listen`] are the ways to and from who started it. [`hotplug`] sees devices come and go,
//! [`faults`] counts what the IOMMU has refused them, [`metrics`] and [`scrape`] tell Prometheus.
//!
//! # Trust
//! It links no driver, and believes no driver's process: what such a process says is checked, and
//! what it does is seen by its end, by its device and by the kernel.

pub mod admin;
pub mod export;
pub mod faults;
mod find;
pub mod half;
pub mod health;
pub mod hold;
mod hosted;
pub mod hotplug;
mod journal;
pub mod journald;
pub mod keeper;
pub mod listen;
pub mod manifest;
pub mod metrics;
pub mod notify;
pub mod policy;
pub mod process;
pub mod rcu;
pub mod scrape;
mod sleep;
mod socket;
pub mod store;
pub mod supervisor;

pub use journal::Journal;

/// Processors that there are: a queue more than that would wait for the others.
fn processors() -> u16 {
    std::thread::available_parallelism().map_or(1, |count| count.get()).min(u16::MAX.into()) as u16
}
