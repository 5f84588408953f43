//! What a driver's process may do.
//!
//! # Shape
//! [`spawn()`] starts a program in namespaces and a control group of its own. In it, [`enter()`]
//! takes everything away that a [`Sandbox`] does not name, before any code of a driver runs; a
//! [`Sandbox`] is made from the manifests of the driver and of what runs around it.
//!
//! # What is missing
//! A limit that the machine cannot keep is an error, with two exceptions, which are said in words:
//! a kernel without landlock (the root is empty all the same), and a machine without a writable
//! cgroup v2 (each process is limited, their memory files are not).
//!
//! # Order
//! Rights go in the order in which they are needed for the rest: descriptors, files, user,
//! capabilities, system calls. Nothing is undone on the way: a process whose [`enter()`] has failed
//! ends.

mod cgroup;
mod child;
mod enter;
mod filter;
mod root;
mod spawn;
mod words;

use std::collections::BTreeSet;
use std::os::fd::RawFd;

use ring3_manifest::{Manifest, Part};

pub use enter::{MissingFeatures, enter};
pub use spawn::{CPU_WEIGHT, Child, Limits, Program, spawn};
pub use words::{Allowed, Description};

/// The user and the group of a driver that nobody has given one: the ones that own nothing.
pub const NOBODY: u32 = 65_534;

/// Most descriptors of a driver's process: a lease's, two rings for each queue, and what the
/// process has of its own.
pub const MAX_FILES: u64 = 1024;

/// Why a process is not confined. It must end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refuses a step.
    #[error("the sandbox: {what}: {source}")]
    Step {
        /// Which.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// The manifests make no sandbox.
    #[error("the sandbox: {0}")]
    Manifest(String),
}

impl Error {
    fn step(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Step { what: what.into(), source: source.into() }
    }
}

/// What is left to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Whose it is.
    pub user: u32,
    /// The same: its only group.
    pub group: u32,
    /// The descriptors that stay open.
    pub keep: Vec<RawFd>,
    /// Whether it sets up vhost-net, of which descriptors are among those that stay open.
    pub vhost: bool,
    /// Whether its rings, which were made for that, take requests by commands for many.
    pub batches: bool,
    /// The system calls that it makes, by name.
    calls: BTreeSet<String>,
}

impl Sandbox {
    /// For a process that will be one of `drivers` over `backend`, of nobody, with the standard
    /// descriptors.
    pub fn new<'m>(
        drivers: impl IntoIterator<Item = &'m Manifest>,
        backend: &str,
    ) -> Result<Self, Error> {
        let calls = ring3_manifest::system_calls(drivers, backend)
            .map_err(|error| Error::Manifest(error.to_string()))?;
        Ok(Self::of(calls))
    }

    /// The system calls that it makes, by name.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &str> {
        self.calls.iter().map(String::as_str).chain(self.vhost.then_some(filter::VHOST))
    }

    /// The same for one that is `part`, too.
    pub fn with(mut self, part: &Part) -> Self {
        self.calls.extend(part.system_calls.run.iter().cloned());
        self
    }

    /// For a process of nobody's that makes `calls`, with the standard descriptors.
    pub fn of<'c>(calls: impl IntoIterator<Item = &'c str>) -> Self {
        Self {
            user: NOBODY,
            group: NOBODY,
            keep: vec![0, 1, 2],
            vhost: false,
            batches: false,
            calls: calls.into_iter().map(str::to_owned).collect(),
        }
    }
}
