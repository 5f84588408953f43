# What pcnet32 is put to: all but a change of its ring sizes. The driver gives rings back with interrupts off then (pcnet32_set_ringparam),
# of which the kernel warns.
controls() {
    for part in dumps levels settings phy group blink test; do
        net control "$1" "$part" || return
    done
}
