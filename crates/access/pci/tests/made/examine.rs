//! Looking for what stands in the way.

use crate::machine::Machine;
use ring3_pci::{
    Address, Blocked, Function, Host, Obstacle, PassthroughDriver, Usage, Use, bind, examine,
    examine_machine, forges_interrupts,
};

const DISK: &str = "0000:01:00.0";
const ARENA: u64 = 4 << 20;

fn obstacles(machine: &Machine) -> Vec<Blocked> {
    on(PassthroughDriver::Vfio, machine)
}

fn on(way: PassthroughDriver, machine: &Machine) -> Vec<Blocked> {
    examine(&machine.host(), DISK.parse().unwrap(), way, ARENA)
        .into_iter()
        .filter_map(|check| check.found.err())
        .collect()
}

fn names(machine: &Machine) -> Vec<&'static str> {
    obstacles(machine).iter().map(|blocked| blocked.obstacle.name()).collect()
}

fn uses(host: &Host, address: Address) -> Vec<Use> {
    Usage::probe(host, address).uses
}

/// A disk that nothing keeps from being claimed.
fn ready() -> Machine {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("vfio-pci"));
    machine
}

#[test]
fn nothing_stands_in_the_way_of_a_bound_function() {
    assert_eq!(names(&ready()), [""; 0]);
}

#[test]
fn memory_that_firmware_uses_through_the_group_stands_in_the_way_and_what_is_relaxable_does_not() {
    let machine = ready();
    let regions = "sys/kernel/iommu_groups/7/reserved_regions";
    let relaxed = "0x0000000000000000 0x0000000000ffffff direct-relaxable\n\
                   0x00000000fee00000 0x00000000feefffff msi\n";
    machine.file(regions, relaxed);
    assert_eq!(names(&machine), [""; 0]);
    let used = "0x00000000bdf6e000 0x00000000bdf7ffff direct\n";
    machine.file(regions, &format!("{used}{relaxed}"));
    let [blocked] = &obstacles(&machine)[..] else { panic!("{:?}", names(&machine)) };
    assert!(blocked.problem().contains("group 7 (0xbdf6e000-0xbdf7ffff)"), "{}", blocked.problem());
}

#[test]
fn a_virtual_function_is_in_the_way_of_nobody_unless_its_physical_function_is_passed_on() {
    for (driver, found) in [("nvme", &[][..]), ("vfio-pci", &["physical-function"])] {
        let machine = ready();
        machine.function("0000:01:00.1", Some(8), Some(driver));
        machine.link(
            &format!("sys/devices/pci0000:00/{DISK}/physfn"),
            "sys/devices/pci0000:00/0000:01:00.1",
        );
        assert_eq!(names(&machine), found, "{driver}");
    }
}

#[test]
fn a_kernel_that_is_locked_down_stands_in_the_way_of_uio_alone() {
    for (text, is_locked) in [
        ("[none] integrity confidentiality\n", false),
        ("none [integrity] confidentiality\n", true),
    ] {
        let machine = ready();
        machine.file("sys/kernel/security/lockdown", text);
        assert_eq!(names(&machine), [""; 0]);
        let found = on(PassthroughDriver::Uio, &machine);
        let is_found = found.iter().any(|blocked| blocked.obstacle.name() == "lockdown");
        assert_eq!(is_found, is_locked, "{text}");
    }
}

#[test]
fn a_function_of_no_node_has_none() {
    let machine = ready();
    machine.file(&format!("sys/devices/pci0000:00/{DISK}/numa_node"), "-1\n");
    let function = Function::read(&machine.host(), DISK.parse().unwrap()).unwrap();
    assert_eq!(function.numa_node, None);
}

#[test]
fn a_function_is_read_with_all_that_is_known_of_it() {
    let machine = ready();
    machine.file(&format!("sys/devices/pci0000:00/{DISK}/numa_node"), "1\n");
    let function = Function::read(&machine.host(), DISK.parse().unwrap()).unwrap();
    assert_eq!(function.numa_node, Some(1));
    assert_eq!(
        (function.iommu_group, function.bars[0].size, function.reset_methods.len()),
        (Some(7), 0x4000, 2)
    );
    assert_eq!(function.class_name(), "Non-Volatile memory controller");
    assert!(function.name().starts_with("Intel"), "{}", function.name());
    assert_eq!(function.driver_override, None);
}

