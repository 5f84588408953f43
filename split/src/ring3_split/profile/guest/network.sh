# A network card and its peer, which hang on one wire: $CARD and $PEER are their PCI addresses. The
# peer lives in a network namespace of its own, so that nothing goes by the loopback.
HERE=10.7.0.1 THERE=10.7.0.2

# interface ADDRESS: its name, once it is there.
interface() {
    for try in $(seq 250); do
        for path in /sys/bus/pci/devices/$1/net/* /sys/bus/pci/devices/$1/virtio*/net/*; do
            [ ! -e "$path" ] || { echo "${path##*/}"; return; }
        done
        usleep 20000
    done
    echo "no network interface at $1" >&2
    return 1
}

there() { nsenter -t "$(cat /tmp/peer)" -n "$@"; }

prepare() {
    name=$(interface "$PEER") || return
    unshare -n sleep 10000 &
    echo $! >/tmp/peer
    # The child is in its namespace once sleep runs.
    while [ "$(readlink /proc/$!/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do usleep 10000; done
    ip link set dev "$name" netns $! || return
    there ip addr add $THERE/24 dev "$name"
    there ip link set dev lo up
    there ip link set dev "$name" up
    there net serve &
}

up() {
    name=$(interface "$CARD") || return
    ip addr add $HERE/24 dev "$name" 2>/dev/null
    ip link set dev "$name" up || return
    for try in $(seq 500); do
        [ "$(cat "/sys/class/net/$name/carrier" 2>/dev/null)" != 1 ] || break
        usleep 20000
    done
    # The card may need a moment after its link is up.
    for try in $(seq 10); do
        ! ping -c 1 -W 1 $THERE >/dev/null || { echo "$name is up"; return; }
    done
    echo "$THERE does not answer"
    ip addr; dmesg | tail -n 5
    return 1
}

traffic() {
    ping -c 5 -i 0.1 -s 56 $THERE && ping -c 3 -i 0.1 -s 1400 $THERE &&
        ping -c 3 -i 0.1 -s 4000 $THERE && 
        net echo $THERE 200 64 && net echo $THERE 100 1400 &&
        net send $THERE "$SECONDS_EACH" && net receive $THERE "$SECONDS_EACH" "$WINDOW"
}

control() {
    name=$(interface "$CARD") || return
    grep "$name" /proc/net/dev
    net control "$name"
    for words in promisc -promisc allmulti -allmulti "mtu 1400" "mtu 1500"; do
        ifconfig "$name" $words || echo "$words is not supported"
    done
    ip link add link "$name" name wire.5 type vlan id 5 && ip link set dev wire.5 up &&
        ip link del dev wire.5
    ip link set dev "$name" down
    address=$(cat "/sys/class/net/$name/address")
    ip link set dev "$name" address 52:54:00:12:34:99 && ip link set dev "$name" up &&
        ip link set dev "$name" down && 
        ip link set dev "$name" address "$address" || echo "no other address"
    ip link set dev "$name" mtu 4000 && ip link set dev "$name" mtu 1500
    up
}

down() { ip link set dev "$(interface "$CARD")" down; }
