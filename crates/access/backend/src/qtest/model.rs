//! What stands behind `qtest:` in a device's name: QEMU's device, its properties, and the disks
//! that it needs.

use std::os::fd::OwnedFd;

use ring3_device::Error;
use ring3_device::irq::IrqKind;

use super::disk::{self, Disks};
use super::host::{CLIPPER, Host, Q35};
use crate::{OpenOptions, Uri};

/// Name of the device under test.
const DEVICE: &str = "dut";

/// Vectors that a device gets unless its model says otherwise; more than a network card of QEMU
/// has.
const VECTORS: u16 = 32;
/// Options that mean the same for every device. All that is not known here or by the model is a
/// property of QEMU's device.
const COMMON: [&str; 4] = ["msi", "msix", "trace", "monitor"];
/// Options of the drives at a controller, beside those of their disks.
const DRIVES: [&str; 4] = ["disks", "cdrom", "rotation", "physical"];
/// Ports of a USB controller of QEMU's, unless it is told otherwise.
const USB_PORTS: u64 = 4;
/// Targets on the narrowest of SCSI's buses, without the controller.
const SCSI_TARGETS: u64 = 7;

/// How to ask QEMU for a device.
pub(super) struct Model {
    /// The machine that it sits in.
    pub(super) host: &'static Host,
    /// Command line.
    pub(super) args: Vec<String>,
    /// Descriptors that the command line names.
    pub(super) files: Vec<OwnedFd>,
    /// How many message vectors it may need.
    pub(super) vectors: u16,
    /// Kinds of interrupts that the user wants it to be without.
    pub(super) hidden: Vec<IrqKind>,
    /// Whether QEMU has something to write when it ends, so that it is asked to before it is made
    /// to.
    pub(super) writes_at_end: bool,
}

impl Model {
    /// The model that `uri` names.
    pub(super) fn of(uri: &Uri) -> Result<Self, Error> {
        let (args, files, hidden) = (Vec::new(), Vec::new(), Vec::new());
        let mut model =
            Self { host: &Q35, args, files, vectors: VECTORS, hidden, writes_at_end: false };
        for (key, kind) in [("msi", IrqKind::Msi), ("msix", IrqKind::MsiX)] {
            if uri.switch(key)? == Some(false) {
                model.hidden.push(kind);
            }
        }
        let events = uri.options.get("trace").into_iter().flat_map(|events| events.split(':'));
        model.args.extend(events.flat_map(|event| ["-trace".into(), format!("enable={event}")]));
        match uri.options.get("monitor").map(String::as_str) {
            Some("") => {
                return Err(Error::Invalid(format!(
                    "{uri}: monitor names the socket of QEMU's monitor"
                )));
            }
            Some(path) => {
                model.args.extend(["-qmp".into(), format!("unix:{path},server=on,wait=off")])
            }
            None => {}
        }
        match uri.target.as_str() {
            "nvme" => model.nvme(uri)?,
            "ich9-ahci" => {
                model.device(uri, &[&disk::KEYS[..], &DRIVES].concat(), &[]);
                model.drives(uri, 6, |place| format!("bus={DEVICE}.{place}"))?;
            }
            "piix3-ide" | "piix4-ide" => {
                model.device(uri, &[&disk::KEYS[..], &DRIVES].concat(), &[]);
                model.drives(uri, 4, |place| {
                    format!("bus={DEVICE}.{},unit={}", place / 2, place % 2)
                })?;
            }
            "cmd646-ide" => model.cmd646(uri)?,
            "qemu-xhci" | "nec-usb-xhci" => {
                model.device(uri, &[&disk::KEYS[..], &["disks"]].concat(), &[]);
                model.attached(uri, USB_PORTS, |place| {
                    format!("usb-storage,bus={DEVICE}.0,port={}", place + 1)
                })?;
            }
            "am53c974" | "dc390" | "lsi53c810" | "lsi53c895a" | "megasas" | "megasas-gen2"
            | "mptsas1068" | "pvscsi" => {
                model.device(uri, &[&disk::KEYS[..], &["disks"]].concat(), &[]);
                model.attached(uri, SCSI_TARGETS, |place| {
                    format!("scsi-hd,bus={DEVICE}.0,scsi-id={place}")
                })?;
            }
            "ES1370" | "AC97" => model.sound(uri)?,
            "virtio-blk-pci" => {
                model.device(
                    uri,
                    &disk::KEYS,
                    &[("drive", "disk0".into()), ("serial", "RING3".into())],
                );
                model.disks(uri, 1)?;
            }
            _ => model.any(uri)?,
        }
        Ok(model)
    }

