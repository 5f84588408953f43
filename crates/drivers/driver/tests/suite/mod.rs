//! The suite that every disk passes, as the tests of the drivers run it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_conformance::block::{Options, Report};
use ring3_device::{Device, Error};

/// Disks of the smallest sizes, as the options of a model have them.
const SMALLEST: [&str; 8] = [
    "size=512",
    "size=1024",
    "size=3584",
    "size=4096",
    "size=8192",
    "block=4096,size=4096",
    "block=4096,size=8192",
    "block=4096,size=20480",
];
/// The same of QEMU's.
const SMALLEST_OF_QEMU: [&str; 3] = ["size=512", "size=3584", "size=4096"];

/// A run of the suite.
pub fn suite(requests: u32, depth: u16) -> Options {
    Options { requests, depth, patience: Duration::from_secs(60) }
}

/// All disks of a device, of which there is one at least, pass what `check` runs on each.
pub fn passes(
    device: Arc<dyn Device>,
    check: impl FnOnce(Arc<dyn Device>) -> Result<Vec<Report>, Error>,
) -> Vec<Report> {
    let reports = check(device).unwrap();
    assert!(!reports.is_empty(), "there is no disk");
    reports.iter().for_each(|report| assert!(report.passed(), "{report}"));
    reports
}

/// The same of what is at `uri`.
pub fn conforms(
    uri: &str,
    memory: OpenOptions,
    check: impl FnOnce(Arc<dyn Device>) -> Result<Vec<Report>, Error>,
) -> Vec<Report> {
    let device = ring3_backend::open(&uri.parse().unwrap(), memory);
    passes(device.unwrap_or_else(|error| panic!("{uri}: {error}")), check)
}

/// Runs `conforms` on disks of the smallest sizes at once: most of a run is waiting.
pub fn smallest(model: &str, conforms: impl Fn(&str) + Sync) {
    let sizes = if model.starts_with("qtest:") { &SMALLEST_OF_QEMU[..] } else { &SMALLEST };
    std::thread::scope(|scope| {
        for size in sizes {
            let conforms = &conforms;
            scope.spawn(move || conforms(&format!("{model},{size}")));
        }
    });
}
