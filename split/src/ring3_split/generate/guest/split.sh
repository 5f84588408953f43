# A split driver in the guest: $DRIVER is the module's name, `split-$DRIVER` its user half.

user_half() {
    "split-$DRIVER" 30 >>/tmp/user-half.log 2>&1 &
    echo $! >/tmp/user-half.pid
}

# The sentence of the user half that it is attached stands in its log once more.
attached() {
    for try in $(seq 500); do
        [ "$(grep -c ' attached' /tmp/user-half.log)" -lt "$1" ] || return 0
        usleep 20000
    done
    cat /tmp/user-half.log
    return 1
}

split_load() {
    : >/tmp/user-half.log
    insmod /lib/ring3/ring3_split.ko grace_ms=1000 || return
    user_half
    # Its init function calls up: the user half waits for it.
    insmod "/lib/ring3/$DRIVER.ko" || { cat /tmp/user-half.log; dmesg | tail -n 20; return 1; }
    attached 1 && cat /tmp/user-half.log
}

# dead PROCESS: it is gone, or nobody has asked for its end yet.
dead() { [ ! -e "/proc/$1/status" ] || grep -qs '^State:.Z' "/proc/$1/status"; }

split_kill() {
    kill -9 "$(cat /tmp/user-half.pid)" || return
    while ! dead "$(cat /tmp/user-half.pid)"; do usleep 10000; done
    echo "the user half is dead"
}

split_restart() {
    count=$(grep -c ' attached' /tmp/user-half.log)
    user_half
    attached $((count + 1)) && echo "the user half is back"
}

# What a user half that lied has left in the driver's structs goes with its module, which is unloaded while there is no user half.
# Parameters are the module's.
split_reload() {
    rmmod "$(echo "$DRIVER" | tr - _)" || return
    echo "it is unloaded without a user half"
    count=$(grep -c ' attached' /tmp/user-half.log)
    user_half
    insmod "/lib/ring3/$DRIVER.ko" "$@" && attached $((count + 1)) && echo "an honest user half has loaded it"
}

split_unload() {
    rmmod "$(echo "$DRIVER" | tr - _)" && rmmod ring3_split && cat /tmp/user-half.log
}

# Of the kernel's log, what it would say of a bug, and what the run time says of a plan that does not hold; a process that faults is none of its own.
complaints() {
    grep -E 'is called in atomic context|BUG|WARNING|Oops|general protection fault[:,]|Call Trace|refcount_t|scheduling while atomic|corruption|INFO: task|INFO: rcu|possible .* locking|stack guard|lockup|bad page'
}

kernel_is_well() {
    if dmesg | complaints; then
        dmesg | tail -n 60
        return 1
    fi
    dmesg | grep -E "ring3_split|$(echo "$DRIVER" | tr - _):" | tail -n 60
    echo "the kernel is well"
}

# Upcalls that ended with their entry's error.
failures() { cat /sys/module/ring3_split/parameters/failed; }

# fuzzed WORK: a user half that lies answers while WORK is done again and again, until all lies are told.
fuzzed() {
    fuzz "$(echo "$DRIVER" | tr - _)" "$LAYOUT" "${SEED:-1}" "$MESSAGES" >/tmp/fuzz 2>&1 &
    fuzzer=$!
    while kill -0 $fuzzer 2>/dev/null; do "$@" >/dev/null 2>&1; done
    wait $fuzzer
    code=$?
    cat /tmp/fuzz
    return $code
}
