//! Controllers of disks that go from one process to the next: saved and resumed, or killed and
//! adopted.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[path = "../successor/mod.rs"]
mod successor;

use std::marker::PhantomData;
use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::block::{Queue, Request, detach};
use ring3_device::dma::{DmaBuffer, SavedArena};
use ring3_device::{Deadline, Device, Error};

use super::disks::{Driven, PATIENCE, bytes, succeed};
pub use successor::{Successor, altered, through_json};

/// A controller that changes hands.
pub trait Heir: Sized {
    fn detach(&mut self) -> Result<Saved, Error>;
    fn resume(device: Arc<dyn Device>, saved: &Saved) -> Result<Self, Error>;
    fn record(&self) -> Result<Saved, Error>;
    fn adopt(device: Arc<dyn Device>, record: &Saved) -> Result<Self, Error>;
}

macro_rules! heir {
    ($controller:ty) => {
        impl Heir for $controller {
            fn detach(&mut self) -> Result<Saved, Error> {
                self.detach()
            }
            fn resume(device: Arc<dyn Device>, saved: &Saved) -> Result<Self, Error> {
                Self::resume(device, None, saved)
            }
            fn record(&self) -> Result<Saved, Error> {
                self.record()
            }
            fn adopt(device: Arc<dyn Device>, record: &Saved) -> Result<Self, Error> {
                Self::adopt(device, None, record)
            }
        }
    };
}
heir!(ring3_driver::ata::ahci::Controller);
heir!(ring3_driver::nvme::Controller);

/// A change to what was saved.
pub type Change = fn(&mut serde_json::Value);

fn filled(device: &dyn Device, byte: u8) -> DmaBuffer {
    let buffer = device.dma().arena().alloc_pages(512).unwrap();
    buffer.fill(byte);
    buffer
}

