//! Disks and cards as virtio devices of a guest's kernel, by VDUSE.
//! `RING3_TEST_KERNEL` chooses another kernel than the lab's usual one, such as 7.2.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use ring3_lab::{Cache, Device, Guest, Need, Outcome};

/// Shell functions of every step. `serve DRIVER OPTION...` starts ring3 and returns when its disk is there.
const PRELUDE: &str = r#"
serve() {
    : >/tmp/ready
    ring3 run "$@" --export vduse --json >/tmp/ready 2>/tmp/log &
    PID=$!
    for try in $(seq 300); do
        grep -qE '"(device|interface)"' /tmp/ready && return
        [ -d /proc/$PID ] || break
        sleep 0.1
    done
    cat /tmp/ready /tmp/log
    return 1
}
stop() { kill $PID; wait $PID; echo "exit code $?"; cat /tmp/log; }
disk() { sed -n 's/.*"device":"\([^"]*\)".*/\1/p' /tmp/ready; }
model() { ring3 model nvme,size=64M --socket /tmp/model >/dev/null 2>&1 & MODEL=$!; for try in $(seq 100); do [ -S /tmp/model ] && return; sleep 0.05; done; }
verify() { fio --name=verify --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 --output=/tmp/fio "$@" >/dev/null && return; cat /tmp/fio; return 1; }
"#;

const DISK: &str = r#"
serve null --size 64 --name one || exit
cat /tmp/ready; D=$(basename $(disk)); cat /sys/block/$D/queue/scheduler /sys/block/$D/size /sys/block/$D/queue/max_segments; ring3 run null --export vduse --name one; stop; ls /dev/vduse /run
"#;

const FILES: &str = r#"
serve nvme --device sim:nvme,size=64M --queues 2 && mkfs.ext4 -q $(disk) && mount $(disk) /mnt || exit
cp /bin/busybox /mnt/; sync; kill $PID; sleep 1; cat /tmp/log; cmp /bin/busybox /mnt/busybox && echo same
umount /mnt; wait $PID; echo "exit code $?"; ls /dev/vduse
"#;

const KILLED: &str = r#"
model || exit
serve nvme --device vfio-user:/tmp/model --name data || exit
D=$(disk)
verify --filename=$D --size=24M --rw=randwrite --bsrange=4k-64k --iodepth=32 --verify_backlog=64 --time_based --runtime=5 & FIO=$!
for kill in 1 2 3; do sleep 1; kill -9 $PID; wait $PID; for try in 1 2 3 4 5; do serve nvme --device vfio-user:/tmp/model --name data && break; sleep 0.3; done; [ "$(disk)" = $D ] && echo "taken again $kill"; done
wait $FIO && echo verified; echo "errors $(dmesg | grep -ciE 'I/O error')"
stop; kill $MODEL
"#;

/// In one network namespace, the kernel would answer without a frame.
const CARD: &str = r#"
card=$(basename /sys/bus/pci/devices/$THERE/net/*)
unshare -n sleep 100000 & echo $! >/tmp/other
while [ "$(readlink /proc/$(cat /tmp/other)/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do usleep 10000; done
there() { nsenter -t $(cat /tmp/other) -n "$@"; }
reached() { for try in $(seq 20); do ping -c 1 -W 2 10.7.0.2 >/tmp/ping && return; done; cat /tmp/ping; return 1; }
ip link set dev "$card" netns $(cat /tmp/other); there ip link set dev "$card" name there0; there ifconfig there0 10.7.0.2 up; there ifconfig lo up
serve net --device vfio:$HERE --name lan || exit
cat /tmp/ready; N=$(sed -n 's/.*"interface":"\([^"]*\)".*/\1/p' /tmp/ready); ifconfig $N 10.7.0.1 up; reached && echo reached
there iperf3 --server --daemon; sleep 1; iperf3 --client 10.7.0.2 --bidir --time 3 --interval 0 --format m | grep receiver
dmesg -c >/dev/null; ping -c 40 -i 0.1 -W 5 10.7.0.2 >/tmp/pings & PING=$!
same() { cat /sys/class/net/$N/ifindex /sys/class/net/$N/carrier_changes; }; before=$(same); sleep 1
kill -9 $PID; wait $PID; for try in 1 2 3 4 5; do serve net --device vfio:$HERE --name lan && break; sleep 0.3; done
wait $PING; tail -n 2 /tmp/pings; reached && [ "$before" = "$(same)" ] && echo 'the same interface'; dmesg
stop; ls /sys/class/net /dev/vduse
"#;

fn outcome() -> &'static Outcome {
    static OUTCOME: OnceLock<Result<Outcome, String>> = OnceLock::new();
    let outcome = OUTCOME.get_or_init(|| {
        let steps = [("disk", DISK), ("files", FILES), ("killed", KILLED), ("card", CARD)];
        let cache = Cache::open().map_err(|error| error.to_string())?;
        ring3_lab::prepare(&cache, &[Need::Network], &mut |_| {}).map_err(|error| error.to_string())?;
        let hub = |device: Device| Device { netdev: Some("hub".into()), ..device };
        let guest = Guest { time_limit: Duration::from_secs(300), vcpus: Some(2), ..Guest::new("vduse") }
            .program(Path::new(env!("CARGO_BIN_EXE_ring3")))
            .network_programs(&cache)
            .device(hub(Device::new("here", "e1000e").bound("vfio-pci")))
            .device(hub(Device::new("there", "e1000e")))
            .module("e1000e")
            .module("vfio-pci")
            .module("vfio_iommu_type1")
            .module("virtio_net")
            .module("vduse")
            .module("virtio_vdpa")
            .module("virtio_blk")
            .module("ext4");
        let mut guest =
            steps.into_iter().fold(guest, |guest, (name, script)| guest.step(name, &format!("{PRELUDE}(\n{script}\n)\ntrue")));
        if let Ok(kernel) = std::env::var("RING3_TEST_KERNEL") {
            guest.kernel = kernel;
        }
        let outcome = guest.run(&cache, &mut |_| {}).map_err(|error| error.to_string())?;
        if std::env::var_os("RING3_TEST_SHOW").is_some() {
            outcome.steps.iter().for_each(|step| println!("=== {}\n{}", step.name, step.output));
        }
        if outcome.succeeded() { Ok(outcome) } else { Err(format!("{}{}", outcome.messages, outcome.output())) }
    });
    outcome.as_ref().unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn says(step: &str, wanted: &[&str]) {
    let said = outcome().said(step).unwrap();
    wanted.iter().for_each(|wanted| assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}"));
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_disk_is_a_virtio_disk_of_the_kernel_and_leaves_nothing_behind() {
    says("disk", &["\"name\":\"one\"", "[none]", "131072\n", "is served by another process", "exit code 0"]);
    let said = outcome().said("disk").unwrap();
    let (_, after) = said.split_once("exit code 0").unwrap();
    assert!(!after.contains("one"), "{after}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_mounted_disk_is_served_until_it_is_free() {
    says("files", &["is in use by the mount at /mnt", "same\n", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_server_that_is_killed_under_load_is_followed_by_the_next_and_nobody_sees_an_error() {
    says("killed", &["taken again 1\n", "taken again 3\n", "verified\n", "errors 0\n", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_card_is_a_virtio_card_of_the_kernel_whose_interface_outlives_its_driver() {
    says("card", &["\"name\":\"lan\"", "reached\n", "receiver", "the same interface", "exit code 0"]);
    let said = outcome().said("card").unwrap();
    let (_, after) = said.split_once("exit code 0").unwrap();
    assert!(!after.contains("eth") && !after.contains("lan"), "{after}");
}
