//! Handing functions to vfio-pci and giving them back.

use crate::machine::Machine;
use ring3_pci::{BindError, Blocked, Obstacle, Way, bind, unbind};

const DISK: &str = "0000:01:00.0";

/// A machine with vfio-pci loaded and a disk that the kernel's nvme driver has.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.driver("vfio-pci");
    machine.function(DISK, Some(7), Some("nvme"));
    machine
}

fn blocked(error: BindError) -> Blocked {
    match error {
        BindError::Blocked(blocked) => blocked,
        other => panic!("{other}"),
    }
}

#[test]
fn a_bound_function_has_vfio_pci_and_an_override_of_its_own() {
    let machine = machine();
    let done = bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    assert_eq!((done.before.as_deref(), done.now.as_deref()), (Some("nvme"), Some("vfio-pci")));
    assert_eq!((machine.driver_of(DISK).as_deref(), machine.override_of(DISK).as_str()), (Some("vfio-pci"), "vfio-pci"));
}

#[test]
fn no_other_function_of_the_same_kind_is_touched() {
    let machine = machine();
    machine.function("0000:02:00.0", Some(8), Some("nvme"));
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    assert_eq!(machine.driver_of("0000:02:00.0").as_deref(), Some("nvme"));
    assert!(!machine.journal().iter().any(|entry| entry.contains("new_id")));
}

#[test]
fn unbind_gives_the_function_back_to_the_driver_that_had_it() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    let done = unbind(&machine.host(), DISK.parse().unwrap()).unwrap();
    assert_eq!(done.now.as_deref(), Some("nvme"));
    assert_eq!(machine.override_of(DISK), "(null)");
}

#[test]
fn unbind_puts_an_earlier_override_back() {
    let machine = machine();
    machine.file(&format!("sys/bus/pci/devices/{DISK}/driver_override"), "nvme\n");
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    unbind(&machine.host(), DISK.parse().unwrap()).unwrap();
    assert_eq!((machine.driver_of(DISK).as_deref(), machine.override_of(DISK).as_str()), (Some("nvme"), "nvme"));
}

#[test]
fn unbind_without_a_memory_lets_the_kernel_choose() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    std::fs::remove_dir_all(machine.path("run/ring3")).unwrap();
    assert_eq!(unbind(&machine.host(), DISK.parse().unwrap()).unwrap().now.as_deref(), Some("nvme"));
}

#[test]
fn a_second_bind_and_a_second_unbind_do_nothing() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    let writes = machine.journal().len();
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    assert_eq!(machine.journal().len(), writes);
    unbind(&machine.host(), DISK.parse().unwrap()).unwrap();
    let writes = machine.journal().len();
    unbind(&machine.host(), DISK.parse().unwrap()).unwrap();
    assert_eq!(machine.journal().len(), writes);
}

#[test]
fn a_missing_module_is_loaded_and_named() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    machine.offer_module("vfio-pci");
    assert_eq!(bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap().loaded.as_deref(), Some("vfio-pci"));
}

#[test]
fn a_module_that_cannot_be_loaded_leaves_everything_as_it_was() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    let error = blocked(bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap_err());
    assert!(error.to_string().contains("Module vfio-pci not found"), "{error}");
    assert_eq!(machine.journal(), ["modprobe vfio-pci"]);
}

#[test]
fn a_mounted_disk_is_refused_with_where_it_is_mounted() {
    let machine = machine();
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.mount("259:0", "/home", "/dev/nvme0n1");
    let error = blocked(bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap_err());
    assert_eq!(error.to_string(), "0000:01:00.0: it is in use: /dev/nvme0n1 is mounted at /home; to mend it: sudo umount /home");
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("nvme"));
}

#[test]
fn force_takes_a_mounted_disk() {
    let machine = machine();
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.mount("259:0", "/home", "/dev/nvme0n1");
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, true).unwrap();
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("vfio-pci"));
}

