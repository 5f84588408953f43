//! ring3d in a guest with a card behind an IOMMU: a connection over it to a card of the kernel's,
//! while its drivers are killed, stopped and replaced, and ring3d too. `RING3_TEST_IPERF_SECONDS`
//! says how long iperf3 runs, with a kill every five seconds: 20 without it.

mod booted;
mod supervised;

use std::time::Duration;

use booted::{Booted, hub};
use ring3_lab::{Cache, Device, Error, Guest, Need};
use supervised::with_programs;

/// Shell functions of every step.
const PRELUDE: &str = r#"
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
there() { nsenter -t $(cat /tmp/other) -n "$@"; }
reached() {
    for try in $(seq 20); do ping -c 1 -W 2 10.7.0.2 >/tmp/ping && return; done
    cat /tmp/ping
    return 1
}
same() {
    cat /sys/class/net/lan/ifindex /sys/class/net/lan/address /sys/class/net/lan/carrier \
        /sys/class/net/lan/carrier_changes
    ip address show dev lan | grep inet | sed 's/ tentative//'
}
# The one that the holder has started.
ring3d_now() {
    for process in /proc/[0-9]*; do
        [ "$(cut -d' ' -f4 $process/stat 2>/dev/null)" = $(cat /tmp/holder) ] && basename $process
    done
}
"#;

/// In one network namespace, the kernel would answer without a frame.
const STARTED: &str = r#"
card=$(basename /sys/bus/pci/devices/$THERE/net/*)
unshare -n sleep 100000 & echo $! >/tmp/other
while [ "$(readlink /proc/$(cat /tmp/other)/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
    usleep 10000
done
ip link set dev "$card" netns $(cat /tmp/other)
there ip link set dev "$card" name there0
there ifconfig there0 10.7.0.2 up
mkdir -p /etc/ring3
printf '%s\n' '[device.lan]' "match = { address = \"$HERE\" }" \
    '[device.lan.export]' 'kind = "tap"' \
    '[device.lan.restart]' 'burst = 1000' >/etc/ring3/lan.toml
ring3d --hold >/tmp/ring3d 2>&1 & echo $! >/tmp/holder; sleep 1; ready || cat /tmp/ring3d
ifconfig lan 10.7.0.1 up
for try in $(seq 100); do [ "$(cat /sys/class/net/lan/carrier)" = 1 ] && break; sleep 0.1; done
reached && echo reached
ring3 status lan
grep -E '^(Uid|CapEff|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '
echo
ls -l /proc/$(driver)/fd | grep -c vfio
echo "weight $(cat /sys/fs/cgroup/ring3-lan/cpu.weight)"
"#;

/// Who listens would end when its own standard input does.
const KILLED: &str = r#"
before=$(same); dd if=/dev/urandom of=/tmp/data bs=1M count=24 2>/dev/null
sleep 1000 | there timeout 200 nc -l -p 9 >/tmp/arrived & sleep 1
ping -c 300 -i 0.1 -W 2 10.7.0.2 >/tmp/pings & PING=$!
for piece in $(seq 0 23); do dd if=/tmp/data bs=1M count=1 skip=$piece 2>/dev/null; sleep 1; done |
    timeout 180 nc 10.7.0.2 9 &
SENDER=$!
for kill in $(seq 8); do ready || break; kill -9 $(driver); sleep 3; done
wait $SENDER; sleep 2; cmp /tmp/data /tmp/arrived && echo 'it went out whole'
wait $PING
tail -n 2 /tmp/pings
[ "$before" = "$(same)" ] && echo 'the same interface' || { echo "$before"; same; }
ready
grep -oE '"(restarts|fence_ms|driver_ms|total_ms)": [^,]*' /tmp/status | tr '\n' ' '
echo
ring3 top --once
"#;

/// Both directions at once.
const IPERF3: &str = r#"
ready; before=$(same); there iperf3 --server --one-off --daemon; sleep 1
iperf3 --client 10.7.0.2 --bidir --time $SECONDS --interval 0 --format m >/tmp/iperf 2>&1 &
CLIENT=$!
for kills in $(seq 0 10000); do
    sleep 5
    [ -d /proc/$CLIENT ] || break
    ready || break
    kill -9 $(driver)
done
wait $CLIENT && echo "iperf3 ended well after $kills kills"; grep -E 'receiver|error' /tmp/iperf
[ "$before" = "$(same)" ] && echo 'the same interface' || { echo "$before"; same; }
"#;

const STOPPED: &str = r#"
ready
before=$(driver)
kill -STOP $before
ping -c 3 -W 1 10.7.0.2 >/dev/null
for try in $(seq 30); do ping -c 1 -W 1 10.7.0.2 >/dev/null && break; done
ready; [ $(driver) != $before ] && echo replaced; ring3 logs lan | grep 'taken for dead' | tail -n 1
ready; before=$(driver); sleep 15; ready; [ $(driver) = $before ] && echo 'an idle driver lives'
ring3 upgrade lan; reached && echo 'reached by the new program'
"#;

const SURVIVED: &str = r#"
ready
before=$(same)
old=$(driver)
kill -9 $(ring3d_now)
reached && echo 'reached without ring3d'
ready
[ $(driver) = $old ] && [ "$before" = "$(same)" ] && echo adopted
ring3 logs lan | grep 'goes on with a new ring3d'
ready
kill -9 $(driver)
reached && [ "$before" = "$(same)" ] && echo 'and recovered'
ifconfig lan mtu 4000
there ifconfig there0 mtu 4000
for try in $(seq 20); do ping -c 1 -W 2 -s 3900 10.7.0.2 && break; done
"#;

const ENDED: &str = r#"
ready
ring3 stop lan
echo "used $?"
ifconfig lan down
for try in 1 2 3 4 5; do ring3 stop lan && break; sleep 0.5; done
echo "stopped $?"
sleep 0.5
ls -d /sys/class/net/lan 2>&1
ring3 restart lan
ready
ls -d /sys/class/net/lan
kill $(ring3d_now)
wait
for try in $(seq 100); do [ -d /proc/$(cat /tmp/holder) ] || break; sleep 0.1; done
ls -d /sys/class/net/lan 2>&1
"#;

/// By vhost-net alone, which the guest's processor seldom has a reason for.
const VHOST: &str = r#"
printf '%s\n' '[device.lan]' "match = { address = \"$HERE\" }" \
    '[device.lan.export]' 'kind = "tap"' 'engine = "vhost"' \
    '[device.lan.restart]' 'burst = 1000' >/etc/ring3/lan.toml
ring3d --hold >/tmp/ring3d 2>&1 &
HOLDER=$!
echo $HOLDER >/tmp/holder
sleep 1
ready || cat /tmp/ring3d
ifconfig lan 10.7.0.1 up
for try in $(seq 100); do [ "$(cat /sys/class/net/lan/carrier)" = 1 ] && break; sleep 0.1; done
reached && echo reached
ready
echo "workers $(cat /proc/$(driver)/task/*/comm | grep -c '^vhost-')"
grep -E '^(Uid|CapEff|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '
echo
before=$(same); dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
sleep 1000 | there timeout 100 nc -l -p 11 >/tmp/arrived & sleep 1
for piece in $(seq 0 7); do dd if=/tmp/data bs=1M count=1 skip=$piece 2>/dev/null; sleep 1; done |
    timeout 90 nc 10.7.0.2 11 &