fn is_invalid(error: &Error) {
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

/// The first process.
pub struct First<C: Driven> {
    pub device: Arc<dyn Device>,
    pub handle: C::Handle,
    pub controller: C,
}

/// What is left of it.
pub struct Left<C> {
    pub device: Arc<dyn Device>,
    pub controller: Saved,
    pub queues: Vec<Saved>,
    driver: PhantomData<C>,
}

impl<C: Driven + Heir> First<C> {
    pub fn open(uri: &str, options: C::Options) -> Self {
        let model = C::model(uri);
        let handle = C::handle(&model);
        let device: Arc<dyn Device> = Arc::new(model);
        Self { controller: C::open(device.clone(), options).unwrap(), device, handle }
    }

    pub fn queue(&self) -> Box<dyn Queue> {
        self.controller.disk().open_queue(16).unwrap()
    }

    pub fn buffer(&self, byte: u8) -> DmaBuffer {
        filled(&*self.device, byte)
    }

    /// Everything is dropped.
    pub fn detach_all(mut self, queues: Vec<Box<dyn Queue>>) -> Left<C> {
        let leave = |mut queue: Box<dyn Queue>| {
            let saved = detach(&mut *queue, &mut Vec::new(), Deadline::after(PATIENCE)).unwrap();
            through_json(&saved)
        };
        let queues = queues.into_iter().map(leave).collect();
        let controller = through_json(&self.controller.detach().unwrap());
        drop(self.controller);
        let device = Successor::of(&self.device);
        Left { device, controller, queues, driver: PhantomData }
    }
}

impl<C: Driven + Heir> Left<C> {
    /// The controller, and the queues of its first disk.
    pub fn resume(&self) -> (C, Vec<Box<dyn Queue>>) {
        let controller = C::resume(self.device.clone(), &self.controller).unwrap();
        let disk = controller.disk();
        let queues = self.queues.iter().map(|saved| disk.resume_queue(saved).unwrap()).collect();
        (controller, queues)
    }

    /// Why `controller` is not resumed, which changes nothing.
    pub fn refusal(&self, controller: &Saved) -> Error {
        let unclaimed = self.device.dma().arena().unclaimed();
        let refused = C::resume(self.device.clone(), controller).err().expect("it is refused");
        assert_eq!(self.device.dma().arena().unclaimed(), unclaimed, "{refused}");
        refused
    }

    /// No controller is resumed of a queue's state, of another version's, or after any of
    /// `changes`, and then it is without.
    pub fn refuses_controllers(&self, changes: &[Change]) {
        is_invalid(&self.refusal(&self.queues[0]));
        is_invalid(&self.refusal(&Saved { version: 99, ..self.controller.clone() }));
        for change in changes {
            is_invalid(&self.refusal(&altered(&self.controller, change)));
        }
        assert_eq!(self.resume().1[0].in_flight(), 1);
    }

    /// No queue is resumed after any of `changes`, and then it is without.
    pub fn refuses_queues(&self, changes: &[Change]) {
        let controller = C::resume(self.device.clone(), &self.controller).unwrap();
        let (disk, saved) = (controller.disk(), &self.queues[0]);
        let unclaimed = self.device.dma().arena().unclaimed();
        for change in changes {
            let error = disk.resume_queue(&altered(saved, change)).err().expect("it is refused");
            is_invalid(&error);
            assert_eq!(self.device.dma().arena().unclaimed(), unclaimed, "{error}");
        }
        assert_eq!(disk.resume_queue(saved).unwrap().in_flight(), 1);
    }
}

/// Nobody uses a controller that was detached, or its first disk, and it does nothing more.
pub fn is_of_no_use<C: Driven + Heir, T: PartialEq + std::fmt::Debug>(
    mut first: First<C>,
    reset: impl FnOnce(&C) -> Result<(), Error>,
    counters: impl Fn(&C::Handle) -> T,
) {
    let disk = first.controller.disk();
    first.controller.detach().unwrap();
    for error in [
        disk.open_queue(4).err().unwrap(),
        reset(&first.controller).unwrap_err(),
        first.controller.detach().unwrap_err(),
    ] {
        assert!(error.to_string().contains("it was detached"), "{error}");
    }
    let before = counters(&first.handle);
    drop((first.controller, disk));
    assert_eq!(counters(&first.handle), before);
}

/// A driver that is about to be killed.
pub struct Victim<C: Driven> {
    pub device: Arc<dyn Device>,
    pub handle: C::Handle,
    pub controller: C,
    pub record: Saved,
    pub arena: SavedArena,
}

/// What is left of it.
pub struct Orphan<C: Driven> {
    pub device: Arc<dyn Device>,
    pub handle: C::Handle,
    pub record: Saved,
}

impl<C: Driven + Heir> Victim<C> {
    pub fn new(device: Arc<dyn Device>, handle: C::Handle, controller: C) -> Self {
        let record = through_json(&controller.record().unwrap());
        let arena = device.dma().arena().save();
        Self { device, handle, controller, record, arena }
    }

    pub fn queue(&self) -> Box<dyn Queue> {
        self.controller.disk().open_queue(16).unwrap()
    }

    pub fn buffer(&self, byte: u8) -> DmaBuffer {
        filled(&*self.device, byte)
    }

    /// Nothing of it runs any more, and nothing was said to anybody.
    pub fn kill(self, queues: Vec<Box<dyn Queue>>) -> Orphan<C> {
        let Self { device, handle, controller, record, arena } = self;
        std::mem::forget((controller, queues));
        Orphan { device: Successor::with(&device, &arena), handle, record }
    }
}

impl<C: Driven + Heir> Orphan<C> {
    pub fn try_adopt(&self) -> Result<C, Error> {
        let adopted = C::adopt(self.device.clone(), &self.record)?;
        self.device.dma().arena().release();
        Ok(adopted)
    }

    pub fn adopt(&self) -> C {
        self.try_adopt().unwrap()
    }

    /// The controller is opened as if nothing had been.
    pub fn open(&self) -> C {
        self.device.dma().arena().release();
        C::open(self.device.clone(), C::Options::default()).unwrap()
    }

    /// The next victim: whoever adopts it.
    pub fn next(self, controller: C) -> Victim<C> {
        Victim::new(self.device, self.handle, controller)
    }

    /// Why it is not adopted.
    pub fn refusal(&self, why: &str) {
        let error = self.try_adopt().err().expect("it is not adopted");
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// Writes and reads something.
pub fn works<C: Driven>(controller: &C) {
    let disk = controller.disk();
    let mut queue = disk.open_queue(16).unwrap();
    for token in 0..40 {
        let buffer = disk.dma().arena().alloc_pages(512).unwrap();
        buffer.fill(token as u8 + 1);
        succeed(&mut *queue, Request::write(token, 100, 1, buffer));
        let buffer = disk.dma().arena().alloc_pages(512).unwrap();
        let read = succeed(&mut *queue, Request::read(token, 100, 1, buffer));
        assert_eq!(bytes(read), [token as u8 + 1; 512]);
    }
}
