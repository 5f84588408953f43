//! A supervised disk for other machines: the kernel's own NVMe-oF target exports what ring3d
//! serves, and another network's initiator writes to it while the disk's driver is killed.
//!
//! `cargo test -p ring3-cli --test remote_guest -- --ignored`, or `make test`.

mod supervised;

use std::time::Duration;

use ring3_lab::{Backing, Cache, Device, Disk, Guest, Need, Size};
use supervised::{LOAD, with_programs};

/// The initiator is in a network namespace, whose packets go through a pair of interfaces: the
/// other machine. Its namespace appears as the only `nvme` disk, because ring3 has the drive.
const REMOTE: &str = r#"
ready() {
    for try in $(seq 600); do
        ring3 status scratch --json >/tmp/status
        grep -q '"state": "running"' /tmp/status && ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status /tmp/ring3d; return 1
}
mkdir -p /etc/ring3
printf '%s\n' '[device.scratch]' "match = { address = \"$DISK\" }" 'bind = true' \
    '[device.scratch.export]' 'id = 0' '[device.scratch.restart]' 'burst = 1000' \
    >/etc/ring3/scratch.toml
ring3d >/tmp/ring3d 2>&1 & RING3D=$!
ready || exit
for try in $(seq 200); do [ -b /dev/ring3/scratch ] && break; sleep 0.05; done

# The shell's own has no namespaces.
ip() { command /usr/local/bin/ip "$@"; }
ip netns add far && ip link add near type veth peer name beyond && ip link set beyond netns far
ip addr add 10.9.0.1/24 dev near && ip link set near up
ip -n far addr add 10.9.0.2/24 dev beyond && ip -n far link set beyond up || exit

mount -t configfs config /sys/kernel/config
target=/sys/kernel/config/nvmet
mkdir $target/subsystems/ring3 && cd $target/subsystems/ring3 || exit
echo 1 >attr_allow_any_host
mkdir namespaces/1 && echo /dev/ring3/scratch >namespaces/1/device_path
echo 1 >namespaces/1/enable || exit
mkdir $target/ports/1 && cd $target/ports/1 || exit
echo tcp >addr_trtype; echo ipv4 >addr_adrfam; echo 10.9.0.1 >addr_traddr; echo 4420 >addr_trsvcid
ln -s $target/subsystems/ring3 subsystems/ring3 || exit
cd /
ip netns exec far sh -c \
    'echo transport=tcp,traddr=10.9.0.1,trsvcid=4420,nqn=ring3 >/dev/nvme-fabrics' || exit
for try in $(seq 200); do [ -b /dev/nvme0n1 ] && break; sleep 0.05; done
echo "there are $(cat /sys/block/nvme0n1/size) sectors by $(cat /sys/class/nvme/nvme0/transport)"

mkfs.ext4 -q /dev/nvme0n1 && mount /dev/nvme0n1 /mnt && echo "from afar" >/mnt/kept || exit
load --directory=/mnt --size=24M --rw=randwrite --bsrange=4k-64k --iodepth=32
for kill in $(seq 8); do
    ready || exit
    kill -9 $(sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status)
    sleep 0.7
done
ready; verified && echo verified; umount /mnt
grep -o '"restarts": [0-9]*' /tmp/status
dmesg | grep -iE 'I/O error|nvme0.*(error|timeout|reconnect)' || echo "no error"
[ "$(cat /sys/class/net/near/statistics/rx_bytes)" -gt 24000000 ] && echo "over the wire"

# The initiator goes, and then the target.
echo 1 >/sys/class/nvme/nvme0/delete_controller
rm $target/ports/1/subsystems/ring3; rmdir $target/ports/1
echo 0 >$target/subsystems/ring3/namespaces/1/enable
rmdir $target/subsystems/ring3/namespaces/1 $target/subsystems/ring3
fsck.ext4 -fn /dev/ring3/scratch >/tmp/fsck 2>&1 && echo clean || cat /tmp/fsck
mount -o ro /dev/ring3/scratch /mnt && cat /mnt/kept; umount /mnt
kill $RING3D; wait $RING3D; echo "ring3d ended with $?"
"#;

#[test]
#[ignore = "boots a guest: make test"]
fn a_disk_that_another_machine_uses_over_the_network_outlives_its_drivers_without_an_error() {
    let cache = Cache::open().unwrap();
    ring3_lab::prepare(&cache, &[Need::Network], &mut |_| {})
        .unwrap_or_else(|error| panic!("{error}"));
    let disk = Device {
        namespaces: vec![Disk::new(Size(96 << 20), Backing::Memory)],
        ..Device::new("disk", "nvme").bound("vfio-pci")
    };
    let guest =
        Guest { memory_mib: 768, time_limit: Duration::from_secs(600), ..Guest::new("remote") };
    let modules = ["ublk_drv", "ext4", "vfio-pci", "veth", "nvmet-tcp", "nvme-tcp"];
    let guest = modules.into_iter().fold(with_programs(guest), Guest::module);
    let outcome = guest
        .network_programs(&cache)
        .device(disk)
        .step("remote", &format!("{LOAD}{REMOTE}"))
        .run(&cache, &mut |_| {})
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
    let said = outcome.output();
    let wanted = [
        "there are 196608 sectors by tcp\n",
        "verified\n",
        "\"restarts\": 8",
        "no error\n",
        "over the wire\n",
        "clean\nfrom afar\n",
        "ring3d ended with 0",
    ];
    for wanted in wanted {
        assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}");
    }
}
