//! What a user meets on the way without protection, in a guest without an IOMMU: each message, each
//! command, a disk end to end, and what a killed driver leaves. `RING3_TEST_KERNEL` chooses another
//! kernel than the lab's usual one, such as 7.2.

use std::path::Path;
use std::time::Duration;

use ring3_lab::{Cache, Device, Guest, Iommu, Outcome, SharedOutcome};

/// The lab's usual kernel, or another.
fn kernel() -> String {
    std::env::var("RING3_TEST_KERNEL").unwrap_or_else(|_| ring3_lab::DEFAULT_KERNEL.into())
}

#[track_caller]
fn assert_says(text: &str, wanted: &[&str]) {
    wanted
        .iter()
        .for_each(|wanted| assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}"));
}

/// One guest, in which the teaching device and a disk go through everything, in this order.
fn guest() -> &'static Outcome {
    static GUEST: SharedOutcome = SharedOutcome::new();
    GUEST.get_or_run(|| {
        let disk = Device {
            size: Some("64M".parse().unwrap()),
            backing: "memory".to_owned().into(),
            ..Device::new("disk", "nvme")
        };
        let guest = Guest {
            iommu: Some(Iommu::None),
            vcpus: Some(1),
            memory_mib: 640,
            kernel_arguments: vec!["hugepages=80".into()],
            kernel: kernel(),
            time_limit: Duration::from_secs(600),
            ..Guest::new("uio")
        };
        let guest = guest
            .program(Path::new(env!("CARGO_BIN_EXE_ring3")))
            .device(Device::new("edu", "edu"))
            .device(disk)
            .module("nvme")
            .module("uio_pci_generic")
            .step(
                "not bound",
                "ring3 run edu --device uio:$EDU --unprotected 2>&1; ring3 doctor $EDU; \
                 ring3 doctor $EDU --driver uio_pci_generic; true",
            )
            .step(
                "bind",
                "ring3 bind $EDU --driver uio_pci_generic && ring3 doctor $EDU && ring3 devices | \
                 grep $EDU",
            )
            .step("refused", "ring3 run edu --device uio:$EDU 2>&1; true")
            .step("run", "ring3 run edu --device uio:$EDU --unprotected")
            .step("disk", DISK)
            .step("second claim", SECOND_CLAIM)
            .step("killed", KILLED)
            .step("both killed", BOTH_KILLED)
            .step(
                "no huge pages",
                "echo 0 >/proc/sys/vm/nr_hugepages; ring3 run edu --device uio:$EDU --unprotected \
                 2>&1; ring3 doctor $EDU; true",
            )
            .step(
                "unbind",
                "ring3 unbind $EDU; ring3 unbind $DISK
                for try in $(seq 100); do [ -b /dev/nvme0n1 ] && break; sleep 0.05; done
                cmp -n 1000000 /dev/nvme0n1 /tmp/data && echo kept",
            );
        let outcome = Cache::open()
            .and_then(|cache| guest.run(&cache, &mut |_| {}))
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
        outcome
    })
}

const DISK: &str = "
ring3 bind $DISK --driver uio_pci_generic &&
ring3 nvme id --device uio:$DISK --unprotected &&
ring3 blk check --device uio:$DISK --unprotected --destroy --requests 300 &&
head -c 1000000 /dev/urandom >/tmp/data &&
truncate -s 1000448 /tmp/data &&
ring3 blk write --from /tmp/data --device uio:$DISK --unprotected &&
ring3 blk read --to /tmp/back --device uio:$DISK --unprotected --length 1000448 &&
cmp /tmp/data /tmp/back && echo same
";

/// The first claim lasts longer than a second waits for a warden.
const SECOND_CLAIM: &str = "
ring3 blk bench --device uio:$DISK --unprotected --workload randread-4k-qd1 --seconds 4 \\
    >/tmp/first 2>&1 &
for try in $(seq 200); do
    ls -l /proc/$!/fd 2>/dev/null | grep -q /dev/uio1 && break
    sleep 0.01
done
echo \"the first is $!\"
ring3 nvme id --device uio:$DISK --unprotected 2>&1
ring3 doctor $DISK
ring3 unbind $DISK 2>&1
wait $! && echo 'the first is done'; cat /tmp/first
";

/// Byte 4 of configuration space is COMMAND; bit 2 lets the function start transfers. A second
/// driver finds the warden gone.
const KILLED: &str = "
command() { od -An -tu1 -j4 -N1 /sys/bus/pci/devices/$DISK/config; }
wardens() { ps -o comm | grep -c ring3-warden; }
ring3 blk bench --device uio:$DISK --unprotected --workload randread-64k-qd16 --seconds 20 \\
    >/dev/null 2>&1 &
