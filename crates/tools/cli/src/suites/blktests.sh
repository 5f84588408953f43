# blktests on the first disk.
begin_blktests() {
    printf 'TEST_DEVS=(%s)\nTIMEOUT=%s\nDEVICE_ONLY=1\n' $FIRST $((LIMIT / 3)) \
        >/suites/blktests/config
}
run_blktests() {
    cd /suites/blktests && rm -rf /tmp/results && limited ./check -o /tmp/results $1
    local failed=$?
    [ $code = 0 ] || find /tmp/results -type f -name '*.*' -exec tail -n 40 {} +
    return $failed
}
present() { [ -b $FIRST ] && [ -b $SECOND ]; }
