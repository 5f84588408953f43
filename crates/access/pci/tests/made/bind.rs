//! Handing functions to vfio-pci and giving them back.

use crate::machine::Machine;
use ring3_pci::{BindError, Blocked, Obstacle, PassthroughDriver, bind, unbind};

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
    let done = bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    assert_eq!((done.before.as_deref(), done.now.as_deref()), (Some("nvme"), Some("vfio-pci")));
    assert_eq!(
        (machine.driver_of(DISK).as_deref(), machine.override_of(DISK).as_str()),
        (Some("vfio-pci"), "vfio-pci")
    );
}

#[test]
fn a_function_that_no_process_could_open_is_left_to_its_driver() {
    let refused = |way, path: &str, text| {
        let machine = machine();
        machine.driver("uio_pci_generic");
        machine.file(path, text);
        let name = blocked(bind(&machine.host(), DISK.parse().unwrap(), way, None).unwrap_err());
        (name.obstacle.name(), machine.driver_of(DISK).unwrap())
    };
    let regions = "sys/kernel/iommu_groups/7/reserved_regions";
    assert_eq!(
        refused(PassthroughDriver::Vfio, regions, "0x1000 0x1fff direct\n"),
        ("reserved-memory", "nvme".into())
    );
    let machine = Machine::new();
    machine.function(DISK, None, Some("nvme"));
    machine.driver("uio_pci_generic");
    machine.file("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
    let error = bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Uio, None);
    assert_eq!(blocked(error.unwrap_err()).obstacle.name(), "lockdown");
}

#[test]
fn a_card_that_hangs_when_its_link_saves_power_is_bound_with_that_off() {
    let machine = machine();
    let states = ["l0s_aspm", "l1_aspm", "clkpm"]
        .map(|state| format!("sys/bus/pci/devices/{DISK}/link/{state}"));
    states.iter().for_each(|state| machine.file(state, "1"));
    let bound = |device| {
        machine.file(&format!("sys/bus/pci/devices/{DISK}/device"), device);
        let done = bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None);
        unbind(&machine.host(), DISK.parse().unwrap()).unwrap();
        let read = |state| std::fs::read_to_string(machine.path(state)).unwrap();
        (done.unwrap().link, states.each_ref().map(|state| read(state)).concat())
    };
    assert_eq!(bound("0x10c9\n"), (vec![], "111".into()));
    for device in ["0x108b\n", "0x109a\n", "0x10d3\n", "0x10f6\n", "0x150c\n"] {
        let off = vec![("l0s_aspm", Ok(())), ("l1_aspm", Ok(()))];
        assert_eq!(bound(device), (off, "001".into()), "{device}");
    }
    states.iter().for_each(|state| std::fs::remove_file(machine.path(state)).unwrap());
    let done = bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None);
    assert_eq!(done.unwrap().link, []);
}

#[test]
fn no_other_function_of_the_same_kind_is_touched() {
    let machine = machine();
    machine.function("0000:02:00.0", Some(8), Some("nvme"));
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    assert_eq!(machine.driver_of("0000:02:00.0").as_deref(), Some("nvme"));
    assert!(!machine.journal().iter().any(|entry| entry.contains("new_id")));
}

#[test]
fn unbind_gives_the_function_back_to_the_driver_that_had_it() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    let done = unbind(&machine.host(), DISK.parse().unwrap()).unwrap();
    assert_eq!(done.now.as_deref(), Some("nvme"));
    assert_eq!(machine.override_of(DISK), "(null)");
}

#[test]
fn unbind_puts_an_earlier_override_back() {
    let machine = machine();
    machine.file(&format!("sys/bus/pci/devices/{DISK}/driver_override"), "nvme\n");
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    unbind(&machine.host(), DISK.parse().unwrap()).unwrap();
    assert_eq!(
        (machine.driver_of(DISK).as_deref(), machine.override_of(DISK).as_str()),
        (Some("nvme"), "nvme")
    );
}

#[test]
fn unbind_without_a_memory_lets_the_kernel_choose() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    std::fs::remove_dir_all(machine.path("run/ring3")).unwrap();
    assert_eq!(
        unbind(&machine.host(), DISK.parse().unwrap()).unwrap().now.as_deref(),
        Some("nvme")
    );
}