#[test]
fn a_driver_that_does_not_take_the_function_is_rolled_back() {
    let machine = machine();
    machine.break_driver("vfio-pci");
    let error = bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap_err();
    assert!(error.to_string().ends_with("it was put back as it was"), "{error}");
    assert_eq!((machine.driver_of(DISK).as_deref(), machine.override_of(DISK).as_str()), (Some("nvme"), "(null)"));
}

#[test]
fn a_step_that_is_not_permitted_asks_for_root() {
    let machine = machine();
    machine.forbid("driver_override");
    let error = blocked(bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap_err());
    assert!(matches!(error.obstacle, Obstacle::NoPermission { .. }));
    assert!(error.to_string().contains("sudo"), "{error}");
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("nvme"));
}

#[test]
fn a_function_without_an_iommu_is_refused() {
    let machine = machine();
    machine.function("0000:02:00.0", None, Some("nvme"));
    let error = blocked(bind(&machine.host(), "0000:02:00.0".parse().unwrap(), Way::Vfio, false).unwrap_err());
    assert_eq!(error.obstacle, Obstacle::NoIommu);
}

#[test]
fn a_bridge_is_refused() {
    let machine = machine();
    machine.function_of_class("0000:00:1c.0", Some(3), Some("pcieport"), "0x060400");
    let error = blocked(bind(&machine.host(), "0000:00:1c.0".parse().unwrap(), Way::Vfio, true).unwrap_err());
    assert_eq!(error.obstacle, Obstacle::Bridge);
}

#[test]
fn a_wrong_address_is_named() {
    let error = blocked(bind(&machine().host(), "0000:09:00.0".parse().unwrap(), Way::Vfio, false).unwrap_err());
    assert!(error.to_string().starts_with("0000:09:00.0: there is no such PCI function"), "{error}");
}

#[test]
fn a_function_that_a_process_drives_is_not_unbound() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    machine.open_by(4711, "ring3", "dev/vfio/7");
    let error = blocked(unbind(&machine.host(), DISK.parse().unwrap()).unwrap_err());
    assert_eq!(error.to_string(), "0000:01:00.0: /dev/vfio/7 is held by process 4711 (ring3); to mend it: kill 4711");
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("vfio-pci"));
}

#[test]
fn a_function_without_an_iommu_goes_to_uio_and_comes_back() {
    let machine = Machine::new();
    machine.offer_module("uio_pci_generic");
    machine.function(DISK, None, Some("nvme"));
    let done = bind(&machine.host(), DISK.parse().unwrap(), Way::Uio, false).unwrap();
    assert_eq!((done.now.as_deref(), done.loaded.as_deref()), (Some("uio_pci_generic"), Some("uio_pci_generic")));
    assert_eq!(unbind(&machine.host(), DISK.parse().unwrap()).unwrap().now.as_deref(), Some("nvme"));
}

#[test]
fn from_one_way_to_the_other_the_first_driver_is_remembered() {
    let machine = machine();
    machine.driver("uio_pci_generic");
    machine.file("sys/kernel/iommu_groups/7/type", "identity\n");
    bind(&machine.host(), DISK.parse().unwrap(), Way::Vfio, false).unwrap();
    bind(&machine.host(), DISK.parse().unwrap(), Way::Uio, false).unwrap();
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("uio_pci_generic"));
    assert_eq!(unbind(&machine.host(), DISK.parse().unwrap()).unwrap().now.as_deref(), Some("nvme"));
}

#[test]
fn a_function_behind_an_iommu_that_translates_is_not_bound_for_uio() {
    let machine = machine();
    machine.file("sys/kernel/iommu_groups/7/type", "DMA\n");
    let error = blocked(bind(&machine.host(), DISK.parse().unwrap(), Way::Uio, false).unwrap_err());
    assert_eq!(error.obstacle.name(), "translated");
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("nvme"));
}
