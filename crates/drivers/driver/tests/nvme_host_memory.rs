//! Host memory buffers: controllers that have memory of the host for themselves.

mod disks;
mod hands;
mod nvme;

use std::sync::Arc;

use hands::{altered, works};
use nvme::{Bench, bench, bench_with, finish, short, succeed};
use ring3_class::block::Request;
use ring3_device::dma::{Dma, StaticIommu};
use ring3_device::{Decorator, Device, Error};
use ring3_driver::nvme::{Controller, HostMemory, Options};
use ring3_model::fault::{Action, Rule};
use ring3_model::nvme::SimNvme;
use ring3_spec::nvme::Status;
use ring3_spec::nvme::opcode::admin;

type First = hands::First<Controller>;
type Victim = hands::Victim<Controller>;

const MIB: u64 = 1 << 20;

/// A device whose function cannot be reset, and whose transfers nobody stops.
struct Unstoppable(SimNvme);

impl Decorator for Unstoppable {
    fn inner(&self) -> &dyn Device {
        &self.0
    }
    fn reset(&self) -> Result<(), Error> {
        Err(Error::Unsupported("it has no reset".into()))
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        if on { self.0.set_bus_master(on) } else { Err(Error::Unsupported("it stays on".into())) }
    }
}

/// A device for which memory is mapped when it is opened alone.
struct Fixed {
    model: SimNvme,
    dma: Dma,
}

impl Fixed {
    fn of(model: SimNvme) -> Self {
        let iommu = Arc::new(StaticIommu::identity(0..=u64::MAX));
        let dma = Dma::new(model.dma().arena().clone(), iommu);
        Self { model, dma }
    }
}

impl Decorator for Fixed {
    fn inner(&self) -> &dyn Device {
        &self.model
    }
    fn dma(&self) -> &Dma {
        &self.dma
    }
}

/// Reads a block of each of so many pages of the mapping.
fn read_all(bench: &Bench, pages: u64) {
    let mut queue = bench.queue(8);
    for page in 0..pages {
        succeed(&mut *queue, Request::read(page, page * 8192, 1, bench.buffer(512)));
    }
}

fn given(bench: &Bench) -> u64 {
    bench.controller.host_memory().given
}

#[test]
fn a_controller_gets_the_memory_that_it_prefers_and_keeps_its_mapping_there() {
    let bench = bench(",hmb=8M,hmb-min=1M");
    let memory = HostMemory { preferred: 8 * MIB, minimum: MIB, given: 8 * MIB };
    assert_eq!(bench.controller.host_memory(), memory);
    read_all(&bench, 16);
    read_all(&bench, 16);
    let counters = bench.handle.host_memory();
    assert_eq!((counters.bytes, counters.hits, counters.misses), (8 * MIB, 16, 16));
    assert_eq!(bench.handle.violations(), Vec::<String>::new());
}

#[test]
fn a_controller_without_memory_of_the_host_misses_at_every_random_read() {
    let bench = bench_with(",hmb=8M", Options { host_memory: 0, ..short() });
    read_all(&bench, 16);
    read_all(&bench, 16);
    let counters = bench.handle.host_memory();
    assert_eq!((counters.enabled, counters.hits, counters.misses), (0, 0, 32));
}

#[test]
fn a_controller_that_asks_for_nothing_is_given_nothing() {
    let bench = bench("");
    let memory = HostMemory { preferred: 0, minimum: 0, given: 0 };
    assert_eq!(bench.controller.host_memory(), memory);
}

#[test]
fn the_limit_bounds_what_a_controller_gets_however_much_it_asks_for() {
    let limit = |uri: &str, mib: u64| {
        given(&bench_with(uri, Options { host_memory: mib * MIB, ..short() })) / MIB
    };
    // HMPRE = 0xffffffff.
    assert_eq!(limit(",hmb=17592186040320", 4), 4);
    assert_eq!(limit(",hmb=8M", 4), 4);
    assert_eq!(limit(",hmb=8M,hmb-min=5M", 4), 0);
    assert_eq!(limit(",hmb=8M,hmb-min=16M", 32), 0, "it needs more than it prefers");
    assert_eq!(limit(",hmb=8M,hmb-piece=16M", 32), 0, "its smallest piece is larger");
    assert_eq!(limit(",hmb=8M,hmb-piece=8M,hmb-pieces=1", 32), 8);
}

#[test]
fn a_buffer_consists_of_the_controllers_memory_pages() {
    let bench = bench(",hmb=8M,mpsmin=4");
    read_all(&bench, 16);
    read_all(&bench, 16);
    let counters = bench.handle.host_memory();
    assert_eq!((counters.bytes, counters.hits), (8 * MIB, 16));
}

