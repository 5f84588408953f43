//! Where the device is, how long it lasts, and who has it afterwards.
//!
//! # Ways
//! - A PCI function is bound to a passthrough driver, unless it is, and given back.
//! - A simulated disk is served to the steps' processes by this one, so that it outlives them.
//! - A disk of QEMU's has its data in a file, so that each step's QEMU has the same.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ring3_backend::{Uri, parse_size};
use ring3_bench::load::stamp;
use ring3_model::vfio_user::{Running, VfioUserServer};
use ring3_pci::{Address, Function, Host, PassthroughDriver, Usage, bind, unbind};

use crate::leave::{Kept, or_end};
use crate::model;

/// A device as everywhere, or a PCI address alone, which is one of VFIO.
#[derive(Clone, Debug)]
pub struct Name(pub Uri);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = match text.parse::<Address>() {
            Ok(address) => format!("vfio:{address}"),
            Err(_) => text.to_owned(),
        };
        text.parse().map(Self).map_err(|error: ring3_backend::UriError| error.to_string())
    }
}

/// Bytes of a disk of QEMU's, if the user says nothing, and of what is written to its start.
const QEMU_BYTES: u64 = 64 << 20;
const FILLED: u64 = 16 << 20;
/// How long a function may be busy after its last process has ended.
const RELEASE: Duration = Duration::from_secs(10);
/// Options whose values are paths.
const PATHS: [&str; 4] = ["file", "monitor", "wav", "wire"];
/// Options whose values are one device's own.
const OWN: [&str; 2] = ["mac", "serial"];
const DISKS: [&str; 4] = ["nvme", "ahci", "ide", "virtio-blk"];

/// A device that is tested.
pub struct Place {
    /// As the user calls it.
    pub name: Uri,
    /// As a step's process calls it.
    pub uri: String,
    pub bound: Option<Kept<Bound>>,
    pub function: Option<Function>,
    _server: Option<Kept<Running>>,
    _folder: Option<Kept<tempfile::TempDir>>,
}

/// A PCI function, and what is to be undone.
pub struct Bound {
    pub address: Address,
    pub way: PassthroughDriver,
    is_ours: bool,
}

impl Bound {
    /// Takes it from its driver; the driver's name. Nothing happens if it is on its way.
    pub fn take(&mut self) -> Result<Option<String>> {
        // Set before, so that whatever a signal interrupts is undone.
        self.is_ours = true;
        let report = bind(&Host::this(), self.address, self.way, None);
        self.is_ours = report.as_ref().is_ok_and(|report| report.before != report.now);
        Ok(report?.before.filter(|_| self.is_ours))
    }

