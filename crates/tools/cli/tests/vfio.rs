//! What a user meets on the way to a function through VFIO, in guests: each message, each command,
//! and what a killed driver leaves. `RING3_TEST_KERNEL` chooses another kernel than the lab's usual
//! one, such as 7.2.

use std::path::Path;
use std::time::Duration;

use ring3_lab::{Cache, Device, Guest, Iommu, Outcome, SharedOutcome};

fn guest(name: &str) -> Guest {
    let setpriv = Path::new("/usr/bin/setpriv");
    // One processor: see the backend's tests.
    let guest = Guest { vcpus: Some(1), time_limit: Duration::from_secs(600), ..Guest::new(name) };
    guest
        .program(Path::new(env!("CARGO_BIN_EXE_ring3")))
        .program(setpriv)
        .device(Device::new("edu", "edu"))
}

#[track_caller]
fn run(mut guest: Guest) -> Outcome {
    if let Ok(kernel) = std::env::var("RING3_TEST_KERNEL") {
        guest.kernel = kernel;
    }
    let outcome = Cache::open()
        .and_then(|cache| guest.run(&cache, &mut |_| {}))
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
    outcome
}

#[track_caller]
fn assert_says(text: &str, wanted: &[&str]) {
    wanted
        .iter()
        .for_each(|wanted| assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}"));
}

/// One guest with an IOMMU, in which a disk, the teaching device and the chip set's functions go
/// through everything, in this order.
fn claims() -> &'static Outcome {
    static CLAIMS: SharedOutcome = SharedOutcome::new();
    CLAIMS.get_or_run(|| {
        let disk = |name| Device {
            size: Some("128M".parse().unwrap()),
            backing: "memory".to_owned().into(),
            ..Device::new(name, "nvme")
        };
        run(guest("claims")
            .device(disk("disk"))
            .device(disk("second"))
            .module("nvme")
            .module("ext4")
            .module("btrfs")
            .module("loop")
            .module("ahci")
            .module("vfio-pci")
            .module("vfio_iommu_type1")
            .step(
                "wrong address",
                "ring3 run edu --device vfio:0000:09:00.0 2>&1; \
                                    ring3 doctor 0000:09:00.0; true",
            )
            .step("not bound", "ring3 run edu --device vfio:$EDU 2>&1; ring3 doctor $EDU; true")
            .step(
                "without protection",
                "ring3 run edu --device uio:$EDU 2>&1; \
                                         ring3 bind $EDU --driver uio_pci_generic 2>&1; true",
            )
            .step(
                "bind",
                "ring3 bind $EDU && ring3 bind $EDU && ring3 doctor $EDU && \
                           ring3 devices | grep $EDU",
            )
            .step(
                "run",
                "ring3 run edu --device vfio:$EDU --outside && sleep 0.2 && dmesg | \
                          grep DMAR:",
            )
            .step("second claim", SECOND_CLAIM)
            .step("killed", KILLED)
            .step(
                "no permission",
                "as_user() {
                    /usr/local/bin/setpriv --reuid 1000 --regid 1000 --clear-groups \"$@\"
                }
                as_user ring3 run edu --device vfio:$EDU 2>&1
                as_user ring3 doctor $EDU
                as_user ring3 bind $DISK 2>&1
                true",
            )
            .step(
                "unprivileged",
                "ring3 unbind $EDU && ring3 bind $EDU --owner 1000 &&
                ulimit -l 8192 &&
                /usr/local/bin/setpriv --reuid 1000 --regid 1000 --clear-groups ring3 run edu \\
                    --device vfio:$EDU",
            )
            .step(
                "memory lock",
                "ulimit -l 64
                as_user() {
                    /usr/local/bin/setpriv --reuid 1000 --regid 1000 --clear-groups \"$@\"
                }
                as_user ring3 run edu --device vfio:$EDU 2>&1
                as_user ring3 doctor $EDU --arena 1M
                true",
            )
            .step(
                "group not viable",
                "ring3 bind 0000:00:1f.3 &&
                    ring3 run edu --device vfio:0000:00:1f.3 2>&1
                ring3 doctor 0000:00:1f.3
                ring3 unbind 0000:00:1f.3",
            )
            .step(
                "group made viable",
                "ring3 bind 0000:00:1f.3 && ring3 bind 0000:00:1f.2 &&
                    ring3 doctor 0000:00:1f.3 | grep group
                ring3 unbind 0000:00:1f.2 && ring3 unbind 0000:00:1f.3",
            )
            .step("names", NAMES)
            .step("in use", IN_USE)
            .step(
                "mounted",
                "mkfs.ext4 -q -F /dev/nvme0n1 && mount /dev/nvme0n1 /mnt &&
                    echo kept >/mnt/file
                ring3 bind $DISK 2>&1; ring3 doctor $DISK; ring3 devices --json; umount /mnt",
            )
            .step(
                "bind a disk",
                "ring3 bind $DISK && ls /dev/nvme0n1 2>&1; ring3 unbind $DISK
                for try in $(seq 100); do [ -b /dev/nvme0n1 ] && break; sleep 0.05; done
                mount /dev/nvme0n1 /mnt && cat /mnt/file",
            )
            .step(
                "one claim, many drivers",
                "ring3 bind $SECOND >/dev/null &&
    ring3 bench kill --device vfio:$SECOND --overwrite --times 10 --json
                ring3 unbind $SECOND >/dev/null; dmesg | grep -c 'DMAR:.*03:00.0'; true",
            )
            .step("bridge", "ring3 bind 0000:00:1f.0 2>&1; true"))
    })
}