#[test]
fn the_memory_leaves_what_the_arena_was_made_with() {
    let (without, with) = (bench(""), bench(",hmb=8M"));
    assert!(with.free() + 4096 > without.free());
}

#[test]
fn a_reset_gives_the_same_memory_back_with_its_contents() {
    let bench = bench(",hmb=8M");
    read_all(&bench, 16);
    bench.controller.reset().unwrap();
    read_all(&bench, 16);
    let counters = bench.handle.host_memory();
    assert_eq!((counters.enabled, counters.returned), (2, 1));
    assert_eq!((counters.hits, counters.misses), (16, 16), "the mapping is there again");
    assert_eq!(bench.handle.violations(), Vec::<String>::new());
}

#[test]
fn a_reset_behind_the_drivers_back_and_a_loss_of_power_give_it_back_too() {
    let bench = bench(",hmb=8M");
    let mut queue = bench.queue(8);
    for (round, lose) in [(1, false), (2, true)] {
        if lose {
            bench.handle.lose_power()
        } else {
            bench.handle.reset_function()
        }
        succeed(&mut *queue, Request::read(round, 0, 1, bench.buffer(512)));
    }
    assert_eq!(bench.handle.host_memory().returned, 2);
    assert_eq!(bench.handle.violations(), Vec::<String>::new());
}

#[test]
fn memory_whose_contents_are_refused_after_a_reset_is_given_as_new() {
    let bench = bench(",hmb=8M");
    // After a reset: number of queues, events, then the memory.
    let refused = Rule::admin(Action::Status(Status::INVALID_FIELD.0), admin::SET_FEATURES);
    bench.handle.plan().add(refused.nth(3));
    bench.controller.reset().unwrap();
    let counters = bench.handle.host_memory();
    assert_eq!((counters.enabled, counters.returned, given(&bench)), (2, 0, 8 * MIB));
}

#[test]
fn a_controller_that_refuses_the_memory_that_it_asked_for_works_without() {
    let model = nvme::device(",hmb=8M");
    let handle = model.handle();
    let refused = Rule::admin(Action::Status(Status::INVALID_FIELD.0), admin::SET_FEATURES);
    handle.plan().add(refused.nth(3));
    let bench = Bench::of(model, short()).unwrap();
    read_all(&bench, 4);
    assert_eq!((given(&bench), handle.host_memory().enabled), (0, 0));
}

#[test]
fn the_memory_is_taken_back_before_the_shutdown_and_is_free_then() {
    let device: Arc<dyn Device> = Arc::new(nvme::device(",hmb=8M"));
    let handle = {
        let model = nvme::device(",hmb=8M");
        let handle = model.handle();
        let device: Arc<dyn Device> = Arc::new(model);
        let controller = Controller::open(device.clone(), short()).unwrap();
        controller.shutdown().unwrap();
        assert_eq!(handle.host_memory().disabled, 1);
        drop(controller);
        let arena = device.dma().arena();
        assert!(arena.free_bytes() + 8192 > arena.len(), "{}", arena.free_bytes());
        handle
    };
    assert_eq!(handle.violations(), Vec::<String>::new());
    // Opened again, the device uses the same memory.
    for _ in 0..3 {
        drop(Controller::open(device.clone(), short()).unwrap());
    }
    assert_eq!(device.dma().arena().regions().count(), 2);
}

#[test]
fn a_controller_that_does_not_give_the_memory_back_is_stopped_and_then_it_is_free() {
    let model = nvme::device(",hmb=8M");
    let handle = model.handle();
    let device: Arc<dyn Device> = Arc::new(model);
    let controller = Controller::open(device.clone(), short()).unwrap();
    handle.plan().add(Rule::admin(Action::Drop, admin::SET_FEATURES));
    controller.shutdown().unwrap();
    drop(controller);
    let arena = device.dma().arena();
    assert!(arena.free_bytes() + 8192 > arena.len());
}

#[test]
fn memory_of_a_controller_that_nobody_could_stop_is_never_given_out_again() {
    let model = nvme::device(",hmb=8M");
    let handle = model.handle();
    let device: Arc<dyn Device> = Arc::new(Unstoppable(model));
    let controller = Controller::open(device.clone(), short()).unwrap();
    handle.plan().add(Rule::enable(Action::StuckReady).always());
    assert!(controller.shutdown().is_err());
    drop(controller);
    let arena = device.dma().arena();
    assert!(arena.free_bytes() + (8 << 20) <= arena.len());
}

