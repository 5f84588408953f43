//! What stands behind `qtest:` in a device's name: QEMU's device, its properties, and the disks that it needs.

use std::fs::OpenOptions as FileOptions;
use std::os::fd::OwnedFd;

use ring3_device::Error;
use ring3_device::irq::IrqKind;

use super::machine;
use crate::{OpenOptions, Uri};

/// Name and slot of the device under test.
const DEVICE: &str = "dut";
pub(super) const SLOT: u8 = 4;

/// Vectors that a device gets unless its model says otherwise; more than a network card of QEMU has.
const VECTORS: u16 = 32;
/// Options that mean the same for every device. All that is not known here or by the model is a property of QEMU's device.
const COMMON: [&str; 2] = ["msi", "msix"];

/// How to ask QEMU for a device.
pub(super) struct Model {
    /// Command line.
    pub(super) args: Vec<String>,
    /// Descriptors that the command line names.
    pub(super) files: Vec<OwnedFd>,
    /// How many message vectors it may need.
    pub(super) vectors: u16,
    /// Kinds of interrupts that the user wants it to be without.
    pub(super) hidden: Vec<IrqKind>,
}

impl Model {
    /// The model that `uri` names.
    pub(super) fn of(uri: &Uri) -> Result<Self, Error> {
        let mut model = Self { args: Vec::new(), files: Vec::new(), vectors: VECTORS, hidden: Vec::new() };
        for (key, kind) in [("msi", IrqKind::Msi), ("msix", IrqKind::MsiX)] {
            if uri.switch(key)? == Some(false) {
                model.hidden.push(kind);
            }
        }
        match uri.target.as_str() {
            "nvme" => model.nvme(uri)?,
            _ => model.device(uri, &[], &[]),
        }
        Ok(model)
    }

    /// `-device TARGET` with `own` properties and the user's, except the keys in `taken`.
    fn device(&mut self, uri: &Uri, taken: &[&str], own: &[(&str, String)]) {
        let mut device = format!("{},id={DEVICE},bus=pcie.0,addr={SLOT:#x}", uri.target);
        for (key, value) in own.iter().filter(|(key, _)| !uri.options.contains_key(*key)) {
            device += &format!(",{key}={value}");
        }
        let known = |key: &str| taken.contains(&key) || COMMON.contains(&key) || OpenOptions::KEYS.contains(&key);
        for (key, value) in uri.options.iter().filter(|(key, _)| !known(key)) {
            device += &format!(",{key}={value}");
        }
        self.args.extend(["-device".into(), device]);
    }

    /// A controller with `namespaces` disks of `size` bytes each.
    ///
    /// `block` and `meta` (bytes of a block and of its metadata) are lists with colons, one for each namespace, the last for the
    /// rest. The disk is memory, or `file`, or nothing at all (`null=on`: reads zeros, for measurements).
    fn nvme(&mut self, uri: &Uri) -> Result<(), Error> {
        const KEYS: [&str; 7] = ["namespaces", "size", "block", "meta", "queues", "file", "null"];
        let queues = bounded(uri, "queues", 8, 1..=255)?;
        self.vectors = queues as u16 + 1;
        let own = [("serial", "RING3".into()), ("max_ioqpairs", queues.to_string()), ("msix_qsize", self.vectors.to_string())];
        self.device(uri, &KEYS, &own);
        let namespaces = bounded(uri, "namespaces", 1, 1..=256)?;
        if namespaces > 1 && uri.options.contains_key("file") {
            return Err(Error::Invalid(format!("{uri}: one file cannot be {namespaces} namespaces")));
        }
        let (blocks, metas) = (list(uri, "block", 512)?, list(uri, "meta", 0)?);
        for i in 0..namespaces as usize {
            let disk = self.disk(uri, i)?;
            let (block, meta) = (nth(&blocks, i), nth(&metas, i));
            let format = format!("logical_block_size={block},physical_block_size={block},ms={meta}");
            self.args.extend(["-device".into(), format!("nvme-ns,bus={DEVICE},drive={disk},nsid={},{format}", i + 1)]);
        }
        Ok(())
    }

