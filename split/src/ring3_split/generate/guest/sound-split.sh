# A split sound card, after split.sh and sound.sh.

works() {
    number=$(card) || return
    cat /proc/asound/cards
    play && sound mixer "/dev/snd/controlC$number" && for file in $(find "/proc/asound/card$number/" -type f -name 'a*'); do cat "$file"; done
}

# Playing goes on without a user half, and the mixer, which lives there, fails and does not hang.
alone() {
    number=$(card)
    if sound mixer "/dev/snd/controlC$number" >/tmp/mixer 2>&1 && ! grep -q 'Input/output error' /tmp/mixer; then
        echo "the mixer works without its half?"
        cat /tmp/mixer
        return 1
    fi
    echo "the mixer fails without its half"
    sound play "/dev/snd/pcmC${number}D0p" "$SECONDS_EACH"
}

# One stream plays while the user half is killed.
during() {
    sound play "/dev/snd/pcmC$(card)D0p" 3 >/tmp/playing 2>&1 &
    playing=$!
    usleep 1000000
    split_kill
    wait $playing || { cat /tmp/playing; return 1; }
    cat /tmp/playing
    echo "it went on playing"
}
