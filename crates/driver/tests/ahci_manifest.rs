//! The manifest says what the specification and the driver say.

use ring3_spec::ahci::{self, port, registers};

fn manifest() -> toml::Table {
    include_str!("../src/ata/ahci/manifest.toml").parse().unwrap()
}

#[test]
fn it_matches_the_class_of_ahci_controllers() {
    assert_eq!(manifest()["match"]["class"].as_integer(), Some(i64::from(ahci::CLASS)));
}

#[test]
fn its_bar_holds_the_registers_of_one_port() {
    let bars = manifest()["bar"].as_array().unwrap().clone();
    assert_eq!(bars.len(), 1);
    assert_eq!(bars[0]["index"].as_integer(), Some(ahci::BAR.into()));
    assert_eq!(bars[0]["bytes_min"].as_integer(), Some(registers::LEN as i64 + i64::from(port::STRIDE)));
}

#[test]
fn a_drive_needs_a_page_and_a_table_for_each_slot() {
    let bytes = manifest()["memory"]["drive_bytes_max"].as_integer();
    assert_eq!(bytes, Some(4096 + i64::from(ahci::SLOTS) * 4096));
}
