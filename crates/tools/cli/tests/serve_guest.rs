//! `ring3 serve` in a guest: a disk and a network card behind an IOMMU, by VFIO, each for several
//! programs, one of which is killed in flight.

mod booted;
mod supervised;

use std::time::Duration;

use booted::{Booted, hub};
use ring3_lab::{Backing, Cache, Device, Error, Guest, Size};
use supervised::with_programs;

/// Shell functions of every step. `serve disk|net OPTION...` returns when the sockets are there;
/// `client NAME ADDRESS` makes the card of socket /tmp/NAME an interface of a network namespace of
/// its own.
const PRELUDE: &str = r#"
serve() {
    : >/tmp/ready; ring3 serve "$@" --json >/tmp/ready 2>/tmp/log & SERVER=$!
    for try in $(seq 300); do
        grep -q sockets /tmp/ready && break
        [ -d /proc/$SERVER ] || break
        sleep 0.1
    done
    cat /tmp/ready
    cat /tmp/log
    grep -q sockets /tmp/ready
}
# The process that drives.
driver() { sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /tmp/ready; }
namespace() {
    unshare -n sleep 100000 & echo $! >/tmp/namespace.$1
    while [ "$(readlink /proc/$(cat /tmp/namespace.$1)/ns/net)" = \
        "$(readlink /proc/self/ns/net)" ]; do usleep 10000; done
}
within() { where=$1; shift; nsenter -t $(cat /tmp/namespace.$where) -n "$@"; }
client() { namespace $1; : >/tmp/client.$1
    nsenter -t $(cat /tmp/namespace.$1) -n ring3 run net --device remote:/tmp/$1 --name net0 \
        --json >/tmp/client.$1 2>&1 &
    echo $! >/tmp/pid.$1
    for try in $(seq 100); do grep -q interface /tmp/client.$1 && break; sleep 0.1; done
    within $1 ifconfig net0 $2 up || cat /tmp/client.$1; }
pings() {
    for try in $(seq 10); do within $1 ping -c 1 -W 2 $2 >/tmp/ping && return; done
    cat /tmp/ping
    return 1
}
received() { within $1 sed -n 's/.*net0: *[0-9]* *\([0-9]*\).*/\1/p' /proc/net/dev; }
faults() { dmesg | grep -c 'DMAR:.*fault'; }
"#;

/// For `$AS`: who drives.
macro_rules! disk {
    ($as:literal) => {
        concat!(
            "AS='", $as, "'\n",
            r#"
before=$(faults)
dd if=/dev/urandom of=/tmp/one bs=1M count=8 2>/dev/null
dd if=/dev/urandom of=/tmp/two bs=1M count=8 2>/dev/null
serve disk --device vfio:$DISK --socket /tmp/a,size=8M --socket /tmp/b,offset=8M,size=8M $AS ||
    exit 1
grep -E '^(Uid|CapEff|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '
echo
ls -l /proc/$(driver)/fd 2>/dev/null | grep -c vfio
ring3 blk write --device remote:/tmp/a --from /tmp/one >/dev/null &
ONE=$!
ring3 blk write --device remote:/tmp/b --from /tmp/two >/dev/null
wait $ONE
ring3 blk read --device remote:/tmp/a --to /tmp/a.read >/dev/null &
ONE=$!
ring3 blk read --device remote:/tmp/b --to /tmp/b.read >/dev/null
wait $ONE
cmp /tmp/one /tmp/a.read && cmp /tmp/two /tmp/b.read && echo 'each has its own'
for memory in arena lent; do
    ring3 blk bench --overwrite --device remote:/tmp/b --dma $memory --workload randwrite-4k-qd32 \
        --seconds 60 >/tmp/bench 2>&1 &
    VICTIM=$!
    sleep 3
    [ -d /proc/$VICTIM ] && kill -9 $VICTIM && echo "killed in flight, $memory" || cat /tmp/bench
done
ring3 blk bench --overwrite --device remote:/tmp/b --dma lent --workload randwrite-128k-qd8 \
    --count 64 | grep -o '64 requests mapped in 64 segments'
ring3 blk read --device remote:/tmp/a --to /tmp/a.read >/dev/null
cmp /tmp/one /tmp/a.read && echo 'the other one has lost nothing'
ring3 blk write --device remote:/tmp/b --from /tmp/two >/dev/null
ring3 blk read --device remote:/tmp/b --to /tmp/b.read >/dev/null
cmp /tmp/two /tmp/b.read && echo 'the next one has its place'
echo "faults of the IOMMU: $(($(faults) - before))"
kill $SERVER
wait $SERVER
echo "ended $?"
ls /tmp/a /tmp/b 2>&1
cat /tmp/log
dmesg | grep 'type=1326' | tail -n 2
"#
        )
    };
}

