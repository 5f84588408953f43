//! Devices of the guest: what a scenario says of them, and the words QEMU wants.

use crate::error::{Doing, Error};
use crate::folder::SHARED_MEMORY;
use crate::machine::Place;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};

/// One device. Any model that QEMU has; disks and network cards get what stands behind them from here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name in QEMU, serial number of a disk; in the guest, the variable of this name in capitals is its PCI address.
    pub id: String,
    /// QEMU's name of the model: `nvme`, `edu`, `e1000`, ...
    pub model: String,
    /// Driver that it is bound to before the steps run, for example `vfio-pci`.
    pub bind: Option<String>,
    /// Slot on the root bus, in hexadecimal. Without it, each device has a root port of its own.
    pub addr: Option<String>,
    /// Size of the disk behind it, when it is one.
    pub size: Option<Size>,
    /// What holds the disk's data.
    #[serde(default)]
    pub backing: Backing,
    /// Bytes of a logical block: 512 (without it) or 4096.
    pub block_size: Option<u32>,
    /// Namespaces of an NVMe controller that has not just one; then `size` is not given.
    #[serde(default, rename = "namespace")]
    pub namespaces: Vec<Namespace>,
    /// Network behind it: `"user"` is a network of this guest alone; or a table for QEMU's -netdev.
    pub netdev: Option<Value>,
    /// Further properties of the model, as QEMU names them.
    #[serde(default)]
    pub options: Map<String, Value>,
}

/// A namespace of an NVMe controller.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Its size.
    pub size: Size,
    /// What holds its data.
    #[serde(default)]
    pub backing: Backing,
    /// Bytes of a logical block: 512 (without it) or 4096.
    pub block_size: Option<u32>,
    /// Further properties of QEMU's nvme-ns, for example `ms` for metadata.
    #[serde(default)]
    pub options: Map<String, Value>,
}

/// What holds a disk's data.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "String")]
pub enum Backing {
    /// Nothing: writes vanish, reads give zeroes.
    #[default]
    Null,
    /// Nothing, and reads leave memory as it is: the quickest, for measuring what is not the disk.
    Untouched,
    /// Memory of the host, gone after the run.
    Memory,
    /// A sparse file in the cache folder, gone after the run.
    File,
    /// An image that is there already, and stays.
    Image(PathBuf),
}

impl From<String> for Backing {
    fn from(word: String) -> Self {
        match word.as_str() {
            "null" => Self::Null,
            "untouched" => Self::Untouched,
            "memory" => Self::Memory,
            "file" => Self::File,
            _ => Self::Image(word.into()),
        }
    }
}