    /// `-device TARGET` with `own` properties and the user's, except the keys in `taken`.
    fn device(&mut self, uri: &Uri, taken: &[&str], own: &[(&str, String)]) {
        let mut device =
            format!("{},id={DEVICE},bus=pcie.0,addr={:#x}", uri.target, self.host.slot);
        // Elsewhere than behind a port of PCI Express, QEMU's virtio devices are transitional
        // unless they are told.
        let modern = uri.target.starts_with("virtio-").then(|| ("disable-legacy", "on".to_owned()));
        for (key, value) in
            own.iter().chain(&modern).filter(|(key, _)| !uri.options.contains_key(*key))
        {
            device += &format!(",{key}={value}");
        }
        for (key, value) in properties(uri, taken) {
            device += &format!(",{key}={value}");
        }
        self.args.extend(["-device".into(), device]);
    }

    /// Any other device. A network card with `wire=PATH` sends its frames to the datagram socket
    /// PATH, and receives those that are sent to PATH.card.
    fn any(&mut self, uri: &Uri) -> Result<(), Error> {
        let Some(path) = uri.options.get("wire") else {
            self.device(uri, &[], &[]);
            return Ok(());
        };
        if path.is_empty() {
            return Err(Error::Invalid(format!(
                "{uri}: wire names the datagram socket of who is at the other end"
            )));
        }
        let ends =
            format!("local.type=unix,local.path={path}.card,remote.type=unix,remote.path={path}");
        self.args.extend(["-netdev".into(), format!("dgram,id=wire,{ends}")]);
        self.device(uri, &["wire"], &[("netdev", "wire".into())]);
        Ok(())
    }

    /// A controller with `namespaces`, each a disk.
    ///
    /// `block`, `meta` (bytes of a block and of its metadata), `protection` (the type of its
    /// protection information) and `zoned` (1: a zoned namespace) are lists with colons, one for
    /// each namespace, the last for the rest.
    fn nvme(&mut self, uri: &Uri) -> Result<(), Error> {
        let queues = bounded(uri, "queues", 8, 1..=255)?;
        self.vectors = queues as u16 + 1;
        let own = [
            ("serial", "RING3".into()),
            ("max_ioqpairs", queues.to_string()),
            ("msix_qsize", self.vectors.to_string()),
        ];
        self.device(
            uri,
            &[&disk::KEYS[..], &["namespaces", "queues"], &FORMAT_KEYS].concat(),
            &own,
        );
        let namespaces = bounded(uri, "namespaces", 1, 1..=256)? as usize;
        self.disks(uri, namespaces)?;
        let (blocks, metas) = (list(uri, "block", 512)?, list(uri, "meta", 0)?);
        let (kinds, zoned) = (list(uri, "protection", 0)?, list(uri, "zoned", 0)?);
        for i in 0..namespaces {
            let (block, meta, kind) = (nth(&blocks, i), nth(&metas, i), nth(&kinds, i));
            let zoned = if nth(&zoned, i) == 1 { ",zoned=on" } else { "" };
            let format = format!(
                "logical_block_size={block},physical_block_size={block},ms={meta},pi={kind}{zoned}"
            );
            self.args.extend([
                "-device".into(),
                format!("nvme-ns,bus={DEVICE},drive=disk{i},nsid={},{format}", i + 1),
            ]);
        }
        Ok(())
    }

    /// The controller that the machine has of its own, with both channels on.
    fn cmd646(&mut self, uri: &Uri) -> Result<(), Error> {
        (self.host, self.vectors) = (&CLIPPER, 0);
        self.args.extend(["-global".into(), "cmd646-ide.secondary=1".into()]);
        for (key, value) in properties(uri, &[&disk::KEYS[..], &DRIVES].concat()) {
            self.args.extend(["-global".into(), format!("cmd646-ide.{key}={value}")]);
        }
        self.drives(uri, 4, |place| format!("bus=ide.{},unit={}", place / 2, place % 2))
    }

    /// `disks` (1) of them, each behind its controller by what `at` says of its place.
    fn attached(
        &mut self,
        uri: &Uri,
        places: u64,
        at: impl Fn(usize) -> String,
    ) -> Result<(), Error> {
        let disks = bounded(uri, "disks", 1, 0..=places)? as usize;
        self.disks(uri, disks)?;
        for i in 0..disks {
            self.args.extend([
                "-device".into(),
                format!("{},id=disk{i},drive=disk{i},serial={}", at(i), serial(i)),
            ]);
        }
        Ok(())
    }

    /// A sound card. With `wav=PATH` what it plays goes to that file, as 16 bits of two channels at
    /// `rate` (44100); otherwise nobody listens.
    fn sound(&mut self, uri: &Uri) -> Result<(), Error> {
        let to = match uri.options.get("wav") {
            Some(path) if path.is_empty() => {
                return Err(Error::Invalid(format!("{uri}: wav names a file to write to")));
            }
            Some(path) => {
                let rate = bounded(uri, "rate", 44100, 4000..=192_000)?;
                self.writes_at_end = true;
                format!(
                    "wav,id=sound,path={path},out.frequency={rate},out.channels=2,out.format=s16"
                )
            }
            None => "none,id=sound".into(),
        };
        self.args.extend(["-audiodev".into(), to]);
        self.device(uri, &["wav", "rate"], &[("audiodev", "sound".into())]);
        Ok(())
    }

