# Beside split.sh and network.sh: a driver as the distribution has it, and split, under the same load. $ORIGINAL is the distribution's module.

# Hundredths of a second in which the processor had nothing to do.
idle() { awk '/^cpu /{ print $5 + $6 }' /proc/stat; }
packets() { cat "/sys/class/net/$name/statistics/tx_packets" "/sys/class/net/$name/statistics/rx_packets" | awk '{ sum += $1 } END { print sum }'; }

# once PLACEMENT LOAD: a line `measured PLACEMENT LOAD BYTES SECONDS IDLE PACKETS`.
once() {
    before="$(idle) $(packets)"
    case $2 in
        out) told=$(net send $THERE "$SECONDS_EACH") ;;
        in) told=$(net receive $THERE "$SECONDS_EACH" "$WINDOW") ;;
    esac || return
    after="$(idle) $(packets)"
    echo "measured $1 $2 $(echo "$told" | awk '{ print $2 * 1e6, $5 }') $before $after"
}

loads() {
    name=$(interface "$CARD")
    once "$1" out && once "$1" in
}

original() {
    insmod "$ORIGINAL" && up && loads original && rmmod "$(echo "$DRIVER" | tr - _)"
}

# Until the file goes: the user half lives for two seconds, is killed, and is there again.
mortal() {
    while [ -e /tmp/mortal ]; do
        usleep 2000000
        split_kill && split_restart || { echo "no user half comes back"; return 1; }
    done >/tmp/deaths
}

killed() {
    : >/tmp/mortal
    mortal &
    killer=$!
    loads killed || return
    rm /tmp/mortal
    wait $killer || { cat /tmp/deaths; return 1; }
    echo "it died $(grep -c 'is dead' /tmp/deaths) times"
}

split() {
    split_load && up && loads split && killed && split_kill && loads dead && split_restart && split_unload
}
