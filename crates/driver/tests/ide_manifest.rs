//! The manifest says what the specification and the driver say.

use ring3_spec::ide::{self, bus_master, command, control};

fn manifest() -> toml::Table {
    include_str!("../src/ata/ide/manifest.toml").parse().unwrap()
}

#[test]
fn it_matches_the_class_of_ide_controllers() {
    let matched = &manifest()["match"];
    assert_eq!(matched["class"].as_integer(), Some(i64::from(ide::CLASS)));
    assert_eq!(matched["class_mask"].as_integer(), Some(i64::from(ide::CLASS_MASK)));
}

#[test]
fn its_bars_are_the_ports_of_both_channels_and_of_the_bus_masters() {
    let bars = manifest()["bar"].as_array().unwrap().clone();
    let found: Vec<_> =
        bars.iter().map(|bar| (bar["index"].as_integer().unwrap(), bar["bytes_min"].as_integer().unwrap())).collect();
    let (commands, controls) = (command::LEN as i64, control::LEN as i64);
    let bus_masters = (ide::BUS_MASTER_BAR.into(), 2 * i64::from(bus_master::STRIDE));
    assert_eq!(found, [(0, commands), (1, controls), (2, commands), (3, controls), bus_masters]);
}
