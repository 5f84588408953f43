//! Devices of the guest: what a scenario says of them, and the words QEMU wants.

use crate::card;
use crate::disk::{Backing, Bad, Disk, Size};
use crate::drive;
use crate::error::Error;
use crate::folder::Folder;
use crate::limits;
use crate::machine::Place;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// One device. Any model that QEMU has; disks and network cards get what stands behind them from
/// here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name in QEMU, serial number of a disk; in the guest, the variable of this name in capitals
    /// is its PCI address.
    pub id: String,
    /// QEMU's name of the model: `nvme`, `ahci`, `edu`, `e1000`, ... On machine pc, `piix3-ide` and
    /// `piix4-ide` are the machine's own controller.
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
    /// See [`Disk::bad`].
    #[serde(default)]
    pub bad: Vec<Bad>,
    /// See [`Disk::rate`].
    pub rate: Option<Size>,
    /// See [`Disk::commands`].
    pub commands: Option<u64>,
    /// Namespaces of an NVMe controller that has not just one; then `size` is not given.
    #[serde(default, rename = "namespace")]
    pub namespaces: Vec<Disk>,
    /// Drives of an AHCI or IDE controller.
    #[serde(default, rename = "drive")]
    pub drives: Vec<Disk>,
    /// Network behind it: `"user"` is a network of this guest alone, `"hub"` joins all cards of the
    /// guest that say so; or a table for QEMU's -netdev.
    pub netdev: Option<Value>,
    /// What a sound card plays to: `"none"` takes it at its pace and records silence; or a table
    /// for QEMU's -audiodev.
    pub audio: Option<Value>,
    /// Further properties of the model, as QEMU names them.
    #[serde(default)]
    pub options: Map<String, Value>,
}

/// What QEMU is told about one device, in JSON: good for the command line and for plugging it in
/// later.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// -object
    pub(crate) objects: Vec<Value>,
    /// -blockdev
    pub(crate) blocks: Vec<Value>,
    /// -netdev
    pub(crate) nets: Vec<Value>,
    /// -audiodev
    pub(crate) audios: Vec<Value>,
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

    /// An AHCI controller with one drive.
    pub fn ahci(id: &str, size: Size, backing: Backing) -> Self {
        Self { drives: vec![Disk::new(size, backing)], ..Self::new(id, "ahci") }
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

    /// The variable under which the steps find its address.
    pub(crate) fn variable(&self) -> String {
        self.id.to_uppercase().replace('-', "_")
    }

    /// Whether it is an AHCI controller.
    pub(crate) fn is_ahci(&self) -> bool {
        drive::qemu_model(&self.model) == "ich9-ahci"
    }

    /// Whether it can be plugged into a running guest.
    pub(crate) fn can_be_plugged(&self) -> bool {
        self.namespaces.is_empty()
            && self.drives.is_empty()
            && self.addr.is_none()
            && self.audio.is_none()
    }

    /// All its disks.
    pub(crate) fn disks(&self) -> Vec<Disk> {
        let own = self.size.map(|size| Disk {
            bad: self.bad.clone(),
            rate: self.rate,
            commands: self.commands,
            block_size: self.block_size,
            ..Disk::new(size, self.backing.clone())
        });
        own.into_iter()
            .chain(self.namespaces.iter().cloned())
            .chain(self.drives.iter().cloned())
            .collect()
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
            return wrong(
                "[[device.namespace]] is for model = \"nvme\" and stands instead of size".into(),
            );
        }
        if self.size.is_none()
            && (self.rate.is_some() || self.commands.is_some() || !self.bad.is_empty())
        {
            return wrong(
                "rate, commands and bad are for a disk: give it a size, or write them into its \
                 namespace or drive"
                    .into(),
            );
        }
        let disks = || self.disks().iter().try_for_each(limits::check_disk);
        if let Err(why) = drive::check(self).and_then(|()| card::check(self)).and_then(|()| disks())
        {
            return wrong(why);
        }
        if let Some(addr) = self.addr.as_deref().filter(|addr| {
            !u8::from_str_radix(addr, 16).is_ok_and(|slot| (1..0x1f).contains(&slot))
        }) {
            return wrong(format!("addr '{addr}' is not a slot from 1 to 1e"));
        }
        Ok(())
    }

    /// QEMU's words for this device at `place`. Files of the run are created in `folder`.
    pub(crate) fn parts(&self, place: &Place, folder: &Folder) -> Result<Parts, Error> {
        let mut parts = Parts::default();
        let mut device = json!({
            "driver": drive::qemu_model(&self.model), "id": self.id, "bus": place.bus,
            "addr": place.slot,
        });
        if self.model == "nvme" {
            device["serial"] = json!(self.id);
        }
        let single = usize::from(self.size.is_some());
        for (index, disk) in self.disks().iter().enumerate() {
            let node = if index < single {
                format!("{}-disk", self.id)
            } else {
                format!("{}-disk{}", self.id, index + 1 - single)
            };
            let nodes = disk.nodes(&node, folder)?;
            parts.objects.extend(nodes.objects);
            parts.blocks.extend(nodes.blocks);
            if index < single {
                device["drive"] = json!(node);
                set_block_size(&mut device, self.block_size);
            }
        }
        if let Some(net) = &self.netdev {
            let node = format!("{}-net", self.id);
            parts.nets.push(card::network(&node, net)?);
            device["netdev"] = json!(node);
        }
        let mut codec = None;
        if let Some(audio) = &self.audio {
            let node = format!("{}-audio", self.id);
            parts.audios.push(card::audio(&node, audio)?);
            codec = card::codec(self, &node);
            if codec.is_none() {
                device["audiodev"] = json!(node);
            }
        }
        merge(&mut device, &self.options);
        // The machine's own controller is there already.
        parts.devices.extend((!place.onboard).then_some(device));
        parts.devices.extend(
            self.namespaces.iter().enumerate().map(|(index, space)| self.namespace(index, space)),
        );
        parts.devices.extend(drive::devices(self, place).into_iter().chain(codec));
        Ok(parts)
    }

    fn namespace(&self, index: usize, space: &Disk) -> Value {
        let node = format!("{}-disk{}", self.id, index + 1);
        let mut device =
            json!({ "driver": "nvme-ns", "bus": self.id, "drive": node, "nsid": index + 1 });
        set_block_size(&mut device, space.block_size);
        merge(&mut device, &space.options);
        device
    }
}

