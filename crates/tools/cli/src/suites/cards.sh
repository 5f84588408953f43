# The cards under test: interfaces eth0 and eth1, of the cards at $NEAR0 and $NEAR1. The wire of
# each ends at a card that the kernel drives, far0 and far1.

SUPERVISED='near0 near1'
# interface ADDRESS NAME: gives that name to the interface of the card at that address.
interface() {
    for try in $(seq 200); do
        card=$(basename /sys/bus/pci/devices/$1/net/* 2>/dev/null)
        [ -e "/sys/class/net/$card" ] && ip link set dev "$card" name $2 && return
        sleep 0.05
    done
    echo "the card at $1 has no interface"; return 1
}
interfaces_found() {
    for try in $(seq 1200); do
        [ -e /sys/class/net/eth0 ] && [ -e /sys/class/net/eth1 ] && return
        sleep 0.05
    done
    echo "there are no interfaces eth0 and eth1"; return 1
}
far() { interface $FAR0 far0 && interface $FAR1 far1; }
# Names of the kernel's are in the way of those that are wanted.
on_kernel() {
    far && interface $NEAR0 near0 && interface $NEAR1 near1 &&
        interface $NEAR0 eth0 && interface $NEAR1 eth1
}
exported() {
    far || return
    for card in 0 1; do
        [ $card = 0 ] && address=$NEAR0 || address=$NEAR1
        ring3 run net --device vfio:$address --name eth$card >/run/ready$card 2>&1 &
    done
    interfaces_found || { cat /run/ready0 /run/ready1; return 1; }
}
supervised() {
    far || return
    mkdir -p /etc/ring3
    for card in 0 1; do
        [ $card = 0 ] && address=$NEAR0 || address=$NEAR1
        {
            printf '[device.near%s]\nmatch = { address = "%s" }\n' $card $address
            printf '[device.near%s.export]\nkind = "tap"\ninterface = "eth%s"\n' $card $card
            printf '[device.near%s.restart]\n%b\n' $card "$TERMS"
        } >/etc/ring3/near$card.toml
    done
    ring3d >/tmp/ring3d.log 2>&1 &
    interfaces_found || { cat /tmp/ring3d.log; return 1; }
}
