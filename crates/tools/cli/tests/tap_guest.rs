//! A card of a guest that ring3 drives through VFIO as an interface of the guest's kernel, and one
//! at the other end of its wire that the kernel drives.

mod booted;

use std::path::Path;
use std::time::Duration;

use booted::{Booted, hub};
use ring3_lab::{Cache, Device, Error, Guest};

/// Shell functions of every step. `serve OPTION...` starts ring3 on the card and returns when its
/// interface is there and up, 10.7.0.1; `there COMMAND...` is done where the other card is,
/// 10.7.0.2.
const PRELUDE: &str = r#"
serve() {
    : >/tmp/ready
    ring3 run net --device vfio:$HERE --name net0 --json "$@" >/tmp/ready 2>/tmp/log &
    PID=$!
    for try in $(seq 300); do
        grep -q interface /tmp/ready && break
        [ -d /proc/$PID ] || break
        sleep 0.1
    done
    cat /tmp/ready /tmp/log
    ifconfig net0 10.7.0.1 up
    for try in $(seq 100); do
        [ "$(cat /sys/class/net/net0/carrier)" = 1 ] && return
        sleep 0.1
    done
    return 1
}
# A stream each way. A listener would end when its own standard input does. A receiver that waits
# for bytes that do not come gives up, and the figures say how far it was.
streams() {
    dd if=/dev/urandom of=/tmp/data bs=1M count=12 2>/dev/null
    sleep 1000 | there timeout 150 nc -l -p 9 >/tmp/arrived & sleep 1
    timeout 120 nc 10.7.0.2 9 </tmp/data; sleep 1
    cmp /tmp/data /tmp/arrived && echo 'it went out whole'
    sleep 1000 | timeout 150 nc -l -p 9 >/tmp/arrived & sleep 1
    there timeout 120 nc 10.7.0.1 9 </tmp/data; sleep 1
    cmp /tmp/data /tmp/arrived && echo 'it came in whole'
}
there() { nsenter -t $(cat /tmp/other) -n "$@"; }
"#;

/// In one network namespace, the kernel would answer without a frame.
const OTHER: &str = r#"
card=$(basename /sys/bus/pci/devices/$THERE/net/*)
unshare -n sleep 100000 &
echo $! >/tmp/other
while [ "$(readlink /proc/$(cat /tmp/other)/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
    usleep 10000
done
ip link set dev "$card" netns $(cat /tmp/other)
there ip link set dev "$card" name there0
there ifconfig there0 10.7.0.2 up
"#;

const PING: &str = r#"
serve
for try in $(seq 10); do ping -c 3 -W 2 10.7.0.2 >/tmp/ping && break; done
cat /tmp/ping
kill $PID; wait $PID; echo "exit code $?"; ls /sys/class/net
"#;

const TCP: &str = r#"
serve --engine tap --stats /tmp/stats
streams
kill $PID; wait $PID; cat /tmp/stats
"#;

/// By the kernel's worker, and killed while a stream goes out.
const VHOST: &str = r#"
serve --engine vhost --stats /tmp/stats
for try in $(seq 10); do ping -c 3 -W 2 10.7.0.2 >/tmp/ping && break; done; cat /tmp/ping
streams
kill -USR1 $PID; sleep 1; cat /tmp/stats; echo 'that was under load'
sleep 1000 | there timeout 60 nc -l -p 9 >/dev/null & sleep 1
timeout 30 nc 10.7.0.2 9 </dev/zero & sleep 2
kill -9 $PID; wait $PID; ls /sys/class/net
serve --engine vhost && ping -c 1 -W 2 10.7.0.2 >/dev/null
ping -c 1 -W 4 10.7.0.2 >/tmp/again
cat /tmp/again
kill $PID; wait $PID; echo "exit code $?"
"#;

/// How often threads have slept, and fields 14 and 15 of stat, the process's time in hundredths of
/// a second.
const IDLE: &str = r#"
sleeps() {
    cat /proc/$PID/task/*/status | sed -n 's/^voluntary_ctxt_switches:\s*//p' |
        { sum=0; while read -r count; do sum=$((sum + count)); done; echo $sum; }
}
time_used() { cut -d' ' -f14,15 /proc/$PID/stat; }
serve; ping -c 1 -W 2 10.7.0.2 >/dev/null; sleep 3
before=$(sleeps); from=$(time_used); sleep 10; after=$(sleeps); to=$(time_used)
set -- $from $to; echo "used $(($3 + $4 - $1 - $2)) hundredths of a second in ten"
echo "slept $((after - before)) times in ten seconds"
kill $PID; wait $PID
"#;