#[test]
fn a_second_bind_and_a_second_unbind_do_nothing() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    let writes = machine.journal().len();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
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
    assert_eq!(
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None)
            .unwrap()
            .loaded
            .as_deref(),
        Some("vfio-pci")
    );
}

#[test]
fn a_module_that_cannot_be_loaded_leaves_everything_as_it_was() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    let error = blocked(
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap_err(),
    );
    assert!(error.to_string().contains("Module vfio-pci not found"), "{error}");
    assert_eq!(machine.journal(), ["modprobe vfio-pci"]);
}

#[test]
fn a_mounted_disk_is_refused_with_where_it_is_mounted() {
    let machine = machine();
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.mount("259:0", "/home", "/dev/nvme0n1");
    let error = blocked(
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap_err(),
    );
    assert_eq!(
        error.to_string(),
        "0000:01:00.0: it is in use: /dev/nvme0n1 is mounted at /home; to mend it: sudo umount \
        /home"
    );
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("nvme"));
}

#[test]
fn force_takes_a_mounted_disk_and_says_so_before_anything_is_changed() {
    let machine = machine();
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.mount("259:0", "/home", "/dev/nvme0n1");
    machine.claim("nvme0n1");
    machine.open_by(77, "qemu", "dev/nvme0n1");
    let (mut told, mut before) = (String::new(), Vec::new());
    let mut tell = |blocked: &Blocked| (told, before) = (blocked.problem(), machine.journal());
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, Some(&mut tell)).unwrap();
    assert_eq!(
        told,
        "0000:01:00.0: it is in use: /dev/nvme0n1 is mounted at /home, /dev/nvme0n1 is open in \
        process 77 (qemu)"
    );
    assert_eq!(before, [""; 0]);
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("vfio-pci"));
}

/// What a bind without force says of a disk with one partition and its generic device, to which
/// `prepare` does something.
fn refusal(prepare: impl FnOnce(&Machine)) -> String {
    let machine = machine();
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.partition(DISK, "nvme0n1", "nvme0n1p1", "259:1");
    machine.character(&format!("sys/devices/pci0000:00/{DISK}/nvme/nvme0/ng0n1"), "237:0");
    prepare(&machine);
    let error = blocked(
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap_err(),
    );
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("nvme"));
    assert!(
        !machine.journal().iter().any(|entry| entry.starts_with("driver_override")),
        "{:?}",
        machine.journal()
    );
    error.to_string()
}

#[test]
fn a_disk_that_is_mounted_in_another_namespace_alone_is_refused_with_a_process_that_sees_it() {
    let text = refusal(|machine| machine.mount_inside(88, "sleep", "259:1", "/data", "/dev/root"));
    assert_eq!(
        text,
        "0000:01:00.0: it is in use: /dev/nvme0n1p1 is mounted at /data in the mount namespace of \
         process 88 (sleep); to mend it: sudo nsenter --target 88 --mount umount /data"
    );
}

#[test]
fn a_mount_that_all_namespaces_share_is_said_once() {
    let text = refusal(|machine| {
        machine.mount("259:1", "/data", "/dev/nvme0n1p1");
        machine.mount_inside(88, "sleep", "259:1", "/data", "/dev/nvme0n1p1");
    });
    assert_eq!(text.matches("is mounted at").count(), 1, "{text}");
}

#[test]
fn the_second_disk_of_a_mounted_btrfs_is_refused_with_where_it_is_mounted() {
    let text = refusal(|machine| {
        machine.claim("nvme0n1");
        for member in ["sda", "nvme0n1"] {
            machine.file(&format!("sys/fs/btrfs/5f0c/devices/{member}"), "");
        }
        machine.mount("0:42", "/pool", "/dev/sda");
    });
    assert!(text.contains("it is in use: /dev/nvme0n1 is mounted at /pool;"), "{text}");
}

#[test]
fn a_disk_that_a_mount_names_among_others_or_as_its_log_is_in_use() {
    for source in ["/dev/sda:/dev/nvme0n1", "/dev/sda rw,logdev=/dev/nvme0n1,noquota"] {
        let text = refusal(|machine| machine.mount("8:0", "/pool", source));
        assert!(text.contains("/dev/nvme0n1 is mounted at /pool"), "{text}");
    }
}