    /// Drives in up to `places`, of which `at` names each: `disks` of them from the first place on,
    /// then with `cdrom=on` an ATAPI drive.
    ///
    /// `rotation` is what a disk says about its speed (1: it does not rotate), `physical` the bytes
    /// of its physical block.
    fn drives(
        &mut self,
        uri: &Uri,
        places: usize,
        at: impl Fn(usize) -> String,
    ) -> Result<(), Error> {
        let cdrom = uri.switch("cdrom")? == Some(true);
        let disks = bounded(uri, "disks", 1, 0..=places as u64 - u64::from(cdrom))? as usize;
        self.disks(uri, disks)?;
        let mut properties = "ver=ring3,write-cache=on,discard_granularity=512".to_owned();
        for (key, property) in [("rotation", "rotation_rate"), ("physical", "physical_block_size")]
        {
            if let Some(value) = uri.number(key)? {
                properties += &format!(",{property}={value}");
            }
        }
        for i in 0..disks {
            self.args.extend([
                "-device".into(),
                format!("ide-hd,{},drive=disk{i},serial={},{properties}", at(i), serial(i)),
            ]);
        }
        if cdrom {
            self.args.extend(["-device".into(), format!("ide-cd,{},serial=RING3-CD", at(disks))]);
        }
        Ok(())
    }

    fn disks(&mut self, uri: &Uri, count: usize) -> Result<(), Error> {
        let disks = Disks::of(uri, count)?;
        self.args.extend(disks.args);
        self.files.extend(disks.files);
        Ok(())
    }
}

/// The serial number of a disk.
fn serial(index: usize) -> String {
    if index == 0 { "RING3".into() } else { format!("RING3-{index}") }
}

/// The options of `uri` that are properties of QEMU's device: neither everybody's nor among
/// `taken`.
fn properties<'a>(uri: &'a Uri, taken: &[&str]) -> impl Iterator<Item = (&'a String, &'a String)> {
    let known = |key: &str| {
        taken.contains(&key) || COMMON.contains(&key) || OpenOptions::KEYS.contains(&key)
    };
    uri.options.iter().filter(move |(key, _)| !known(key))
}

