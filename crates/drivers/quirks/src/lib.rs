//! Quirks of devices as data: what a device does otherwise than its specification says, and what a
//! driver does about it.
//!
//! # Shape
//! A [`Table`] is the TOML file beside a driver. Its flags are named; each has a reason. Its
//! entries say which devices have which flags, and where that is known from. A driver asks the
//! table for the [`Quirks`] of its device, and obeys them. What the user wants otherwise is in
//! [`Overrides`]: it wins.
//!
//! # Trust
//! A table is part of the program: a test of its driver reads it. What a device says about itself
//! (model, firmware) is only compared.
#![forbid(unsafe_code)]

mod cards;
mod glob;
pub mod linux;
mod machine;
mod overrides;
mod page;
mod table;

pub use cards::{CardTable, Cards};
pub use machine::{Board, Function, Strings};
pub use overrides::Overrides;
pub use page::page;
pub use table::{Class, Entry, Flag, Linux, Source, SourceKind, Table};

use std::collections::BTreeSet;

/// The flags that hold for a device, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Quirks(BTreeSet<String>);

impl Quirks {
    /// Whether the flag `name` holds.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Whether none holds.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<N: Into<String>> FromIterator<N> for Quirks {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }
}
