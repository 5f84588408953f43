//! What each manifest says is what the registry, the driver and its specification say.

use ring3_driver::registry::{DRIVERS, Driver, Match};
use ring3_lease::{BitCondition, DeviceTimeout, Quiesce, Step};
use ring3_spec::ahci::registers::{CONTROL, Control, RESET_MILLIS};
use ring3_spec::ide::bus_master::{BusMasterCommand, BusMasterStatus, command, status};
use ring3_spec::nvme::registers::{CAP, CC, CSTS, Cc, Csts};
use ring3_spec::{ahci, e1000, ide, nvme, virtio};

fn manifest(driver: &Driver) -> toml::Table {
    driver.manifest.parse().unwrap_or_else(|error| panic!("{}: {error}", driver.name))
}

/// Index and least size of each BAR.
fn bars(name: &str) -> Vec<(i64, i64)> {
    let driver = DRIVERS.into_iter().find(|driver| driver.name == name).unwrap();
    let bars = manifest(driver)["bar"].as_array().unwrap().clone();
    bars.iter()
        .map(|bar| (bar["index"].as_integer().unwrap(), bar["bytes_min"].as_integer().unwrap()))
        .collect()
}

#[test]
fn each_driver_of_the_registry_is_its_manifests() {
    for driver in DRIVERS {
        let manifest = manifest(driver);
        assert_eq!(manifest["driver"]["name"].as_str(), Some(driver.name));
        assert_eq!(
            manifest["memory"]["address_bits"].as_integer(),
            Some(driver.address_bits.into()),
            "{}",
            driver.name
        );
        let number =
            |key: &str| manifest["match"].get(key).map(|value| value.as_integer().unwrap() as u32);
        let said =
            (number("class"), number("vendor"), number("device"), manifest["match"].get("devices"));
        let is_same = match (driver.matches, said) {
            (Match::Class { code, mask }, (Some(class), None, None, None)) => {
                (code, mask) == (class, number("class_mask").unwrap_or(0xff_ff_ff))
            }
            (Match::Ids { vendor, device }, (None, Some(of), Some(one), None)) => {
                (vendor.into(), device.into()) == (of, one)
            }
            (Match::AnyOf { vendor, devices }, (None, Some(of), None, Some(any))) => {
                let any: Vec<_> =
                    any.as_array().unwrap().iter().map(|one| one.as_integer().unwrap()).collect();
                u32::from(vendor) == of
                    && any == devices.iter().map(|&device| i64::from(device)).collect::<Vec<_>>()
            }
            _ => false,
        };
        assert!(is_same, "{}: {said:?}", driver.name);
    }
}

#[test]
fn a_class_has_one_driver() {
    for (class, name) in [
        (nvme::CLASS, "nvme"),
        (ahci::CLASS, "ahci"),
        (ide::CLASS | 0x80, "ide"),
        (ide::CLASS, "ide"),
    ] {
        assert_eq!(Driver::of_class(class, None).map(|driver| driver.name), Some(name));
    }
    assert!(
        Driver::of_class(0x02_00_00, None).is_none()
            && Driver::of_class(nvme::CLASS, Some("ata")).is_none()
    );
}

#[test]
fn nvmes_bar_holds_the_admin_queues_doorbells() {
    assert_eq!(bars("nvme"), [(0, nvme::registers::doorbells_end(1, 0) as i64)]);
}

#[test]
fn ides_bars_are_the_ports_of_both_channels_and_of_the_bus_masters() {
    let (commands, controls) = (ide::command::LEN as i64, ide::control::LEN as i64);
    let bus_masters = (ide::BUS_MASTER_BAR.into(), 2 * i64::from(ide::bus_master::STRIDE));
    assert_eq!(
        bars("ide"),
        [(0, commands), (1, controls), (2, commands), (3, controls), bus_masters]
    );
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
    assert_eq!(Driver::dma_limit(Some(ide::CLASS | 0x80), None), 1 << 32);
    assert_eq!(
        (Driver::dma_limit(Some(nvme::CLASS), None), Driver::dma_limit(None, None)),
        (u64::MAX, u64::MAX)
    );
}

#[test]
fn who_leaves_a_state_says_so() {
    for driver in DRIVERS {
        let state = manifest(driver)
            .get("restart")
            .and_then(|restart| restart.get("state")?.as_str().map(str::to_owned));
        assert_eq!(state.as_deref() == Some("saved"), driver.resume.is_some(), "{}", driver.name);
    }
}

