# A split driver in the guest: $DRIVER is the module's name, `split-$DRIVER` its user half, $TOOL
# what starts it, $OPTIONS its own, $SLOWNESS how many times the usual time it may take.

user_half() {
    eval "exec $TOOL $(command -v "split-$DRIVER") 30 $OPTIONS" >>/tmp/user-half.log 2>&1 &
    echo $! >/tmp/user-half.pid
}

# said SENTENCE TIMES: the user half has said so, so often.
said() {
    for try in $(seq $((500 * ${SLOWNESS:-1}))); do
        [ "$(grep -c " $1" /tmp/user-half.log)" -lt "$2" ] || return 0
        ! dead "$(cat /tmp/user-half.pid)" || break
        usleep 20000
    done
    cat /tmp/user-half.log
    return 1
}

# It has attached so often. Under gdb it is a child.
attached() {
    said attached "$1" || return
    process=$(cat /tmp/user-half.pid)
    child=$(cat "/proc/$process/task/$process/children")
    [ -z "$child" ] || echo $child >/tmp/user-half.pid
}

# What the guest's kernel has lost before is none of the split driver's. Only a kernel with kmemleak
# has the file.
KMEMLEAK=/sys/kernel/debug/kmemleak
leaks_begin() {
    [ -e $KMEMLEAK ] || mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
    [ -e $KMEMLEAK ] || return 0
    echo scan >$KMEMLEAK
    echo clear >$KMEMLEAK
}

# Memory that nothing leads to, after the modules are unloaded. kmemleak names only what is older
# than five seconds, and a pointer that was in a register is in memory at the second scan.
leaks() {
    [ -e $KMEMLEAK ] || return 0
    sleep 6
    echo scan >$KMEMLEAK
    sleep 1
    echo scan >$KMEMLEAK
    cat $KMEMLEAK
}

# Lockdep is off after its first report, or when its tables are full; then it has checked nothing.
lockdep_is_on() {
    [ ! -e /proc/lockdep_stats ] || grep -q 'debug_locks: *1' /proc/lockdep_stats
}

