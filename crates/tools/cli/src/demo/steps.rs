//! What the guest of the demonstration does, step by step.

use std::time::Duration;

/// Ten times what it takes on an idle machine.
pub const TIME_LIMIT: Duration = Duration::from_secs(900);

/// Functions for all steps. The driver goes on running from step to step.
pub const PRELUDE: &str = r#"set -e
disk=/dev/ring3/demo
quietly() { "$@" >/tmp/log 2>&1 || { code=$?; cat /tmp/log; return $code; }; }
# same WHERE: every file of the tree is there with its checksum.
same() {
    (cd "$1" && sha1sum -c /tmp/sums >/tmp/log 2>&1) ||
        { grep -v ': OK' /tmp/log | head; return 1; }
}
# through MOUNT-TYPE MKFS FSCK: a file system's whole life.
through() {
    quietly $2 $disk
    mount -t $1 $disk /mnt
    tar -xjf /tree.tar.bz2 -C /mnt
    sync
    umount /mnt
    quietly $3 $disk
    mount -t $1 $disk /mnt
    same /mnt
    rm -rf /mnt/busybox*/libbb
    umount /mnt
    quietly $3 $disk
    echo "$1: $(wc -l </tmp/sums) files unpacked, file system clean," \
        "checksums right after a new mount, clean again after removals"
}
"#;

/// Names and scripts.
pub const STEPS: [(&str, &str); 7] = [
    ("who drives what", "ring3 devices"),
    (
        "a supervised process drives the second disk and exports it",
        r#"
supervise demo $RING3
cat /etc/ring3/demo.toml
ring3 status
"#,
    ),
    (
        "ext4 with a source tree on it",
        r#"
mkdir /tmp/tree && tar -xjf /tree.tar.bz2 -C /tmp/tree
(cd /tmp/tree && find . -type f -exec sha1sum {} + >/tmp/sums) && rm -r /tmp/tree
through ext4 "mkfs.ext4 -q -F" "fsck.ext4 -f -n"
"#,
    ),
    ("xfs with the same tree", r#"through xfs "mkfs.xfs -q -f" "xfs_repair -n""#),
    (
        "fio with verify: 512 bytes to 1 MiB, random and sequential",
        r#"
verify() {
    quietly fio --output=/tmp/fio.log --name=verify --filename=$disk --direct=1 \
        --ioengine=io_uring --verify=crc32c --verify_fatal=1 "$@"
}
verify --size=48M --rw=randwrite --bsrange=512-1M --iodepth=32 --fsync=16
verify --size=48M --rw=write --bs=128k --iodepth=8
echo "nothing was read that was not written"
"#,
    ),
    (
        "the driver is killed three times while fio verifies",
        r#"
fio --output=/tmp/fio.log --name=verify --filename=$disk --direct=1 --ioengine=io_uring \
    --verify=crc32c --verify_fatal=1 --verify_backlog=256 \
    --size=32M --rw=randwrite --bs=4k --iodepth=32 --time_based --runtime=5 >/dev/null 2>&1 & fio=$!
# field NAME: of the device's state.
field() { ring3 status demo --json | sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1; }
for kill in 1 2 3; do
    sleep 1
    pid=$(field pid) before=$(field restarts)
    kill -9 $pid
    for try in $(seq 400); do
        [ "$(field restarts)" -gt $before ] && [ "$(field total_ms)" ] && break
        sleep 0.02
    done
    echo "driver $pid killed; $(field pid) serves after $(field total_ms | cut -d. -f1) ms"
done
wait $fio || { cat /tmp/fio.log /tmp/ring3d.log; exit 1; }
errors=$(sed -n 's/.*err= *\([0-9]*\).*/\1/p' /tmp/fio.log)
echo "fio: $errors errors; nothing was read that was not written"
"#,
    ),
    (
        "the supervisor is told to stop, and gives the disk back",
        r#"
end_supervisor
cat /tmp/ring3d.log
[ ! -e $disk ] && [ ! -e /dev/ublkb0 ]
ls /dev/vfio/ | grep -v '^vfio$' | sed 's/^/the IOMMU group is free again: /'
"#,
    ),
];