#[test]
fn a_function_with_the_kernels_driver_is_not_bound_and_bind_is_named_with_its_undoing() {
    let machine = Machine::new();
    machine.driver("vfio-pci");
    machine.function(DISK, Some(7), Some("nvme"));
    let obstacles = obstacles(&machine);
    assert_eq!(
        obstacles[0].obstacle,
        Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: Some("nvme".into()) }
    );
    assert_eq!(
        (obstacles[0].remedy()[0].as_str(), obstacles[0].undo()[0].as_str()),
        ("sudo ring3 bind 0000:01:00.0", "sudo ring3 unbind 0000:01:00.0")
    );
    assert_eq!(obstacles.len(), 1);
}

#[test]
fn a_group_that_is_not_viable_names_the_member_that_blocks_and_the_command() {
    let machine = ready();
    machine.function("0000:01:00.1", Some(7), Some("snd_hda_intel"));
    machine.function("0000:01:00.2", Some(7), None);
    machine.function_of_class("0000:00:01.0", Some(7), Some("pcieport"), "0x060400");
    let obstacles = obstacles(&machine);
    assert_eq!(obstacles.len(), 1);
    assert_eq!(
        obstacles[0].to_string(),
        "0000:01:00.0: its IOMMU group 7 is not viable: 0000:01:00.1 has the driver snd_hda_intel; \
         to mend it: sudo ring3 bind 0000:01:00.1"
    );
}

#[test]
fn a_busy_group_names_its_holder() {
    let machine = ready();
    machine.open_by(99, "ring3", "dev/vfio/7");
    let text = obstacles(&machine)[0].to_string();
    assert!(text.contains("/dev/vfio/7 is held by process 99 (ring3)"), "{text}");
}

#[test]
fn too_little_memory_to_lock_names_both_sizes_and_the_way_back() {
    let machine = ready();
    machine.memlock("65536");
    let obstacles = obstacles(&machine);
    assert_eq!(obstacles[0].obstacle, Obstacle::Memlock { needed: ARENA, limit: 65536 });
    assert_eq!(obstacles[0].undo(), ["sudo prlimit --memlock=65536 --pid $$"]);
}

#[test]
fn who_has_the_capability_locks_without_limit() {
    let machine = ready();
    machine.memlock("0");
    machine.file("proc/self/status", "CapEff:\t0000000000004000\n");
    assert_eq!(names(&machine), [""; 0]);
}

#[test]
fn a_machine_without_an_iommu_is_told_how_to_get_one() {
    let machine = Machine::new();
    machine.function(DISK, None, Some("nvme"));
    let names = names(&machine);
    assert_eq!(names, ["not-bound", "no-iommu", "no-module"]);
    let checks = examine_machine(&machine.host(), PassthroughDriver::Vfio, ARENA);
    let text = checks[0].found.as_ref().unwrap_err().to_string();
    assert!(text.contains("intel_iommu=on"), "{text}");
}

#[test]
fn a_function_that_never_had_a_driver_has_no_group_behind_arms_iommu_and_is_bound() {
    let machine = Machine::new();
    machine.driver("vfio-pci");
    machine.driver("pcieport");
    machine.function("0000:00:01.0", Some(0), Some("pcieport"));
    let address = machine.function(DISK, None, None);
    machine.file("proc/interrupts", " 13:  0  ITS-PCI-MSI-0000:00:02.0 0-edge\n");
    machine.file("sys/class/iommu/smmu3.0x0000000009050000/x", "");
    let checks = examine(&machine.host(), address, PassthroughDriver::Vfio, ARENA);
    let found =
        |what| checks.iter().find(|check| check.what == what).map(|check| check.found.clone());
    assert_eq!(found("IOMMU group"), Some(Ok("given with its first driver".into())));
    assert_eq!(found("interrupt remapping"), Some(Ok("active (GIC ITS)".into())));
    assert!(bind(&machine.host(), address, PassthroughDriver::Vfio, None).is_ok());
}

#[test]
fn a_function_that_has_a_driver_and_no_group_is_not_confined_by_arms_iommu() {
    let machine = Machine::new();
    machine.driver("vfio-pci");
    machine.function(DISK, None, Some("nvme"));
    machine.file("sys/class/iommu/smmu3.0x0000000009050000/x", "");
    assert!(names(&machine).contains(&"no-iommu"));
}