split_load() {
    leaks_begin
    : >/tmp/user-half.log
    # Soon the numbers that handles begin with start anew.
    insmod /lib/ring3/ring3_split.ko first_upcall=65500 grace_ms=1000 \
        timeout_factor="${SLOWNESS:-1}" || return
    user_half
    # Its init function calls up: the user half waits for it.
    said "waits for its kernel half" 1 || return
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

# dies MILLISECONDS WORK: the user half dies so long after WORK has begun, and another one takes its
# place.
dies() {
    after=$1
    shift
    "$@" >/dev/null 2>&1 &
    working=$!
    usleep $((after * 1000))
    split_kill >/dev/null || return
    wait $working
    split_restart >/dev/null
}

# The module's name, as the kernel writes it.
module() { echo "$DRIVER" | tr - _; }

# The driver's folder on the bus. Drivers name themselves, most of them after their module.
on_bus() {
    for name in "$DRIVER" "$(module)"; do
        [ ! -e "/sys/bus/pci/drivers/$name" ] || { echo "/sys/bus/pci/drivers/$name"; return; }
    done
    return 1
}

# The driver has the device, again if need be; or has it no more.
bound() { [ -e "$(on_bus)/$CARD" ] || echo "$CARD" >"$(on_bus)/bind"; }
unbound() { echo "$CARD" >"$(on_bus)/unbind"; }

# In hundredths of a second, since the guest has booted.
uptime_hundredths() { cut -d' ' -f1 /proc/uptime | tr -d .; }

# The user half dies at twelve moments of a probe, which are spread over the time that one takes on
# this host now. The next user half must bind the device after each.
dies_in_probes() {
    # A probe of a few milliseconds would be over before anybody has died.
    echo 500 >/sys/module/ring3_split/parameters/delay_us
    unbound
    begun=$(uptime_hundredths)
    bound || { tail -n 20 /tmp/user-half.log; dmesg | tail -n 30; return 1; }
    took=$((($(uptime_hundredths) - begun) * 10))
    echo "a probe takes $took ms"
    for twelfth in $(seq 0 11); do
        unbound
        dies $((took * twelfth / 12)) bound || return
        bound || { tail -n 20 /tmp/user-half.log; dmesg | tail -n 30; return 1; }
    done
    echo 0 >/sys/module/ring3_split/parameters/delay_us
}

# In which entries it has died, and how often.
deaths() {
    dmesg | grep " fails: the user half has died" | sed 's/.*: \(.*\) fails: .*/it died in \1/' |
        sort | uniq -c
}

# The driver's module goes, or it is said what that waits for.
driver_unload() {
    rmmod "$(module)" &
    removing=$!
    for try in $(seq $((300 * ${SLOWNESS:-1}))); do
        [ -e "/proc/$removing/stack" ] || break
        usleep 100000
    done
    if [ -e "/proc/$removing/stack" ]; then
        echo "it is not unloaded after half a minute, and waits or runs in:"
        cat "/proc/$removing/stack"
        echo l >/proc/sysrq-trigger
        dmesg | tail -n 60
        return 1
    fi
    wait $removing
}

# What a user half that lied has left in the driver's structs goes with its module, which is
# unloaded while there is no user half. Parameters are the module's.
split_reload() {
    driver_unload || return
    echo "it is unloaded without a user half"
    count=$(grep -c ' attached' /tmp/user-half.log)
    # Who has tried what fails without one has made this short.
    echo 1000 >/sys/module/ring3_split/parameters/grace_ms
    user_half
    insmod "/lib/ring3/$DRIVER.ko" "$@" && attached $((count + 1)) &&
        echo "an honest user half has loaded it"
}

# state WORD: of the user half, as the kernel has it.
state() { awk -v word="$1:" '$1 == word { print $2 }' "/proc/$(cat /tmp/user-half.pid)/status"; }

# What a user half that was taken over could do beside answering: a call that it must not make ends
# it.
confined() {
    process=$(cat /tmp/user-half.pid)
    echo "user $(state Uid), capabilities $(state CapEff), bounding $(state CapBnd), no new" \
        "privileges $(state NoNewPrivs), filter $(state Seccomp)"
    # Nobody, or under ring3d a user of its own, of systemd's range for such.
    [ "$(state Uid)" = 65534 ] ||
        { [ "$(state Uid)" -ge 61184 ] && [ "$(state Uid)" -le 65519 ]; } || return
    [ "$(state CapEff) $(state CapBnd) $(state NoNewPrivs) $(state Seccomp)" = \
        "0000000000000000 0000000000000000 1 2" ] || return
    echo "its files: $(ls "/proc/$process/root/" | wc -l)," \
        "its descriptors: $(ls "/proc/$process/fd" | tr '\n' ' ')"
    [ -z "$(ls "/proc/$process/root/")" ] && [ "$(ls "/proc/$process/fd" | tail -n 1)" = 3 ] ||
        return
    [ "$(awk '/:/ { n++ } END { print n }' "/proc/$process/net/dev")" = 1 ] ||
        { cat "/proc/$process/net/dev"; return 1; }
    for call in file device socket fork exec code; do
        tries "$(cat /tmp/user-half.pid)" $call || return
        ! dead "$(cat /tmp/user-half.pid)" || split_restart >/dev/null || return
    done
    echo "pinned $(state VmLck) of $(state VmRSS) KiB"
}

# What a checker has found.
checked() {
    ! grep -A 60 -E "ERROR: AddressSanitizer|$MARKER" /tmp/user-half.log
}

# The run time goes when the user half has ended, which it does by itself.
runtime_unload() {
    for try in $(seq $((100 * ${SLOWNESS:-1}))); do
        [ "$(cat /sys/module/ring3_split/refcnt)" != 0 ] || break
        usleep 20000
    done
    rmmod ring3_split
}

split_unload() {
    rmmod "$(module)" && runtime_unload || return
    cat /tmp/user-half.log
}

# What the check of a device's mappings says when the kernel boots.
DMA_BEGINS='DMA-API: (preallocated|debugging enabled|dma_debug)'

# Of the kernel's log, what it would say of a bug, and what the run time says of a plan that does
# not hold; a process that faults is none of its own.
complaints() {
    grep -E -e 'is called in atomic context|BUG|WARNING|Oops|general protection fault[:,]' \
        -e 'Call Trace|refcount_t|scheduling while atomic|corruption|INFO: task|INFO: rcu' \
        -e 'possible .* locking|stack guard|lockup|bad page' \
        -e 'KASAN|UBSAN|circular locking|sleeping function|unreferenced object' \
        -e 'suspicious RCU|invalid wait context|inconsistent lock state|bad unlock balance' \
        -e 'DMA-API|ODEBUG' | grep -v -E "$DMA_BEGINS"
}

kernel_is_well() {
    if { dmesg; leaks | tee /tmp/leaks; } | complaints; then
        dmesg | tail -n 60
        cat /tmp/leaks
        return 1
    fi
    lockdep_is_on || { echo "lockdep has switched itself off"; return 1; }
    dmesg | grep -E "ring3_split|$(module):" | tail -n 60
    echo "the kernel is well"
}

# Upcalls that ended with their entry's error.
failures() { cat /sys/module/ring3_split/parameters/failed; }

# fuzzed WORK: a user half that lies answers while WORK is done again and again, until all lies are
# told.
fuzzed() {
    fuzz "$(module)" "$LAYOUT" "${SEED:-1}" "$MESSAGES" >/tmp/fuzz 2>&1 &
    fuzzer=$!
    while kill -0 $fuzzer 2>/dev/null; do "$@" >/dev/null 2>&1; done
    wait $fuzzer
    code=$?
    cat /tmp/fuzz
    return $code
}

# lied_to WORK: a user half that knows types and lies answers while WORK is done and the device
# probed again and again.
lied_to() {
    liar "${SEED:-1}" "${UPCALLS:-40}" >/tmp/liar 2>&1 &
    liar=$!
    while kill -0 $liar 2>/dev/null; do
        "$@"
        unbound
        bound
    done >/dev/null 2>&1
    wait $liar
    code=$?
    cat /tmp/liar
    # Who was asked nothing has shown nothing.
    ! grep -q '^0 upcalls' /tmp/liar || return
    return $code
}

knows() { lied_to true; }
