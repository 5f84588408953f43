//! From a device's name to a device: the one place that knows all backends.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use ring3_decorator::recording::Recording;
use ring3_decorator::{Fault, Record, Replay};
use ring3_device::{Device, Error};
use ring3_pci::{Function, Host};
use ring3_spec::{ahci, ide, nvme};

use crate::{OpenOptions, Uri, qtest, uio, vfio, vfio_user};

/// The class code (24 bits) of the function that `uri` names, without claiming it; `None` where
/// nothing but the opened device says.
///
/// It decides which memory a driver asks for, before the driver sees the device.
pub fn class_of(uri: &Uri) -> Option<u32> {
    match (uri.scheme.as_str(), uri.target.as_str()) {
        ("vfio" | "uio", address) => {
            Function::read(&Host::this(), address.parse().ok()?).ok().map(|function| function.class)
        }
        ("vfio-user", path) => vfio_user::class_of(path),
        ("replay", path) => {
            Recording::open(Path::new(path)).ok().map(|recording| recording.header.class)
        }
        ("sim" | "qtest", "nvme") => Some(nvme::CLASS),
        ("sim" | "qtest", target) if target.ends_with("ahci") => Some(ahci::CLASS),
        ("sim" | "qtest", target) if target.ends_with("ide") => Some(ide::CLASS),
        _ => None,
    }
}

/// What the backend for names with `scheme` needs beside a driver, a TOML document; what a device
/// over a lease does, of whatever backend, is `lease`. `None` for one whose driver is not put into
/// a sandbox: it runs where it is developed.
pub fn manifest(scheme: &str) -> Option<&'static str> {
    match scheme {
        "vfio" => Some(include_str!("vfio/manifest.toml")),
        "uio" => Some(include_str!("uio/manifest.toml")),
        "lease" => Some(include_str!("lease/manifest.toml")),
        "vfio-user" => Some(include_str!("vfio_user/manifest.toml")),
        _ => None,
    }
}

/// Opens the device that `uri` names. With `record=FILE` behind it, what passes between it and its
/// driver is recorded in a new file; with `registers=RULES`, its registers go wrong by the rules of
/// `ring3_decorator::plan`.
pub fn open(uri: &Uri, options: OpenOptions) -> Result<Arc<dyn Device>, Error> {
    let mut uri = uri.clone();
    let Some(path) = uri.options.remove("record") else { return open_wrong(uri, options) };
    let file = File::options().write(true).create_new(true).open(&path);
    let file = file.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Error::Invalid(format!(
            "making the recording {path}: there is such a file; choose another name, or delete it"
        )),
        _ => Error::os(format!("making the recording {path}"), error),
    })?;
    Ok(Arc::new(Record::new(open_wrong(uri, options)?, file, command(std::env::args().collect()))?))
}

/// The command of `ring3` that stands for a process with these arguments: `dde-NAME` is what
/// `ring3 dde run NAME` starts. With whose parent it ends is of no use to another time.
fn command(arguments: Vec<String>) -> Vec<String> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next().unwrap_or_default();
    let driver =
        Path::new(&program).file_name().and_then(|name| name.to_str()?.strip_prefix("dde-"));
    let Some(driver) = driver else { return arguments.collect() };
    let mut words = ["dde", "run", driver].map(str::to_owned).to_vec();
    while let Some(word) = arguments.next() {
        match word.as_str() {
            "--with-parent" => drop(arguments.next()),
            _ => words.push(word),
        }
    }
    words
}

fn open_wrong(mut uri: Uri, options: OpenOptions) -> Result<Arc<dyn Device>, Error> {
    let Some(rules) = uri.options.remove("registers") else { return open_backend(&uri, options) };
    let plan = rules.parse()?;
    Ok(Arc::new(Fault::new(open_backend(&uri, options)?, plan)))
}

fn open_backend(uri: &Uri, options: OpenOptions) -> Result<Arc<dyn Device>, Error> {
    Ok(match (uri.scheme.as_str(), uri.target.as_str()) {
        ("vfio", _) => Arc::new(vfio::open(uri, options)?),
        ("uio", _) => Arc::new(uio::open(uri, options)?),
        ("vfio-user", _) => Arc::new(vfio_user::open(uri, options)?),
        ("qtest", _) => Arc::new(qtest::open(uri, options)?),
        ("sim", _) => ring3_model::open(uri, options)?,
        ("replay", path) => {
            uri.only(&[])?;
            Arc::new(Replay::open(Path::new(path))?)
        }
        ("remote", _) => {
            let what = "is what another process drives, and no device: a disk is used by ring3 \
                        blk, a card by ring3 net and ring3 run net";
            return Err(Error::Unsupported(format!("{uri} {what}")));
        }
        _ => return Err(Error::Unsupported(format!("{uri}: this build has no such device"))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(arguments: &str) -> String {
        command(arguments.split(' ').map(str::to_owned).collect()).join(" ")
    }

    #[test]
    fn a_recording_names_the_command_that_drives_its_device_again() {
        assert_eq!(
            words("/usr/bin/ring3 blk info --device sim:nvme"),
            "blk info --device sim:nvme"
        );
        let hosted = "/lib/ring3/dde-e1000e --device qtest:e1000e --socket /tmp/card --with-parent \
                      17 --no-msix";
        assert_eq!(
            words(hosted),
            "dde run e1000e --device qtest:e1000e --socket /tmp/card --no-msix"
        );
    }
}
