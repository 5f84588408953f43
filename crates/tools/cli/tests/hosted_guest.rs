//! Drivers of Linux, unmodified, in processes of a guest: their card and their disk lie behind the
//! guest's IOMMU, and at the other end of the wire are a card that ring3 drives and one that the
//! guest's kernel drives.

mod booted;
mod supervised;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use booted::{Booted, hub};
use ring3_lab::{Backing, Cache, Device, Error, Guest, Need, Size};
use serde_json::Value;
use supervised::with_programs;

/// Shell functions of every step. `serve` starts the driver and its interface, 10.7.0.1, and
/// returns when it is up; `there COMMAND...` is done where the kernel's card is, 10.7.0.2.
const PRELUDE: &str = r#"
serve() {
    : >/tmp/said
    ring3 dde run e1000e --device vfio:$HERE --socket /tmp/card >/tmp/said 2>/tmp/log & DRIVER=$!
    for try in $(seq 300); do grep -q '"link":true' /tmp/said && break; sleep 0.1; done
    ring3 run net --device remote:/tmp/card --name net0 >/tmp/ready 2>>/tmp/log & PID=$!
    for try in $(seq 300); do [ -d /sys/class/net/net0 ] && break; sleep 0.1; done
    cat /tmp/said /tmp/ready /tmp/log; ifconfig net0 10.7.0.1 up
    for try in $(seq 20); do ping -c 1 -W 2 10.7.0.2 >/tmp/ping && return; done
    cat /tmp/ping
    return 1
}
stop() { kill $PID; wait $PID; kill $DRIVER; wait $DRIVER; echo "driver's exit code $?"; }
there() { nsenter -t $(cat /tmp/other) -n "$@"; }
"#;

