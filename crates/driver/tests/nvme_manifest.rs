//! The manifest says what the specification and the driver say.

use ring3_spec::nvme;

fn manifest() -> toml::Table {
    include_str!("../src/nvme/manifest.toml").parse().unwrap()
}

#[test]
fn it_matches_the_class_of_nvme_controllers() {
    assert_eq!(manifest()["match"]["class"].as_integer(), Some(i64::from(nvme::CLASS)));
}

#[test]
fn its_bar_holds_the_admin_queues_doorbells() {
    let bars = manifest()["bar"].as_array().unwrap().clone();
    assert_eq!(bars.len(), 1);
    assert_eq!(bars[0]["bytes_min"].as_integer(), Some(nvme::registers::doorbells_end(1, 0) as i64));
}
