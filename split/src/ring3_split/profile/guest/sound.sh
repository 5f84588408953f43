# A sound card at the PCI address $CARD. What it plays goes nowhere, what it records is silence.

card() {
    for try in $(seq 250); do
        for path in /sys/bus/pci/devices/$CARD/sound/card*; do
            [ ! -e "$path" ] || { echo "${path##*card}"; return; }
        done
        usleep 20000
    done
    echo "no sound card at $CARD" >&2
    return 1
}

prepare() { :; }

up() {
    number=$(card) || return
    cat /proc/asound/cards
    ls /dev/snd
}

play() {
    for device in /dev/snd/pcmC$(card)D*p; do
        echo "${device##*/}"
        sound play "$device" "$SECONDS_EACH" || return
    done
}

record() {
    for device in /dev/snd/pcmC$(card)D*c; do
        [ ! -e "$device" ] ||
            { echo "${device##*/}"; sound record "$device" "$SECONDS_EACH" || return; }
    done
}

control() {
    number=$(card)
    sound mixer "/dev/snd/controlC$number" || return
    for device in /dev/snd/midiC${number}D*; do
        [ ! -e "$device" ] || sound midi "$device" || return
    done
    for file in $(find "/proc/asound/card$number/" -type f); do cat "$file" >/dev/null; done
}
