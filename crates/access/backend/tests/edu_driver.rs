//! The teaching device's driver on two backends: one body, two devices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::{OpenOptions, Uri, qtest};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::edu::{self, Edu, Fact};
use ring3_model::{self, Timing};

/// Below the 28 bits of the device and above the arena of either backend.
const OUTSIDE: u64 = 0xfff_f000;

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

fn qemu(text: &str) -> Arc<qtest::Qtest> {
    let device = qtest::open(
        &uri(text),
        OpenOptions { arena: 1 << 20, below: edu::REACH, ..OpenOptions::default() },
    );
    Arc::new(device.unwrap_or_else(|error| panic!("{error}")))
}

fn model(text: &str) -> Arc<ring3_model::edu::SimEdu> {
    let device = ring3_model::edu::open(
        &uri(text),
        OpenOptions { arena: 1 << 20, below: edu::REACH, ..OpenOptions::default() },
    );
    Arc::new(device.unwrap())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn facts(device: Arc<dyn Device>, outside: Option<u64>) -> (Vec<Fact>, Result<(), Error>) {
    let mut facts = Vec::new();
    let result = edu::self_test(device, outside, &mut |fact| facts.push(fact));
    (facts, result)
}

/// What the driver does on every backend.
fn does_everything(device: Arc<dyn Device>) {
    let (facts, result) = facts(device, Some(OUTSIDE));
    result.unwrap();
    let steps: Vec<_> = facts.iter().map(|fact| fact.step).collect();
    let wanted = [
        "identification",
        "liveness",
        "factorial, polled",
        "DMA, polled",
        "MSI",
        "factorial, MSI",
        "DMA, MSI",
        "INTx",
        "factorial, INTx",
        "DMA, INTx",
        "DMA outside of the arena",
        "reset",
    ];
    assert_eq!(steps, wanted);
    assert!(
        facts
            .iter()
            .all(|fact| !fact.step.starts_with("factorial") || fact.result == "12! = 479001600")
    );
}

#[test]
fn the_driver_does_everything_on_qemus_device() {
    does_everything(qemu("qtest:edu"));
}

#[test]
fn the_driver_does_everything_on_the_simulated_device() {
    does_everything(model("sim:edu"));
}

/// Interrupts of one kind after those of another, and the other way round.
fn changes_its_interrupts(device: Arc<dyn Device>) {
    let mut edu = Edu::attach(device).unwrap();
    for kind in [IrqKind::Intx, IrqKind::Msi, IrqKind::Intx] {
        edu.wait_by(Some(kind)).unwrap();
        edu.raise(0x10);
        assert_eq!(edu.wait_interrupt(soon()).unwrap(), 0x10);
        assert_eq!(edu.factorial(5, soon()).unwrap(), 120);
    }
}

#[test]
fn kinds_of_interrupts_take_turns_on_qemus_device() {
    changes_its_interrupts(qemu("qtest:edu"));
}

#[test]
fn kinds_of_interrupts_take_turns_on_the_simulated_device() {
    changes_its_interrupts(model("sim:edu"));
}

/// No interrupt: the wait ends at its deadline, not before and not much later.
fn waits_no_longer_than_asked(device: Arc<dyn Device>) {
    let mut edu = Edu::attach(device).unwrap();
    edu.wait_by(Some(IrqKind::Msi)).unwrap();
    let start = Instant::now();
    let error = edu.wait_interrupt(Deadline::after(Duration::from_millis(50))).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!((50..2000).contains(&start.elapsed().as_millis()));
}

#[test]
fn an_interrupt_that_does_not_come_is_a_timeout_on_qemus_device() {
    waits_no_longer_than_asked(qemu("qtest:edu"));
}

#[test]
fn an_interrupt_that_does_not_come_is_a_timeout_on_the_simulated_device() {
    waits_no_longer_than_asked(model("sim:edu"));
}

#[test]
fn a_transfer_that_does_not_end_is_a_timeout_and_a_reset_brings_its_buffer_back() {
    let device = model("sim:edu");
    let handle = device.handle();
    let edu = Edu::attach(device).unwrap();
    let free = edu.device().dma().arena().free_bytes();
    handle.set_timing(Timing::Held);
    let buffer = edu.device().dma().arena().alloc(64, 16).unwrap();
    let error = edu.send(buffer, Deadline::after(Duration::from_millis(20))).unwrap_err();
    assert!(matches!(error, Error::Timeout { what: "a transfer", .. }), "{error}");
    assert_eq!(edu.device().dma().arena().free_bytes(), free);
    handle.set_timing(Timing::Inline);
    assert_eq!(edu.factorial(5, soon()).unwrap(), 120);
}

#[test]
fn a_transfer_beyond_what_the_device_reaches_is_refused() {
    let edu = Edu::attach(model("sim:edu")).unwrap();
    let buffer = edu.device().dma().arena().alloc(edu::TRANSFER_LIMIT + 1, 16).unwrap();
    assert!(matches!(edu.send(buffer, soon()), Err(Error::Invalid(_))));
}

#[test]
fn a_device_that_was_removed_fails_the_next_step_as_gone() {
    let device = model("sim:edu");
    let handle = device.handle();
    let edu = Edu::attach(device).unwrap();
    handle.remove();
    assert!(matches!(edu.check_liveness(1), Err(Error::Gone)));
    assert!(matches!(edu.factorial(5, soon()), Err(Error::Gone)));
}

#[test]
fn an_address_inside_of_the_arena_is_no_trespass() {
    let device = qemu("qtest:edu");
    let inside = device.dma().arena().iova();
    assert!(matches!(facts(device, Some(inside)).1, Err(Error::Invalid(_))));
}

#[test]
fn another_device_is_refused_with_what_it_is() {
    let error = Edu::attach(qemu("qtest:nvme,null=on")).err().unwrap();
    assert!(error.to_string().contains("it is an NVMe controller"), "{error}");
}