/// A size in bytes; in a scenario a number, or text such as `64K`, `512M`, `1G`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SizeWord")]
pub struct Size(pub u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum SizeWord {
    Number(u64),
    Text(String),
}

impl TryFrom<SizeWord> for Size {
    type Error = String;
    fn try_from(word: SizeWord) -> Result<Self, String> {
        match word {
            SizeWord::Number(bytes) => Ok(Self(bytes)),
            SizeWord::Text(text) => text.parse(),
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a size such as 512M or 1G");
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K') => (&text[..text.len() - 1], 10),
            Some(b'M') => (&text[..text.len() - 1], 20),
            Some(b'G') => (&text[..text.len() - 1], 30),
            Some(b'T') => (&text[..text.len() - 1], 40),
            _ => (text, 0),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number.checked_shl(shift).filter(|bytes| bytes >> shift == number).map(Self).ok_or_else(wrong)
    }
}

/// What QEMU is told about one device, in JSON: good for the command line and for plugging it in later.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// -blockdev
    pub(crate) blocks: Vec<Value>,
    /// -netdev
    pub(crate) nets: Vec<Value>,
    /// -device, a controller before what hangs on it
    pub(crate) devices: Vec<Value>,
}

impl Device {
    /// A device of `model` called `id`, with nothing behind it.
    pub fn new(id: &str, model: &str) -> Self {
        Self { id: id.into(), model: model.into(), ..Self::default() }
    }

    /// An NVMe disk with one namespace.
    pub fn nvme(id: &str, size: Size, backing: Backing) -> Self {
        Self { size: Some(size), backing, ..Self::new(id, "nvme") }
    }

    /// The same, bound to `driver` (`vfio-pci`) before the steps run.
    pub fn bound(self, driver: &str) -> Self {
        Self { bind: Some(driver.into()), ..self }
    }

    /// The same with one more property of the model.
    pub fn option(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.options.insert(name.into(), value.into());
        self
    }

    /// Whether it can be plugged into a running guest.
    pub(crate) fn can_be_plugged(&self) -> bool {
        self.namespaces.is_empty() && self.addr.is_none()
    }

    /// Checks names before they reach QEMU or the guest's shell.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |why: String| Err(Error::Request(format!("device '{}': {why}", self.id)));
        let word = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        };
        if !word(&self.id) {
            return wrong("its id must be a word of letters, digits, '-' and '_'".into());
        }
        if let Some(driver) = self.bind.as_deref().filter(|driver| !word(driver)) {
            return wrong(format!("'{driver}' is no name of a driver"));
        }
        if !self.namespaces.is_empty() && (self.model != "nvme" || self.size.is_some()) {
            return wrong("[[device.namespace]] is for model = \"nvme\" and stands instead of size".into());
        }
        if let Some(addr) =
            self.addr.as_deref().filter(|addr| !u8::from_str_radix(addr, 16).is_ok_and(|slot| (1..0x1f).contains(&slot)))
        {
            return wrong(format!("addr '{addr}' is not a slot from 1 to 1e"));
        }
        Ok(())
    }

    /// QEMU's words for this device at `place`. Files of the run are created in `folder`.
    pub(crate) fn parts(&self, place: &Place, folder: &Path) -> Result<Parts, Error> {
        let mut parts = Parts::default();
        let mut device = json!({ "driver": self.model, "id": self.id, "bus": place.bus, "addr": place.slot });
        if self.model == "nvme" {
            device["serial"] = json!(self.id);
        }
        if let Some(size) = self.size {
            let node = format!("{}-disk", self.id);
            parts.blocks.push(block(&node, size, &self.backing, folder)?);
            device["drive"] = json!(node);
            set_block_size(&mut device, self.block_size);
        }
        if let Some(net) = &self.netdev {
            let node = format!("{}-net", self.id);
            parts.nets.push(network(&node, net)?);
            device["netdev"] = json!(node);
        }
        merge(&mut device, &self.options);
        parts.devices.push(device);
        for (index, space) in self.namespaces.iter().enumerate() {
            let node = format!("{}-disk{}", self.id, index + 1);
            parts.blocks.push(block(&node, space.size, &space.backing, folder)?);
            let mut device = json!({ "driver": "nvme-ns", "bus": self.id, "drive": node, "nsid": index + 1 });
            set_block_size(&mut device, space.block_size);
            merge(&mut device, &space.options);
            parts.devices.push(device);
        }
        Ok(parts)
    }
}

fn set_block_size(device: &mut Value, bytes: Option<u32>) {
    if let Some(bytes) = bytes {
        device["logical_block_size"] = json!(bytes);
        device["physical_block_size"] = json!(bytes);
    }
}

fn merge(device: &mut Value, options: &Map<String, Value>) {
    for (name, value) in options {
        device[name] = value.clone();
    }
}

