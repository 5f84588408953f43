//! Three network cards at one hub: the kernel's, ring3's, and the one that both talk to.

use std::time::Duration;

use ring3_lab::{Device, Guest};

/// Ten times what it takes on an idle machine.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Functions for all steps. The driver goes on running from step to step.
const PRELUDE: &str = r#"set -e
# The shell prefers a busybox of its own, which has no namespaces.
ip() { /usr/local/bin/ip "$@"; }
# Where each card is: of two in one network namespace, the kernel would answer without a frame.
kernel() { ip netns exec kernel "$@"; }
ring3s() { "$@"; }
peer() { ip netns exec peer "$@"; }
# place NAMESPACE PCI-ADDRESS ADDRESS: gives a card of the kernel's a namespace and an address.
place() {
    ip netns add $1
    ip link set "$(basename /sys/bus/pci/devices/$2/net/*)" netns $1 name $1
    ip -n $1 address add $3/24 dev $1
    ip -n $1 link set $1 up
}
# for_both COMMAND...: what it prints through the kernel's card, and what it prints through ring3's.
for_both() { kernel "$@"; ring3s "$@"; }
"#;

/// Names and scripts.
const STEPS: [(&str, &str); 4] = [
    (
        "ring3 makes one card an interface; the kernel drives the two others",
        r#"
place kernel $KERNEL 10.7.0.1
place peer $PEER 10.7.0.3
ring3 run net --device vfio:$RING3 --name net0 --stats /tmp/stats & echo $! >/tmp/driver
for try in $(seq 300); do [ -e /sys/class/net/net0 ] && break; sleep 0.05; done
ip address add 10.7.0.2/24 dev net0
ip link set net0 up
for try in $(seq 200); do
    ip -n kernel -br link show kernel | grep -q LOWER_UP &&
        ip -br link show net0 | grep -q LOWER_UP && break
    sleep 0.05
done
ip -n kernel -br address show kernel
ip -br address show net0
"#,
    ),
    (
        "ping",
        r#"
trip() {
    "$1" ping -c 20 -i 0.1 -W 2 10.7.0.3 >/tmp/ping
    tail -n 1 /tmp/ping | cut -d/ -f4 >/tmp/trip.$1
    tail -n 2 /tmp/ping | head -n 1
}
trip kernel
trip ring3s
"#,
    ),
    (
        "iperf3 and curl, three turns each",
        r#"
dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
peer iperf3 --server --daemon
peer httpd -h /tmp
sum=$(sha256sum </tmp/data)
mbits() {
    "$1" iperf3 --client 10.7.0.3 --time 2 --format m $2 |
        awk '/receiver/ { print $7 }' >>/tmp/$3.$1
}
page() {
    [ "$("$1" curl -sS http://10.7.0.3/data | sha256sum)" = "$sum" ] &&
        "$1" curl -sS -o /dev/null -w '%{speed_download}\n' http://10.7.0.3/data >>/tmp/page.$1
}
for turn in 1 2 3; do
    for who in kernel ring3s; do mbits $who "" out; mbits $who --reverse in; page $who; done
done
middle() { sort -n /tmp/$1.$2 | sed -n 2p; }
row() {
    awk -v what="$1" -v kernel="$2" -v ring3="$3" -v form="$4" \
        'BEGIN { printf "%-28s " form " " form "  %.2f x\n", what, kernel, ring3, ring3 / kernel }'
}
printf '%-28s %9s %9s\n' "medians" kernel ring3
row "ping, ms" $(cat /tmp/trip.kernel) $(cat /tmp/trip.ring3s) %9.2f
row "iperf3 out, Mbit/s" $(middle out kernel) $(middle out ring3s) %9.0f
row "iperf3 in, Mbit/s" $(middle in kernel) $(middle in ring3s) %9.0f
row "curl, MiB/s" $(middle page kernel | awk '{ print $1 / 1048576 }') \
    $(middle page ring3s | awk '{ print $1 / 1048576 }') %9.1f
echo "each page came with its checksum"
"#,
    ),
    (
        "ring3 is told to stop, and gives the card back",
        r#"
kill $(cat /tmp/driver)
for try in $(seq 200); do [ -d /proc/$(cat /tmp/driver) ] || break; sleep 0.05; done
[ ! -e /sys/class/net/net0 ]
sed -n 's/^ *"\([rt]x_\(packets\|bytes\|dropped\)\)": \([0-9]*\),*/\1 \3/p' /tmp/stats
"#,
    ),
];

/// The guest with its cards and steps.
pub fn guest(guest: Guest, kernel: &str) -> Guest {
    let card = |id: &str| Device { netdev: Some("hub".into()), ..Device::new(id, "e1000e") };
    let mut guest =
        guest.device(card("kernel")).device(card("ring3").bound("vfio-pci")).device(card("peer"));
    guest.kernel = kernel.into();
    guest.modules = ["e1000e", "vfio_iommu_type1", "tun", "vhost_net"].map(Into::into).to_vec();
    guest.time_limit = TIME_LIMIT;
    STEPS
        .iter()
        .fold(guest, |guest, (name, script)| guest.step(name, &format!("{PRELUDE}{script}")))
}
