# PostgreSQL and sqlite on a supervised disk whose driver is killed at random times for
# SECONDS_LONG; then what they have acknowledged is counted, and they check themselves.
# Everything of both lies in a folder that becomes their root, with the disk in it. The last line
# is what was found, as JSON.
# Exit code LOST: a database has lost something, or its disk is damaged. Any other code but 0: the
# trial came to no end, and says nothing of the data.
LOST=3
ROOT=/tmp/db PG=/usr/lib/postgresql/17/bin DISK_NAME=/dev/ring3/bench
quietly() { "$@" >/tmp/log 2>&1 || { echo "failed: $*"; tail -n 30 /tmp/log; fail; }; }
lost() { echo "$*"; exit $LOST; }
fail() {
    [ $# = 0 ] || echo "$*"
    tail -n 20 /tmp/postgres.log; tail -n 30 /tmp/ring3d.log
    exit 1
}
as_nobody() { chroot $ROOT /bin/sh -c "exec busybox su -s /bin/sh nobody -c '$*'"; }
query() { as_nobody "$PG/psql -h /tmp -At postgres -c \"$*\""; }
lite() { as_nobody "sqlite3 -bail /data/sqlite/db \"$*\""; }

unpack() {
    mkdir -p $ROOT && tar -C $ROOT -xf /databases.tar && rm /databases.tar || exit 1
    cp /bin/busybox $ROOT/bin/busybox && ln -s busybox $ROOT/bin/sh &&
        cp /etc/passwd $ROOT/etc/ || exit 1
    mkdir -p $ROOT/dev $ROOT/tmp $ROOT/data && chmod 1777 $ROOT/tmp &&
        mount --bind /dev $ROOT/dev || exit 1
    : >/tmp/postgres.log
}

start_postgres() {
    as_nobody "exec $PG/postgres -D /data/pg -k /tmp -c listen_addresses= -c jit=off" \
        "-c dynamic_shared_memory_type=mmap -c shared_buffers=16MB -c max_connections=16" \
        "-c max_wal_size=64MB -c min_wal_size=32MB" >>/tmp/postgres.log 2>&1 &
    for try in $(seq 600); do as_nobody "$PG/pg_isready -q -h /tmp" && return; sleep 0.1; done
    fail "PostgreSQL does not start"
}

# end_postgres SIGNAL: INT ends it in order, QUIT in the middle of its work.
end_postgres() {
    kill -$1 $(head -n 1 $ROOT/data/pg/postmaster.pid)
    for try in $(seq 600); do [ -e $ROOT/data/pg/postmaster.pid ] || return; sleep 0.1; done
    fail "PostgreSQL does not end"
}

# Every 0.2 s to 3.2 s, whatever the driver does then.
kill_drivers() {
    kills=0
    while [ ! -e /tmp/over ]; do
        usleep $(($(od -An -N2 -tu2 /dev/urandom) % 3000 * 1000 + 200000))
        pid=$(ring3 status bench --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)
        [ "${pid:-0}" = 0 ] || ! kill -9 $pid || kills=$((kills + 1))
        echo $kills >/tmp/kills
    done
}

# One process and one transaction after the other. Each says its number once it is committed: that
# is its acknowledgement.
work_sqlite() {
    number=0
    while [ ! -e /tmp/over ]; do
        number=$((number + 1))
        echo "begin; insert into t(txn, a, b) select $number, hex(randomblob(400))," \
            "abs(random()) % 1000 from generate_series(1, 20);" \
            "update t set b = b + 1 where txn % 7 = 0; delete from t where txn <= $number - 100;" \
            "insert into done values ($number); commit; select $number;"
    done | as_nobody "sqlite3 -bail -cmd \"pragma synchronous=full\" /data/sqlite/db" \
        >/tmp/sqlite.said 2>&1 || echo "sqlite has failed" >>/tmp/sqlite.said
}

is_number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

# bench SECONDS: prints how many transactions were acknowledged; nothing if it was ended before its
# clients were connected.
bench() {
    as_nobody "$PG/pgbench -n -h /tmp -c 4 -j 2 -T $1 postgres" >/tmp/pgbench 2>&1
    code=$?
    sed -n 's/number of transactions actually processed: *//p' /tmp/pgbench
    return $code
}

prepare() {
    quietly mkfs.ext4 -q -F $DISK_NAME
    mount -t ext4 $DISK_NAME $ROOT/data && mkdir $ROOT/data/pg $ROOT/data/sqlite &&
        chown 65534:65534 $ROOT/data/pg $ROOT/data/sqlite || exit 1
    quietly as_nobody "$PG/initdb -D /data/pg -E UTF8 --locale=C -A trust -k -N"
    start_postgres
    quietly as_nobody "$PG/pgbench -h /tmp -i -s 1 postgres"
    quietly lite "pragma journal_mode=wal;" \
        "create table t(id integer primary key, txn integer, a text, b integer);" \
        "create index i on t(b); create index j on t(txn);" \
        "create table done(txn integer primary key);"
}

work() {
    kill_drivers & KILLER=$!
    work_sqlite & SQLITE=$!
    first=$(bench $SECONDS_LONG) || { cat /tmp/pgbench; fail "PostgreSQL has seen an error"; }
    is_number "$first" ||
        { cat /tmp/pgbench; fail "pgbench has not said how many transactions were acknowledged"; }
    # Once more, and ended in the middle: what it has acknowledged is there after its own recovery.
    bench 600 >/tmp/second & BENCH=$!
    # A slow guest needs a while to connect: before a client has committed anything there is no
    # middle, and no count.
    for try in $(seq 300); do
        found=$(query "select count(*) from pgbench_history")
        is_number "$found" && [ "$found" -gt "$first" ] && break
        sleep 0.2
    done
    sleep 2; end_postgres QUIT; wait $BENCH
    second=$(cat /tmp/second)
    is_number "$second" || {
        cat /tmp/pgbench
        fail "pgbench was ended and has not said how many transactions were acknowledged"
    }
    acknowledged=$((first + second))
    : >/tmp/over; wait $KILLER $SQLITE
    # And read from the disk, not from memory.
    quietly umount $ROOT/data
    quietly mount -t ext4 $DISK_NAME $ROOT/data
}

check_postgres() {
    start_postgres
    as_nobody "$PG/pg_amcheck -h /tmp --install-missing --heapallindexed --parent-check --all" \
        >/tmp/log 2>&1 || { cat /tmp/log; lost "pg_amcheck has found damage, or has not ended"; }
    # A client of the four may have had its transaction committed and not have heard of it.
    found=$(query "select count(*) from pgbench_history")
    is_number "$found" || fail "PostgreSQL does not answer"
    [ "$found" -ge $acknowledged ] && [ "$found" -le $((acknowledged + 4)) ] ||
        lost "PostgreSQL has acknowledged $acknowledged transactions and has $found"
    # Each transaction adds the same to an account, a teller, a branch and the history.
    sums=$(query "select sum(delta) = (select sum(abalance) from pgbench_accounts)" \
        "and sum(delta) = (select sum(bbalance) from pgbench_branches)" \
        "and sum(delta) = (select sum(tbalance) from pgbench_tellers) from pgbench_history")
    [ -n "$sums" ] || fail "PostgreSQL does not answer"
    [ "$sums" = t ] || lost "the sums of accounts and history differ"
    end_postgres INT
    as_nobody "$PG/pg_checksums -D /data/pg" >/tmp/log 2>&1
    grep -qE 'Bad checksums: *0$' /tmp/log ||
        { cat /tmp/log; lost "PostgreSQL's pages have wrong checksums"; }
}

check_sqlite() {
    said=$(tail -n 1 /tmp/sqlite.said)
    [ "$said" -gt 0 ] 2>/dev/null || fail "sqlite: $said"
    stored=$(lite "select count(*) from done")
    is_number "$stored" || fail "sqlite does not answer"
    [ "$stored" = $said ] || lost "sqlite has acknowledged $said transactions and has $stored"
    # What the last hundred have written is there as a whole.
    whole=$(lite "select count(*) = 20 * min($said, 100)" \
        "and count(distinct txn) = min($said, 100) and min(length(a)) = 800 from t")
    [ "$whole" = 1 ] || lost "rows of sqlite are missing"
    [ "$(lite "pragma integrity_check")" = ok ] || lost "sqlite has found damage"
}

unpack; prepare; work; check_postgres; check_sqlite
umount $ROOT/data && fsck.ext4 -f -n $DISK_NAME >/tmp/log 2>&1 ||
    { cat /tmp/log; lost "ext4 is damaged"; }
errors=$(dmesg | grep -cE 'I/O error|EXT4-fs error')
[ $errors = 0 ] || dmesg | grep -E 'I/O error|EXT4-fs error'
restarts=$(ring3 status bench --json | sed -n 's/.*"restarts": *\([0-9]*\).*/\1/p' | head -n 1)
end_supervisor || exit 1
echo "{ \"seconds\": $SECONDS_LONG, \"kills\": $(cat /tmp/kills)," \
    "\"restarts\": ${restarts:-0}, \"errors\": $errors," \
    "\"postgres_acknowledged\": $acknowledged, \"postgres_found\": $found," \
    "\"sqlite_acknowledged\": $said, \"sqlite_found\": $stored }"
