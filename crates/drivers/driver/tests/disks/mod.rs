//! A controller of disks with the model that it drives, as the tests of each driver use them.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[path = "../owner/mod.rs"]
mod owner;

use std::sync::Arc;

use ring3_class::block::{Disk, IoError, Queue, Request};
use ring3_device::dma::DmaBuffer;
use ring3_device::{Device, Error};

pub use owner::{Outcome, PATIENCE, bytes, execute, finish, reap_all, succeed};

/// A driver's controller.
pub trait Driven: Sized {
    type Options: Default;
    type Model: Device + 'static;
    /// The other side of the model.
    type Handle: Clone;

    /// A model, as what follows its name in a URI says.
    fn model(uri: &str) -> Self::Model;
    fn handle(model: &Self::Model) -> Self::Handle;
    fn open(device: Arc<dyn Device>, options: Self::Options) -> Result<Self, Error>;
    /// The first disk.
    fn disk(&self) -> Arc<dyn Disk>;
    /// What holds before a [`Bench`] is dropped.
    fn at_end(_handle: &Self::Handle) {}
}

/// A controller with the other side of its device.
pub struct Bench<C: Driven> {
    pub controller: C,
    pub handle: C::Handle,
}

impl<C: Driven> Drop for Bench<C> {
    fn drop(&mut self) {
        C::at_end(&self.handle);
    }
}

impl<C: Driven> Bench<C> {
    /// A controller that drives the model `uri`.
    pub fn open(uri: &str, options: C::Options) -> Result<Self, Error> {
        Self::of(C::model(uri), options)
    }

    /// A controller that drives `model`.
    pub fn of(model: C::Model, options: C::Options) -> Result<Self, Error> {
        let handle = C::handle(&model);
        C::open(Arc::new(model), options).map(|controller| Self { controller, handle })
    }

    /// A queue of the first disk.
    pub fn queue(&self, depth: u16) -> Box<dyn Queue> {
        self.controller.disk().open_queue(depth).unwrap()
    }

    pub fn buffer(&self, len: usize) -> DmaBuffer {
        self.controller.disk().dma().arena().alloc_pages(len).unwrap()
    }

    pub fn filled(&self, len: usize, byte: u8) -> DmaBuffer {
        let buffer = self.buffer(len);
        buffer.fill(byte);
        buffer
    }

    /// A read of block `token`.
    pub fn read(&self, token: u64) -> Request {
        Request::read(token, token, 1, self.buffer(512))
    }

    /// A write of block `token`.
    pub fn write(&self, token: u64, byte: u8) -> Request {
        Request::write(token, token, 1, self.filled(512, byte))
    }

    /// Submits reads of so many blocks from the first one on.
    pub fn submit_reads(&self, queue: &mut dyn Queue, tokens: impl IntoIterator<Item = u64>) {
        tokens.into_iter().for_each(|token| queue.submit(self.read(token)).unwrap());
    }

    /// Bytes of DMA memory that are free.
    pub fn free(&self) -> usize {
        self.controller.disk().dma().arena().free_bytes()
    }
}

/// One request and all that its owner sees.
pub fn run(queue: &mut dyn Queue, request: Request) -> Outcome {
    queue.submit(request).unwrap();
    finish(queue)
}

/// How a flush ends.
pub fn flush(queue: &mut dyn Queue) -> Result<(), IoError> {
    run(queue, Request::flush(99)).of(99)
}
