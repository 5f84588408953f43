//! Manifests: the user's, which ring3d reads, and those of drivers and of parts.
//!
//! The attacker is whoever writes a file for an administrator to install: a manifest decides what
//! a driver process may reach. The input is the text of one.
//!
//! Promises: no panic; memory is bounded by a multiple of the text; the same document in another
//! notation (as the TOML library prints it) is the same manifest; devices of one document have
//! names that differ.

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::memory;
use ring3_lease::Quiesce;
use ring3_manifest::{Manifest, Part};

/// Bytes of memory.
const MEMORY: usize = 16 << 20;

/// What `parse` makes of `text`, of which it makes the same in another notation.
fn manifest<T: Debug, E: Debug>(text: &str, parse: impl Fn(&str) -> Result<T, E>) -> Option<T> {
    let parsed = memory::bounded(MEMORY, || parse(text)).ok()?;
    // A part of a document that nobody reads may hold numbers that a table has no room for.
    let table: toml::Table = toml::from_str(text).ok()?;
    let printed = toml::to_string(&table).expect("a document cannot be printed");
    let again = parse(&printed);
    let again = again.unwrap_or_else(|error| panic!("printed, it is refused: {error:?}"));
    assert_eq!(format!("{parsed:?}"), format!("{again:?}"));
    Some(parsed)
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match kind % 8 {
        0 => drop(manifest(text, Manifest::parse)),
        1 => drop(manifest(text, Part::parse)),
        2 => drop(manifest(text, Quiesce::from_manifest)),
        _ => {
            let devices = manifest(text, ring3_supervisor::manifest::parse).unwrap_or_default();
            let names: BTreeSet<_> = devices.iter().map(|device| &device.name).collect();
            assert_eq!(names.len(), devices.len(), "two devices have one name");
        }
    }
}
