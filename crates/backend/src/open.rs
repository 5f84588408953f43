//! From a device's name to a device: the one place that knows all backends.

use ring3_device::{Device, Error};

use crate::{OpenOptions, Uri};

/// What to do with a device whose type is known only when its URI has been read.
///
/// Each backend has its own device type, so that no access goes through a table of functions; the job is compiled once for each.
pub trait Job {
    /// What it gives back.
    type Output;
    /// Does it.
    fn run<D: Device>(self, device: D) -> Self::Output;
}

/// Opens the device that `uri` names and runs `job` on it.
pub fn with_device<J: Job>(uri: &Uri, options: OpenOptions, _job: J) -> Result<J::Output, Error> {
    let _options = options.overridden_by(uri)?;
    // Each backend adds its line here: "qtest" => Ok(job.run(qtest::open(uri, options)?)),
    Err(Error::Unsupported(format!("{uri}: this build has no backend {:?}", uri.scheme)))
}