SENDER=$!
for kill in 1 2 3; do ready || break; kill -9 $(driver); sleep 2; done
wait $SENDER
sleep 2
cmp /tmp/data /tmp/arrived && echo 'it went out whole'
[ "$before" = "$(same)" ] && echo 'the same interface' || { echo "$before"; same; }
ready
echo "then workers $(cat /proc/$(driver)/task/*/comm | grep -c '^vhost-')"
grep -oE '"restarts": [^,]*' /tmp/status
old=$(driver)
kill -9 $(ring3d_now)
reached && echo 'reached without ring3d'
ready
[ $(driver) = $old ] && echo adopted
ifconfig lan down; kill $(ring3d_now); wait $HOLDER; ls -d /sys/class/net/lan 2>&1
"#;

static GUEST: Booted = Booted::new(
    guest,
    PRELUDE,
    &[
        ("started", STARTED),
        ("killed", KILLED),
        ("iperf3", IPERF3),
        ("stopped", STOPPED),
        ("survived", SURVIVED),
        ("ended", ENDED),
        ("vhost", VHOST),
    ],
);

fn guest(cache: &Cache) -> Result<Guest, Error> {
    ring3_lab::prepare(cache, &[Need::Network], &mut |_| {})?;
    let seconds = std::env::var("RING3_TEST_IPERF_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(20);
    let guest = Guest { time_limit: Duration::from_secs(900 + 4 * seconds), ..Guest::new("cards") };
    Ok(with_programs(guest)
        .network_programs(cache)
        .variable("SECONDS", &seconds.to_string())
        .device(hub(Device::new("here", "e1000e").bound("vfio-pci")))
        .device(hub(Device::new("there", "e1000e")))
        .module("e1000e")
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .module("tun")
        .module("vhost_net"))
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_confined_driver_without_a_descriptor_of_the_device_serves_an_interface() {
    GUEST.says(
        "started",
        &[
            "reached\n",
            "lan, 52:54:",
            "carrier",
            "CapEff: 0000000000000000",
            "Seccomp: 2",
            "\n0\nweight 10000\n",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn iperf3_in_both_directions_survives_a_kill_every_five_seconds() {
    GUEST.says("iperf3", &["iperf3 ended well after ", "receiver", "the same interface"]);
    assert!(!GUEST.said("iperf3").contains("after 0 kills"));
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_connection_survives_eight_kills_of_the_driver_and_the_interface_its_carrier_included() {
    GUEST.says("killed", &["it went out whole", "the same interface", "\"restarts\": 8"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_confined_driver_by_vhost_net_is_killed_under_load_and_the_interface_survives_it_and_ring3d() {
    GUEST.says(
        "vhost",
        &[
            "reached\n",
            "workers 1\n",
            "CapEff: 0000000000000000",
            "Seccomp: 2",
            "then workers 1",
            "\"restarts\": 3",
        ],
    );
    GUEST.says(
        "vhost",
        &[
            "it went out whole",
            "the same interface",
            "reached without ring3d",
            "adopted",
            "No such file",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_driver_that_leaves_packets_with_the_kernel_is_replaced_and_an_idle_one_lives() {
    GUEST.says(
        "stopped",
        &[
            "replaced",
            "taken for dead",
            "an idle driver lives",
            "is driven by the new program",
            "reached by the new program",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn an_interface_survives_ring3d_and_the_next_one_restarts_its_driver() {
    GUEST.says(
        "survived",
        &[
            "reached without ring3d",
            "adopted",
            "goes on with a new ring3d",
            "and recovered",
            "3908 bytes from 10.7.0.2",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn an_interface_that_is_up_is_in_use_and_one_that_is_down_is_taken() {
    GUEST.says("ended", &["lan is in use: it is up (ip link set lan down)", "used 1", "stopped 0"]);
    let ended = GUEST.said("ended");
    assert_eq!(ended.matches("No such file").count(), 2, "{ended}");
}
