//! Refusals, on a machine made of files.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use ring3_pci::{Kernel, Node};
use tempfile::TempDir;

use super::*;

/// A kernel that is not asked for anything.
pub(crate) struct Silent;

impl Kernel for Silent {
    fn write(&self, _: &std::path::Path, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn load_module(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn node(&self, _: &std::path::Path) -> io::Result<Option<Node>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn claim(&self, _: &std::path::Path) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn under_loop(&self, _: &std::path::Path) -> io::Result<Option<Node>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

const ADDRESS: &str = "0000:01:00.0";

/// A machine with one function that has `driver`; its IOMMU group is 7 if it has one, of
/// `translation`.
fn machine(driver: Option<&str>, translation: Option<&str>) -> (TempDir, Host) {
    let root = tempfile::tempdir().unwrap();
    let function = root.path().join("sys/bus/pci/devices").join(ADDRESS);
    fs::create_dir_all(function.join("uio/uio0")).unwrap();
    for (name, text) in [
        ("vendor", "0x1b36"),
        ("device", "0x0010"),
        ("class", "0x010802"),
        ("rescan", ""),
        ("config", ""),
    ] {
        fs::write(function.join(name), text).unwrap();
    }
    if let Some(driver) = driver {
        let directory = root.path().join("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&directory).unwrap();
        symlink(directory, function.join("driver")).unwrap();
    }
    if let Some(kind) = translation {
        let group = root.path().join("sys/kernel/iommu_groups/7");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("type"), kind).unwrap();
        symlink(group, function.join("iommu_group")).unwrap();
    }
    let host = Host::at(root.path(), Arc::new(Silent));
    (root, host)
}

#[track_caller]
fn refused((_root, host): (TempDir, Host), unprotected: bool, wanted: &[&str]) {
    let text = Claim::open(&host, ADDRESS.parse().unwrap(), unprotected).err().unwrap().to_string();
    wanted.iter().for_each(|wanted| assert!(text.contains(wanted), "{wanted:?} is not in {text}"));
}

#[test]
fn without_the_users_word_the_reason_is_told_and_the_way_of_vfio_if_there_is_one() {
    let reason = "a bug in the driver can overwrite any memory of the machine";
    let vfio = "sudo ring3 bind 0000:01:00.0 and name it vfio:0000:01:00.0; or say --unprotected";
    refused(machine(Some("uio_pci_generic"), Some("identity")), false, &[reason, vfio]);
    refused(
        machine(Some("uio_pci_generic"), None),
        false,
        &[reason, "to mend it: say --unprotected"],
    );
}

#[test]
fn what_another_driver_has_is_told_the_command_and_a_missing_module_its_name() {
    let (root, host) = machine(Some("nvme"), None);
    fs::create_dir_all(root.path().join("sys/bus/pci/drivers/uio_pci_generic")).unwrap();
    let command = "to mend it: sudo ring3 bind 0000:01:00.0 --driver uio_pci_generic";
    refused((root, host), true, &["the kernel's driver nvme, not to uio_pci_generic", command]);
    refused(machine(None, None), true, &["sudo modprobe uio_pci_generic"]);
}

#[test]
fn a_function_behind_an_iommu_that_translates_is_refused() {
    refused(
        machine(Some("uio_pci_generic"), Some("DMA-FQ")),
        true,
        &["translates its addresses (group 7, DMA-FQ)", "vfio:0000:01:00.0"],
    );
}

#[test]
fn a_function_that_is_locked_is_busy() {
    let (root, host) = machine(Some("uio_pci_generic"), None);
    let held =
        File::open(root.path().join("sys/bus/pci/devices").join(ADDRESS).join("rescan")).unwrap();
    flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = Claim::open(&host, ADDRESS.parse().unwrap(), true).err().unwrap();
    assert!(matches!(&error, Error::Busy(text) if text.contains("/dev/uio0")), "{error}");
}

#[test]
fn a_function_that_cannot_be_read_is_not_taken_for_one_that_is_gone() {
    let (root, host) = machine(Some("uio_pci_generic"), None);
    let text = host.path("sys/bus/pci/devices").join(ADDRESS).join("vendor");
    fs::remove_file(&text).unwrap();
    fs::create_dir(&text).unwrap();
    refused((root, host), true, &["what the kernel says of it cannot be read", "vendor"]);
}