    /// Adds the disk number `index`; returns its name.
    fn disk(&mut self, uri: &Uri, index: usize) -> Result<String, Error> {
        let (name, size) = (format!("disk{index}"), uri.size("size")?);
        let driver = if uri.switch("null")? == Some(true) {
            format!("driver=null-co,read-zeroes=on,size={}", size.unwrap_or(1 << 30))
        } else if let Some(path) = uri.options.get("file") {
            backing_file(uri, path, size)?;
            format!("driver=raw,discard=unmap,file.driver=file,file.filename={path}")
        } else {
            let memory = machine::memfd("ring3-disk")?;
            rustix::fs::ftruncate(&memory, size.unwrap_or(1 << 30))
                .map_err(|error| Error::os("sizing a disk in memory", error))?;
            let path = machine::path(&memory);
            self.files.push(memory);
            format!("driver=raw,discard=unmap,file.driver=file,file.locking=off,file.filename={path}")
        };
        self.args.extend(["-blockdev".into(), format!("node-name={name},{driver}")]);
        Ok(name)
    }
}

/// Makes sure of the disk's file; with `size`, one that is absent is made.
fn backing_file(uri: &Uri, path: &str, size: Option<u64>) -> Result<(), Error> {
    let failed = |error| Error::os(format!("{uri}: opening {path} (with size=1G it is made)"), error);
    let file = FileOptions::new().read(true).write(true).create(size.is_some()).truncate(false).open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    match size {
        Some(size) if len == 0 => file.set_len(size).map_err(failed),
        Some(size) if len != size => Err(Error::Invalid(format!("{uri}: {path} has {len} bytes already, not {size}"))),
        _ => Ok(()),
    }
}

fn bounded(uri: &Uri, key: &str, default: u64, range: std::ops::RangeInclusive<u64>) -> Result<u64, Error> {
    let value = uri.number(key)?.unwrap_or(default);
    let within = range.contains(&value);
    within.then_some(value).ok_or_else(|| Error::Invalid(format!("{uri}: {key} goes from {} to {}", range.start(), range.end())))
}

fn list(uri: &Uri, key: &str, default: u64) -> Result<Vec<u64>, Error> {
    let Some(text) = uri.options.get(key) else { return Ok(vec![default]) };
    let values = text.split(':').map(str::parse).collect::<Result<Vec<u64>, _>>();
    values.map_err(|_| Error::Invalid(format!("{uri}: {key} is a number for each namespace, with colons: 512:4096")))
}

/// The value for namespace `index`; the last one stands for all that follow.
fn nth(values: &[u64], index: usize) -> u64 {
    values.get(index).or(values.last()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(uri: &str) -> Result<Model, Error> {
        Model::of(&uri.parse::<Uri>().unwrap())
    }

    #[test]
    fn an_option_that_nobody_here_knows_is_a_property_of_the_device() {
        let model = model("qtest:e1000e,mac=52:54:00:00:00:01,arena=8M").unwrap();
        assert_eq!(model.args, ["-device", "e1000e,id=dut,bus=pcie.0,addr=0x4,mac=52:54:00:00:00:01"]);
    }

    #[test]
    fn namespaces_have_formats_of_their_own() {
        let model = model("qtest:nvme,namespaces=3,block=512:4096,null=on").unwrap();
        let namespaces: Vec<_> = model.args.iter().filter(|arg| arg.starts_with("nvme-ns")).collect();
        assert!(namespaces[0].contains("nsid=1,logical_block_size=512,"));
        assert!(namespaces[2].contains("nsid=3,logical_block_size=4096,"));
    }

    #[test]
    fn the_user_can_hide_a_kind_of_interrupt() {
        assert_eq!(model("qtest:nvme,msix=off").unwrap().hidden, [IrqKind::MsiX]);
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_the_range() {
        let error = model("qtest:nvme,queues=0").err().unwrap();
        assert!(error.to_string().contains("queues goes from 1 to 255"), "{error}");
    }

    #[test]
    fn a_file_of_another_size_is_not_touched() {
        let path = std::env::temp_dir().join(format!("ring3-model-{}", std::process::id()));
        std::fs::write(&path, [1; 512]).unwrap();
        let result = model(&format!("qtest:nvme,size=1M,file={}", path.display()));
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::remove_file(&path).unwrap();
        assert!(result.is_err());
        assert_eq!(len, 512);
    }
}
