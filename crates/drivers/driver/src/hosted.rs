//! Drivers of Linux that ring3 hosts, for functions that it has no driver of its own for.
//! `hosted.toml` has them.

use std::sync::LazyLock;

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
    /// `VENDOR:DEVICE` in hexadecimal.
    #[serde(default)]
    ids: Vec<String>,
    /// Or a class code (24 bits).
    class: Option<u32>,
}

static TABLE: LazyLock<Table> =
    LazyLock::new(|| toml::from_str(include_str!("hosted.toml")).expect("a test reads it"));

/// The hosted driver for functions with the ids `vendor` and `device` and the class code `class`
/// (24 bits), without `dde:`.
pub fn of_function((vendor, device): (u16, u16), class: u32) -> Option<&'static str> {
    let ids = format!("{vendor:04x}:{device:04x}");
    let fits = |driver: &&Driver| driver.class == Some(class) || driver.ids.contains(&ids);
    TABLE.driver.iter().find(fits).map(|driver| driver.name.as_str())
}

/// All of them with the ids that each takes; none for one that takes a class.
pub fn all() -> impl Iterator<Item = (&'static str, &'static [String])> {
    TABLE.driver.iter().map(|driver| (driver.name.as_str(), driver.ids.as_slice()))
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
