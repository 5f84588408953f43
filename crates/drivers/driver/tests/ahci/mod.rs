//! What the tests of the AHCI driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_class::block::Disk;
use ring3_device::{Device, Error};
use ring3_driver::ata::Options;
use ring3_driver::ata::ahci::{Controller, Drive};
use ring3_model::Timing;
use ring3_model::ahci::{AhciHandle, SimAhci};

use super::disks::{self, Driven};
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use super::disks::{Outcome, PATIENCE, bytes, execute, finish, flush, reap_all, run, succeed};

/// Requests time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(80);
/// A drive that was reset is waited for this long.
pub const READY: Duration = Duration::from_millis(100);

impl Driven for Controller {
    type Options = Options;
    type Model = SimAhci;
    type Handle = AhciHandle;

    fn model(uri: &str) -> SimAhci {
        let uri = format!("sim:ahci{uri}").parse().unwrap();
        ring3_model::ahci::open(&uri, OpenOptions::default()).unwrap()
    }
    fn handle(model: &SimAhci) -> AhciHandle {
        model.handle()
    }
    fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        Self::open(device, options)
    }
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.drives()[0].clone())
    }
    /// Whatever a test does, the driver may break no rule of the specification.
    fn at_end(handle: &AhciHandle) {
        // The drives are flushed at the end, and whoever held commands does not release that one.
        handle.set_timing(Timing::Inline);
        let violations = handle.violations();
        assert!(violations.is_empty() || std::thread::panicking(), "{violations:#?}");
    }
}

pub type Bench = disks::Bench<Controller>;

impl Bench {
    pub fn disk(&self) -> &Drive {
        &self.controller.drives()[0]
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
    Bench::open(uri, options).unwrap()
}

pub fn device(uri: &str) -> SimAhci {
    Controller::model(uri)
}