#[test]
fn a_host_that_changes_the_memory_meanwhile_breaks_a_rule() {
    let bench = bench(",hmb=8M");
    read_all(&bench, 16);
    let disk = bench.disk();
    let region = disk.dma().arena().regions().nth(1).unwrap().region.clone();
    for page in 0..region.len() / 4096 {
        region.write(page * 4096, &[0xff; 8]).unwrap();
    }
    read_all(&bench, 16);
    let violations = bench.handle.violations();
    assert!(violations.len() == 16 && violations[0].contains("was changed"), "{violations:?}");
}

#[test]
fn the_next_process_goes_on_with_the_memory_and_a_reset_gives_it_back() {
    let first = First::open(",hmb=8M", Options::default());
    let handle = first.handle.clone();
    let left = first.detach_all(Vec::new());
    assert_eq!(handle.host_memory().bytes, 8 * MIB, "the controller has it all the time");
    let (controller, _) = left.resume();
    assert_eq!(controller.host_memory().given, 8 * MIB);
    assert_eq!(left.device.dma().arena().unclaimed(), []);
    controller.reset().unwrap();
    works(&controller);
    let counters = handle.host_memory();
    assert_eq!((counters.enabled, counters.returned, counters.disabled), (2, 1, 0));
    controller.shutdown().unwrap();
    assert_eq!((handle.host_memory().disabled, handle.violations()), (1, Vec::new()));
}

#[test]
fn memory_that_cannot_be_the_controllers_is_not_taken_over() {
    let left = First::open(",hmb=8M", Options::default()).detach_all(Vec::new());
    let changes: [hands::Change; 4] = [
        |state| state["admin"]["host_memory"]["buffer"]["len"] = 4096.into(),
        |state| state["admin"]["host_memory"]["buffer"]["offset"] = 4096.into(),
        |state| {
            state["admin"]["host_memory"]["list"] = state["admin"]["host_memory"]["buffer"].clone();
        },
        |state| {
            state["admin"]["host_memory"]["buffer"] = state["admin"]["host_memory"]["list"].clone();
        },
    ];
    for change in changes {
        let error = left.refusal(&altered(&left.controller, change));
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert_eq!(left.resume().0.host_memory().given, 8 * MIB);
}

fn victim(uri: &str) -> Victim {
    let device = nvme::device(uri);
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let controller = Controller::open(device.clone(), Options::default()).unwrap();
    Victim::new(device, handle, controller)
}

#[test]
fn who_adopts_a_killed_drivers_controller_has_its_memory() {
    let orphan = victim(",hmb=8M").kill(Vec::new());
    let controller = orphan.adopt();
    works(&controller);
    assert_eq!(controller.host_memory().given, 8 * MIB);
    let counters = orphan.handle.host_memory();
    assert_eq!((counters.enabled, counters.disabled, counters.bytes), (1, 0, 8 * MIB));
    assert_eq!(orphan.handle.violations(), Vec::<String>::new());
}

#[test]
fn a_controller_with_other_memory_than_was_recorded_is_not_adopted_but_stopped() {
    // A record that says nothing of it would have the memory given out as free.
    let mut orphan = victim(",hmb=8M").kill(Vec::new());
    orphan.record = altered(&orphan.record, |state| {
        state["admin"]["host_memory"] = serde_json::Value::Null;
    });
    orphan.refusal("other memory of the host");
    works(&orphan.open());
    assert_eq!(orphan.handle.violations(), Vec::<String>::new());
    // And one that says what the controller does not have any more.
    let victim = victim(",hmb=8M");
    victim.handle.forget_host_memory();
    let orphan = victim.kill(Vec::new());
    orphan.refusal("other memory of the host");
    works(&orphan.open());
}

#[test]
fn a_device_whose_memory_is_fixed_when_it_is_opened_gets_none() {
    let model = nvme::device(",hmb=8M");
    let handle = model.handle();
    let device: Arc<dyn Device> = Arc::new(Fixed::of(model));
    let controller = Controller::open(device, short()).unwrap();
    works(&controller);
    assert_eq!((controller.host_memory().given, handle.host_memory().enabled), (0, 0));
}

#[test]
fn requests_in_flight_end_while_the_controller_misses_its_mapping() {
    let bench = bench_with(",hmb=8M,hmb-miss=2ms", Options::default());
    let mut queue = bench.queue(32);
    bench.submit_reads(&mut *queue, 0..16);
    assert!(finish(&mut *queue).completions.iter().all(|end| end.result.is_ok()));
    assert_eq!(bench.handle.host_memory().misses, 1);
}
