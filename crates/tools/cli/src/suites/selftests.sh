# The kernel's own tests of network cards. A test of drivers has eth0, and its peer far0 in a
# network namespace; a test of forwarding has far0 and eth0, or far0, eth0, eth1 and far1, in this
# order.
begin_selftests() {
    mount -t tmpfs tmp /tmp && ip link set lo up && ip netns add far && ip -n far link set lo up
}
present() { [ -e /sys/class/net/eth0 ] && [ -e /sys/class/net/eth1 ]; }

run_selftests() {
    local folder=/suites/linux/tools/testing/selftests/${1%/*} file=${1##*/}
    cd $folder || return
    case $1 in
        net/forwarding/*)
            local cards='far0 eth0 eth1 far1'
            grep -q '^NUM_NETIFS=4' $file || cards='far0 eth0'
            limited env NETIF_CREATE=no KSFT_MACHINE_SLOW=yes bash ./$file $cards ;;
        *.py)
            peers 192.0.2 2001:db8:
            # csum.py reads an attribute that the library of 6.12 does not have.
            limited env NETIF=eth0 LOCAL_V4=192.0.2.1 REMOTE_V4=192.0.2.2 \
                LOCAL_V6=2001:db8::1 REMOTE_V6=2001:db8::2 REMOTE_TYPE=netns REMOTE_ARGS=far \
                python3 -c 'import runpy, sys
sys.path.insert(0, ".")
import lib.py
lib.py.NetDrvEpEnv.remote_ifname = "far0"
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")' $folder/$file ;;
        drivers/*) limited env NETIF_CREATE=no bash ./$file eth0 far0 ;;
        *) limited bash ./$file ;;
    esac
    local failed=$?
    as_before
    return $failed
}
# peers V4 V6: addresses of eth0, and of far0 in its network namespace.
peers() {
    ip link set far0 netns far
    ip addr add $1.1/24 dev eth0 && ip -6 addr add $2:1/64 dev eth0 nodad
    ip -n far addr add $1.2/24 dev far0 && ip -n far -6 addr add $2:2/64 dev far0 nodad
    ip link set eth0 up && ip -n far link set far0 up
    for try in $(seq 100); do
        ping -c 1 -W 1 $1.2 >/dev/null && ping -c 1 -W 1 $2:2 >/dev/null && return
    done
    echo "there is nobody at the other end of the wire"
}
# What a test has left: addresses, and interfaces upon the cards.
as_before() {
    local name
    cd /
    [ ! -e /run/netns/far ] || ip -n far link set far0 netns 1 2>/dev/null
    ip -br link | sed 's/[ @].*//' | grep -vE '^(lo|eth[01]|far[01])$' |
        while read -r name; do ip link del dev "$name" 2>/dev/null; done
    for name in eth0 eth1 far0 far1; do
        tc qdisc del dev $name clsact 2>/dev/null
        ip link set dev $name nomaster down
        ip addr flush dev $name
        ip link set dev $name mtu 1500
    done 2>/dev/null
}
