//! The teaching device in the registry.

use ring3_spec::edu as spec;

use crate::registry::{Driver, Match};

/// The driver of the teaching device, which offers nothing but its [self test](super::self_test).
pub static DRIVER: Driver = Driver {
    name: "edu",
    family: "edu",
    what: "QEMU's teaching device",
    commands: "ring3 run edu",
    matches: Match::Ids { vendor: spec::VENDOR, device: spec::DEVICE },
    address_bits: 28,
    throttles: false,
    manifest: include_str!("manifest.toml"),
    quirks: None,
    open: None,
    resume: None,
    adopt: None,
};
