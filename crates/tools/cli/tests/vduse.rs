//! Disks and cards as virtio devices of guests' kernels, by VDUSE.

mod booted;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use booted::{Booted, Step, hub};
use ring3_lab::{Cache, Device, Error, Guest, Need};

/// Shell functions of every step. `serve DRIVER OPTION...` starts ring3 and returns when its disk
/// is there.
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
model() {
    ring3 model nvme,size=64M --socket /tmp/model >/dev/null 2>&1 &
    MODEL=$!
    for try in $(seq 100); do [ -S /tmp/model ] && return; sleep 0.05; done
}
verify() {
    fio --name=verify --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 \
        --output=/tmp/fio "$@" >/dev/null && return
    cat /tmp/fio
    return 1
}
"#;

const DISK: &str = r#"
serve null --size 64 --name one || exit
cat /tmp/ready
D=$(basename $(disk))
cat /sys/block/$D/queue/scheduler /sys/block/$D/size /sys/block/$D/queue/max_segments
ring3 run null --export vduse --name one
stop
ls /dev/vduse /run
"#;

const FILES: &str = r#"
serve nvme --device sim:nvme,size=64M --queues 2 && mkfs.ext4 -q $(disk) && mount $(disk) /mnt ||
    exit
cp /bin/busybox /mnt/
sync
kill $PID
sleep 1
cat /tmp/log
cmp /bin/busybox /mnt/busybox && echo same
umount /mnt; wait $PID; echo "exit code $?"; ls /dev/vduse
"#;

const KILLED: &str = r#"
model || exit
serve nvme --device vfio-user:/tmp/model --name data || exit
D=$(disk)
verify --filename=$D --size=24M --rw=randwrite --bsrange=4k-64k --iodepth=32 --verify_backlog=64 \
    --time_based --runtime=5 &
FIO=$!
for kill in 1 2 3; do
    sleep 1
    kill -9 $PID
    wait $PID
    for try in 1 2 3 4 5; do
        serve nvme --device vfio-user:/tmp/model --name data && break
        sleep 0.3
    done
    [ "$(disk)" = $D ] && echo "taken again $kill"
done
wait $FIO && echo verified; echo "errors $(dmesg | grep -ciE 'I/O error')"
stop; kill $MODEL
"#;

/// What a process leaves that is killed, with a reader that waits for it.
const LEFT: &str = r#"
serve null --size 64 --name left || exit
ring3 vduse list
ring3 vduse list --json | tr -d ' \n'
echo
ring3 vduse delete left
echo "served $?"
kill -9 $PID; wait $PID; sleep 1; ring3 vduse list
dd if=$(disk) of=/dev/null bs=4k count=1 iflag=direct & READER=$!; sleep 1
ring3 vduse delete; echo "used $?"; ring3 vduse delete left; echo "in use $?"
ring3 vduse delete left --force; echo "forced $?"; wait $READER; echo "reader $?"
echo "files $(ls /dev/vduse /run | grep -c left)"
ring3 vduse delete left
echo "none $?"
ring3 vduse list
serve null --size 64 --name again
kill -9 $PID
wait $PID
sleep 1
serve null --size 64 --name again && ring3 vduse list
kill -9 $PID
wait $PID
sleep 1
ring3 vduse delete
echo "files again $(ls /dev/vduse /run | grep -c again)"
"#;

