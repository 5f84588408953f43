//! From a device's name to a device: the one place that knows all backends.

use ring3_device::{Device, Error};
use ring3_pci::{Function, Host};
use ring3_spec::{ahci, ide, nvme};

use crate::{OpenOptions, Uri, qtest, sim, uio, vfio};

/// What to do with a device whose type is known only when its URI has been read.
///
/// Each backend has its own device type, so that no access goes through a table of functions; the job is compiled once for each.
pub trait Job {
    /// What it gives back.
    type Output;
    /// Does it.
    fn run<D: Device>(self, device: D) -> Self::Output;
}

/// The class code (24 bits) of the function that `uri` names, without claiming it; `None` where nothing but the opened device says.
///
/// It decides which memory a driver asks for, before the driver sees the device.
pub fn class_of(uri: &Uri) -> Option<u32> {
    match (uri.scheme.as_str(), uri.target.as_str()) {
        ("vfio" | "uio", address) => Function::read(&Host::this(), address.parse().ok()?).ok().map(|function| function.class),
        ("sim" | "qtest", "nvme") => Some(nvme::CLASS),
        ("sim" | "qtest", target) if target.ends_with("ahci") => Some(ahci::CLASS),
        ("sim" | "qtest", target) if target.ends_with("ide") => Some(ide::CLASS),
        _ => None,
    }
}

/// Opens the device that `uri` names and runs `job` on it.
pub fn with_device<J: Job>(uri: &Uri, options: OpenOptions, job: J) -> Result<J::Output, Error> {
    match (uri.scheme.as_str(), uri.target.as_str()) {
        ("vfio", _) => Ok(job.run(vfio::open(uri, options)?)),
        ("uio", _) => Ok(job.run(uio::open(uri, options)?)),
        ("qtest", _) => Ok(job.run(qtest::open(uri, options)?)),
        ("sim", "edu") => Ok(job.run(sim::edu::open(uri, options)?)),
        ("sim", "ahci") => Ok(job.run(sim::ahci::open(uri, options)?)),
        ("sim", "ide") => Ok(job.run(sim::ide::open(uri, options)?)),
        ("sim", "nvme") => Ok(job.run(sim::nvme::open(uri, options)?)),
        _ => Err(Error::Unsupported(format!("{uri}: this build has no such device"))),
    }
}
