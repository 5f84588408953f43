//! From what a user calls a device to where it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ring3_device::Uri;
use ring3_pci::{Address, Function, Host, PassthroughDriver, bind};

use crate::keeper::{STORAGE, check_interrupts, find_driver, unknown};
use crate::manifest::{Device, Match, class_code};

/// Which address a disk was at when the kernel's driver had it and said its serial number.
const KNOWN: &str = "run/ring3/serial";

/// Where `device` is, bound to vfio-pci if need be. `taken` are addresses of other devices. The
/// error says why it is not there (yet).
pub fn find(device: &Device, taken: &[Address]) -> Result<Uri, String> {
    let host = Host::this();
    let address = match &device.r#match {
        Match::Device(uri) => return uri.parse().map_err(|error| format!("{error}")),
        Match::Address(address) => address.parse().map_err(|error| format!("{error}"))?,
        Match::Class(class) => {
            let (class, mask) = class_code(class).ok_or("no such class")?;
            let is_it = |function: &Function| {
                function.class & mask == class && !taken.contains(&function.address)
            };
            let found =
                Function::all(&host).into_iter().find(is_it).map(|function| function.address);
            found.ok_or_else(|| format!("no function of class {class:#08x} is there"))?
        }
        Match::Serial(serial) => {
            let found = by_serial(Path::new("/"), serial);
            let nobodys = |address: &Address| !taken.contains(address);
            let driven = found
                .iter()
                .copied()
                .filter(nobodys)
                .filter(|address| check(&host, *address, device).is_ok());
            // What stands in the way of the one that there is, is more than that there is none.
            only(&driven.collect::<Vec<_>>(), serial)?
                .or_else(|| found.first().copied())
                .ok_or_else(|| nobodys_serial(serial, &unseen(&host, taken)))?
        }
    };
    // Before it is taken from the kernel's driver: a disk behind USB or a network card has a serial
    // number, too.
    check(&host, address, device)?;
    check_interrupts(&address.to_string(), device)?;
    hold(&host, address, device.bind)?;
    format!("vfio:{address}").parse().map_err(|error| format!("{error}"))
}

/// Functions whose disks' numbers are unknown: those bound to a passthrough driver that are no
/// other device's.
fn unseen(host: &Host, taken: &[Address]) -> Vec<Address> {
    let is_unseen = |function: &Function| {
        function.class >> 16 == STORAGE
            && function.way().is_some()
            && !taken.contains(&function.address)
    };
    Function::all(host).into_iter().filter(is_unseen).map(|function| function.address).collect()
}

/// Says that no disk has this number, and which functions may have it.
fn nobodys_serial(serial: &str, unseen: &[Address]) -> String {
    let none = format!("no disk with the serial number {serial} is there");
    let Some(first) = unseen.first() else { return none };
    let names: Vec<_> = unseen.iter().map(Address::to_string).collect();
    format!(
        "{none}, as far as the kernel's drivers say. The numbers of disks at {} are unknown, as \
        these functions are bound to a passthrough driver: match the device by its address, or \
        give it to the kernel's driver once (ring3 unbind {first})",
        names.join(", ")
    )
}

/// Fails unless there is a driver for what `device` is to become of the function at `address`.
fn check(host: &Host, address: Address, device: &Device) -> Result<(), String> {
    let function =
        Function::read(host, address).map_err(|obstacle| obstacle.at(address).to_string())?;
    let driver = find_driver((function.vendor, function.device), function.class, device);
    driver.map(drop).ok_or_else(|| unknown(&address.to_string(), function.class, device))
}

/// Has `address` bound to vfio-pci.
fn hold(host: &Host, address: Address, may_bind: bool) -> Result<(), String> {
    let function =
        Function::read(host, address).map_err(|obstacle| obstacle.at(address).to_string())?;
    if function.way() == Some(PassthroughDriver::Vfio) {
        return Ok(());
    }
    if !may_bind {
        return Err(format!(
            "{address} is not bound to vfio-pci: write bind = true in its manifest, or ring3 bind \
            {address}"
        ));
    }
    let done = bind(host, address, PassthroughDriver::Vfio, None);
    for (state, off) in done.map_err(|error| error.to_string())?.link {
        if let Err(error) = off {
            tracing::warn!("{address}: {state} of its link stays on: {error}; it may hang");
        }
    }
    Ok(())
}

/// The function of `found`, if there is one. A serial number is what a drive says of itself: where
/// two say the same, nothing tells which one is meant.
fn only(found: &[Address], serial: &str) -> Result<Option<Address>, String> {
    match found {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        several => {
            let names: Vec<_> = several.iter().map(Address::to_string).collect();
            let names = names.join(" and ");
            Err(format!(
                "{names} have the serial number {serial}: match the device by one of these \
                addresses"
            ))
        }
    }
}

/// The functions whose disk has this serial number, in the machine below `root`: as the kernel's
/// drivers say, or said before one was taken from them.
fn by_serial(root: &Path, serial: &str) -> Vec<Address> {
    let known = root.join(KNOWN).join(serial.trim().replace('/', "_"));
    let disks = fs::read_dir(root.join("sys/block")).into_iter().flatten().flatten();
    let devices = disks.filter_map(|disk| fs::canonicalize(disk.path().join("device")).ok());
    let its =
        devices.filter(|device| serial_of(device).is_some_and(|found| found == serial.trim()));
    let found: BTreeSet<Address> =
        its.flat_map(|device| controllers(&device)).filter_map(|path| address_in(&path)).collect();
    if let (Some(address), 1) = (found.first(), found.len()) {
        let _ = fs::create_dir_all(root.join(KNOWN))
            .and_then(|()| fs::write(&known, address.to_string()));
    }
    if found.is_empty() {
        return fs::read_to_string(known)
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .into_iter()
            .collect();
    }
    found.into_iter().collect()
}

