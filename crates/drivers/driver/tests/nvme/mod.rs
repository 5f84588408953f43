//! What the tests of the NVMe driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_class::block::Disk;
use ring3_device::{Device, Error};
use ring3_driver::nvme::{Controller, Options};
use ring3_model::nvme::{NvmeHandle, SimNvme};

use super::disks::{self, Driven};
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use super::disks::{Outcome, PATIENCE, bytes, execute, finish, flush, reap_all, run, succeed};

/// Requests time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(80);

impl Driven for Controller {
    type Options = Options;
    type Model = SimNvme;
    type Handle = NvmeHandle;

    fn model(uri: &str) -> SimNvme {
        let uri = format!("sim:nvme{uri}").parse().unwrap();
        ring3_model::nvme::open(&uri, OpenOptions::default()).unwrap()
    }
    fn handle(model: &SimNvme) -> NvmeHandle {
        model.handle()
    }
    fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        Self::open(device, options)
    }
    fn disk(&self) -> Arc<dyn Disk> {
        self.disk(1).unwrap()
    }
}

pub type Bench = disks::Bench<Controller>;

impl Bench {
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.controller.disk(1).unwrap()
    }
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
    Bench::open(uri, options).unwrap()
}

pub fn device(uri: &str) -> SimNvme {
    Controller::model(uri)
}
