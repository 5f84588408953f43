# sqlite's own tests: databases in an ext4 on the first disk. Some try what its user may not do, so
# he is not root.
begin_sqlite() { mkfs.ext4 -q -F $FIRST && mount $FIRST /mnt/test; }
present() { [ -b $FIRST ] && [ -b $SECOND ]; }

run_sqlite() {
    local folder=/mnt/test/$1
    install -d -o postgres $folder && cd $folder || return
    limited runuser -u postgres -- /suites/sqlite-build/testfixture /suites/sqlite/test/$1.test
    local failed=$?
    cd / && rm -rf $folder
    return $failed
}
