# xfstests: ext4 on the first disk, the others as it wants them.
begin_xfstests() {
    mkfs.ext4 -q -F $FIRST || return
    printf 'export %s\n' TEST_DEV=$FIRST TEST_DIR=/mnt/test SCRATCH_DEV=$SECOND \
        SCRATCH_MNT=/mnt/scratch LOGWRITES_DEV=$THIRD FSTYP=ext4 >/suites/xfstests/local.config
}
run_xfstests() {
    cd /suites/xfstests && rm -rf results && limited ./check $1
    local failed=$?
    [ $code = 0 ] || for file in results/$1.out.bad results/$1.full results/$1.dmesg; do
        [ ! -e $file ] || { echo "== $file"; tail -n 60 $file; }
    done
    for place in /mnt/scratch /mnt/test; do
        ! mountpoint -q $place || umount $place 2>/dev/null || umount -l $place
    done
    [ $code = 0 ] || dmsetup remove_all -f 2>/dev/null
    # What a test has left half done is not the next one's.
    [ $code != 124 ] || mkfs.ext4 -q -F $FIRST
    return $failed
}
present() { [ -b $FIRST ] && [ -b $SECOND ]; }
