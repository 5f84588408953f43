//! Drivers of Linux that ring3 hosts, for functions that it has no driver of its own for.
//! `hosted.toml` has them.

use std::sync::LazyLock;

use ring3_quirks::{CardTable, Cards, Function};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    driver: Vec<Driver>,
}

/// One of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Driver {
    /// As `ring3 dde list` has it, without `dde:`.
    name: String,
    #[serde(default)]
    ids: Vec<Function>,
    /// Or a class code (24 bits).
    class: Option<u32>,
    /// Where the kernel has the ids, for a driver of cards.
    table: Option<CardTable>,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("hosted.toml")).expect("a test reads it"));

/// The hosted driver for functions with the ids `vendor` and `device` and the class code `class`
/// (24 bits), without `dde:`.
pub fn of_function((vendor, device): (u16, u16), class: u32) -> Option<&'static str> {
    let ids = Function { vendor, device };
    let fits = |driver: &&Driver| driver.class == Some(class) || driver.ids.contains(&ids);
    TABLE.driver.iter().find(fits).map(|driver| driver.name.as_str())
}

/// All of them with the ids that each takes; none for one that takes a class.
pub fn all() -> impl Iterator<Item = (&'static str, &'static [Function])> {
    TABLE.driver.iter().map(|driver| (driver.name.as_str(), driver.ids.as_slice()))
}

/// The cards of those whose tables are known; `is_own` says which of them a driver of ring3's own
/// takes.
pub(crate) fn cards(is_own: impl Fn(Function) -> bool) -> Vec<Cards> {
    let of = |driver: &'static Driver| {
        let (own, hosted) = driver.ids.iter().partition(|&&function| is_own(function));
        Some(Cards { driver: &driver.name, table: driver.table.as_ref()?, own, hosted })
    };
    TABLE.driver.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_that_people_have_are_driven_by_hosted_drivers() {
        for (ids, class, driver) in [
            ((0x8086, 0x1533), 0x02_00_00, Some("igb")),
            ((0x8086, 0x10fb), 0x02_00_00, None),
            ((0x8086, 0x15b8), 0x02_00_00, Some("e1000e")),
            ((0x10ec, 0x8139), 0x02_00_00, Some("8139cp")),
            ((0x1b36, 0x000d), 0x0c_03_30, Some("xhci")),
        ] {
            assert_eq!(of_function(ids, class), driver, "{ids:04x?}");
        }
    }
}
