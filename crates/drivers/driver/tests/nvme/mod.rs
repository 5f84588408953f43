//! What the tests of the NVMe driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[path = "../owner/mod.rs"]
mod owner;

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Disk, Queue};
use ring3_device::Error;
use ring3_device::dma::DmaBuffer;
use ring3_driver::nvme::{Controller, Options};
use ring3_model::nvme::{NvmeHandle, SimNvme};

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use owner::{Outcome, PATIENCE, bytes, execute, finish, reap_all, succeed};

/// Requests time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(80);

/// A controller with the other side of its device.
pub struct Bench {
    pub controller: Controller,
    pub handle: NvmeHandle,
}

/// Opens `uri` (what follows `sim:nvme`) with the default options but a short time-out.
pub fn bench(uri: &str) -> Bench {
    bench_with(uri, short())
}

/// Options with the short time-out.
pub fn short() -> Options {
    Options { timeout: TIMEOUT, flush_timeout: TIMEOUT, ..Options::default() }
}

pub fn bench_with(uri: &str, options: Options) -> Bench {
    try_bench(uri, options).unwrap()
}

pub fn try_bench(uri: &str, options: Options) -> Result<Bench, Error> {
    let device = device(uri);
    let handle = device.handle();
    Controller::open(Arc::new(device), options).map(|controller| Bench { controller, handle })
}

/// A controller that drives `device`.
pub fn bench_of(device: SimNvme, options: Options) -> Bench {
    let handle = device.handle();
    Bench { controller: Controller::open(Arc::new(device), options).unwrap(), handle }
}

pub fn device(uri: &str) -> SimNvme {
    let uri: Uri = format!("sim:nvme{uri}").parse().unwrap();
    ring3_model::nvme::open(&uri, OpenOptions::default()).unwrap()
}

impl Bench {
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.controller.disk(1).unwrap()
    }

    pub fn queue(&self, depth: u16) -> Box<dyn Queue> {
        self.disk().open_queue(depth).unwrap()
    }

    pub fn buffer(&self, len: usize) -> DmaBuffer {
        self.disk().dma().arena().alloc_pages(len).unwrap()
    }

    pub fn filled(&self, len: usize, byte: u8) -> DmaBuffer {
        let buffer = self.buffer(len);
        buffer.fill(byte);
        buffer
    }

    /// Bytes of DMA memory that are free.
    pub fn free(&self) -> usize {
        self.disk().dma().arena().free_bytes()
    }
}
