//! Databases on a disk whose driver dies at random times, and their own judgement of what is left.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_lab::{Cache, Event, Need, prepare};

use super::Args;
use super::guest::{PRELUDE, guest};
use crate::bench::guest::NAME;

/// Everything of both databases lies in a folder that becomes their root, with the disk in it.
const ROOT: &str = r#"
mkdir -p /tmp/db && tar -C /tmp/db -xf /databases.tar && rm /databases.tar || exit 1
cp /bin/busybox /tmp/db/bin/busybox && ln -s busybox /tmp/db/bin/sh
mkdir -p /tmp/db/dev /tmp/db/tmp /tmp/db/data /tmp/db/etc && chmod 1777 /tmp/db/tmp && mount --bind /dev /tmp/db/dev
cp /etc/passwd /etc/group /tmp/db/etc/
"#;

/// Both work while the driver is killed; then PostgreSQL is stopped in the middle of its work, as by a loss of power, recovers on the disk, and is checked.
const RUN: &str = r#"
PG=/usr/lib/postgresql/17/bin
quietly() { "$@" >/tmp/log 2>&1 || { echo "failed: $*"; tail -n 30 /tmp/log; tail -n 30 /tmp/ring3d.log; exit 1; }; }
as_nobody() { chroot /tmp/db /bin/sh -c "exec busybox su -s /bin/sh nobody -c '$*'"; }
start_postgres() {
    as_nobody "exec $PG/postgres -D /data/pg -k /tmp -c listen_addresses= -c jit=off -c dynamic_shared_memory_type=mmap -c shared_buffers=16MB -c max_connections=16" >/tmp/postgres.log 2>&1 &
    for try in $(seq 600); do as_nobody "$PG/pg_isready -q -h /tmp" && return; sleep 0.1; done
    tail -n 20 /tmp/postgres.log; exit 1
}
kill_drivers() {
    kills=0
    while [ ! -e /tmp/over ]; do
        usleep $(( ($(od -An -N2 -tu2 /dev/urandom) % 3000 + 200) * 1000 ))
        pid=$(ring3 status bench --json | sed -n 's/.*"pid":\([0-9]*\).*/\1/p')
        [ "${pid:-0}" != 0 ] && kill -9 $pid && kills=$((kills + 1))
        echo $kills >/tmp/kills
    done
}
quietly mkfs.ext4 -q -F /dev/ring3/bench
mount -t ext4 /dev/ring3/bench /tmp/db/data && mkdir /tmp/db/data/pg /tmp/db/data/sqlite && chown 65534:65534 /tmp/db/data/pg /tmp/db/data/sqlite || exit 1
quietly as_nobody "$PG/initdb -D /data/pg -E UTF8 --locale=C -A trust -k"
start_postgres
quietly as_nobody "$PG/pgbench -h /tmp -i -s 1 postgres"
quietly as_nobody "sqlite3 /data/sqlite/db \"pragma journal_mode=wal; create table t(id integer primary key, a text, b integer); create index i on t(b);\""
kill_drivers & KILLER=$!
(
    n=0
    while [ ! -e /tmp/over ]; do
        as_nobody "sqlite3 /data/sqlite/db \"pragma synchronous=full; begin; insert into t(a,b) select hex(randomblob(400)), abs(random())%1000 from generate_series(1,20); update t set b=b+1 where id%7=0; commit;\"" >>/tmp/sqlite.log 2>&1 || echo "sqlite failed" >>/tmp/sqlite.failed
        n=$((n + 1)); echo $n >/tmp/sqlite.count
    done
) & SQLITE=$!
as_nobody "$PG/pgbench -h /tmp -c 4 -j 2 -T $SECONDS_LONG postgres" >/tmp/pgbench 2>&1 || { cat /tmp/pgbench; tail -n 20 /tmp/postgres.log; tail -n 30 /tmp/ring3d.log; exit 1; }
grep -E 'number of (transactions actually|failed)' /tmp/pgbench
# Once more, and stopped in the middle: what it has acknowledged is there after its own recovery.
as_nobody "$PG/pgbench -h /tmp -c 4 -T 600 postgres" >/dev/null 2>&1 & sleep 3
kill -QUIT $(head -n 1 /tmp/db/data/pg/postmaster.pid)
: >/tmp/over; wait $KILLER $SQLITE
[ ! -e /tmp/sqlite.failed ] || { sort /tmp/sqlite.log | uniq -c | head; exit 1; }
for try in $(seq 100); do [ -e /tmp/db/data/pg/postmaster.pid ] || break; sleep 0.1; done
start_postgres
quietly as_nobody "$PG/pg_amcheck -h /tmp --install-missing --heapallindexed --all"
# Each transaction adds the same to an account, a teller, a branch and the history.
as_nobody "$PG/psql -h /tmp -At postgres -c \"select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)\"" | grep -qx t || { echo "the sums of PostgreSQL's accounts are wrong"; exit 1; }
kill -INT $(head -n 1 /tmp/db/data/pg/postmaster.pid)
for try in $(seq 300); do [ -e /tmp/db/data/pg/postmaster.pid ] || break; sleep 0.1; done
quietly as_nobody "$PG/pg_checksums -D /data/pg"
grep -qE 'Bad checksums: *0$' /tmp/log || { cat /tmp/log; exit 1; }
[ "$(as_nobody "sqlite3 /data/sqlite/db \"pragma integrity_check\"")" = ok ] || { echo "sqlite's check has failed"; exit 1; }
umount /tmp/db/data && fsck.ext4 -f -n /dev/ring3/bench >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
dmesg | grep -E 'I/O error|EXT4-fs error' && exit 1
echo "$(cat /tmp/kills) drivers killed in $SECONDS_LONG s; $(cat /tmp/sqlite.count) transactions of sqlite; both databases and ext4 are consistent"
end_supervisor
"#;

/// Runs both for `seconds`.
pub fn run(args: &Args, seconds: u32) -> Result<ExitCode> {
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Databases, Need::Fio], &mut |line| errln!("{line}"))?;
    let mut guest = guest(args, "restart-databases")?.file("/databases.tar", &cache.path("databases/databases.tar"));
    guest.memory_mib = 1536;
    guest.time_limit = Duration::from_secs(900) + Duration::from_secs(u64::from(seconds) * 4);
    let guest = guest.variable("SECONDS_LONG", &seconds.to_string()).step("databases", &format!("{NAME}{PRELUDE}{ROOT}{RUN}"));
    let outcome = guest.run(&cache, &mut |event| match event {
        Event::Progress(line) => errln!("{line}"),
        Event::Line(line) => outln!("{line}"),
        _ => {}
    })?;
    if !outcome.succeeded() {
        bail!(
            "a database has lost something, or did not run (exit code {}); what was said is above\n{}",
            outcome.exit,
            outcome.messages
        );
    }
    Ok(ExitCode::SUCCESS)
}