/// In one network namespace, the kernel would answer without a frame.
const CARD: &str = r#"
card=$(basename /sys/bus/pci/devices/$THERE/net/*)
unshare -n sleep 100000 & echo $! >/tmp/other
while [ "$(readlink /proc/$(cat /tmp/other)/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
    usleep 10000
done
there() { nsenter -t $(cat /tmp/other) -n "$@"; }
reached() {
    for try in $(seq 20); do ping -c 1 -W 2 10.7.0.2 >/tmp/ping && return; done
    cat /tmp/ping
    return 1
}
ip link set dev "$card" netns $(cat /tmp/other)
there ip link set dev "$card" name there0
there ifconfig there0 10.7.0.2 up
there ifconfig lo up
serve net --device vfio:$HERE --name lan --stats /tmp/stats || exit
cat /tmp/ready
N=$(sed -n 's/.*"interface":"\([^"]*\)".*/\1/p' /tmp/ready)
ifconfig $N 10.7.0.1 up
reached && echo reached
there iperf3 --server --daemon
sleep 1
iperf3 --client 10.7.0.2 --bidir --time 3 --interval 0 --format m | grep receiver
kill -USR1 $PID; sleep 1; cat /tmp/stats
dmesg -c >/dev/null; ping -c 40 -i 0.1 -W 5 10.7.0.2 >/tmp/pings & PING=$!
same() { cat /sys/class/net/$N/ifindex /sys/class/net/$N/carrier_changes; }; before=$(same); sleep 1
kill -9 $PID
wait $PID
sleep 0.5
ring3 vduse delete lan
echo "card used $?"
for try in 1 2 3 4 5; do serve net --device vfio:$HERE --name lan && break; sleep 0.3; done
wait $PING
tail -n 2 /tmp/pings
reached && [ "$before" = "$(same)" ] && echo 'the same interface'
dmesg
unshare -n sleep 100000 &
FAR=$!
while [ "$(readlink /proc/$FAR/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do usleep 10000; done
far() { nsenter -t $FAR -n "$@"; }
moved() {
    for try in $(seq 20); do far ping -c 1 -W 2 10.7.0.2 >/tmp/ping && return; done
    return 1
}
ip link set dev $N netns $FAR
far ip link set dev $N name moved0
far ifconfig moved0 10.7.0.1 up
moved && echo 'reached from another namespace'
far ip link set dev moved0 mtu 20000
for try in $(seq 50); do
    far ip link show moved0 | grep -q 'mtu 1500' && echo 'heard there' && break
    sleep 0.2
done
kill -9 $PID
wait $PID
sleep 0.5
for try in 1 2 3 4 5; do serve net --device vfio:$HERE --name lan && break; sleep 0.3; done
grep -c moved0 /tmp/ready
moved && echo 'gone on with there'
stop; kill $FAR; ls /sys/class/net /dev/vduse
"#;

const STEPS: &[Step] =
    &[("disk", DISK), ("files", FILES), ("killed", KILLED), ("left", LEFT), ("card", CARD)];
static USUAL: Booted = Booted::new(guest, PRELUDE, STEPS);
static NEWEST: Booted = Booted::on("7.2", guest, PRELUDE, STEPS);

fn guest(cache: &Cache) -> Result<Guest, Error> {
    ring3_lab::prepare(cache, &[Need::Network], &mut |_| {})?;
    Ok(Guest { time_limit: Duration::from_secs(600), vcpus: Some(2), ..Guest::new("vduse") }
        .program(Path::new(env!("CARGO_BIN_EXE_ring3")))
        .network_programs(cache)
        .device(hub(Device::new("here", "e1000e").bound("vfio-pci")))
        .device(hub(Device::new("there", "e1000e")))
        .module("e1000e")
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .module("virtio_net")
        .module("vduse")
        .module("virtio_vdpa")
        .module("virtio_blk")
        .module("ext4"))
}

macro_rules! on_both_kernels {
    ($($name:ident, $newest:ident: $check:expr;)*) => {$(
        #[test]
        #[ignore = "boots a guest: make test"]
        fn $name() {
            $check(&USUAL);
        }

        #[test]
        #[ignore = "boots a guest: make test"]
        fn $newest() {
            $check(&NEWEST);
        }
    )*};
}

on_both_kernels! {
    a_disk_is_a_virtio_disk_of_the_kernel_and_leaves_nothing_behind,
    a_disk_is_a_virtio_disk_of_7_2_and_leaves_nothing_behind: |guest: &Booted| {
        guest.says(
            "disk",
            &[
                "\"name\":\"one\"", "[none]", "131072\n", "is served by another process",
                "exit code 0",
            ],
        );
        let after = guest.said_after("disk", "exit code 0");
        assert!(!after.contains("one"), "{after}");
    };
    a_mounted_disk_is_served_until_it_is_free,
    a_mounted_disk_is_served_until_it_is_free_on_7_2: |guest: &Booted| {
        guest.says("files", &["is in use by the mount at /mnt", "same\n", "exit code 0"]);
    };
    a_server_that_is_killed_under_load_is_followed_by_the_next_and_nobody_sees_an_error,
    a_server_that_is_killed_under_load_is_followed_by_the_next_on_7_2: |guest: &Booted| {
        guest.says(
            "killed",
            &["taken again 1\n", "taken again 3\n", "verified\n", "errors 0\n", "exit code 0"],
        );
    };
    what_a_dead_server_has_left_is_listed_gone_on_with_and_deleted,
    what_a_dead_server_has_left_is_listed_gone_on_with_and_deleted_on_7_2: |guest: &Booted| {
        guest.says(
            "left",
            &[
                "left  served  ring3 ", "\"state\":\"served\"",
                "is served by another process", "served 1\n",
            ],
        );
        guest.says(
            "left",
            &[
                "left  orphan  ring3          -  disk  vd", "used 0\n",
                "is in use: /dev/vd", "in use 1\n",
            ],
        );
        guest.says(
            "left",
            &[
                "forced 0\n", "reader 1\n", "files 0\n", "there is no VDUSE device 'left'",
                "none 1\n", "there is no VDUSE device\n",
            ],
        );
        guest.says(
            "left",
            &["again  served  ring3", "deleted /dev/vduse/again\n", "files again 0\n"],
        );
    };
    a_card_is_a_virtio_card_of_the_kernel_whose_interface_outlives_its_driver,
    a_card_is_a_virtio_card_of_7_2_whose_interface_outlives_its_driver: |guest: &Booted| {
        guest.says(
            "card",
            &["\"name\":\"lan\"", "reached\n", "receiver", "the same interface", "exit code 0"],
        );
        guest.says("card", &["is in use: eth", "is up (ip link set", "card used 1\n"]);
        let after = guest.said_after("card", "exit code 0");
        assert!(!after.contains("eth") && !after.contains("lan"), "{after}");
    };
    a_card_that_was_moved_to_another_namespace_is_served_on_and_gone_on_with,
    a_card_that_was_moved_to_another_namespace_is_served_on_and_gone_on_with_on_7_2:
    |guest: &Booted| {
        guest.says(
            "card",
            &[
                "reached from another namespace\n", "heard there\n", "gone on with there\n",
                "exit code 0",
            ],
        );
    };
    what_a_driver_has_no_room_for_stays_with_the_card,
    what_a_driver_has_no_room_for_stays_with_the_card_on_7_2: |guest: &Booted| {
        guest.says("card", &["\"rx_dropped\": 0,\n"]);
    };
}

#[test]
fn without_vduse_the_error_says_what_to_load() {
    if Path::new("/dev/vduse/control").exists() {
        return;
    }
    for words in
        [&["vduse", "list"][..], &["vduse", "delete"], &["vduse", "delete", "data", "--json"]]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_ring3")).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("modprobe vduse"),
            "{words:?}: {said}"
        );
    }
}