/// What a fence does to the controller of driver `name`.
fn quiesce(name: &str) -> Option<Quiesce> {
    let driver = DRIVERS.into_iter().find(|driver| driver.name == name).unwrap();
    Quiesce::from_manifest(driver.manifest).unwrap()
}

#[test]
fn nvmes_fence_clears_enable_and_sees_that_it_is_not_ready() {
    let Quiesce { bar, step, structure: None, .. } = quiesce("nvme").unwrap() else {
        panic!("registers of its own")
    };
    let bits = Cc(0).with_enable(1).with_shutdown(3).0;
    let until = BitCondition { at: CSTS.offset(), mask: Csts(0).with_ready(1).0, value: 0 };
    assert_eq!(bar, 0);
    // CAP.TO, which the driver waits for as well.
    let limit_from = Some(DeviceTimeout { at: CAP.offset(), shift: 24, mask: 0xff, unit_ms: 500 });
    assert_eq!(
        step,
        [Step {
            at: CC.offset(),
            width: 32,
            clear: bits,
            set: 0,
            until,
            limit_ms: 2000,
            limit_from
        }]
    );
}

#[test]
fn ahcis_fence_is_the_controllers_reset() {
    let Quiesce { bar, step, structure: None, .. } = quiesce("ahci").unwrap() else {
        panic!("registers of its own")
    };
    let (at, reset) = (CONTROL.offset(), Control(0).with_reset(1));
    let until = BitCondition { at, mask: reset.0, value: 0 };
    assert_eq!(bar, ahci::BAR);
    assert_eq!(
        step,
        [Step {
            at,
            width: 32,
            clear: 0,
            set: reset.with_enabled(1).0,
            until,
            limit_ms: RESET_MILLIS as u32,
            limit_from: None
        }]
    );
}

#[test]
fn e1000s_fence_is_the_cards_reset() {
    let Quiesce { bar, step, structure: None, .. } = quiesce("e1000").unwrap() else {
        panic!("registers of its own")
    };
    let (at, reset) =
        (e1000::general::CONTROL.offset(), e1000::general::Control(0).with_reset(1).0);
    let until = BitCondition { at, mask: reset, value: 0 };
    assert_eq!(bar, e1000::BAR);
    let limit_ms = e1000::general::RESET_MILLIS as u32;
    assert_eq!(
        step,
        [Step { at, width: 32, clear: 0, set: reset, until, limit_ms, limit_from: None }]
    );
    assert_eq!(bars("e1000"), [(0, e1000::BAR_BYTES as i64)]);
}

#[test]
fn ides_fence_stops_both_bus_masters() {
    let Quiesce { bar, step, structure: None, .. } = quiesce("ide").unwrap() else {
        panic!("registers of its own")
    };
    let (start, active) =
        (BusMasterCommand(0).with_start(1).0, BusMasterStatus(0).with_active(1).0);
    let stop = |channel| Step {
        at: command(channel).offset(),
        width: 8,
        clear: start.into(),
        set: 0,
        until: BitCondition { at: status(channel).offset(), mask: active.into(), value: 0 },
        limit_ms: 100,
        limit_from: None,
    };
    assert_eq!(bar, ide::BUS_MASTER_BAR);
    assert_eq!(step, [stop(0), stop(1)]);
}

#[test]
fn virtios_fence_resets_the_device_wherever_its_common_configuration_lies() {
    for driver in DRIVERS.into_iter().filter(|driver| driver.family == "virtio") {
        let Quiesce { step, structure, .. } = quiesce(driver.name).unwrap();
        let at = virtio::common::DEVICE_STATUS.offset();
        let until = BitCondition { at, mask: 0xff, value: virtio::STATUS_RESET.into() };
        assert_eq!(structure, Some(virtio::TYPE_COMMON), "{}", driver.name);
        assert_eq!(
            step,
            [Step { at, width: 8, clear: 0xff, set: 0, until, limit_ms: 2000, limit_from: None }],
            "{}",
            driver.name
        );
    }
}

#[test]
fn nothing_in_the_teaching_devices_registers_stops_it() {
    assert_eq!(quiesce("edu"), None);
}
