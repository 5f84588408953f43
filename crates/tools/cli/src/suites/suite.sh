# Runs the tests of /run/tests one by one, in the Debian in which they were built. Before and after
# each there is a line that begins with "suites:"; all between them is the test's output.
#
#   suites: begin NAME
#   suites: end NAME EXIT SECONDS KILLS ERRORS
#
# EXIT is 124 after $LIMIT seconds. KILLS counts deaths of the driver meanwhile, ERRORS I/O errors
# that the kernel has logged of the disks under test, and time-outs of transmit queues. The suite's
# own functions stand before this: `begin_SUITE`, and `run_SUITE TEST`, which leaves the test's exit
# code in `code`. `present` says whether the devices under test are there.
group=/sys/fs/cgroup/suites
mkdir -p $group
kills() { wc -l </run/kills; }
failures() { dmesg | grep -E 'I/O error.*(ublkb|nvme0n)[0-9]|NETDEV WATCHDOG'; }
errors() { failures | wc -l; }
complaints() { dmesg | grep -cE 'kernel BUG|WARNING:|BUG:|Oops:|general protection fault'; }

# Ends all that a test has left; fails if something cannot be ended.
clear_up() {
    echo 1 >$group/cgroup.kill
    for try in $(seq 200); do
        grep -q 'populated 0' $group/cgroup.events && return
        sleep 0.1
    done
    echo "processes that do not end:"
    for pid in $(cat $group/cgroup.procs); do
        echo "$pid $(tr '\0' ' ' </proc/$pid/cmdline)"; cat /proc/$pid/stack
    done
    return 1
}
# limited COMMAND...: in a control group of its own.
limited() {
    (
        echo $BASHPID >$group/cgroup.procs
        exec timeout -s TERM -k 5 "$LIMIT" setsid -w "$@"
    ) </dev/null 2>&1
    code=$?
    [ $code != 137 ] || code=124
    clear_up || { code=125; return 1; }
}

begin_$SUITE || { echo "suites: $SUITE cannot begin"; exit 1; }
while read -r name; do
    # What is tried after that says nothing of the test: another machine.
    present || { echo "the device is gone"; exit 1; }
    echo "suites: begin $name"
    killed=$(kills) failed=$(errors) complained=$(complaints) began=$EPOCHREALTIME
    run_$SUITE "$name"; stuck=$?
    seconds=$(echo "$EPOCHREALTIME - $began" | bc)
    [ "$(complaints)" = "$complained" ] || { echo "the kernel complains:"; dmesg | tail -n 60; }
    [ "$(errors)" = "$failed" ] || failures | tail -n 20
    # On a line of its own, whatever the test has printed last.
    printf '\nsuites: end %s\n' \
        "$name $code $seconds $(($(kills) - killed)) $(($(errors) - failed))"
    # The next test gets a machine of its own.
    [ $stuck = 0 ] || exit 1
done </run/tests
