# A split network card, after split.sh and network.sh. What `ethtool` asks is in the user half,
# interrupts and packets in the kernel.

# controls INTERFACE: all that `ethtool` asks and sets.
controls() { net control "$1"; }

works() {
    before=$(failures)
    up || { cat /tmp/user-half.log; return 1; }
    name=$(interface "$CARD")
    ping -c 3 -i 0.2 -s 1400 $THERE && net send $THERE "$SECONDS_EACH" &&
        net receive $THERE "$SECONDS_EACH" "$WINDOW" || return
    controls "$name" || return
    [ "$(failures)" = "$before" ] ||
        { echo "upcalls failed"; cat /tmp/user-half.log; dmesg | tail -n 5; return 1; }
}

# Packets go on while the user half is killed.
during() {
    ping -c 30 -i 0.1 $THERE >/tmp/pings &
    pings=$!
    usleep 1000000
    split_kill
    echo 10 >/sys/module/ring3_split/parameters/grace_ms
    wait $pings
    tail -n 2 /tmp/pings
    grep -q ' 0% packet loss' /tmp/pings || return
    echo "no packet was lost"
}

alone() {
    name=$(interface "$CARD")
    before=$(failures)
    controls "$name" >/dev/null 2>&1
    [ "$(failures)" -gt "$before" ] || { echo "ethtool works without the user half?"; return 1; }
    echo "ethtool fails without the user half"
    ping -c 3 -i 0.2 $THERE && net send $THERE "$SECONDS_EACH" &&
        net receive $THERE "$SECONDS_EACH" "$WINDOW" || return
    echo "packets go without the user half"
}

resets() {
    for words in "mtu 1400" "mtu 1500" down up; do
        ip link set dev "$(interface "$CARD")" $words
    done
}

# At some place of a reset, of closing, opening or probing the user half dies, and the next one has
# a card that works.
often() {
    for after in $(seq 20 35 500); do dies "$after" resets || return; done
    up || { cat /tmp/user-half.log; dmesg | tail -n 20; return 1; }
    echo "the card works after all resets"
    dies_in_probes || return
    up || { cat /tmp/user-half.log; dmesg | tail -n 20; return 1; }
    echo "the card works after all probes"
    deaths
}

lies() { fuzzed controls "$(interface "$CARD")"; }

knows() { lied_to controls "$(interface "$CARD")"; }

# A card and its structs may be in any state after the lies: they can break the device, and a reload
# must mend it.
honest() { split_reload; }
