# A disk behind the controller at the PCI address $CARD. It holds nothing: what is written is gone,
# what is read is zero.

disk() {
    for try in $(seq 250); do
        for path in $(find "/sys/bus/pci/devices/$CARD/" -type d 2>/dev/null); do
            # A namespace nvme0n1 may be there as its path nvme0c0n1.
            file=/dev/$(echo "${path##*/}" | sed 's/c[0-9]*n/n/')
            [ ! -b "$file" ] || { echo "$file"; return; }
        done
        usleep 20000
    done
    echo "no disk at $CARD" >&2
    return 1
}

prepare() { :; }

up() {
    file=$(disk) || return
    echo "$file has $(blockdev --getsize64 "$file") bytes"
}

# run NAME OPTIONS...: fio on the disk as a whole.
run() {
    name=$1; shift
    fio --name="$name" --filename="$(disk)" --direct=1 --time_based \
        --runtime="${MILLISECONDS_EACH}ms" --output=/tmp/fio "$@" >/dev/null ||
        { cat /tmp/fio; return 1; }
    grep -E "IOPS=" /tmp/fio
}

transfer() {
    run read --rw=randread --bs=4k --ioengine=psync &&
        run write --rw=randwrite --bs=4k --ioengine=psync --fsync=32 && 
        run deep --rw=randrw --bs=4k --iodepth=32 --ioengine=io_uring &&
            run large --rw=read --bs=512k --ioengine=psync
}

control() {
    file=$(disk) || return
    name=${file##*/}
    blkdiscard -l 1048576 "$file" || echo "no discard"
    [ ! -w "/sys/block/$name/device/rescan" ] || echo 1 >"/sys/block/$name/device/rescan"
    for host in /sys/class/scsi_host/host*; do
        [ ! -e "$host/scan" ] || echo "- - -" >"$host/scan"
    done
    cat /sys/block/$name/stat
}