fn set_block_size(device: &mut Value, bytes: Option<u32>) {
    if let Some(bytes) = bytes {
        device["logical_block_size"] = json!(bytes);
        device["physical_block_size"] = json!(bytes);
    }
}

pub(crate) fn merge(device: &mut Value, options: &Map<String, Value>) {
    for (name, value) in options {
        device[name] = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn parts(device: &Device) -> Parts {
        device.parts(&Machine::Q35.place(device, 0), &Folder::scratch()).unwrap()
    }

    #[test]
    fn namespaces_hang_on_their_controller_in_order() {
        let space = |block_size| Disk { block_size, ..Disk::new(Size(1 << 20), Backing::Null) };
        let device =
            Device { namespaces: vec![space(None), space(Some(4096))], ..Device::new("d", "nvme") };
        let parts = parts(&device);
        assert_eq!(parts.devices.len(), 3);
        assert_eq!(parts.devices[2]["bus"], "d");
        assert_eq!(parts.devices[2]["nsid"], 2);
        assert_eq!(parts.devices[2]["logical_block_size"], 4096);
    }

    #[test]
    fn options_win_over_what_the_lab_would_set() {
        let parts = parts(
            &Device::nvme("d", Size(512), Backing::Null)
                .option("serial", "OTHER")
                .option("mdts", 3),
        );
        assert_eq!(parts.devices[0]["serial"], "OTHER");
        assert_eq!(parts.devices[0]["mdts"], 3);
    }

    #[test]
    fn names_that_would_reach_the_shell_are_refused() {
        assert!(Device::new("a b", "edu").check().is_err());
        assert!(Device::new("$(x)", "edu").check().is_err());
        assert!(Device::new("a", "edu").bound("x;y").check().is_err());
        assert!(Device::new("disk-0", "edu").bound("vfio-pci").check().is_ok());
    }
}