/// The first claim is stopped meanwhile, so that it lasts, however slow the host is.
const SECOND_CLAIM: &str = "
group=$(basename $(readlink /sys/bus/pci/devices/$EDU/iommu_group))
ring3 run edu --device vfio:$EDU >/tmp/first 2>&1 &
for try in $(seq 200); do
    ls -l /proc/$!/fd 2>/dev/null | grep -q -E \"/dev/vfio/($group|devices)\" && break
    sleep 0.01
done
kill -STOP $!
echo \"the first is $!\"
ring3 run edu --device vfio:$EDU 2>&1
ring3 doctor $EDU
ring3 unbind $EDU 2>&1
kill -CONT $!
wait $! && echo 'the first is done'
";

/// Byte 4 of configuration space is COMMAND; bit 2 lets the function start transfers.
const KILLED: &str = "
command() { od -An -tu1 -j4 -N1 /sys/bus/pci/devices/$EDU/config; }
ring3 run edu --device vfio:$EDU >/dev/null 2>&1 &
for try in $(seq 200); do [ $(($(command) & 4)) = 4 ] && break; sleep 0.01; done
echo \"running: master=$(($(command) & 4))\"
kill -9 $!
wait $!
echo \"killed: master=$(($(command) & 4))\"
ring3 run edu --device vfio:$EDU | tail -n 1
";

/// The kernel probes NVMe controllers side by side, and the first to be ready is nvme0: here, the
/// first disk is.
const NAMES: &str = "
driver=/sys/bus/pci/drivers/nvme
there() {
    for try in $(seq 200); do [ -b /dev/$1 ] && return; sleep 0.05; done
    echo \"no $1\"
    return 1
}
there nvme0n1 && there nvme1n1
for disk in $DISK $SECOND; do echo $disk >$driver/unbind; done
echo $DISK >$driver/bind && there nvme0n1
echo $SECOND >$driver/bind && there nvme1n1
";