#[test]
fn a_loop_device_is_refused_with_what_is_mounted_on_it() {
    let text = refusal(|machine| {
        machine.loop_over("loop3", "7:3", "nvme0n1");
        machine.mount("7:3", "/image", "/dev/loop3");
    });
    assert!(
        text.contains("/dev/loop3 is mounted at /image, /dev/loop3 is made of /dev/nvme0n1"),
        "{text}"
    );
    assert!(text.contains("sudo losetup --detach /dev/loop3"), "{text}");
}

#[test]
fn a_disk_that_a_process_has_open_is_refused_with_the_process() {
    for device in ["nvme0n1", "nvme0n1p1", "ng0n1"] {
        let text = refusal(|machine| machine.open_by(77, "qemu", &format!("dev/{device}")));
        assert!(
            text.contains(&format!(
                "/dev/{device} is open in process 77 (qemu); to mend it: kill 77"
            )),
            "{text}"
        );
    }
}

#[test]
fn a_claim_for_which_nobody_can_be_named_is_refused_too() {
    for disk in ["nvme0n1", "nvme0n1p1"] {
        let text = refusal(|machine| machine.claim(disk));
        assert!(
            text.contains(&format!(
                "it is in use: /dev/{disk} is claimed by somebody in the kernel"
            )),
            "{text}"
        );
    }
}

#[test]
fn a_disk_that_may_not_be_looked_at_does_not_count_as_free() {
    let text = refusal(|machine| machine.forbid("nvme0n1"));
    assert!(
        text.contains(
            "whether it is in use cannot be told: claiming /dev/nvme0n1: permission denied"
        ),
        "{text}"
    );
    let text = refusal(|machine| std::fs::remove_file(machine.path("dev/nvme0n1")).unwrap());
    assert!(text.contains("whether it is in use cannot be told"), "{text}");
}

#[test]
fn names_that_others_chose_reach_the_terminal_escaped() {
    let text = refusal(|machine| machine.open_by(77, "a\x1b[2Jb", "dev/nvme0n1"));
    assert!(text.contains("process 77 (a\\x1b[2Jb)"), "{text}");
}

#[test]
fn a_disk_is_claimed_until_its_driver_has_let_go_of_it() {
    let machine = machine();
    machine.disk(DISK, "nvme0n1", "259:0");
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    let journal = machine.journal();
    let at = |wanted: &str| {
        journal
            .iter()
            .position(|entry| entry.starts_with(wanted))
            .unwrap_or_else(|| panic!("{journal:?}"))
    };
    assert!(
        at("claim nvme0n1") < at("unbind")
            && at("unbind") < at("let go")
            && at("let go") < at("drivers_probe")
    );
}

#[test]
fn a_kernel_that_does_not_answer_is_an_error_that_says_how_it_was_left() {
    let machine = machine();
    machine.stall("unbind");
    let error = bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the kernel has not answered; it was not put back")
            && error.contains("ring3 unbind"),
        "{error}"
    );
}

#[test]
fn a_function_that_is_held_by_its_own_vfio_file_is_not_unbound() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    machine.file(&format!("sys/bus/pci/devices/{DISK}/vfio-dev/vfio0/dev"), "511:0");
    machine.open_by(4711, "qemu", "dev/vfio/devices/vfio0");
    let error = blocked(unbind(&machine.host(), DISK.parse().unwrap()).unwrap_err());
    assert!(
        error.to_string().contains("/dev/vfio/devices/vfio0 is held by process 4711 (qemu)"),
        "{error}"
    );
    let error = blocked(
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Uio, Some(&mut |_| ()))
            .unwrap_err(),
    );
    assert!(["busy", "translated"].contains(&error.obstacle.name()), "{error}");
}

#[test]
fn a_process_that_was_killed_and_is_not_gone_yet_holds_nothing() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    machine.open_by(4711, "ring3", "dev/vfio/7");
    machine.file(
        "proc/4711/status",
        "State:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n",
    );
    assert!(unbind(&machine.host(), DISK.parse().unwrap()).is_ok());
}