/// In one network namespace, the kernel would answer without a frame.
const OTHER: &str = r#"
card=$(basename /sys/bus/pci/devices/$THERE/net/*)
unshare -n sleep 100000 & echo $! >/tmp/other
while [ "$(readlink /proc/$(cat /tmp/other)/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
    usleep 10000
done
ip link set dev "$card" netns $(cat /tmp/other)
there ip link set dev "$card" name there0
there ifconfig there0 10.7.0.2 up
"#;

const CONFORMANCE: &str = "ring3 net check --driver dde:e1000e --device vfio:$HERE \
                           --peer vfio:$PEER --packets 2000 --json";

const PING: &str = r#"
serve && ping -c 100 -i 0.05 -W 2 10.7.0.2 | tail -n 2; grep vfio /proc/interrupts; stop; ls /tmp
"#;

const IPERF3: &str = r#"
serve; for port in 5201 5202; do there iperf3 --server --port $port --daemon; done; sleep 1
run() { iperf3 --client 10.7.0.2 --time 5 --interval 0 --format m "$@"; }
run --port 5201 && run --port 5202 --reverse && echo 'both ways'; stop
"#;

/// What the system asks back is closed in good order, and driven again when it is there again.
const REMOVED: &str = r#"
ring3 run dde:e1000e --device vfio:$HERE --name net0 >/tmp/ready 2>/tmp/log & PID=$!
for try in $(seq 300); do [ -d /sys/class/net/net0 ] && break; sleep 0.1; done
ifconfig net0 10.7.0.1 up
for try in $(seq 20); do ping -c 1 -W 2 10.7.0.2 >/dev/null && break; done
ping -c 3 10.7.0.2 | grep packets
echo 1 >/sys/bus/pci/devices/$HERE/remove
wait $PID
echo "exit code $?"
cat /tmp/log
ls -d /sys/bus/pci/devices/$HERE 2>&1
echo 1 >/sys/bus/pci/rescan
sleep 1
ring3 bind $HERE
ring3 net info --driver dde:e1000e --device vfio:$HERE | grep -E '^(mac|link)'
"#;

/// Killed every few seconds under a connection and a ping. Outside of its namespaces it is a
/// process as any other.
const KILLED: &str = r#"
mkdir -p /etc/ring3
printf '%s\n' '[device.lan]' "match = { address = \"$HERE\" }" 'driver = "dde:e1000e"' \
    '[device.lan.export]' 'kind = "tap"' \
    '[device.lan.restart]' 'burst = 1000' >/etc/ring3/lan.toml
ready() {
    for try in $(seq 600); do
        ring3 status lan --json >/tmp/status
        grep -q '"state": "running"' /tmp/status && ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status
    ring3 logs lan
    return 1
}
driver() { sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status; }
same() {
    cat /sys/class/net/lan/ifindex /sys/class/net/lan/address /sys/class/net/lan/carrier_changes
    ip address show dev lan | grep inet | sed 's/ tentative//'
}
ring3d >/tmp/ring3d 2>&1 & RING3D=$!; sleep 1; ready || cat /tmp/ring3d
ifconfig lan 10.7.0.1 up
for try in $(seq 100); do [ "$(cat /sys/class/net/lan/carrier)" = 1 ] && break; sleep 0.1; done
for try in $(seq 20); do ping -c 1 -W 2 10.7.0.2 >/dev/null && echo reached && break; done
ring3 status lan
grep -E '^(Uid|CapEff|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '
echo
echo "vfio $(ls -l /proc/$(driver)/fd 2>/dev/null | grep -c vfio)"
ls -l /proc/$(driver)/exe
before=$(same); dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
sleep 1000 | there timeout 200 nc -l -p 9 >/tmp/arrived & sleep 1
ping -c 250 -i 0.1 -W 2 10.7.0.2 >/tmp/pings & PING=$!
for piece in $(seq 0 15); do dd if=/tmp/data bs=1M count=1 skip=$piece 2>/dev/null; sleep 1; done |
    timeout 180 nc 10.7.0.2 9 &
SENDER=$!
for kill in $(seq 5); do ready || break; kill -9 $(driver); sleep 3; done
wait $SENDER; sleep 2; cmp /tmp/data /tmp/arrived && echo 'it went out whole'
wait $PING
tail -n 2 /tmp/pings
[ "$before" = "$(same)" ] && echo 'the same interface' || { echo "$before"; same; }
ready; grep -oE '"(restarts|fence_ms|driver_ms|total_ms)": [^,]*' /tmp/status | tr '\n' ' '; echo
ifconfig lan down
for try in 1 2 3 4 5; do ring3 stop lan && echo stopped && break; sleep 0.5; done
ring3 logs lan | tail -n 5
kill $RING3D
wait $RING3D
"#;

/// The same of a disk, by Linux's nvme: killed under a load that checks what it reads, then a file
/// system on it is whole.
const DISK: &str = r#"
printf '%s\n' '[device.store]' "match = { address = \"$DISK\" }" 'driver = "dde:nvme"' \
    '[device.store.export]' 'kind = "ublk"' 'id = 7' \
    '[device.store.restart]' 'burst = 1000' >/tmp/store.toml
ready() {
    for try in $(seq 600); do
        ring3 status store --json >/tmp/status
        grep -q '"state": "running"' /tmp/status && ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status
    ring3 logs store
    return 1
}
driver() { sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status; }
verify() {
    fio --name=verify --filename=/dev/ublkb7 --direct=1 --ioengine=io_uring --verify=crc32c \
        --verify_fatal=1 --output=/tmp/fio "$@" >/dev/null && return
    cat /tmp/fio
    return 1
}
ring3d --config /tmp/store.toml >/tmp/ring3d 2>&1 & RING3D=$!; sleep 1; ready || cat /tmp/ring3d
grep -E '^(Uid|CapEff|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '
echo
echo "vfio $(ls -l /proc/$(driver)/fd 2>/dev/null | grep -c vfio)"
ls -l /proc/$(driver)/exe
verify --rw=randrw --bsrange=4k-128k --blockalign=4k --iodepth=16 --size=24M --io_size=96M \
    --fsync=64 && echo 'fio: it holds' &
FIO=$!
for kill in 1 2 3; do ready || break; sleep 1; kill -9 $(driver); sleep 3; done; wait $FIO; ready
grep -oE '"(restarts|fence_ms|driver_ms|total_ms)": [^,]*' /tmp/status | tr '\n' ' '; echo
mkfs.ext4 -q /dev/ublkb7 && mount /dev/ublkb7 /mnt &&
    dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null && cp /tmp/data /mnt/data && sync
kill -9 $(driver)
echo 3 >/proc/sys/vm/drop_caches
cmp /tmp/data /mnt/data && echo 'the file is whole'
umount /mnt
fsck.ext4 -fn /dev/ublkb7 >/tmp/fsck && echo 'and the file system'
ready
for try in 1 2 3 4 5; do ring3 stop store && echo 'the disk has stopped' && break; sleep 0.5; done
ring3 logs store | tail -n 8
kill $RING3D
wait $RING3D
cat /tmp/ring3d
"#;

static GUEST: Booted = Booted::new(
    guest,
    PRELUDE,
    &[
        ("conformance", CONFORMANCE),
        ("other", OTHER),
        ("ping", PING),
        ("iperf3", IPERF3),
        ("killed", KILLED),
        ("disk", DISK),
        ("removed", REMOVED),
    ],
);

/// What `ring3 dde build` says of a driver.
fn built(driver: &str) -> Value {
    let mut ring3 = Command::new(env!("CARGO_BIN_EXE_ring3"));
    ring3
        .env("RING3_WERROR", "1")
        .env("RING3_DDE", concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dde"));
    let output = ring3.args(["dde", "build", driver, "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn guest(cache: &Cache) -> Result<Guest, Error> {
    ring3_lab::prepare(cache, &[Need::Network, Need::Hosting], &mut |_| {})?;
    let (card, disk) = (built("e1000e"), built("nvme"));
    let path = |built: &Value, what: &str| Path::new(built[what].as_str().unwrap()).to_owned();
    Ok(with_programs(Guest {
        time_limit: Duration::from_secs(600),
        memory_mib: 1024,
        ..Guest::new("hosted")
    })
    .program(&path(&card, "program"))
    .program(&path(&disk, "program"))
    .libraries(&path(&card, "library"))
    .network_programs(cache)
    .device(hub(Device::new("here", "e1000e").bound("vfio-pci")))
    .device(hub(Device::new("peer", "e1000e").bound("vfio-pci")))
    .device(hub(Device::new("there", "e1000e")))
    .device(Device::nvme("disk", Size(64 << 20), Backing::Memory).bound("vfio-pci"))
    .module("e1000e")
    .module("vfio-pci")
    .module("vfio_iommu_type1")
    .module("tun")
    .module("ublk_drv")
    .module("ext4"))
}

#[test]
#[ignore = "boots a guest: make test"]
fn linuxs_e1000e_drives_a_card_behind_an_iommu_as_every_card_must_be_driven() {
    let said = GUEST.said("conformance");
    let result: Value =
        serde_json::from_str(said.lines().last().unwrap()).unwrap_or_else(|_| panic!("{said}"));
    assert!(result["failed"] == 0 && result["checks"].as_u64() > Some(10), "{said}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn it_answers_every_ping_by_messages_of_its_own() {
    GUEST.says(
        "ping",
        &["100 packets transmitted, 100 packets received", "vfio-msix", "driver's exit code 0"],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_connection_goes_both_ways_through_its_interface() {
    GUEST.says("iperf3", &["both ways", "receiver"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn it_is_supervised_and_confined_and_a_connection_survives_its_kills() {
    let confined = [
        "reached\n",
        "dde:e1000e",
        "CapEff: 0000000000000000",
        "Seccomp: 2",
        "vfio 0\n",
        "dde-e1000e",
    ];
    GUEST.says("killed", &confined);
    GUEST.says(
        "killed",
        &["it went out whole", "the same interface", "\"restarts\": 5", "stopped\n"],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_disk_of_linuxs_driver_is_supervised_and_confined_and_its_users_do_not_see_its_kills() {
    GUEST.says(
        "disk",
        &[
            "CapEff: 0000000000000000",
            "Seccomp: 2",
            "vfio 0\n",
            "dde-nvme",
            "fio: it holds",
            "\"restarts\": 3",
        ],
    );
    GUEST.says("disk", &["the file is whole", "and the file system", "the disk has stopped"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_card_that_the_system_wants_back_is_closed_and_one_that_is_there_again_is_driven_again() {
    GUEST.says(
        "removed",
        &[
            "3 packets received",
            "wants the device back",
            "No such file",
            "link                     yes",
        ],
    );
}

#[test]
#[ignore = "reads a guest's kernel: make test"]
fn the_functions_that_hosted_drivers_take_are_those_of_the_kernels_modules() {
    let cache = Cache::open().unwrap();
    let modules = cache.path("kernels/6.12/lib/modules");
    let release = std::fs::read_dir(modules).unwrap().next().unwrap().unwrap().path();
    let aliases = std::fs::read_to_string(release.join("modules.alias")).unwrap();
    // "alias pci:v00008086d000010D3sv*sd*bc*sc*i* e1000e"
    let ids_of = |module: &str| -> BTreeSet<String> {
        let of = |line: &str| {
            let ids = line.strip_prefix("alias pci:v")?.strip_suffix(&format!(" {module}"))?;
            let (vendor, rest) = ids.split_once('d').filter(|_| ids.ends_with("bc*sc*i*"))?;
            let number = |text: &str| u32::from_str_radix(text, 16).ok();
            Some(format!("{:04x}:{:04x}", number(vendor)?, number(rest.split_once('s')?.0)?))
        };
        aliases.lines().filter_map(of).collect()
    };
    for (name, ids) in ring3_driver::hosted::all().filter(|(_, ids)| !ids.is_empty()) {
        let ids: BTreeSet<_> = ids.iter().map(ToString::to_string).collect();
        assert_eq!(ids, ids_of(&name.replace('-', "_")), "{name}");
    }
}

fn compare(tree: &std::path::Path, json: bool) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ring3"));
    command.args(["quirks", "compare"]).arg(tree).args(json.then_some("--json"));
    command.output().unwrap()
}

#[test]
#[ignore = "reads a kernel's source: make test"]
fn the_tables_of_quirks_have_what_the_kernels_source_has() {
    let output = compare(&Cache::open().unwrap().path("sources/6.12/source"), false);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!((said.lines().count(), output.status.code()), (1, Some(0)), "{said}");
}

#[test]
#[ignore = "reads a kernel's source: make test"]
fn what_another_kernel_has_otherwise_is_said_and_has_an_exit_code_of_its_own() {
    let source = Cache::open().unwrap().path("sources/6.12/source");
    let tree = tempfile::tempdir().unwrap();
    let tables = ring3_driver::registry::quirks().flat_map(|(_, table)| &table.linux.source);
    let cards = ring3_driver::registry::cards().into_iter().flat_map(|cards| {
        let table = cards.table;
        [&table.file, &table.ids].map(|file| format!("{}/{file}", table.folder))
    });
    let files = tables
        .filter(|table| table.kind != ring3_quirks::SourceKind::Own)
        .map(|table| table.file.clone())
        .chain(cards)
        .chain(["include/linux/pci_ids.h".into()]);
    for file in files {
        let text = std::fs::read_to_string(source.join(&file)).unwrap();
        let text = text
            .replace(
                "PCI_VDEVICE(ASMEDIA, 0x0612), board_ahci_43bit_dma",
                "PCI_VDEVICE(ASMEDIA, 0x0613), board_ahci",
            )
            .replace("E1000_DEV_ID_I210_COPPER\t", "E1000_DEV_ID_I210_COPPER_OLD\t")
            .replace(
                "#define E1000_DEV_ID_I210_FIBER",
                "#define E1000_DEV_ID_I210_COPPER 0x9999\n#define E1000_DEV_ID_I210_FIBER",
            );
        let copy = tree.path().join(&file);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::write(copy, text).unwrap();
    }
    let output = compare(tree.path(), true);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    for what in [
        "ahci_pci_tbl 1b21:0613: ring3 does not know it",
        "ahci_pci_tbl 1b21:0612: the kernel does not have it (43BIT_ONLY)",
        "igb 8086:9999: ring3 does not know it",
        "igb 8086:1533: the kernel does not have it",
    ] {
        assert!(said.contains(what), "{what}: {said}");
    }
    // A tree that is none is an error, which is no difference.
    let output = compare(&tree.path().join("drivers"), false);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("kernel's source"), "{said}");
}
