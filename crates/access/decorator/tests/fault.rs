//! Faults of registers and calls, over our models and over QEMU's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::{OpenOptions, Uri};
use ring3_decorator::plan::Plan;
use ring3_decorator::{Fault, VirtualConfig};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::edu::{Edu, REACH};
use ring3_driver::nvme;
use ring3_spec::{edu, pci};

const EDU: [&str; 2] = ["sim:edu", "qtest:edu"];

fn open(uri: &str, rules: &str) -> (Arc<dyn Device>, Arc<Fault>, Plan) {
    let uri: Uri = uri.parse().unwrap();
    let below = if uri.target == "edu" { REACH } else { u64::MAX };
    let inner =
        ring3_backend::open(&uri, OpenOptions { arena: 2 << 20, below, ..OpenOptions::default() })
            .unwrap();
    let plan = if rules.is_empty() { Plan::default() } else { rules.parse().unwrap() };
    (inner.clone(), Arc::new(Fault::new(inner, plan.clone())), plan)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

#[test]
fn the_nth_read_of_a_register_says_what_the_rule_says_and_the_others_what_the_device_does() {
    for uri in EDU {
        let (_, device, plan) = open(uri, "value/0x1234:read#0@0x0:2:2");
        let bar = device.bar(0).unwrap();
        let read = [(); 4].map(|()| bar.read32(edu::IDENTIFICATION.offset()));
        assert_eq!((read[1], read[2], read[3]), (0x1234, 0x1234, read[0]), "{uri}");
        assert_eq!(plan.fired(), 2);
    }
}

#[test]
fn a_write_is_dropped_or_changed() {
    for uri in EDU {
        let (_, device, _) = open(uri, "drop:write#0@4+set/0xf:write#0@4:2");
        let bar = device.bar(0).unwrap();
        let before = bar.read32(edu::LIVENESS.offset());
        bar.write32(edu::LIVENESS.offset(), 1);
        assert_eq!(bar.read32(edu::LIVENESS.offset()), before);
        bar.write32(edu::LIVENESS.offset(), 0x10);
        assert_eq!(bar.read32(edu::LIVENESS.offset()), !0x1f, "{uri}");
    }
}

#[test]
fn a_delayed_access_is_made_after_the_delay() {
    let (_, device, _) = open("sim:edu", "delay/20ms:read#0");
    let start = Instant::now();
    assert_eq!(device.bar(0).unwrap().read32(edu::IDENTIFICATION.offset()) & 0xff, 0xed);
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_device_that_is_removed_at_an_access_is_gone_for_the_driver_from_then_on() {
    for uri in EDU {
        let (inner, device, plan) = open(uri, "");
        let edu = Edu::attach(device.clone()).unwrap();
        plan.add("remove:write#0@8").unwrap();
        assert!(matches!(edu.factorial(5, soon()), Err(Error::Gone)), "{uri}");
        assert_eq!(device.config_read(pci::VENDOR_ID, 2), u32::MAX);
        assert!(
            matches!(device.set_bus_master(true), Err(Error::Gone))
                && matches!(device.reset(), Err(Error::Gone))
        );
        plan.clear();
        assert!(matches!(edu.check_liveness(1), Err(Error::Gone)));
        assert_eq!(inner.config_read(pci::VENDOR_ID, 2), u32::from(edu::VENDOR));
    }
}

#[test]
fn the_cause_of_an_interrupt_that_is_lost_is_found_by_looking() {
    for uri in EDU {
        let (_, device, plan) = open(uri, "lose-interrupt");
        let mut edu = Edu::attach(device).unwrap();
        edu.wait_by(Some(IrqKind::Msi)).unwrap();
        edu.raise(1);
        let late = edu.wait_interrupt(Deadline::after(Duration::from_millis(20)));
        // The cause is found by looking.
        assert_eq!((late.unwrap(), plan.fired()), (1, 1), "{uri}");
    }
}

#[test]
fn a_reset_that_is_refused_leaves_bus_mastering_off_and_one_that_fails_does_nothing() {
    for uri in EDU {
        let (inner, device, _) = open(uri, "fatal:reset+refuse:reset:2");
        let mastering = || inner.config_read(pci::COMMAND, 2) as u16 & pci::COMMAND_BUS_MASTER != 0;
        device.set_bus_master(true).unwrap();
        assert!(matches!(device.reset(), Err(Error::Fatal(_))) && mastering(), "{uri}");
        assert!(matches!(device.reset(), Err(Error::Unsupported(_))) && !mastering(), "{uri}");
        device.reset().unwrap();
    }
}

#[test]
fn a_rule_until_a_reset_ends_with_it() {
    let (_, device, _) = open("sim:edu", "value/7:read#0:1:reset");
    let bar = device.bar(0).unwrap();
    assert_eq!((bar.read32(0), bar.read32(0)), (7, 7));
    device.reset().unwrap();
    assert_eq!(bar.read32(0) & 0xff, 0xed);
}

#[test]
fn a_controller_that_never_becomes_ready_is_a_time_out_on_any_backend() {
    for uri in ["sim:nvme", "qtest:nvme,null=on"] {
        let (_, device, plan) = open(uri, "clear/0x1:read#0@0x1c:1:all");
        let error = nvme::Controller::open(device, nvme::Options::default()).err().unwrap();
        assert!(matches!(error, Error::Timeout { .. }), "{uri}: {error}");
        assert!(plan.fired() > 0);
    }
}

#[test]
fn what_a_fault_changes_in_configuration_space_is_seen_through_a_virtual_one() {
    let (_, device, _) = open("qtest:edu", "value/0xbeef:read#config@0:1:all");
    let device = VirtualConfig::new(device, |_| {});
    assert_eq!(device.config_read(pci::VENDOR_ID, 2), 0xbeef);
    device.config_write(pci::BAR0, 4, u32::MAX).unwrap();
    assert_eq!(device.config_read(pci::BAR0, 4), 0xfff0_0000);
}
