//! The quirks of NVMe controllers. `quirks.toml` has the reasons, and the controllers.

use std::sync::LazyLock;

use ring3_device::{Device, Error};
use ring3_quirks::{Quirks, Strings, Table};

use super::options::Options;
use crate::quirks;

/// Identify knows CNS 00h and 01h alone.
pub(super) const LIMITED_IDENTIFY: &str = "limited-identify";
/// Identify does not know CNS 03h.
pub(super) const BROKEN_DESCRIPTORS: &str = "broken-descriptors";
/// NGUID and EUI64 are garbage.
pub(super) const BOGUS_NID: &str = "bogus-nid";
/// CSTS must not be read at once after CC.EN was cleared.
pub(super) const SLOW_READY: &str = "slow-ready";
/// A queue may hold one command.
pub(super) const SINGLE_COMMAND: &str = "single-command";
/// Submission queues must not have urgent priority.
pub(super) const MEDIUM_PRIORITY: &str = "medium-priority";
/// All queues have the first vector.
pub(super) const SINGLE_VECTOR: &str = "single-vector";
/// An MSI never fires.
pub(super) const BROKEN_MSI: &str = "broken-msi";
/// A list that ends at a page's end is taken for one that goes on.
pub(super) const CHAINED_LISTS: &str = "chained-lists";
/// It does not drive address lines above 48.
pub(super) const SHORT_ADDRESSES: &str = "48-bit-addresses";
/// Write zeroes hangs or fails.
pub(super) const BROKEN_WRITE_ZEROES: &str = "broken-write-zeroes";
/// No power state but the first.
pub(super) const BROKEN_APST: &str = "broken-apst";
/// No deepest power state.
pub(super) const BROKEN_DEEPEST_STATE: &str = "broken-deepest-state";

/// Its transfers are best kept from crossing multiples of the longest one.
pub(super) const STRIPE: &str = "stripe";

/// The table.
pub fn table() -> &'static Table {
    static TABLE: LazyLock<Table> =
        LazyLock::new(|| Table::parse(include_str!("quirks.toml")).expect("a test reads it"));
    &TABLE
}

/// The quirks of `device`, which has said `strings` about itself.
pub(super) fn of(
    device: &dyn Device,
    strings: Strings<'_>,
    options: &Options,
) -> Result<Quirks, Error> {
    quirks::of(table(), device, strings, &options.quirks)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_flags_that_the_table_says_are_obeyed_are_those_that_the_driver_asks_for() {
        let asked = BTreeSet::from([
            LIMITED_IDENTIFY,
            BROKEN_DESCRIPTORS,
            BOGUS_NID,
            SLOW_READY,
            SINGLE_COMMAND,
            MEDIUM_PRIORITY,
            SINGLE_VECTOR,
            BROKEN_MSI,
            CHAINED_LISTS,
            SHORT_ADDRESSES,
            BROKEN_WRITE_ZEROES,
            BROKEN_APST,
            BROKEN_DEEPEST_STATE,
            STRIPE,
        ]);
        assert_eq!(asked, table().obeyed().collect());
    }
}