/// Tags are in the bytes on the way out, and taken out by the card on the way in.
const VLAN: &str = r#"
serve
ip link add link net0 name net0.7 type vlan id 7 && ifconfig net0.7 10.8.0.1 up
there ip link add link there0 name there0.7 type vlan id 7 && there ifconfig there0.7 10.8.0.2 up
for try in $(seq 10); do ping -c 3 -W 2 10.8.0.2 >/tmp/ping && break; done
cat /tmp/ping
kill $PID; wait $PID
"#;

const LINK: &str = r#"
serve
there ifconfig there0 mtu 4000; ifconfig net0 mtu 4000
for try in $(seq 20); do ping -c 1 -W 2 -s 3900 10.7.0.2 >/tmp/ping && break; done; cat /tmp/ping
kill -9 $PID; wait $PID; ls /sys/class/net
serve && ping -c 1 -W 2 10.7.0.2 >/dev/null
ping -c 1 -W 4 10.7.0.2 >/tmp/again
cat /tmp/again
kill $PID
wait $PID
"#;

static GUEST: Booted = Booted::new(
    guest,
    PRELUDE,
    &[
        ("other", OTHER),
        ("ping", PING),
        ("tcp", TCP),
        ("vlan", VLAN),
        ("idle", IDLE),
        ("killed", LINK),
        ("vhost", VHOST),
    ],
);

fn guest(_: &Cache) -> Result<Guest, Error> {
    Ok(Guest { time_limit: Duration::from_secs(900), ..Guest::new("tap") }
        .program(Path::new(env!("CARGO_BIN_EXE_ring3")))
        .device(hub(Device::new("here", "e1000e").bound("vfio-pci")))
        .device(hub(Device::new("there", "e1000e")))
        .module("e1000e")
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .module("8021q")
        .module("tun")
        .module("vhost_net"))
}

/// The figures of `--stats` at the end of what was said.
fn report(said: &str) -> serde_json::Value {
    serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_ping_goes_to_a_card_that_the_kernel_drives_and_back() {
    GUEST.says("ping", &["\"model\":\"82574L\"", "3 packets received", "exit code 0"]);
    let after = GUEST.said_after("ping", "exit code 0");
    assert!(!after.contains("net0"), "{after}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn streams_arrive_whole_both_ways_cut_by_the_card_and_put_together_by_the_driver() {
    GUEST.says("tcp", &["it went out whole", "it came in whole"]);
    let report = report(GUEST.said_after("tcp", "it came in whole"));
    let (packets, bytes) =
        (report["tx_packets"].as_u64().unwrap(), report["tx_bytes"].as_u64().unwrap());
    assert!(bytes > 12 << 20 && bytes / packets > 2000, "{report}");
    let (received, joined) =
        (report["rx_packets"].as_u64().unwrap(), report["rx_joined"].as_u64().unwrap());
    assert!(received > (12 << 20) / 1460 && joined * 2 > received, "{report}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn an_interface_that_nobody_uses_wakes_its_driver_a_few_times_a_second() {
    let idle = GUEST.said("idle");
    let number = |word: &str| {
        idle.split_once(word).and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok())
    };
    assert!(number("slept ").is_some_and(|slept| slept <= 80), "{idle}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_tag_that_the_card_has_taken_out_is_seen_by_the_kernel() {
    GUEST.says("vlan", &["3 packets received"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn after_a_kill_the_interface_is_gone_and_the_card_is_driven_again() {
    GUEST.says("killed", &["3908 bytes from 10.7.0.2", "1 packets received"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn vhost_net_moves_the_same_packets_and_a_kill_under_it_leaves_nothing_behind() {
    GUEST.says(
        "vhost",
        &[
            "3 packets received",
            "it went out whole",
            "it came in whole",
            "1 packets received",
            "exit code 0",
        ],
    );
    let (figures, after) =
        GUEST.said_after("vhost", "it came in whole").split_once("that was under load").unwrap();
    let report = report(figures);
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((number("vhost_queues"), number("switches")), (1, 1), "{report}");
    assert!(
        number("rx_joined") > 0 && number("tx_bytes") / number("tx_packets") > 2000,
        "{report}"
    );
    assert_eq!((number("rx_dropped"), number("tx_dropped")), (0, 0), "{report}");
    let (left, _) = after.split_once("interface").unwrap();
    assert!(!left.contains("net0"), "{left}");
}
