//! A bus master that does not stop when it is told to: what proves that it reaches no memory any
//! more, and what happens without a proof.

mod disks;
mod ide;

use std::sync::Arc;

use ide::{bytes, device, execute, finish, short, succeed};
use ring3_class::block::{Disk, IoError, Request};
use ring3_decorator::Fault;
use ring3_decorator::plan::Plan;
use ring3_device::dma::DmaBuffer;
use ring3_driver::ata::ide::Controller;
use ring3_model::fault::{Action, Rule};
use ring3_model::ide::IdeHandle;
use ring3_spec::ata::opcode;

/// The bus master says that it is active until the function is reset, or for ever.
const UNTIL_RESET: &str = "set/0x1:read#4@2:1:reset";
const FOR_EVER: &str = "set/0x1:read#4@2:1:all";

struct Scene {
    controller: Controller,
    handle: IdeHandle,
    plan: Plan,
}

/// A function with a drive on each channel; the next read of the primary's never ends, and its bus
/// master does not stop: `faults` says what of it.
fn scene(faults: &[&str]) -> Scene {
    let (inner, plan) = (device(",disks=3"), Plan::default());
    let handle = inner.handle();
    let controller =
        Controller::open(Arc::new(Fault::new(Arc::new(inner), plan.clone())), short()).unwrap();
    assert!(handle.poke(0, 0, &[0x5a; 512]));
    faults.iter().for_each(|fault| plan.add(fault).unwrap());
    handle.plan().add(Rule::io(Action::Drop, opcode::READ_DMA).on_queue(1));
    Scene { controller, handle, plan }
}

impl Scene {
    fn buffer(&self) -> DmaBuffer {
        self.controller.drives()[0].dma().arena().alloc_pages(512).unwrap()
    }
}

#[test]
fn a_reset_of_the_function_stops_it_and_both_channels_go_on() {
    let scene = scene(&[UNTIL_RESET]);
    let [master, _, other] = scene.controller.drives() else { panic!() };
    let (mut queue, mut beside) = (master.open_queue(4).unwrap(), other.open_queue(4).unwrap());
    let data = succeed(&mut *queue, Request::read(1, 0, 1, scene.buffer()));
    assert_eq!(bytes(data), [0x5a; 512]);
    // The other channel has lost its settings, too, and sets them again.
    succeed(&mut *beside, Request::read(2, 0, 1, scene.buffer()));
    assert_eq!([0, 1, 2].map(|drive| scene.handle.transfer_mode(drive)), [0x42; 3]);
    assert_eq!((other.stats().resets, master.mode().as_str()), (1, "Ultra DMA mode 2"));
    assert_eq!(scene.handle.violations(), Vec::<String>::new());
}

#[test]
fn a_function_that_loses_the_bus_goes_on_by_pio_on_both_channels() {
    let scene = scene(&[FOR_EVER, "refuse:reset:1:all"]);
    let [master, _, other] = scene.controller.drives() else { panic!() };
    let (mut queue, mut beside) = (master.open_queue(4).unwrap(), other.open_queue(4).unwrap());
    for _ in 0..3 {
        let data = succeed(&mut *queue, Request::read(1, 0, 1, scene.buffer()));
        assert_eq!(bytes(data), [0x5a; 512]);
        succeed(&mut *beside, Request::read(2, 0, 1, scene.buffer()));
    }
    assert!(scene.plan.fired() > 1, "the reset was refused, and it is still stuck");
}

#[test]
fn memory_that_a_function_may_still_write_to_comes_back_to_nobody() {
    let scene = scene(&[FOR_EVER, "fatal:reset:1:all", "fatal:bus-master:1:all"]);
    let [master, _, other] = scene.controller.drives() else { panic!() };
    let arena = master.dma().arena().clone();
    let free = arena.free_bytes();
    let mut queue = master.open_queue(4).unwrap();
    for token in 0..3 {
        queue.submit(Request::read(token, 0, 1, scene.buffer())).unwrap();
    }
    let outcome = finish(&mut *queue);
    assert!((0..3).all(|token| outcome.of(token) == Err(IoError::Transport)));
    let mut lent: Vec<_> = outcome
        .completions
        .iter()
        .map(|completion| (completion.token, completion.data.len()))
        .collect();
    lent.sort();
    // The one that the device had is given up; those that had not begun are not.
    assert_eq!(lent, [(0, 0), (1, 512), (2, 512)]);
    let beside =
        execute(&mut *other.open_queue(4).unwrap(), Request::read(2, 0, 1, scene.buffer()));
    assert_eq!(beside.0, Ok(()), "the other channel's bus master obeys");
    drop((queue, outcome, beside));
    assert_eq!(arena.free_bytes(), free - 512);
    // Of the two channels' tables, the other one's comes back.
    drop(scene);
    assert_eq!(arena.free_bytes(), free - 512 + 4096 * 8 + 512);
}

#[test]
fn an_end_that_the_bus_master_does_not_hear_of_is_found_by_looking_and_counted() {
    let plan = Plan::default();
    let controller =
        Controller::open(Arc::new(Fault::new(Arc::new(device("")), plan.clone())), short())
            .unwrap();
    let drive = &controller.drives()[0];
    let mut queue = drive.open_queue(4).unwrap();
    plan.add("clear/0x4:read#4@2:1:all").unwrap();
    for round in 1..=2 {
        let buffer = drive.dma().arena().alloc_pages(512).unwrap();
        succeed(&mut *queue, Request::read(1, 0, 1, buffer));
        assert_eq!((drive.stats().lost_interrupts, drive.stats().resets), (round, 0));
    }
}
