# sqlite's own tests: databases in an ext4 on the first disk. They run as another user than root,
# since some check that a file is refused.
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
