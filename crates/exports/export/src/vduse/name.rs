//! Names of devices, and where their logs are.

use std::path::PathBuf;

use ring3_vduse::{Device, Error, is_name};

/// Where the log of the device `name` is: it must be there as long as the device, and not longer
/// than the machine runs.
pub fn log(name: &str) -> PathBuf {
    PathBuf::from(format!("/run/ring3-vduse-{name}"))
}

/// `name`, if it is one, or `any` with the first number that nobody has.
pub fn choose(name: Option<&str>, any: &str) -> Result<String, Error> {
    match name {
        Some(name) if is_name(name) => Ok(name.into()),
        Some(name) => Err(Error::Name(name.into())),
        None => Ok((0..)
            .map(|number| format!("{any}{number}"))
            .find(|name| !Device::exists(name))
            .unwrap_or_default()),
    }
}