#[test]
fn a_driver_that_does_not_take_the_function_is_rolled_back() {
    let machine = machine();
    machine.break_driver("vfio-pci");
    let error =
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap_err();
    assert!(error.to_string().ends_with("it was put back as it was"), "{error}");
    assert_eq!(
        (machine.driver_of(DISK).as_deref(), machine.override_of(DISK).as_str()),
        (Some("nvme"), "(null)")
    );
}

#[test]
fn a_step_that_is_not_permitted_asks_for_root() {
    let machine = machine();
    machine.forbid("driver_override");
    let error = blocked(
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap_err(),
    );
    assert!(matches!(error.obstacle, Obstacle::NoPermission { .. }));
    assert!(error.to_string().contains("sudo"), "{error}");
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("nvme"));
}

#[test]
fn a_function_without_an_iommu_is_refused() {
    let machine = machine();
    machine.function("0000:02:00.0", None, Some("nvme"));
    let error = blocked(
        bind(&machine.host(), "0000:02:00.0".parse().unwrap(), PassthroughDriver::Vfio, None)
            .unwrap_err(),
    );
    assert_eq!(error.obstacle, Obstacle::NoIommu);
}

#[test]
fn a_bridge_is_refused() {
    let machine = machine();
    machine.function_of_class("0000:00:1c.0", Some(3), Some("pcieport"), "0x060400");
    let error = blocked(
        bind(
            &machine.host(),
            "0000:00:1c.0".parse().unwrap(),
            PassthroughDriver::Vfio,
            Some(&mut |_| ()),
        )
        .unwrap_err(),
    );
    assert_eq!(error.obstacle, Obstacle::Bridge);
}

#[test]
fn a_wrong_address_is_named() {
    let error = blocked(
        bind(&machine().host(), "0000:09:00.0".parse().unwrap(), PassthroughDriver::Vfio, None)
            .unwrap_err(),
    );
    assert!(
        error.to_string().starts_with("0000:09:00.0: there is no such PCI function"),
        "{error}"
    );
}

#[test]
fn a_function_that_a_process_drives_is_not_unbound() {
    let machine = machine();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    machine.open_by(4711, "ring3", "dev/vfio/7");
    let error = blocked(unbind(&machine.host(), DISK.parse().unwrap()).unwrap_err());
    assert_eq!(
        error.to_string(),
        "0000:01:00.0: /dev/vfio/7 is held by process 4711 (ring3); to mend it: kill 4711"
    );
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("vfio-pci"));
}

#[test]
fn a_function_without_an_iommu_goes_to_uio_and_comes_back() {
    let machine = Machine::new();
    machine.offer_module("uio_pci_generic");
    machine.function(DISK, None, Some("nvme"));
    let done = bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Uio, None).unwrap();
    assert_eq!(
        (done.now.as_deref(), done.loaded.as_deref()),
        (Some("uio_pci_generic"), Some("uio_pci_generic"))
    );
    assert_eq!(
        unbind(&machine.host(), DISK.parse().unwrap()).unwrap().now.as_deref(),
        Some("nvme")
    );
}

#[test]
fn from_one_way_to_the_other_the_first_driver_is_remembered() {
    let machine = machine();
    machine.driver("uio_pci_generic");
    machine.file("sys/kernel/iommu_groups/7/type", "identity\n");
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Vfio, None).unwrap();
    bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Uio, None).unwrap();
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("uio_pci_generic"));
    assert_eq!(
        unbind(&machine.host(), DISK.parse().unwrap()).unwrap().now.as_deref(),
        Some("nvme")
    );
}

#[test]
fn a_function_behind_an_iommu_that_translates_is_not_bound_for_uio() {
    let machine = machine();
    machine.file("sys/kernel/iommu_groups/7/type", "DMA\n");
    let error = blocked(
        bind(&machine.host(), DISK.parse().unwrap(), PassthroughDriver::Uio, None).unwrap_err(),
    );
    assert_eq!(error.obstacle.name(), "translated");
    assert_eq!(machine.driver_of(DISK).as_deref(), Some("nvme"));
}