/// The controllers of a disk. What the kernel shows of an NVMe disk that several controllers may
/// reach belongs to none of them, but to their subsystem, which names them.
fn controllers(device: &Path) -> Vec<PathBuf> {
    let is_subsystem = device.parent().is_some_and(|parent| parent.ends_with("nvme-subsystem"));
    if !is_subsystem {
        return vec![device.to_owned()];
    }
    let entries = fs::read_dir(device).into_iter().flatten().flatten().map(|entry| entry.path());
    // Its own files lie below it, its controllers elsewhere.
    entries
        .filter_map(|path| fs::canonicalize(path).ok())
        .filter(|path| !path.starts_with(device))
        .collect()
}

/// The function at which a device hangs.
fn address_in(device: &Path) -> Option<Address> {
    device.iter().rev().find_map(|part| part.to_str()?.parse().ok())
}

/// Of an NVMe controller, or the page "unit serial number" of a drive that speaks SCSI [SPC-4
/// 7.8.15].
fn serial_of(device: &Path) -> Option<String> {
    let text = fs::read(device.join("serial")).or_else(|_| {
        fs::read(device.join("vpd_pg80")).map(|page| page.get(4..).unwrap_or_default().to_vec())
    });
    Some(
        String::from_utf8_lossy(&text.ok()?)
            .trim_matches(|c: char| c.is_whitespace() || c == '\0')
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine, as sysfs shows it.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// A device with a serial number.
        fn device(&self, path: &str, serial: &str) -> PathBuf {
            let device = self.0.path().join("sys/devices").join(path);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("serial"), format!("{serial}  \n")).unwrap();
            device
        }

        fn disk(&self, name: &str, device: &Path) {
            let disk = self.0.path().join("sys/block").join(name);
            fs::create_dir_all(&disk).unwrap();
            symlink(device, disk.join("device")).unwrap();
        }

        fn found(&self, serial: &str) -> Vec<String> {
            by_serial(self.0.path(), serial).iter().map(Address::to_string).collect()
        }
    }

    #[test]
    fn an_nvme_disk_is_found_behind_the_kernels_head_of_several_paths() {
        let machine = Machine::new();
        let subsystem = machine.device("virtual/nvme-subsystem/nvme-subsys0", "ALPHA");
        fs::create_dir_all(subsystem.join("power")).unwrap();
        let controller = machine.device("pci0000:00/0000:00:02.0/0000:01:00.0/nvme/nvme0", "ALPHA");
        symlink(&controller, subsystem.join("nvme0")).unwrap();
        machine.disk("nvme0n1", &subsystem);
        assert_eq!(machine.found("ALPHA"), ["0000:01:00.0"]);
        machine.disk("nvme0c0n1", &controller);
        assert_eq!(machine.found(" ALPHA "), ["0000:01:00.0"]);
        assert!(machine.found("BETA").is_empty());
    }

    #[test]
    fn a_serial_number_that_two_functions_have_names_neither() {
        let [one, two] =
            ["0000:01:00.0", "0000:02:00.0"].map(|text| text.parse::<Address>().unwrap());
        assert_eq!(only(&[one], "X"), Ok(Some(one)));
        assert_eq!(only(&[], "X"), Ok(None));
        let error = only(&[one, two], "X").unwrap_err();
        assert!(
            error.contains("0000:01:00.0 and 0000:02:00.0 have the serial number X"),
            "{error}"
        );
    }

    #[test]
    fn a_serial_number_that_nobody_has_names_the_functions_whose_numbers_are_unknown() {
        assert_eq!(nobodys_serial("X", &[]), "no disk with the serial number X is there");
        let unseen = ["0000:01:00.0", "0000:02:00.0"].map(|text| text.parse().unwrap());
        let error = nobodys_serial("X", &unseen);
        assert!(
            error.contains("at 0000:01:00.0, 0000:02:00.0 are unknown")
                && error.contains("ring3 unbind 0000:01:00.0"),
            "{error}"
        );
    }

    #[test]
    fn what_hangs_at_no_function_hides_no_disk_that_does() {
        let machine = Machine::new();
        machine.disk("a", &machine.device("platform/host9/session1/target9:0:0/9:0:0:0", "ONE"));
        machine.disk(
            "b",
            &machine.device("pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0", "ONE"),
        );
        machine.disk(
            "c",
            &machine.device("pci0000:00/0000:00:14.0/usb1/1-1/host3/target3:0:0/3:0:0:0", "ONE"),
        );
        // Which of them may be taken is a matter of their classes.
        assert_eq!(machine.found("ONE"), ["0000:00:14.0", "0000:00:1f.2"]);
    }

    #[test]
    fn a_disk_that_was_taken_from_the_kernels_driver_is_known_still() {
        let machine = Machine::new();
        let device = machine.device("pci0000:00/0000:00:03.0/virtio0", "VD");
        machine.disk("vda", &device);
        assert_eq!(machine.found("VD"), ["0000:00:03.0"]);
        fs::remove_dir_all(machine.0.path().join("sys/block/vda")).unwrap();
        assert_eq!(machine.found("VD"), ["0000:00:03.0"]);
    }
}