#[test]
fn interrupts_that_are_not_remapped_stand_in_the_way_unless_allowed() {
    let machine = ready();
    machine.file("proc/interrupts", "  24:  0  PCI-MSI 0-edge\n");
    assert_eq!(names(&machine), ["no-interrupt-remapping"]);
    assert!(!forges_interrupts(&machine.host()), "nobody is given a device");
    machine.file("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n");
    assert_eq!(names(&machine), [""; 0]);
    assert!(forges_interrupts(&machine.host()));
    machine.file("proc/interrupts", "  24:  0  IR-PCI-MSI 0-edge\n");
    assert!(!forges_interrupts(&machine.host()), "allowed, and not so");
}

#[test]
fn a_wrong_address_is_the_only_thing_said() {
    let checks =
        examine(&ready().host(), "0000:09:00.0".parse().unwrap(), PassthroughDriver::Vfio, ARENA);
    assert_eq!(checks.len(), 1);
    assert_eq!(checks[0].found.as_ref().unwrap_err().obstacle, Obstacle::NoFunction);
}

#[test]
fn obstacles_are_json_with_their_names_and_figures() {
    let machine = ready();
    machine.memlock("65536");
    let json = serde_json::to_value(&obstacles(&machine)[0]).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "address": null, "obstacle": { "memlock": { "needed": ARENA, "limit": 65536 } },
        })
    );
}

#[test]
fn a_mounted_partition_is_a_use_of_its_disk() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.partition(DISK, "nvme0n1", "nvme0n1p1", "259:1");
    machine.mount("259:1", "/var\\040lib", "/dev/nvme0n1p1");
    let found = uses(&machine.host(), DISK.parse().unwrap());
    assert_eq!(
        found,
        [Use::Mounted { disk: "nvme0n1p1".into(), at: "/var lib".into(), inside: None }]
    );
}

#[test]
fn a_file_system_with_a_number_of_its_own_is_found_by_its_source() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.mount("0:42", "/btrfs", "/dev/nvme0n1");
    assert_eq!(uses(&machine.host(), DISK.parse().unwrap()).len(), 1);
}

#[test]
fn a_volume_above_a_disk_is_a_use_and_so_is_what_is_mounted_on_it() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.file(&format!("sys/devices/pci0000:00/{DISK}/nvme/nvme0/nvme0n1/holders/dm-0"), "");
    machine.block("sys/devices/virtual/block/dm-0", "254:0");
    machine.mount("254:0", "/", "/dev/mapper/root");
    let found = uses(&machine.host(), DISK.parse().unwrap());
    let mounted = Use::Mounted { disk: "dm-0".into(), at: "/".into(), inside: None };
    assert_eq!(found, [mounted, Use::Held { disk: "nvme0n1".into(), by: "dm-0".into() }]);
}

#[test]
fn volumes_that_hold_each_other_do_not_hang_the_search() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    machine.disk(DISK, "nvme0n1", "259:0");
    for (disk, by) in [("nvme0n1", "dm-0"), ("dm-0", "nvme0n1")] {
        let directory = if disk == "dm-0" {
            "virtual/block/dm-0".into()
        } else {
            format!("pci0000:00/{DISK}/nvme/nvme0/nvme0n1")
        };
        machine.file(&format!("sys/devices/{directory}/holders/{by}"), "");
    }
    machine.link("sys/class/block/dm-0", "sys/devices/virtual/block/dm-0");
    assert_eq!(uses(&machine.host(), DISK.parse().unwrap()).len(), 2);
}

#[test]
fn a_disk_that_controllers_share_is_found_through_its_subsystem() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    machine.file(&format!("sys/devices/pci0000:00/{DISK}/nvme/nvme0/address"), "");
    machine.block("sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1", "259:0");
    let controller = format!("sys/devices/pci0000:00/{DISK}/nvme/nvme0");
    machine.link("sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0", &controller);
    machine.file("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1 partition 1 0 -2\n");
    assert_eq!(
        uses(&machine.host(), DISK.parse().unwrap()),
        [Use::Swap { disk: "nvme0n1".into() }]
    );
}

#[test]
fn what_cannot_be_looked_at_is_said_by_doctor_and_not_taken_for_free() {
    let machine = Machine::new();
    machine.driver("vfio-pci");
    machine.function(DISK, Some(7), Some("nvme"));
    machine.disk(DISK, "nvme0n1", "259:0");
    machine.forbid("nvme0n1");
    assert_eq!(names(&machine), ["use-unknown", "not-bound"]);
}

