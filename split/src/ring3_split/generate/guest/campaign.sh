# Faults into a user half that works, after split.sh, network.sh and network-split.sh: those of
# /lib/ring3/faults, a line for each.

parameter() { echo "/sys/module/ring3_split/parameters/$1"; }
milliseconds() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }

campaign_begins() {
    prepare && split_load && up || return
    # A report while the driver was loaded counts, too.
    kernel_said
}

# Both ways, and small packets, while faults are injected; not so many that nothing else can run.
traffic_goes() {
    while [ -e /tmp/traffic ]; do
        net send $THERE 0.2
        net receive $THERE 0.2 "$WINDOW"
        ping -c 5 -i 0.1 -W 1 $THERE
        usleep 300000
    done >/dev/null 2>&1
}

# act WHAT: one thing that the user half is asked for.
act() {
    name=$(interface "$CARD")
    case $1 in
        probe) unbound && bound ;;
        mtu) ip link set dev "$name" mtu 1400; ip link set dev "$name" mtu 1500 ;;
        open) ip link set dev "$name" down; ip link set dev "$name" up ;;
        watchdog) usleep 2500000 ;;
        *) net control "$name" "$1" ;;
    esac
}

# The card is bound and up, the other end answers, and so does the user half.
works_again() {
    bound
    up || return
    net control "$(interface "$CARD")" answers >/tmp/answers
    grep -qx driver /tmp/answers && grep -qx statistics /tmp/answers ||
        { cat /tmp/answers; return 1; }
}

# What the kernel has said since the last time. A complaint of its own is a line `complaint ...`.
kernel_said() {
    dmesg -c >/tmp/said
    cat /tmp/said >>/tmp/kernel.log
    complaints </tmp/said | sed 's/^/complaint /' >/tmp/complaints
    cat /tmp/complaints
    # Whose code it was is in the lines around.
    [ ! -s /tmp/complaints ] || cat /tmp/said
}

# fault NUMBER KIND ENTRY SEED:
# `fault NUMBER KIND ENTRY PLACE UPCALL DIED FAILED REFUSED STATE MILLISECONDS`. STATE is `back`,
# `reloaded` if only the module loaded anew made the card work, and `lost`.
fault() {
    process=$(cat /tmp/user-half.pid)
    before=$(failures)
    state=back died=0
    case $2 in
        # Who waits for one that hangs need not wait as long as an entry may.
        loop | stop) echo 1500 >"$(parameter deadline_ms)" ;;
    esac
    inject "$process" "$2" "$4" 2500 >/tmp/injected 2>&1 &
    injector=$!
    for try in $(seq 100); do
        ! grep -q traced /tmp/injected || break
        usleep 10000
    done
    act "$3" >/tmp/acted 2>&1 &
    acting=$!
    wait $injector
    place=$(awk '/^injected/ { print $3, $4 }' /tmp/injected)
    # Until it is known what came of it.
    for try in $(seq 60); do
        ! dead "$process" || { died=1; break; }
        [ "$(failures)" = "$before" ] && kill -0 $acting 2>/dev/null || break
        usleep 50000
    done
    begin=$(milliseconds)
    # An upcall may have failed because it dies, a moment before it is dead.
    for try in $(seq 10); do
        ! dead "$process" || { died=1; break; }
        usleep 20000
    done
    [ $died = 1 ] || { begin=$(milliseconds); split_kill >/dev/null; }
    split_restart >/dev/null || state=lost
    wait $acting
    echo 0 >"$(parameter deadline_ms)"
    if ! works_again >/tmp/again 2>&1; then
        cat /tmp/again /tmp/injected
        tail -n 20 /tmp/user-half.log
        state=lost
        dmesg | grep -v 'TDH\|TDT\|next_to\|time_stamp\|jiffies\|buffer_info\|Tx Queue' | tail -n 40
        grep . /sys/class/net/eth*/queues/tx-0/tx_timeout /sys/class/net/eth*/carrier_changes
        split_kill
        ! { split_reload && works_again; } || state=reloaded
    fi
    end=$(milliseconds)
    kernel_said
    echo "fault $1 $2 $3 ${place:-none -1} $died $(($(failures) - before))" \
        "$(grep -c ' is refused' /tmp/said) $state $((end - begin))"
}

# All faults of the list, one behind the other.
faults() {
    : >/tmp/traffic
    traffic_goes &
    traffic=$!
    while read -r number kind entry seed <&3; do
        fault "$number" "$kind" "$entry" "$seed"
    done 3</lib/ring3/faults
    rm /tmp/traffic
    wait $traffic
}

# What may be in any state works again, by a module that is loaded anew.
mended() {
    split_reload && works_again ||
        { echo "it does not work any more"; kernel_said; cat /tmp/user-half.log | tail; return 1; }
    kernel_said
}

# What a user half that lies is asked for, and what the kernel does by itself with what it answers.
asked() {
    for part in dumps parameters settings phy; do net control "$(interface "$CARD")" $part; done
    resets
}

lying() {
    split_kill && fuzzed asked && mended
}

# Others use the device while an honest user half serves, dies and comes back.
strangers() {
    ioctls "$(echo "$DRIVER" | tr - _)" "$LAYOUT" "$SEED" "$STRANGERS" >/tmp/strangers 2>&1 &
    stranger=$!
    while ! dead $stranger; do asked; done >/dev/null 2>&1 &
    asking=$!
    while ! dead $stranger; do
        usleep 300000
        split_kill
        # A moment in which another one can take its place.
        usleep 200000
        user_half
    done >/dev/null 2>&1
    wait $asking
    wait $stranger || { cat /tmp/strangers; return 1; }
    cat /tmp/strangers
    # One that attached may have answered anything.
    split_kill
    ! { split_restart && works_again; } || { kernel_said; return; }
    split_kill
    mended
}

megabits() { awk '{ print $2 * 8 / $5 }' "$1"; }

# TCP both ways at once for $ENDURED seconds: a line `endured SECONDS SENT RECEIVED DEATHS`, in
# Mbit/s.
endures() {
    dies_often || return
    net receive $THERE "$ENDURED" "$WINDOW" >/tmp/received 2>&1 &
    receiver=$!
    net send $THERE "$ENDURED" >/tmp/sent 2>&1 && wait $receiver ||
        { cat /tmp/sent /tmp/received; kernel_said; return 1; }
    dies_no_more || { cat /tmp/deaths; tail -n 5 /tmp/user-half.log; return 1; }
    works_again || return
    kernel_said
    echo "endured $ENDURED $(megabits /tmp/sent) $(megabits /tmp/received) $deaths"
}

campaign_ends() {
    kernel_said
    echo "atomic $(cat "$(parameter atomic)")"
    split_unload || return
    leaks >/tmp/leaks
    complaints </tmp/leaks | sed 's/^/complaint /'
    cat /tmp/leaks
    lockdep_is_on || echo "complaint lockdep has switched itself off"
    kernel_said
}
