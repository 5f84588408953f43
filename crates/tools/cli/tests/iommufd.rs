//! The two ways of VFIO side by side, in a guest whose kernel has both: by the group with a type 1
//! IOMMU, and by the function's own node with iommufd.

use std::path::Path;
use std::time::Duration;

use ring3_lab::{Cache, Device, Guest, Outcome, SharedOutcome};

fn guest(name: &str, kernel: &str) -> Guest {
    let guest = Guest {
        vcpus: Some(1),
        time_limit: Duration::from_secs(600),
        kernel: kernel.into(),
        ..Guest::new(name)
    };
    guest
        .program(Path::new(env!("CARGO_BIN_EXE_ring3")))
        .program(Path::new("/usr/bin/setpriv"))
        .device(Device::new("edu", "edu"))
        .module("vfio-pci")
        .module("vfio_iommu_type1")
}

#[track_caller]
fn run(guest: Guest) -> Outcome {
    let outcome = Cache::open()
        .and_then(|cache| guest.run(&cache, &mut |_| {}))
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
    outcome
}

/// What the step `name` of the guest with both ways printed.
fn said(name: &str) -> &'static str {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    let outcome = OUTCOME.get_or_run(|| {
        let disk = Device {
            size: Some("128M".parse().unwrap()),
            backing: "memory".to_owned().into(),
            ..Device::new("disk", "nvme")
        };
        run(guest("iommufd", "6.12-iommufd")
            .device(disk)
            .module("nvme")
            .module("ahci")
            .step("both", BOTH)
            .step("taken", TAKEN)
            .step("group not viable", NOT_VIABLE)
            .step("user", USER)
            .step("disk", DISK))
    });
    outcome.said(name).unwrap()
}

const BOTH: &str = "
ring3 bind $EDU
for way in type1 iommufd; do
    echo \"$way: $(ring3 run edu --device vfio:$EDU,iommu=$way --outside | tail -n 1)\"
done
dmesg | grep -c 'DMAR: .DMA Write.*fault addr'
ring3 doctor $EDU
";

/// The holder is stopped meanwhile, so that it lasts.
const TAKEN: &str = "
try() {
    ring3 run edu --device vfio:$EDU,iommu=$1 >/tmp/first 2>&1 &
    for try in $(seq 200); do
        ls -l /proc/$!/fd 2>/dev/null | grep -q \"/dev/vfio/$2\" && break
        sleep 0.01
    done
    kill -STOP $!
    echo \"$1 is $!\"
    ring3 run edu --device vfio:$EDU,iommu=$3 2>&1
    kill -CONT $!
    wait $! && echo \"$1 is done\"
}
try type1 [0-9] iommufd
try iommufd devices type1
try iommufd devices iommufd
";

const NOT_VIABLE: &str = "
ring3 bind 0000:00:1f.3 && ring3 run edu --device vfio:0000:00:1f.3,iommu=iommufd 2>&1
ring3 unbind 0000:00:1f.3
";

const USER: &str = "
as_user() { /usr/local/bin/setpriv --reuid 1000 --regid 1000 --clear-groups \"$@\"; }
ring3 unbind $EDU && ring3 bind $EDU --owner 1000
ulimit -l 8192
echo 'without /dev/iommu'
as_user ring3 doctor $EDU --arena 1M | grep -E 'translation|permission'
as_user ring3 run edu --device vfio:$EDU | tail -n 1
as_user ring3 run edu --device vfio:$EDU,iommu=iommufd 2>&1
echo 'with it'
chown 1000 /dev/iommu
as_user ring3 doctor $EDU --arena 1M | grep -E 'translation|permission'
as_user ring3 run edu --device vfio:$EDU,iommu=iommufd | tail -n 1
echo 'with little memory'
ulimit -l 64
as_user ring3 run edu --device vfio:$EDU,iommu=iommufd 2>&1
ring3 unbind $EDU
";

const DISK: &str = "
ring3 bind $DISK >/dev/null
ring3 blk check --device vfio:$DISK,iommu=iommufd --destroy | tail -n 1
ring3 bench kill --device vfio:$DISK,iommu=iommufd --overwrite --times 10 --json
ring3 unbind $DISK >/dev/null
dmesg | grep -c 'DMAR:.*02:00.0'; true
";

#[track_caller]
fn assert_says(text: &str, wanted: &[&str]) {
    wanted
        .iter()
        .for_each(|wanted| assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}"));
}

#[test]
#[ignore = "boots a guest"]
fn the_teaching_device_passes_by_both_ways_and_is_confined_by_both() {
    let text = said("both");
    assert_says(
        text,
        &["type1: reset", "iommufd: reset", "\n2\n", "ok  translation          iommufd"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn what_is_taken_by_one_way_is_busy_by_the_other_and_names_its_holder() {
    let text = said("taken");
    for (way, path) in [("type1", "/dev/vfio/"), ("iommufd", "/dev/vfio/devices/vfio")] {
        let process = text.lines().find_map(|line| line.strip_prefix(&format!("{way} is ")));
        let held = format!("is held by process {} (ring3)", process.unwrap());
        assert_says(text, &[path, &held, &format!("{way} is done")]);
    }
    assert_eq!(text.matches("is held by process").count(), 3, "{text}");
    assert_eq!(text.matches("is done").count(), 3, "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_group_of_which_the_kernel_drives_a_part_is_not_viable_by_the_node_either() {
    assert_says(said("group not viable"), &["is not viable: 0000:00:1f.2 has the driver ahci"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_user_goes_by_the_group_until_he_may_open_iommufd() {
    let text = said("user");
    let (without, with) = text.split_once("with it").unwrap();
    assert_says(
        without,
        &["ok  permission           /dev/vfio/", "reset", "no permission for /dev/iommu"],
    );
    assert!(!without.contains("translation"), "{without}");
    let both = "ok  permission           /dev/vfio/devices/vfio0, /dev/iommu";
    assert_says(with, &["ok  translation          iommufd", both, "reset"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_user_who_may_lock_too_little_is_told_both_sizes_by_iommufd() {
    assert_says(
        said("user"),
        &["1024 KiB of DMA memory are to be locked, but this user may lock 64 KiB"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_is_whole_after_ten_kills_by_iommufd_and_nothing_was_blocked() {
    let text = said("disk");
    assert_says(text, &["0 of 34 checks failed", "\"kills\":10,", "\"mismatches\":0"]);
    assert_eq!(text.lines().last(), Some("0"), "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_kernel_without_nodes_says_so() {
    let script = "ring3 bind $EDU && ring3 run edu --device vfio:$EDU,iommu=iommufd 2>&1; true";
    let outcome = run(guest("no-nodes", ring3_lab::DEFAULT_KERNEL).step("asked", script));
    assert_says(
        outcome.said("asked").unwrap(),
        &["this kernel has no node for it", "leave iommu=iommufd out"],
    );
}
