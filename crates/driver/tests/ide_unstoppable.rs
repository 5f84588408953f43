//! A bus master that does not stop when it is told to: what proves that it reaches no memory any more, and what happens without a proof.

mod ide;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ide::{bytes, device, execute, finish, short, succeed};
use ring3_class::block::{Disk, IoError, Request};
use ring3_device::dma::DmaBuffer;
use ring3_device::{Access, Bar, Decorator, Device, Error};
use ring3_driver::ata::ide::Controller;
use ring3_model::fault::{Action, Rule};
use ring3_model::ide::{IdeHandle, SimIde};
use ring3_spec::ata::opcode;
use ring3_spec::ide::{BUS_MASTER_BAR, BusMasterStatus, bus_master};

/// What ends a transfer of a stubborn function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cure {
    Reset,
    BusMasterOff,
    Nothing,
}

/// A simulated function whose primary bus master says that it is active, once it is stuck, and that no interrupt came, once it is deaf.
struct Stubborn {
    inner: SimIde,
    stuck: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
    cure: Cure,
}

struct StubbornBar {
    inner: Bar,
    stuck: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
}

impl Access for StubbornBar {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        let value = self.inner.read(offset, width);
        if (offset, width) != (bus_master::status(0).offset(), 1) {
            return value;
        }
        let heard = if self.deaf.load(Ordering::Relaxed) { !BusMasterStatus(0).with_interrupt(1).0 } else { !0 };
        value & u64::from(heard) | u64::from(self.stuck.load(Ordering::Relaxed))
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        self.inner.write(offset, width, value);
    }
}

impl Decorator for Stubborn {
    fn inner(&self) -> &dyn Device {
        &self.inner
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let inner = self.inner.bar(index)?;
        if index != BUS_MASTER_BAR {
            return Ok(inner);
        }
        Ok(Bar::new(Arc::new(StubbornBar { inner, stuck: self.stuck.clone(), deaf: self.deaf.clone() })))
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        match self.cure {
            Cure::Nothing if !on => Err(Error::Fatal("the bus cannot be taken away".into())),
            _ => self.inner.set_bus_master(on),
        }
    }
    fn reset(&self) -> Result<(), Error> {
        match self.cure {
            Cure::Reset => {
                self.stuck.store(false, Ordering::Relaxed);
                self.inner.reset()
            }
            Cure::BusMasterOff => {
                self.inner.set_bus_master(false)?;
                Err(Error::Unsupported("it has no reset".into()))
            }
            Cure::Nothing => Err(Error::Fatal("it does not reset".into())),
        }
    }
}

struct Scene {
    controller: Controller,
    handle: IdeHandle,
    stuck: Arc<AtomicBool>,
}

/// A function with a drive on each channel; the next read of the primary's never ends, and its bus master does not stop.
fn scene(cure: Cure) -> Scene {
    let (inner, stuck) = (device(",disks=3"), Arc::new(AtomicBool::new(false)));
    let handle = inner.handle();
    let controller =
        Controller::open(Arc::new(Stubborn { inner, stuck: stuck.clone(), deaf: Arc::default(), cure }), short()).unwrap();
    assert!(handle.poke(0, 0, &[0x5a; 512]));
    stuck.store(true, Ordering::Relaxed);
    handle.plan().add(Rule::io(Action::Drop, opcode::READ_DMA).on_queue(1));
    Scene { controller, handle, stuck }
}

impl Scene {
    fn buffer(&self) -> DmaBuffer {
        self.controller.drives()[0].dma().arena().alloc_pages(512).unwrap()
    }
}

#[test]
fn a_reset_of_the_function_stops_it_and_both_channels_go_on() {
    let scene = scene(Cure::Reset);
    let [master, _, other] = scene.controller.drives() else { panic!() };
    let (mut queue, mut beside) = (master.open_queue(4).unwrap(), other.open_queue(4).unwrap());
    let data = succeed(&mut *queue, Request::read(1, 0, 1, scene.buffer()));
    assert_eq!(bytes(data), [0x5a; 512]);
    // The other channel has lost its settings, too, and sets them again.
    succeed(&mut *beside, Request::read(2, 0, 1, scene.buffer()));
    assert_eq!([0, 1, 2].map(|drive| scene.handle.transfer_mode(drive)), [0x42; 3]);
    assert_eq!((other.stats().resets, master.mode().as_str()), (1, "Ultra DMA mode 2"));
    assert_eq!(scene.handle.complaints(), Vec::<String>::new());
}

#[test]
fn a_function_that_loses_the_bus_goes_on_by_pio_on_both_channels() {
    let scene = scene(Cure::BusMasterOff);
    let [master, _, other] = scene.controller.drives() else { panic!() };
    let (mut queue, mut beside) = (master.open_queue(4).unwrap(), other.open_queue(4).unwrap());
    for _ in 0..3 {
        let data = succeed(&mut *queue, Request::read(1, 0, 1, scene.buffer()));
        assert_eq!(bytes(data), [0x5a; 512]);
        succeed(&mut *beside, Request::read(2, 0, 1, scene.buffer()));
    }
    assert!(scene.stuck.load(Ordering::Relaxed));
}

#[test]
fn memory_that_a_function_may_still_write_to_comes_back_to_nobody() {
    let scene = scene(Cure::Nothing);
    let [master, _, other] = scene.controller.drives() else { panic!() };
    let arena = master.dma().arena().clone();
    let free = arena.free_bytes();
    let mut queue = master.open_queue(4).unwrap();
    for token in 0..3 {
        queue.submit(Request::read(token, 0, 1, scene.buffer())).unwrap();
    }
    let outcome = finish(&mut *queue);
    assert!((0..3).all(|token| outcome.of(token) == Err(IoError::Transport)));
    let mut lent: Vec<_> = outcome.completions.iter().map(|completion| (completion.token, completion.data.len())).collect();
    lent.sort();
    // The one that the device had is given up; those that had not begun are not.
    assert_eq!(lent, [(0, 0), (1, 512), (2, 512)]);
    let beside = execute(&mut *other.open_queue(4).unwrap(), Request::read(2, 0, 1, scene.buffer()));
    assert_eq!(beside.0, Ok(()), "the other channel's bus master obeys");
    drop((queue, outcome, beside));
    assert_eq!(arena.free_bytes(), free - 512);
    // Of the two channels' tables, the other one's comes back.
    drop(scene);
    assert_eq!(arena.free_bytes(), free - 512 + 4096 * 8 + 512);
}

#[test]
fn an_end_that_the_bus_master_does_not_hear_of_is_found_by_looking_and_counted() {
    let (inner, deaf) = (device(""), Arc::new(AtomicBool::new(false)));
    let stubborn = Stubborn { inner, stuck: Arc::default(), deaf: deaf.clone(), cure: Cure::Reset };
    let controller = Controller::open(Arc::new(stubborn), short()).unwrap();
    let drive = &controller.drives()[0];
    let mut queue = drive.open_queue(4).unwrap();
    deaf.store(true, Ordering::Relaxed);
    for round in 1..=2 {
        let buffer = drive.dma().arena().alloc_pages(512).unwrap();
        succeed(&mut *queue, Request::read(1, 0, 1, buffer));
        assert_eq!((drive.stats().lost_interrupts, drive.stats().resets), (round, 0));
    }
}