for try in $(seq 200); do [ $(($(command) & 4)) = 4 ] && break; sleep 0.01; done
sleep 0.3
echo \"running: master=$(($(command) & 4)) wardens=$(wardens)\"
kill -9 $!
for try in $(seq 10); do [ $(($(command) & 4)) = 0 ] && break; sleep 0.01; done
echo \"after $((try * 10)) ms: master=$(($(command) & 4))\"
wait $!
sleep 0.05
echo \"wardens=$(wardens) free=$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages)\"
ring3 blk write --from /tmp/data --device uio:$DISK --unprotected &&
ring3 blk read --to /tmp/back --device uio:$DISK --unprotected --length 1000448 &&
    cmp /tmp/data /tmp/back && echo 'the disk works'
";

/// Without the warden, too: what remains is what the kernel does when the uio file is closed.
const BOTH_KILLED: &str = "
command() { od -An -tu1 -j4 -N1 /sys/bus/pci/devices/$DISK/config; }
ring3 blk bench --device uio:$DISK --unprotected --workload randread-64k-qd16 --seconds 20 \\
    >/dev/null 2>&1 &
for try in $(seq 200); do [ $(($(command) & 4)) = 4 ] && break; sleep 0.01; done
kill -9 $! $(pidof ring3-warden || ps -o pid,comm | awk '$2 == \"ring3-warden\" { print $1 }')
wait $!
sleep 0.1
echo \"both killed: master=$(($(command) & 4))\"
";

#[test]
#[ignore = "boots a guest"]
fn a_function_that_is_not_bound_is_told_the_command() {
    let text = guest().said("not bound").unwrap();
    assert_says(
        text,
        &[
            "ring3: uio:0000:01:00.0: it is not bound to uio_pci_generic; to mend it: sudo ring3 \
            bind 0000:01:00.0 --driver uio_pci_generic",
            "The way without protection (uio): not-bound",
            "ok  huge pages          80 of 80 are free",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_function_that_was_bound_is_ready_and_said_to_be_unprotected() {
    assert_says(
        guest().said("bind").unwrap(),
        &[
            "no driver -> uio_pci_generic",
            "is opened with --unprotected only",
            "Nothing stands in the way.",
            "ready, unprotected",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn without_the_word_of_the_user_it_is_refused_with_the_reason() {
    let text = guest().said("refused").unwrap();
    assert_says(
        text,
        &[
            "a bug in the driver can overwrite any memory of the machine",
            "say --unprotected if that is accepted",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn the_teaching_device_works_without_an_iommu_by_dma_and_the_pin() {
    let text = guest().said("run").unwrap();
    assert_says(
        text,
        &["DMA, polled                4095 bytes there and back", "DMA, INTx", "answers again"],
    );
    assert!(!text.contains("MSI"), "uio has none:\n{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_works_without_an_iommu_from_the_conformance_suite_to_the_last_byte() {
    assert_says(
        guest().said("disk").unwrap(),
        &["nvme -> uio_pci_generic", "interrupts                   intx", "same"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_second_claim_is_busy_and_names_the_process_that_has_it() {
    let text = guest().said("second claim").unwrap();
    let first = text.lines().find_map(|line| line.strip_prefix("the first is ")).unwrap();
    let holder = format!("/dev/uio1 is held by process {first} (ring3); to mend it: kill {first}");
    assert_says(text, &[&holder, "no  owner", "the first is done"]);
    assert!(!text.contains("warden"), "the warden is not to be killed:\n{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_killed_driver_leaves_bus_mastering_off_no_warden_all_memory_and_a_disk_that_works() {
    let text = guest().said("killed").unwrap();
    assert_says(
        text,
        &["running: master=4 wardens=1", " ms: master=0", "wardens=0 free=80", "the disk works"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn this_kernel_stops_the_device_even_if_the_warden_is_killed_too() {
    assert_says(guest().said("both killed").unwrap(), &["both killed: master=0"]);
}

#[test]
#[ignore = "boots a guest"]
fn too_few_huge_pages_are_said_with_what_reserves_more() {
    let text = guest().said("no huge pages").unwrap();
    assert_says(
        text,
        &[
            "1 huge pages of 2 MiB are needed in one piece below 0x10000000, and there are 0 (of 0 \
            reserved)",
            "echo 1 | sudo tee /proc/sys/vm/nr_hugepages",
            "hugepages=1 on the kernel's command line",
            "arena=2M",
            "no  huge pages",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_goes_back_to_its_driver_with_what_was_written() {
    assert_says(guest().said("unbind").unwrap(), &["uio_pci_generic -> nvme", "kept"]);
}
