//! Network cards that drivers of the kernel take, and who drives each of them here.

use serde::Deserialize;

use crate::Function;

/// Where a driver of the kernel's has the ids of its cards.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardTable {
    /// The driver's folder, from the root of the kernel's tree.
    pub folder: String,
    /// The file with the table.
    pub file: String,
    /// The table's name.
    pub name: String,
    /// The file with the numbers of the ids.
    pub ids: String,
}

/// The cards of one driver of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cards {
    /// Its name.
    pub driver: &'static str,
    /// Where its ids are.
    pub table: &'static CardTable,
    /// Those that a driver of ring3's own takes.
    pub own: Vec<Function>,
    /// The others: the kernel's driver takes them, hosted in a process.
    pub hosted: Vec<Function>,
}

impl Cards {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = Function> {
        self.own.iter().chain(&self.hosted).copied()
    }
}
