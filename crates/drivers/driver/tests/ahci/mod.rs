//! What the tests of the AHCI driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[path = "../owner/mod.rs"]
mod owner;

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Disk, Queue, Request};
use ring3_device::Error;
use ring3_device::dma::DmaBuffer;
use ring3_driver::ata::Options;
use ring3_driver::ata::ahci::{Controller, Drive};
use ring3_model::Timing;
use ring3_model::ahci::{AhciHandle, SimAhci};

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use owner::{Outcome, PATIENCE, bytes, execute, finish, reap_all, succeed};

/// Requests time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(80);
/// A drive that was reset is waited for this long.
pub const READY: Duration = Duration::from_millis(100);

/// A controller with the other side of its device. Whatever a test does, the driver may break no
/// rule of the specification.
pub struct Bench {
    pub controller: Controller,
    pub handle: AhciHandle,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The drives are flushed at the end, and whoever held commands does not release that one.
        self.handle.set_timing(Timing::Inline);
        let violations = self.handle.violations();
        assert!(violations.is_empty() || std::thread::panicking(), "{violations:#?}");
    }
}

/// Opens `uri` (what follows `sim:ahci`) with the default options but short time-outs.
pub fn bench(uri: &str) -> Bench {
    bench_with(uri, short())
}

/// Options with short time-outs.
pub fn short() -> Options {
    Options {
        timeout: TIMEOUT,
        flush_timeout: TIMEOUT,
        ready_timeout: READY,
        link_timeout: READY,
        ..Options::default()
    }
}

pub fn bench_with(uri: &str, options: Options) -> Bench {
    try_bench(uri, options).unwrap()
}

pub fn try_bench(uri: &str, options: Options) -> Result<Bench, Error> {
    let device = device(uri);
    let handle = device.handle();
    Controller::open(Arc::new(device), options).map(|controller| Bench { controller, handle })
}

pub fn device(uri: &str) -> SimAhci {
    let uri: Uri = format!("sim:ahci{uri}").parse().unwrap();
    ring3_model::ahci::open(&uri, OpenOptions::default()).unwrap()
}

impl Bench {
    pub fn disk(&self) -> &Drive {
        &self.controller.drives()[0]
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

    /// A read of block `token`.
    pub fn read(&self, token: u64) -> Request {
        Request::read(token, token, 1, self.buffer(512))
    }

    /// Bytes of DMA memory that are free.
    pub fn free(&self) -> usize {
        self.disk().dma().arena().free_bytes()
    }
}
