//! What each manifest says is what the registry, the driver and its specification say.

use ring3_driver::registry::{DRIVERS, Driver, Match};
use ring3_spec::{ahci, ide, nvme};

fn manifest(driver: &Driver) -> toml::Table {
    driver.manifest.parse().unwrap_or_else(|error| panic!("{}: {error}", driver.name))
}

/// Index and least size of each BAR.
fn bars(name: &str) -> Vec<(i64, i64)> {
    let driver = DRIVERS.into_iter().find(|driver| driver.name == name).unwrap();
    let bars = manifest(driver)["bar"].as_array().unwrap().clone();
    bars.iter().map(|bar| (bar["index"].as_integer().unwrap(), bar["bytes_min"].as_integer().unwrap())).collect()
}

#[test]
fn each_driver_of_the_registry_is_its_manifests() {
    for driver in DRIVERS {
        let manifest = manifest(driver);
        assert_eq!(manifest["driver"]["name"].as_str(), Some(driver.name));
        assert_eq!(manifest["memory"]["address_bits"].as_integer(), Some(driver.address_bits.into()), "{}", driver.name);
        let number = |key: &str| manifest["match"].get(key).map(|value| value.as_integer().unwrap() as u32);
        let matches = match (number("class"), number("vendor"), number("device")) {
            (Some(code), None, None) => Match::Class { code, mask: number("class_mask").unwrap_or(0xff_ff_ff) },
            (None, Some(vendor), Some(device)) => Match::Ids { vendor: vendor as u16, device: device as u16 },
            other => panic!("{}: {other:?}", driver.name),
        };
        assert_eq!(matches, driver.matches, "{}", driver.name);
    }
}

#[test]
fn a_class_has_one_driver() {
    for (class, name) in [(nvme::CLASS, "nvme"), (ahci::CLASS, "ahci"), (ide::CLASS | 0x80, "ide"), (ide::CLASS, "ide")] {
        assert_eq!(Driver::of_class(class, None).map(|driver| driver.name), Some(name));
    }
    assert!(Driver::of_class(0x02_00_00, None).is_none() && Driver::of_class(nvme::CLASS, Some("ata")).is_none());
}

#[test]
fn nvmes_bar_holds_the_admin_queues_doorbells() {
    assert_eq!(bars("nvme"), [(0, nvme::registers::doorbells_end(1, 0) as i64)]);
}

#[test]
fn ides_bars_are_the_ports_of_both_channels_and_of_the_bus_masters() {
    let (commands, controls) = (ide::command::LEN as i64, ide::control::LEN as i64);
    let bus_masters = (ide::BUS_MASTER_BAR.into(), 2 * i64::from(ide::bus_master::STRIDE));
    assert_eq!(bars("ide"), [(0, commands), (1, controls), (2, commands), (3, controls), bus_masters]);
}

#[test]
fn ahcis_bar_holds_the_registers_of_one_port() {
    let bytes = ahci::registers::LEN as i64 + i64::from(ahci::port::STRIDE);
    assert_eq!(bars("ahci"), [(ahci::BAR.into(), bytes)]);
}

#[test]
fn a_drive_at_an_ahci_port_needs_a_page_and_a_table_for_each_slot() {
    let bytes = manifest(&ring3_driver::ata::AHCI)["memory"]["drive_bytes_max"].as_integer();
    assert_eq!(bytes, Some(4096 + i64::from(ahci::SLOTS) * 4096));
}

#[test]
fn memory_lies_where_the_driver_of_the_class_reaches() {
    assert_eq!(Driver::reach(Some(ide::CLASS | 0x80), None), 1 << 32);
    assert_eq!((Driver::reach(Some(nvme::CLASS), None), Driver::reach(None, None)), (u64::MAX, u64::MAX));
}

#[test]
fn who_leaves_a_state_says_so() {
    for driver in DRIVERS {
        let state = manifest(driver).get("restart").and_then(|restart| restart.get("state")?.as_str().map(str::to_owned));
        assert_eq!(state.as_deref() == Some("saved"), driver.resume.is_some(), "{}", driver.name);
    }
}