/// The first disk, or the second, used in ways that neither this process' mounts nor sysfs' holders
/// show.
const IN_USE: &str = "
asked() { echo \"== $1\"; ring3 bind $2 2>&1; echo \"rc $?\"; ring3 doctor $2 | grep '  use '; }
wait_for() { for try in $(seq 100); do eval \"$1\" && return; sleep 0.1; done; echo \"never: $1\"; }
mkfs.ext4 -q /dev/nvme0n1
unshare -m sh -c 'mount /dev/nvme0n1 /mnt && exec sleep 1000' &
wait_for 'grep -q nvme0n1 /proc/$!/mountinfo'
asked namespace $DISK; kill $!; wait $!

touch /run/kept && unshare --mount=/run/kept mount /dev/nvme0n1 /mnt
asked 'kept namespace' $DISK; umount /run/kept

wait_for 'mkfs.btrfs -q -f -d raid0 -m raid0 /dev/nvme0n1 /dev/nvme1n1'
mount -t btrfs -o device=/dev/nvme0n1,device=/dev/nvme1n1 /dev/nvme0n1 /mnt
asked btrfs $SECOND; umount /mnt

mkfs.ext4 -q -F -O journal_dev /dev/nvme1n1 &&
    mkfs.ext4 -q -F -J device=/dev/nvme1n1 /dev/nvme0n1 && mount /dev/nvme0n1 /mnt
asked journal $SECOND; umount /mnt

mkfs.ext4 -q -F /dev/nvme0n1
loop=$(losetup -f) && losetup $loop /dev/nvme0n1 && mount $loop /mnt
asked loop $DISK; umount /mnt; losetup -d $loop

sleep 1000 </dev/nvme0n1 &
asked process $DISK; kill $!; wait $!
sleep 1000 </dev/ng1n1 &
asked 'generic device' $SECOND; kill $!; wait $!
sleep 1000 </dev/nvme1n1 &
echo '== force'
ring3 bind $SECOND --force 2>&1
echo \"rc $?\"
kill $!
wait $!
ring3 unbind $SECOND
wait_for '[ -b /dev/nvme1n1 ]'
asked free $DISK; ring3 unbind $DISK; wait_for '[ -b /dev/nvme0n1 ]'
";

/// What the step `in use` printed below a heading.
fn in_use(heading: &str) -> &'static str {
    let (_, text) =
        claims().said("in use").unwrap().split_once(&format!("== {heading}\n")).expect(heading);
    text.split("== ").next().unwrap()
}

#[track_caller]
fn assert_refused(heading: &str, wanted: &str) {
    let text = in_use(heading);
    assert_says(text, &["rc 1", wanted]);
    // Once by the refusal and once by doctor.
    assert_eq!(text.matches(wanted).count(), 2, "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_that_is_mounted_in_another_namespace_alone_is_not_taken() {
    assert_refused(
        "namespace",
        "/dev/nvme0n1 is mounted at /mnt in the mount namespace of process ",
    );
    assert_says(in_use("namespace"), &["(sleep)", "--mount umount /mnt"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_that_is_mounted_in_a_namespace_without_processes_is_not_taken() {
    assert_refused("kept namespace", "/dev/nvme0n1 is claimed by somebody in the kernel");
}

#[test]
#[ignore = "boots a guest"]
fn the_second_disk_of_a_mounted_btrfs_is_not_taken() {
    assert_refused("btrfs", "/dev/nvme1n1 is mounted at /mnt");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_that_is_the_journal_of_another_is_not_taken() {
    assert_refused("journal", "/dev/nvme1n1 is claimed by somebody in the kernel");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_under_a_loop_device_is_not_taken() {
    assert_refused("loop", "is made of /dev/nvme0n1");
    assert_refused("loop", "is mounted at /mnt");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_that_a_process_has_open_is_not_taken() {
    assert_refused("process", "/dev/nvme0n1 is open in process ");
    assert_refused("generic device", "/dev/ng1n1 is open in process ");
}

#[test]
#[ignore = "boots a guest"]
fn force_says_what_it_takes_and_takes_it() {
    assert_says(
        in_use("force"),
        &["taken by force: 0000:03:00.0: it is in use: /dev/nvme1n1 is open in process ", "rc 0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_that_nobody_uses_is_taken() {
    assert_says(in_use("free"), &["rc 0", "nvme -> vfio-pci"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_wrong_address_is_named() {
    let text = claims().said("wrong address").unwrap();
    assert_says(text, &["ring3: vfio:0000:09:00.0: there is no such PCI function", "no  function"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_function_that_is_not_bound_is_told_the_command() {
    let text = claims().said("not bound").unwrap();
    assert_says(
        text,
        &["ring3: vfio:0000:01:00.0: it is not bound to vfio-pci; to mend it: sudo ring3 bind \
            0000:01:00.0"],
    );
    assert_says(
        text,
        &["  mend: sudo ring3 bind 0000:01:00.0", "  undo: sudo ring3 unbind 0000:01:00.0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn where_there_is_an_iommu_the_way_without_protection_is_refused_and_the_other_is_named() {
    let text = claims().said("without protection").unwrap();
    assert_says(
        text,
        &[
            "uio:0000:01:00.0: nothing confines its transfers",
            "to mend it: sudo ring3 bind 0000:01:00.0 and name it vfio:0000:01:00.0; or say \
            --unprotected",
            "0000:01:00.0: an IOMMU translates its addresses (group",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_function_that_was_bound_is_ready_and_a_second_bind_does_nothing() {
    let text = claims().said("bind").unwrap();
    assert_says(
        text,
        &[
            "no driver -> vfio-pci",
            "vfio-pci, as before; nothing to do",
            "Nothing stands in the way.",
            "ready",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn the_teaching_device_works_through_vfio_by_msi_and_by_the_pin() {
    assert_says(
        claims().said("run").unwrap(),
        &["DMA, MSI", "DMA, INTx", "4095 bytes there and back", "answers again"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_transfer_outside_of_the_arena_is_blocked_and_the_kernel_reports_it() {
    let text = claims().said("run").unwrap();
    assert_says(
        text,
        &[
            "blocked at 0xffff000",
            "[DMA Write NO_PASID] Request device [",
            "01:00.0] fault addr 0xffff000",
        ],
    );
    // No other fault: what the driver does itself stays within the arena, interrupts included.
    let strays: Vec<_> = text
        .lines()
        .filter(|line| line.contains("fault addr") && !line.contains("0xffff000"))
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
}

#[test]
#[ignore = "boots a guest"]
fn a_second_claim_is_busy_and_names_the_process_that_has_it() {
    let text = claims().said("second claim").unwrap();
    let first = text.lines().find_map(|line| line.strip_prefix("the first is ")).unwrap();
    assert_says(
        text,
        &[
            &format!("is held by process {first} (ring3); to mend it: kill {first}"),
            "no  owner",
            "the first is done",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_killed_driver_leaves_bus_mastering_off_and_a_device_that_works() {
    assert_says(
        claims().said("killed").unwrap(),
        &["running: master=4", "killed: master=0", "answers again"],
    );
}

/// Bus mastering off and the controller seen to be disabled: no function reset, which takes 100 ms.
#[test]
#[ignore = "boots a guest"]
fn a_claim_outlives_the_drivers_that_are_killed_on_it_and_a_fence_without_a_reset_stops_what_they_started()
 {
    let text = claims().said("one claim, many drivers").unwrap();
    println!("{text}");
    assert_says(
        text,
        &["\"kills\":10,\"kills_at_start\":1,", "\"mismatches\":0", "\"function_resets\":0"],
    );
    let blocked: u64 = text.lines().last().and_then(|line| line.trim().parse().ok()).unwrap();
    assert_eq!(blocked, 0, "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn without_permission_the_group_file_and_the_command_are_named() {
    let text = claims().said("no permission").unwrap();
    assert_says(
        text,
        &[
            "no permission for /dev/vfio/",
            "sudo chown \"$(id -u)\" /dev/vfio/",
            "undo: sudo chown root /dev/vfio/",
        ],
    );
    assert_says(text, &["ring3: 0000:02:00.0: no permission for /", "run it as root (sudo)"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_user_without_privilege_drives_a_function_that_was_given_to_him() {
    assert_says(
        claims().said("unprivileged").unwrap(),
        &["belongs to user 1000", "DMA, MSI", "answers again"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn too_little_memory_to_lock_is_said_with_both_sizes() {
    let text = claims().said("memory lock").unwrap();
    assert_says(
        text,
        &[
            "1024 KiB of DMA memory are to be locked, but this user may lock 64 KiB",
            "sudo prlimit --memlock=1048576",
        ],
    );
    assert_says(text, &["no  memory lock", "undo: sudo prlimit --memlock=65536"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_group_that_is_not_viable_names_the_member_and_the_command() {
    let text = claims().said("group not viable").unwrap();
    assert_says(
        text,
        &["is not viable: 0000:00:1f.2 has the driver ahci; to mend it: sudo ring3 bind \
            0000:00:1f.2"],
    );
    assert_says(text, &["  undo: sudo ring3 unbind 0000:00:1f.2"]);
}

#[test]
#[ignore = "boots a guest"]
fn the_named_command_makes_the_group_viable_and_the_undoing_gives_the_member_back() {
    let text = claims().said("group made viable").unwrap();
    assert_says(
        text,
        &["ok  IOMMU group", "0000:00:1f.2: ahci -> vfio-pci", "0000:00:1f.2: vfio-pci -> ahci"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_with_a_mounted_file_system_is_not_taken() {
    let text = claims().said("mounted").unwrap();
    assert_says(
        text,
        &["ring3: 0000:02:00.0: it is in use: /dev/nvme0n1 is mounted at /mnt; to mend it: sudo \
            umount /mnt"],
    );
    assert_says(text, &["no  use", "\"at\": \"/mnt\""]);
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_comes_back_with_its_files() {
    let text = claims().said("bind a disk").unwrap();
    assert_says(
        text,
        &["nvme -> vfio-pci", "/dev/nvme0n1: No such file", "vfio-pci -> nvme", "kept"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_bridge_is_not_taken() {
    assert_says(claims().said("bridge").unwrap(), &["it is a bridge"]);
}

#[test]
#[ignore = "boots a guest"]
fn without_the_module_the_command_that_loads_it_is_named() {
    let steps = guest("no-module").step(
        "bind",
        "ring3 bind $EDU 2>&1; ring3 doctor $EDU; ring3 run edu --device vfio:$EDU 2>&1; true",
    );
    let outcome = run(steps);
    let text = outcome.said("bind").unwrap();
    assert_says(
        text,
        &[
            "the kernel module vfio-pci is not loaded, and loading it failed: ",
            "to mend it: sudo modprobe vfio-pci",
        ],
    );
    assert_says(text, &["no  module", "undo: sudo modprobe -r vfio-pci"]);
}

#[test]
#[ignore = "boots a guest"]
fn without_an_iommu_the_way_to_one_is_named() {
    let mut guest = guest("no-iommu").module("vfio-pci").step(
        "bind",
        "ring3 bind $EDU 2>&1; ring3 doctor; ring3 run edu --device vfio:$EDU 2>&1; true",
    );
    guest.iommu = Some(Iommu::None);
    let outcome = run(guest);
    let text = outcome.said("bind").unwrap();
    assert_says(text, &["there is no active IOMMU", "intel_iommu=on", "no  IOMMU"]);
}

#[test]
#[ignore = "boots a guest"]
fn interrupts_that_are_not_remapped_are_named_and_may_be_allowed() {
    let script = "ring3 bind $EDU; ring3 run edu --device vfio:$EDU 2>&1; ring3 doctor $EDU
        for module in vfio_iommu_type1 iommufd; do
            parameters=/sys/module/$module/parameters
            [ ! -d $parameters ] || echo 1 >$parameters/allow_unsafe_interrupts
        done
        ring3 run edu --device vfio:$EDU && ring3 doctor $EDU";
    let mut guest =
        guest("no-remapping").module("vfio-pci").module("vfio_iommu_type1").step("run", script);
    guest.kernel_arguments.push("intremap=off".into());
    let outcome = run(guest);
    let text = outcome.said("run").unwrap();
    assert_says(
        text,
        &[
            "the IOMMU does not remap interrupts",
            "no  interrupt remapping",
            "answers again",
            "Nothing stands in the way.",
        ],
    );
}
