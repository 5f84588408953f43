//! What the tests of the IDE driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_class::block::Disk;
use ring3_device::{Device, Error};
use ring3_driver::ata::Options;
use ring3_driver::ata::ide::{Controller, Drive};
use ring3_model::ide::{IdeHandle, SimIde};

use super::disks::{self, Driven};
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use super::disks::{Outcome, PATIENCE, bytes, execute, finish, flush, reap_all, run, succeed};

/// Commands time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(160);
/// Resets time out after this.
pub const READY: Duration = Duration::from_millis(100);

impl Driven for Controller {
    type Options = Options;
    type Model = SimIde;
    type Handle = IdeHandle;

    fn model(uri: &str) -> SimIde {
        let uri = format!("sim:ide{uri}").parse().unwrap();
        let options = OpenOptions { arena: 16 << 20, below: 1 << 32, ..OpenOptions::default() };
        ring3_model::ide::open(&uri, options).unwrap()
    }
    fn handle(model: &SimIde) -> IdeHandle {
        model.handle()
    }
    fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        Self::open(device, options)
    }
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.drives()[0].clone())
    }
}

pub type Bench = disks::Bench<Controller>;

impl Bench {
    /// Drive `index` of those that were found.
    pub fn drive(&self, index: usize) -> &Drive {
        &self.controller.drives()[index]
    }

    /// The driver has broken no rule.
    pub fn well_behaved(&self) {
        assert_eq!(self.handle.violations(), Vec::<String>::new());
    }
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
    Bench::open(uri, options).unwrap()
}

pub fn device(uri: &str) -> SimIde {
    Controller::model(uri)
}
