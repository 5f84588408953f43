//! What the manifests say: which functions a driver drives, what it needs of them, which system
//! calls it makes, and how its controller is stopped.
//!
//! # Shape
//! A [`Manifest`] is a driver's, and a [`Part`] is what runs around each driver in its process: a
//! backend, the loop, the host. All of ring3's own are in this crate as text, taken from the
//! folders of what they describe, so that a supervisor or a sandbox knows them without linking a
//! driver.
//!
//! # Trust
//! A key that nobody knows is an error, and so is a value that makes no sense: a sandbox is made of
//! these files, and a word that is passed over would be a right that nobody meant, or a limit that
//! nobody keeps.
#![forbid(unsafe_code)]

mod driver;
mod own;
mod part;

pub use driver::{
    Access, Bar, Config, Identity, Interrupt, Interrupts, Kind, Manifest, Match, Memory, Name,
    Restart, State, Thread, Threads, Vectors,
};
pub use own::{check_quirks, drivers, find, hosted, part, system_calls};
pub use part::{Part, Role, SystemCalls};

/// A manifest that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);
