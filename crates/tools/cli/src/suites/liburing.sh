# The tests of liburing: an ext4 on the first disk, and the second for tests that take one.
begin_liburing() {
    mkfs.ext4 -q -F $FIRST && mount $FIRST /mnt/test
}
# Those that take the name of a file get a disk; the others' files are on the other disk.
run_liburing() {
    local folder=/mnt/test/$1 device=
    ! grep -q 'argv\[1\]' /suites/liburing/test/$1.c || device=$SECOND
    mkdir -p $folder && cd $folder && limited /suites/liburing/test/$1.t $device
    local failed=$?
    cd / && rm -rf $folder
    return $failed
}
present() { [ -b $FIRST ] && [ -b $SECOND ]; }
