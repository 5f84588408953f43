# Counts the calls of modules that are not loaded yet: those of $MODULES.
TRACING=/sys/kernel/tracing

trace_begin() {
    [ -e $TRACING/trace ] || mount -t tracefs tracefs $TRACING
    echo 0 >$TRACING/tracing_on
    # What is there already is not traced, so that what is loaded from now on is, from its first
    # function on.
    echo >$TRACING/set_ftrace_filter
    echo "*" >$TRACING/set_ftrace_notrace
    echo 16384 >$TRACING/buffer_size_kb
    echo function >$TRACING/current_tracer
    cut -d " " -f 1 /proc/uptime >"$OUT/times"
    echo 1 >$TRACING/tracing_on
    calls "$OUT/calls" >/tmp/calls.log 2>&1 &
    echo $! >/tmp/calls.pid
}

# What is counted from now on is of the next epoch: the memory of a module's init code may be
# another's now.
next_epoch() {
    before=$(cat "$OUT/calls.epoch" 2>/dev/null)
    kill -USR1 "$(cat /tmp/calls.pid)" || return
    while [ "$(cat "$OUT/calls.epoch" 2>/dev/null)" = "$before" ]; do usleep 10000; done
}

# Loads them as they were built, and notes where their code came to lie.
load() {
    for module in $MODULES; do
        name=$(echo "$module" | tr - _)
        insmod "/lib/ring3/$module.ko" || { dmesg | tail -n 5; return 1; }
        (
            cd "/sys/module/$name/sections" &&
                for section in $(ls -A); do echo "$module $section $(cat "$section")"; done
        ) >>"$OUT/sections"
        next_epoch || return
    done
    echo "loaded: $MODULES"
}

unload() {
    for module in $MODULES; do reversed="$module $reversed"; done
    for module in $reversed; do rmmod "$module" || return; done
    echo "unloaded: $reversed"
}

trace_end() {
    echo 0 >$TRACING/tracing_on
    cut -d " " -f 1 /proc/uptime >>"$OUT/times"
    pid=$(cat /tmp/calls.pid)
    kill -TERM "$pid"
    while [ -d "/proc/$pid" ]; do usleep 20000; done
    cat /tmp/calls.log
    for cpu in $TRACING/per_cpu/cpu*; do sed "s/^/${cpu##*/} /" "$cpu/stats"; done >"$OUT/stats"
    tail -n 3 "$OUT/calls"
}
