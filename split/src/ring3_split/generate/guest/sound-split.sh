# A split sound card, after split.sh and sound.sh. Its mixer is in the user half, its interrupts and
# transfers in the kernel.

works() {
    number=$(card) || return
    before=$(failures)
    cat /proc/asound/cards
    sound play "/dev/snd/pcmC${number}D0p" "$SECONDS_EACH" &&
        sound mixer "/dev/snd/controlC$number" || return
    for file in $(find "/proc/asound/card$number/" -type f -name 'a*'); do cat "$file"; done
    [ "$(failures)" = "$before" ]
}

# A stream plays and the mixer waits for the user half, which hangs and is then killed.
during() {
    number=$(card)
    before=$(failures)
    sound play "/dev/snd/pcmC${number}D0p" 2 >/tmp/playing 2>&1 &
    playing=$!
    usleep 500000
    kill -STOP "$(cat /tmp/user-half.pid)"
    echo 10 >/sys/module/ring3_split/parameters/grace_ms
    sound mixer "/dev/snd/controlC$number" >/tmp/mixer 2>&1 &
    mixer=$!
    usleep 500000
    split_kill
    wait $mixer
    [ "$(failures)" -gt "$before" ] || { echo "no call of the mixer failed"; return 1; }
    echo "the mixer's calls failed and it ended"
    wait $playing || { cat /tmp/playing; return 1; }
    cat /tmp/playing
    echo "it went on playing"
}

alone() {
    number=$(card)
    before=$(failures)
    sound mixer "/dev/snd/controlC$number" >/dev/null 2>&1
    [ "$(failures)" -gt "$before" ] || { echo "the mixer works without its half?"; return 1; }
    echo "the mixer fails without its half"
    sound play "/dev/snd/pcmC${number}D0p" "$SECONDS_EACH" || return
    echo "it plays without its user half"
}

lies() { fuzzed sound mixer "/dev/snd/controlC$(card)"; }

# Who knows types has also probed: what it has left in the driver's structs goes with the module.
honest() { if [ "$UPCALLS" = 0 ]; then split_restart; else split_reload; fi; }

# Before, an honest one works behind the one whose messages were wrong: it needs no new module.
knows() {
    split_restart && works >/dev/null && split_kill || return
    echo "it worked without a new module"
    lied_to sound mixer "/dev/snd/controlC$(card)"
}