/// `c` is in a VLAN of its own.
macro_rules! net {
    ($as:literal) => {
        concat!(
            "AS='", $as, "'\n",
            r#"
before=$(faults)
serve net --device vfio:$HERE --socket /tmp/a --socket /tmp/b --socket /tmp/c,vlan=7 $AS || exit 1
grep -E '^(Uid|CapEff|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '
echo
ls -l /proc/$(driver)/fd 2>/dev/null | grep -c vfio
client a 10.7.0.1; client b 10.7.0.3; client c 10.7.0.4
pings a 10.7.0.2 && echo 'a reaches the wire'
pings b 10.7.0.2 && echo 'b reaches the wire'
pings a 10.7.0.3 && echo 'a reaches b'
within a ping -c 2 -W 1 10.7.0.4 >/dev/null || echo 'nobody reaches c'
seen=$(received b)
within a ping -c 20 -i 0.1 -W 2 10.7.0.2 | grep 'packets received'
seen=$(($(received b) - seen))
[ $seen -lt 10 ] && echo 'b sees nothing of it' || echo "b has seen $seen"
dd if=/dev/urandom of=/tmp/data bs=1M count=2 2>/dev/null
sleep 1000 | within there timeout 60 nc -l -p 9 >/tmp/arrived &
sleep 1
within a timeout 50 nc 10.7.0.2 9 </tmp/data
sleep 1
cmp /tmp/data /tmp/arrived && echo 'it went out whole'
sleep 1000 | within there timeout 20 nc -l -p 10 >/dev/null & sleep 1
within b timeout 30 nc 10.7.0.2 10 </dev/zero & sleep 2
[ -d /proc/$(cat /tmp/pid.b) ] && kill -9 $(cat /tmp/pid.b) && echo 'killed in flight'
pings a 10.7.0.2 && echo 'the other one goes on'
client b 10.7.0.5
pings b 10.7.0.1 && echo 'the next one has its place'
echo "faults of the IOMMU: $(($(faults) - before))"
for name in a b c; do kill $(cat /tmp/pid.$name); done
kill $SERVER
wait $SERVER
echo "ended $?"
ls /tmp/a /tmp/b 2>&1
cat /tmp/log
dmesg | grep 'type=1326' | tail -n 2
"#
        )
    };
}

/// In one network namespace, the kernel would answer without a frame.
const STARTED: &str = r#"
echo 'driver:x:1000:1000::/:/bin/false' >>/etc/passwd; namespace there
card=$(basename /sys/bus/pci/devices/$THERE/net/*)
ip link set dev "$card" netns $(cat /tmp/namespace.there)
within there ip link set dev "$card" name there0; within there ifconfig there0 10.7.0.2 up
"#;

static GUEST: Booted = Booted::new(
    guest,
    PRELUDE,
    &[
        ("started", STARTED),
        ("disk", disk!("")),
        ("net", net!("")),
        ("confined disk", disk!("--user driver")),
        ("confined net", net!("--user driver")),
    ],
);

fn guest(_: &Cache) -> Result<Guest, Error> {
    Ok(with_programs(Guest {
        time_limit: Duration::from_secs(600),
        memory_mib: 1024,
        ..Guest::new("serve")
    })
    .device(Device::nvme("disk", Size(64 << 20), Backing::Memory).bound("vfio-pci"))
    .device(hub(Device::new("here", "e1000e").bound("vfio-pci")))
    .device(hub(Device::new("there", "e1000e")))
    .module("e1000e")
    .module("vfio-pci")
    .module("vfio_iommu_type1")
    .module("tun"))
}

const OF_A_DISK: [&str; 9] = [
    "\"mapped\":true",
    "each has its own",
    "killed in flight, arena",
    "killed in flight, lent",
    "64 requests mapped in 64 segments",
    "the other one has lost nothing",
    "the next one has its place",
    "faults of the IOMMU: 0",
    "ended 0",
];
const OF_A_CARD: [&str; 12] = [
    "\"mapped\":true",
    "a reaches the wire",
    "b reaches the wire",
    "a reaches b",
    "nobody reaches c",
    "b sees nothing of it",
    "it went out whole",
    "killed in flight",
    "the other one goes on",
    "the next one has its place",
    "faults of the IOMMU: 0",
    "ended 0",
];

#[test]
#[ignore = "boots a guest: make test"]
fn two_programs_share_a_disk_by_vfio_and_one_that_is_killed_in_flight_hurts_nobody() {
    GUEST.says("disk", &OF_A_DISK);
}

#[test]
#[ignore = "boots a guest: make test"]
fn network_namespaces_share_a_card_by_vfio_apart_from_each_other_and_one_that_is_killed_in_flight_hurts_nobody()
 {
    GUEST.says("net", &OF_A_CARD);
}

/// Whose the process is that drives, and that it has no descriptor of the device.
const CONFINED: [&str; 2] =
    ["Uid: 1000 1000 1000 1000 CapEff: 0000000000000000 Seccomp: 2", "\n0\n"];

#[test]
#[ignore = "boots a guest: make test"]
fn a_confined_process_shares_a_disk_as_well() {
    GUEST.says("confined disk", &OF_A_DISK);
    GUEST.says("confined disk", &CONFINED);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_confined_process_shares_a_card_as_well() {
    GUEST.says("confined net", &OF_A_CARD);
    GUEST.says("confined net", &CONFINED);
}
