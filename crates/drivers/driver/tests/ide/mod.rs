//! What the tests of the IDE driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[path = "../owner/mod.rs"]
mod owner;

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Disk, Queue};
use ring3_device::Error;
use ring3_device::dma::DmaBuffer;
use ring3_driver::ata::Options;
use ring3_driver::ata::ide::{Controller, Drive};
use ring3_model::ide::{IdeHandle, SimIde};

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use owner::{Outcome, PATIENCE, bytes, execute, finish, reap_all, succeed};

/// Commands time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(160);
/// Resets time out after this.
pub const READY: Duration = Duration::from_millis(100);

/// A controller with the other side of its device.
pub struct Bench {
    pub controller: Controller,
    pub handle: IdeHandle,
}

/// Opens `uri` (what follows `sim:ide`) with the default options but short time-outs.
pub fn bench(uri: &str) -> Bench {
    bench_with(uri, short())
}

/// Options with the short time-outs.
pub fn short() -> Options {
    Options { timeout: TIMEOUT, flush_timeout: TIMEOUT, ready_timeout: READY, ..Options::default() }
}

pub fn bench_with(uri: &str, options: Options) -> Bench {
    try_bench(uri, options).unwrap()
}

pub fn try_bench(uri: &str, options: Options) -> Result<Bench, Error> {
    let device = device(uri);
    let handle = device.handle();
    Controller::open(Arc::new(device), options).map(|controller| Bench { controller, handle })
}

pub fn device(uri: &str) -> SimIde {
    let uri: Uri = format!("sim:ide{uri}").parse().unwrap();
    let options = OpenOptions { arena: 16 << 20, below: 1 << 32, ..OpenOptions::default() };
    ring3_model::ide::open(&uri, options).unwrap()
}

impl Bench {
    /// Drive `index` of those that were found.
    pub fn drive(&self, index: usize) -> &Drive {
        &self.controller.drives()[index]
    }

    /// A queue of the first drive.
    pub fn queue(&self, depth: u16) -> Box<dyn Queue> {
        self.drive(0).open_queue(depth).unwrap()
    }

    pub fn buffer(&self, len: usize) -> DmaBuffer {
        self.drive(0).dma().arena().alloc_pages(len).unwrap()
    }

    pub fn filled(&self, len: usize, byte: u8) -> DmaBuffer {
        let buffer = self.buffer(len);
        buffer.fill(byte);
        buffer
    }

    /// Bytes of DMA memory that are free.
    pub fn free(&self) -> usize {
        self.drive(0).dma().arena().free_bytes()
    }

    /// The driver has broken no rule.
    pub fn well_behaved(&self) {
        assert_eq!(self.handle.violations(), Vec::<String>::new());
    }
}