fn block(node: &str, size: Size, backing: &Backing, folder: &Path) -> Result<Value, Error> {
    let shm = Path::new(SHARED_MEMORY);
    let file = |path: &Path| json!({ "driver": "raw", "node-name": node, "discard": "unmap", "file": { "driver": "file", "filename": path, "discard": "unmap" } });
    let null = |zeroes: bool| json!({ "driver": "null-co", "node-name": node, "size": size.0, "read-zeroes": zeroes });
    match backing {
        Backing::Null => Ok(null(true)),
        Backing::Untouched => Ok(null(false)),
        Backing::Image(path) if path.exists() => Ok(file(path)),
        Backing::Image(path) => Err(Error::Request(format!(
            "backing '{}' is neither null, untouched, memory, file nor an image that exists",
            path.display()
        ))),
        Backing::Memory if shm.is_dir() => Ok(file(&sparse(&shm.join(run_name(folder, node)), size)?)),
        Backing::Memory | Backing::File => Ok(file(&sparse(&folder.join(node), size)?)),
    }
}

/// Name of a disk in shared memory; `folder` removes what begins with the run's name.
fn run_name(folder: &Path, node: &str) -> String {
    format!("{}-{node}", folder.file_name().unwrap_or_default().to_string_lossy())
}

fn sparse(path: &Path, size: Size) -> Result<PathBuf, Error> {
    let file = File::create(path).doing("creating a disk", path)?;
    file.set_len(size.0).doing("sizing a disk", path)?;
    Ok(path.into())
}

fn network(node: &str, net: &Value) -> Result<Value, Error> {
    let mut value = match net {
        // Cut off: the guest reaches nothing but its own gateway.
        Value::String(word) if word == "user" => json!({ "type": "user", "restrict": true }),
        Value::Object(_) => net.clone(),
        _ => return Err(Error::Request("netdev is \"user\" or a table such as { type = \"user\" }".into())),
    };
    value["id"] = json!(node);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn parts(device: &Device) -> Parts {
        let dir = tempfile::tempdir().unwrap();
        device.parts(&Machine::Q35.place(device, 0), dir.path()).unwrap()
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        assert_eq!("64K".parse(), Ok(Size(65536)));
        assert_eq!("1G".parse(), Ok(Size(1 << 30)));
        assert_eq!("17".parse(), Ok(Size(17)));
        for wrong in ["", "G", "1X", "-1M", "99999999999T"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_disk_of_nothing_reads_as_zeroes() {
        let parts = parts(&Device::nvme("d", Size(1 << 30), Backing::Null));
        assert_eq!(parts.blocks[0]["read-zeroes"], true);
        assert_eq!(parts.devices[0]["drive"], parts.blocks[0]["node-name"]);
    }

    #[test]
    fn namespaces_hang_on_their_controller_in_order() {
        let space = |block_size| Namespace { size: Size(1 << 20), block_size, ..Namespace::default() };
        let device = Device { namespaces: vec![space(None), space(Some(4096))], ..Device::new("d", "nvme") };
        let parts = parts(&device);
        assert_eq!(parts.devices.len(), 3);
        assert_eq!(parts.devices[2]["bus"], "d");
        assert_eq!(parts.devices[2]["nsid"], 2);
        assert_eq!(parts.devices[2]["logical_block_size"], 4096);
    }

    #[test]
    fn options_win_over_what_the_lab_would_set() {
        let parts = parts(&Device::nvme("d", Size(512), Backing::Null).option("serial", "OTHER").option("mdts", 3));
        assert_eq!(parts.devices[0]["serial"], "OTHER");
        assert_eq!(parts.devices[0]["mdts"], 3);
    }

    #[test]
    fn a_user_network_is_cut_off_from_the_world() {
        let device = Device { netdev: Some(json!("user")), ..Device::new("n", "e1000") };
        assert_eq!(parts(&device).nets[0]["restrict"], true);
    }

    #[test]
    fn names_that_would_reach_the_shell_are_refused() {
        assert!(Device::new("a b", "edu").check().is_err());
        assert!(Device::new("$(x)", "edu").check().is_err());
        assert!(Device::new("a", "edu").bound("x;y").check().is_err());
        assert!(Device::new("disk-0", "edu").bound("vfio-pci").check().is_ok());
    }
}