    /// Gives it back to the driver that it had; its name.
    pub fn release(&mut self) -> Result<Option<String>> {
        let since = Instant::now();
        while self.is_ours {
            match unbind(&Host::this(), self.address) {
                Ok(report) => {
                    self.is_ours = false;
                    return Ok(report.now);
                }
                Err(_) if since.elapsed() < RELEASE => std::thread::sleep(RELEASE / 100),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    pub fn is_ours(&self) -> bool {
        self.is_ours
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            errln!(
                "ring3: {} was not given back ({error}): sudo ring3 unbind {}",
                self.address,
                self.address
            );
        }
    }
}

impl Place {
    /// The device that `name` is. Nothing of it is changed yet; a function that is in use is
    /// refused.
    pub fn new(name: Uri) -> Result<Self> {
        for option in ["record", "registers"] {
            ensure!(
                !name.options.contains_key(option),
                "{name}: {option}= is of the steps here: leave it out (--recording FILE)"
            );
        }
        let place = Self {
            uri: name.to_string(),
            name: name.clone(),
            bound: None,
            function: None,
            _server: None,
            _folder: None,
        };
        let is_disk = DISKS.iter().any(|model| name.target == *model);
        match name.scheme.as_str() {
            "vfio" | "uio" => place.at_function(),
            "sim" if is_disk => place.served(),
            "qtest" if is_qemu_disk(&name) => place.in_file(),
            "replay" | "remote" => bail!("{name} is no device of this process's own"),
            _ => Ok(place),
        }
    }

    fn at_function(self) -> Result<Self> {
        let way = match self.name.scheme.as_str() {
            "uio" => PassthroughDriver::Uio,
            _ => PassthroughDriver::Vfio,
        };
        let (host, address) = (Host::this(), self.name.target.parse::<Address>()?);
        let function = Function::read(&host, address).map_err(|why| why.at(address))?;
        let used = match function.way() {
            Some(_) => function.user(&host),
            None => Usage::probe(&host, address).obstacle(),
        };
        if let Some(obstacle) = used {
            return Err(obstacle.at(address).into());
        }
        let bound = Kept::new(Bound { address, way, is_ours: false });
        Ok(Self { bound: Some(bound), function: Some(function), ..self })
    }

    /// A model that this process serves.
    fn served(self) -> Result<Self> {
        let words = self.uri.trim_start_matches("sim:");
        let (_, device) = model::open(words)?;
        let folder = folder()?;
        let socket = path_in(&folder, "device");
        let server = VfioUserServer::bind(&socket, device)?.spawn()?;
        Ok(Self {
            uri: model::name(&socket)?,
            _server: Some(Kept::new(server)),
            _folder: Some(folder),
            ..self
        })
    }

    /// A disk of QEMU's whose data are in a file.
    fn in_file(self) -> Result<Self> {
        let folder = folder()?;
        let path = path_in(&folder, "data");
        let size = self.name.options.get("size").and_then(|size| parse_size(size));
        fill(&path, size.unwrap_or(QEMU_BYTES)).context("making a file for QEMU's disk")?;
        let mut uri = self.name.clone();
        uri.options.remove("size");
        uri.options.insert("file".into(), path.display().to_string());
        Ok(Self { uri: uri.to_string(), _folder: Some(folder), ..self })
    }

    /// What stands in the file: no path of this machine, and nothing that is one device's own.
    pub fn public_uri(&self) -> String {
        let mut uri = self.name.clone();
        uri.options.retain(|name, _| !PATHS.iter().chain(&OWN).any(|own| own == name));
        if uri.scheme == "vfio-user" {
            uri.target = "PATH".into();
        }
        uri.to_string()
    }

    /// The kernel's driver that has the function now.
    pub fn kernel_driver(&self) -> Option<&str> {
        let function = self.function.as_ref().filter(|function| function.way().is_none())?;
        function.driver.as_deref()
    }

    /// Why drivers of this device are not killed: it would end with them. `None` if it would not.
    pub fn ends_with_its_driver(&self) -> Option<&'static str> {
        match self.name.scheme.as_str() {
            "qtest" => Some("QEMU's device ends with its driver's process"),
            "uio" => Some("a device of UIO has no lease: nobody holds it between two drivers"),
            _ => None,
        }
    }
}

fn is_qemu_disk(name: &Uri) -> bool {
    let target = name.target.as_str();
    let is_disk = target == "nvme"
        || target.ends_with("ahci")
        || target.ends_with("ide")
        || target.starts_with("virtio-blk");
    is_disk
        && !["file", "null", "disks", "namespaces"]
            .iter()
            .any(|key| name.options.contains_key(*key))
}

pub fn folder() -> Result<Kept<tempfile::TempDir>> {
    tempfile::tempdir().map(Kept::new).context("making a folder")
}

pub fn path_in(folder: &Kept<tempfile::TempDir>, name: &str) -> std::path::PathBuf {
    or_end(folder.with(|folder| folder.path().join(name)))
}

/// Makes a file of `bytes` that says at each place of its start and of its end where that is.
fn fill(path: &Path, bytes: u64) -> std::io::Result<()> {
    const PIECE: usize = 1 << 20;
    let mut file = File::create_new(path)?;
    file.set_len(bytes)?;
    let mut piece = vec![0; PIECE];
    let last = bytes.saturating_sub(PIECE as u64) / PIECE as u64 * PIECE as u64;
    for at in (0..FILLED.min(bytes)).step_by(PIECE).chain([last]) {
        stamp::fill(&mut piece, at, 1);
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&piece[..PIECE.min((bytes - at) as usize)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_alone_is_one_of_vfio() {
        assert_eq!("01:00.0".parse::<Name>().unwrap().0.to_string(), "vfio:0000:01:00.0");
        assert_eq!("sim:nvme,size=1M".parse::<Name>().unwrap().0.to_string(), "sim:nvme,size=1M");
        assert!("toaster".parse::<Name>().is_err());
    }

    #[test]
    fn no_path_stands_in_the_file() {
        for (name, public) in [
            ("vfio-user:/home/x/socket", "vfio-user:PATH"),
            ("qtest:nvme,file=/home/x/disk,mdts=2", "qtest:nvme,mdts=2"),
            ("sim:e1000,mac=52:54:00:ab:cd:ef", "sim:e1000"),
        ] {
            let place = Place::new(name.parse().unwrap()).unwrap();
            assert_eq!(place.public_uri(), public);
        }
    }

    #[test]
    fn a_device_that_is_recorded_or_that_another_process_drives_is_refused() {
        for name in ["sim:nvme,record=x", "replay:x", "remote:/run/x"] {
            assert!(Place::new(name.parse().unwrap()).is_err(), "{name}");
        }
    }
}
