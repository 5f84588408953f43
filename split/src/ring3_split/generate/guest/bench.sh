# Beside split.sh and network.sh: a driver as the distribution has it, and split, under the same
# load. $ORIGINAL is the distribution's module.
RUNTIME=/sys/module/ring3_split/parameters
RESTARTS=20
PACE=50 # Mbit/s, at which the processor has time left

# Hundredths of a second in which the processor had nothing to do.
idle() { awk '/^cpu /{ print $5 + $6 }' /proc/stat; }
packets() {
    cat "/sys/class/net/$name/statistics/tx_packets" "/sys/class/net/$name/statistics/rx_packets" |
        sum
}
sum() { awk '{ sum += $1 } END { print sum + 0 }'; }
crossed() { cat $RUNTIME/upcalls $RUNTIME/calls 2>/dev/null | sum; }
driver_module() { echo "$DRIVER" | tr - _; }

# once PLACEMENT LOAD: a line `measured PLACEMENT LOAD BYTES SECONDS` and, before and after,
# `IDLE PACKETS CROSSINGS`.
once() {
    before="$(idle) $(packets) $(crossed)"
    case $2 in
        out) told=$(net send $THERE "$SECONDS_EACH") ;;
        in) told=$(net receive $THERE "$SECONDS_EACH" "$WINDOW") ;;
        paced) told=$(bench pace $THERE "$SECONDS_EACH" $PACE) ;;
    esac || return
    after="$(idle) $(packets) $(crossed)"
    echo "measured $1 $2 $(echo "$told" | awk '{ print $2 * 1e6, $5 }') $before $after"
}

# loads PLACEMENT LOAD...
loads() {
    placement=$1
    shift
    name=$(interface "$CARD")
    for load; do once "$placement" "$load" || return; done
}

original() {
    insmod "$ORIGINAL" && up && loads original out in && rmmod "$(driver_module)"
}

# The user half is killed every two seconds, and another one begins, until it dies no more; `deaths`
# is how often it did.
dies_often() {
    count=$(grep -c ' attached' /tmp/user-half.log)
    split_kill >/dev/null || return
    : >/tmp/mortal
    bench mortal /tmp/mortal "split-$DRIVER" 30 >/tmp/deaths 2>>/tmp/user-half.log &
    killer=$!
    # As long as that lives, the next one is waited for.
    echo $killer >/tmp/user-half.pid
    attached $((count + 1))
}

dies_no_more() {
    rm /tmp/mortal
    wait $killer && read -r process deaths </tmp/deaths || return
    echo "$process" >/tmp/user-half.pid
    attached $((count + 1 + deaths))
}

killed() {
    dies_often && loads killed out in && dies_no_more && echo "it died $deaths times"
}

split() {
    split_load && up && loads split out in && killed && split_kill && loads dead out in &&
        split_restart && split_unload
}

# process PLACEMENT OPTION...: a process drives the card behind the IOMMU, and its interface is a
# TAP.
process() (
    placement=$1
    shift
    interface() { echo wire0; }
    ring3 bind "$CARD" >/dev/null || exit
    ring3 run net --device "vfio:$CARD" --name wire0 "$@" >/tmp/process 2>&1 &
    process=$!
    for try in $(seq 500); do [ ! -e /sys/class/net/wire0 ] || break; usleep 20000; done
    up && loads "$placement" out in || { cat /tmp/process; exit 1; }
    kill $process
    wait $process && ring3 unbind "$CARD" >/dev/null
)

native() { process native; }
hosted() { process hosted --driver "dde:$DRIVER"; }

undelayed() {
    insmod "$ORIGINAL" && up && loads undelayed out in paced && rmmod "$(driver_module)"
}

# delayed MICROSECONDS...: only what crosses while the card works is delayed, not its start and its
# end.
delayed() {
    split_load && up || return
    for delay; do
        echo "$delay" >$RUNTIME/delay_us
        loads "delay-$delay" out in paced || return
    done
    echo 0 >$RUNTIME/delay_us
    split_unload
}

# asked COUNT PLACEMENT: lines `took PLACEMENT WHAT NANOSECONDS`, of insmod until the netdev is
# there, and of what `ethtool` asks.
asked() {
    if [ "$2" = split ]; then
        : >/tmp/user-half.log
        insmod /lib/ring3/ring3_split.ko && user_half || return
        module=/lib/ring3/$DRIVER.ko
    else
        module=$ORIGINAL
    fi
    took=$(bench time insmod "$module") && [ -e "/sys/bus/pci/devices/$CARD/net" ] ||
        { dmesg | tail -n 5; return 1; }
    echo "took $2 init $took"
    up || return
    bench ethtool "$(interface "$CARD")" "$1" >/tmp/answers || return
    while read -r what ns; do echo "took $2 $what $ns"; done </tmp/answers
    if [ "$2" = split ]; then split_unload; else rmmod "$(driver_module)"; fi
}

# crossings COUNT USER_HALF: lines `cost USER_HALF WHAT NANOSECONDS COUNT`, by a driver that does
# nothing. getppid, the measure, is none of the calls that a confined one may make.
crossings() {
    : >/tmp/user-half.log
    insmod /lib/ring3/ring3_split.ko && insmod /lib/ring3/split_empty.ko || return
    case $2 in
        confined) option= kinds= ;;
        unconfined) option=--unconfined kinds=getppid ;;
    esac
    split-empty 30 $option >>/tmp/user-half.log 2>&1 &
    echo $! >/tmp/user-half.pid
    attached 1 || return
    for what in upcall call register mapped $kinds; do
        echo "$1" >"/sys/module/split_empty/parameters/$what" ||
            { cat /tmp/user-half.log; dmesg | tail -n 5; return 1; }
        echo "cost $2 $what $(cat "/sys/module/split_empty/parameters/$what") $1"
    done
    split_kill >/dev/null || return
    took=$(bench restart /sys/module/split_empty/parameters/upcall $RESTARTS \
        split-empty 30 $option 2>>/tmp/user-half.log) ||
        { cat /tmp/user-half.log; return 1; }
    echo "cost $2 restart $took $RESTARTS"
    rmmod split_empty && runtime_unload
}