fn bounded(
    uri: &Uri,
    key: &str,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, Error> {
    let value = uri.number(key)?.unwrap_or(default);
    let within = range.contains(&value);
    within.then_some(value).ok_or_else(|| {
        Error::Invalid(format!("{uri}: {key} goes from {} to {}", range.start(), range.end()))
    })
}

fn list(uri: &Uri, key: &str, default: u64) -> Result<Vec<u64>, Error> {
    let Some(text) = uri.options.get(key) else { return Ok(vec![default]) };
    let values = text.split(':').map(str::parse).collect::<Result<Vec<u64>, _>>();
    values.map_err(|_| {
        Error::Invalid(format!(
            "{uri}: {key} is a number for each namespace, with colons: 512:4096"
        ))
    })
}

/// What is said of each namespace of an NVMe controller.
const FORMAT_KEYS: [&str; 4] = ["block", "meta", "protection", "zoned"];

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

    fn drives(model: &Model) -> Vec<String> {
        let drives = model.args.iter().filter(|arg| arg.starts_with("ide-"));
        drives.map(|arg| arg.split(",drive").next().unwrap_or(arg).to_owned()).collect()
    }

    #[test]
    fn an_option_that_nobody_here_knows_is_a_property_of_the_device() {
        let model = model("qtest:e1000e,mac=52:54:00:00:00:01,arena=8M").unwrap();
        assert_eq!(
            model.args,
            ["-device", "e1000e,id=dut,bus=pcie.0,addr=0x4,mac=52:54:00:00:00:01"]
        );
    }

    #[test]
    fn a_card_has_a_wire_between_two_sockets() {
        let model = model("qtest:e1000e,wire=/tmp/w").unwrap();
        let ends = "local.type=unix,local.path=/tmp/w.card,remote.type=unix,remote.path=/tmp/w";
        assert_eq!(model.args[..2], ["-netdev".into(), format!("dgram,id=wire,{ends}")]);
        assert_eq!(model.args[3], "e1000e,id=dut,bus=pcie.0,addr=0x4,netdev=wire");
    }

    #[test]
    fn events_to_be_traced_are_no_property_of_the_device() {
        let model = model("qtest:e1000e,trace=e1000e_core_start_recv:ide_*").unwrap();
        assert_eq!(
            model.args[..4],
            ["-trace", "enable=e1000e_core_start_recv", "-trace", "enable=ide_*"]
        );
        assert_eq!(model.args[4..], ["-device", "e1000e,id=dut,bus=pcie.0,addr=0x4"]);
    }

    #[test]
    fn namespaces_may_be_zoned_one_by_one() {
        let model = model("qtest:nvme,namespaces=2,zoned=0:1,null=on").unwrap();
        let zoned: Vec<_> = model
            .args
            .iter()
            .filter(|arg| arg.starts_with("nvme-ns"))
            .map(|arg| arg.contains("zoned=on"))
            .collect();
        assert_eq!(zoned, [false, true]);
    }

    #[test]
    fn namespaces_have_formats_of_their_own() {
        let model = model("qtest:nvme,namespaces=3,block=512:4096,null=on").unwrap();
        let namespaces: Vec<_> =
            model.args.iter().filter(|arg| arg.starts_with("nvme-ns")).collect();
        assert!(namespaces[0].contains("nsid=1,logical_block_size=512,"));
        assert!(namespaces[2].contains("nsid=3,logical_block_size=4096,"));
    }

    #[test]
    fn ide_drives_are_masters_and_slaves_in_turn_and_an_optical_drive_comes_last() {
        let model = model("qtest:piix3-ide,disks=3,cdrom=on,null=on").unwrap();
        let places =
            ["ide-hd,bus=dut.0,unit=0", "ide-hd,bus=dut.0,unit=1", "ide-hd,bus=dut.1,unit=0"];
        let drives = drives(&model);
        assert_eq!(drives[..3], places);
        assert!(drives[3].starts_with("ide-cd,bus=dut.1,unit=1"), "{drives:?}");
    }

    #[test]
    fn each_ahci_port_has_one_drive() {
        let model = model("qtest:ich9-ahci,disks=2,null=on").unwrap();
        assert_eq!(drives(&model), ["ide-hd,bus=dut.0", "ide-hd,bus=dut.1"]);
    }

    #[test]
    fn disks_of_usb_and_scsi_are_devices_on_their_controllers_bus() {
        let of = |uri| {
            model(uri)
                .unwrap()
                .args
                .into_iter()
                .filter(|arg| arg.contains(",bus=dut.0,"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of("qtest:qemu-xhci,null=on"),
            ["usb-storage,bus=dut.0,port=1,id=disk0,drive=disk0,serial=RING3"]
        );
        assert_eq!(of("qtest:qemu-xhci,disks=0"), [""; 0]);
        assert_eq!(
            of("qtest:pvscsi,disks=2,null=on")[1],
            "scsi-hd,bus=dut.0,scsi-id=1,id=disk1,drive=disk1,serial=RING3-1"
        );
        assert!(
            model("qtest:qemu-xhci,disks=5").err().unwrap().to_string().contains("from 0 to 4")
        );
    }

    #[test]
    fn what_a_sound_card_plays_goes_to_the_file_that_is_named_and_qemu_ends_it() {
        let model = model("qtest:ES1370,wav=/tmp/a").unwrap();
        assert!(
            model.args[1].starts_with("wav,id=sound,path=/tmp/a,out.frequency=44100,"),
            "{:?}",
            model.args
        );
        assert!(model.writes_at_end);
        let silent = super::Model::of(&"qtest:ES1370".parse().unwrap()).unwrap();
        assert_eq!(
            silent.args,
            [
                "-audiodev",
                "none,id=sound",
                "-device",
                "ES1370,id=dut,bus=pcie.0,addr=0x4,audiodev=sound"
            ]
        );
        assert!(!silent.writes_at_end);
    }

    #[test]
    fn a_virtio_device_is_modern_unless_its_user_wants_another_and_a_disk_has_its_data() {
        let model = model("qtest:virtio-blk-pci,null=on").unwrap();
        let device = model.args.iter().find(|arg| arg.starts_with("virtio-blk-pci")).unwrap();
        assert!(device.ends_with(",drive=disk0,serial=RING3,disable-legacy=on"), "{device}");
        let device = super::Model::of(&"qtest:virtio-net-pci,disable-legacy=off".parse().unwrap())
            .unwrap()
            .args
            .remove(1);
        assert!(device.ends_with("addr=0x4,disable-legacy=off"), "{device}");
    }

    #[test]
    fn the_user_can_hide_a_kind_of_interrupt() {
        assert_eq!(model("qtest:nvme,msix=off").unwrap().hidden, [IrqKind::MsiX]);
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_the_range() {
        let error = |uri| model(uri).err().unwrap().to_string();
        assert!(error("qtest:nvme,queues=0").contains("queues goes from 1 to 255"));
        assert!(error("qtest:piix3-ide,disks=4,cdrom=on").contains("disks goes from 0 to 3"));
    }
}