#[test]
fn in_a_container_nothing_is_known_of_other_processes() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("nvme"));
    machine.disk(DISK, "nvme0n1", "259:0");
    std::fs::create_dir_all(machine.path("proc/self/ns")).unwrap();
    std::os::unix::fs::symlink("pid:[4026532000]", machine.path("proc/self/ns/pid")).unwrap();
    assert!(matches!(
        Usage::probe(&machine.host(), DISK.parse().unwrap()).obstacle(),
        Some(Obstacle::UseUnknown { .. })
    ));
}

#[test]
fn an_interface_is_in_use_only_while_it_is_up() {
    let machine = Machine::new();
    machine.function(DISK, Some(7), Some("e1000e"));
    machine.interface(DISK, "eth0", "0x1003");
    assert_eq!(
        uses(&machine.host(), DISK.parse().unwrap()),
        [Use::Up { interface: "eth0".into() }]
    );
    machine.interface("0000:02:00.0", "eth1", "0x1002");
    assert_eq!(uses(&machine.host(), "0000:02:00.0".parse().unwrap()), []);
}

/// A disk that nothing keeps from being driven without protection: no IOMMU, and four free huge
/// pages.
fn ready_for_uio() -> Machine {
    let machine = Machine::new();
    machine.function(DISK, None, Some("uio_pci_generic"));
    machine.file(&format!("sys/bus/pci/devices/{DISK}/uio/uio0/name"), "uio_pci_generic\n");
    machine.file(&format!("sys/bus/pci/devices/{DISK}/irq"), "11\n");
    machine.file("dev/uio0", "");
    machine.file("proc/self/status", "CapEff:\t000001ffffffffff\n");
    machine.huge_pages(8, 4);
    machine
}

#[test]
fn nothing_stands_in_the_way_of_a_function_without_protection() {
    assert_eq!(on(PassthroughDriver::Uio, &ready_for_uio()), []);
}

#[test]
fn a_function_that_vfio_has_is_not_bound_for_uio_and_the_command_names_the_driver() {
    let machine = ready();
    machine.file("sys/kernel/iommu_groups/7/type", "identity\n");
    let blocked = on(PassthroughDriver::Uio, &machine).remove(0);
    assert_eq!(
        blocked.obstacle,
        Obstacle::NotBound { way: PassthroughDriver::Uio, driver: Some("vfio-pci".into()) }
    );
    assert_eq!(blocked.remedy(), ["sudo ring3 bind 0000:01:00.0 --driver uio_pci_generic"]);
}

#[test]
fn an_iommu_that_translates_is_in_the_way_and_the_message_points_to_vfio() {
    let machine = ready_for_uio();
    machine
        .link(&format!("sys/devices/pci0000:00/{DISK}/iommu_group"), "sys/kernel/iommu_groups/7");
    machine.file("sys/kernel/iommu_groups/7/type", "DMA-FQ\n");
    let blocked = on(PassthroughDriver::Uio, &machine).remove(0);
    assert!(
        blocked.problem().contains("an IOMMU translates its addresses (group 7, DMA-FQ)"),
        "{blocked}"
    );
    assert!(blocked.remedy()[0].contains("vfio:0000:01:00.0"), "{blocked}");
}

#[test]
fn too_few_huge_pages_are_counted_with_the_command_that_reserves_more() {
    let machine = ready_for_uio();
    machine.huge_pages(8, 1);
    let blocked = on(PassthroughDriver::Uio, &machine).remove(0);
    assert_eq!(blocked.obstacle.name(), "no-huge-pages");
    assert_eq!(blocked.remedy()[0], "echo 10 | sudo tee /proc/sys/vm/nr_hugepages");
    assert_eq!(blocked.undo(), ["echo 8 | sudo tee /proc/sys/vm/nr_hugepages"]);
}

#[test]
fn who_may_not_see_physical_addresses_is_told() {
    let machine = ready_for_uio();
    machine.file("proc/self/status", "CapEff:\t0000000000000000\n");
    assert_eq!(on(PassthroughDriver::Uio, &machine)[0].obstacle, Obstacle::NoPhysicalAddresses);
}

#[test]
fn who_holds_the_uio_file_is_named() {
    let machine = ready_for_uio();
    machine.open_by(99, "ring3", "dev/uio0");
    assert!(
        on(PassthroughDriver::Uio, &machine)[0]
            .to_string()
            .contains("/dev/uio0 is held by process 99 (ring3)")
    );
}
