# A split host adapter with a disk, after split.sh and disk.sh. What makes the adapter, and what
# sets the depth of a disk's queue, is in the user half; commands, interrupts and what handles
# errors are in the kernel.

# verified NAME OPTIONS...: fio writes blocks with checksums all over the disk and reads them again.
verified() {
    name=$1; shift
    fio --name="$name" --filename="$(disk)" --direct=1 --rw=randwrite --bs=4k --size=8m \
        --ioengine=io_uring --iodepth=16 \
        --verify=crc32c --verify_fatal=1 --output=/tmp/fio.$name "$@" >/dev/null ||
            { cat "/tmp/fio.$name"; return 1; }
    grep -E "IOPS=" "/tmp/fio.$name"
}

# A file system is made, and what is written there is the same when it comes from the disk again.
filed() {
    mkfs.ext4 -q -F "$(disk)" 64M && mkdir -p /mnt/disk && mount -t ext4 "$(disk)" /mnt/disk ||
        return
    dd if=/dev/urandom of=/mnt/disk/file bs=64k count=64 2>/dev/null &&
        (cd /mnt/disk && md5sum file) >/tmp/sum && 
        umount /mnt/disk && mount -t ext4 "$(disk)" /mnt/disk || return
    (cd /mnt/disk && md5sum -c /tmp/sum)
    code=$?
    umount /mnt/disk && return $code
}

# queue: the file of the depth of the disk's queue, which the driver is asked to set.
queue() { file=$(disk) && echo "/sys/block/${file##*/}/device/queue_depth"; }

# controls FILE: all that is set.
controls() {
    for depth in 16 64; do echo $depth >"$1" && [ "$(cat "$1")" = $depth ] || return; done
}

works() {
    before=$(failures)
    up && verified verify && filed && controls "$(queue)" ||
        { cat /tmp/user-half.log; dmesg | tail -n 10; return 1; }
    echo "the queue is $(cat "$(queue)") deep"
    [ "$(failures)" = "$before" ] ||
        { echo "upcalls failed"; cat /tmp/user-half.log; dmesg | tail -n 5; return 1; }
}

# Blocks are written and read again while the user half is killed.
during() {
    verified during --rate_iops=1000 &
    writing=$!
    usleep 1000000
    split_kill
    echo 10 >/sys/module/ring3_split/parameters/grace_ms
    kill -0 $writing || { echo "fio was over before"; return 1; }
    wait $writing || return
    echo "no block was lost"
}

alone() {
    before=$(failures)
    ! controls "$(queue)" 2>/dev/null ||
        { echo "the depth of a queue is set without the user half?"; return 1; }
    [ "$(failures)" -gt "$before" ] || return
    echo "the depth of a queue is not set without the user half"
    verified alone && filed || return
    echo "blocks go without the user half"
}

# At some place of a probe the user half dies, and the next one has a disk that works.
often() {
    dies_in_probes || return
    up && verified often || { cat /tmp/user-half.log; dmesg | tail -n 20; return 1; }
    echo "the disk works after all probes"
    deaths
}

probed() {
    bound
    unbound
}

lies() {
    MESSAGES=$(((MESSAGES + 1) / 2))
    fuzzed controls "$(queue)" && SEED=2 fuzzed probed
}

# The adapter and its structs may be in any state after the lies: they can break the device, and a
# reload must mend it.
honest() { split_reload; }
