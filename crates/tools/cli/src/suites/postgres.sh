# PostgreSQL's own tests, as of `make installcheck`: a server whose data are on the first disk.
begin_postgres() {
    local data=/mnt/test/data out=/mnt/test/out
    mkfs.ext4 -q -F $FIRST && mount $FIRST /mnt/test || return
    install -d -o postgres $data $out || return
    as_postgres initdb -D $data -A trust --no-locale >/run/initdb ||
        { cat /run/initdb; return 1; }
    as_postgres pg_ctl -D $data -l $out/server.log -w -t 600 \
        -o '-k /tmp -c max_prepared_transactions=2' start >/run/start ||
        { cat /run/start $out/server.log; return 1; }
}
present() { [ -b $FIRST ] && [ -b $SECOND ]; }
as_postgres() {
    local program=$1
    shift
    (cd /tmp && exec runuser -u postgres -- /usr/local/pgsql/bin/$program "$@")
}

run_postgres() {
    local what="test_setup $1" out=/mnt/test/out
    [ $1 != parallel_schedule ] || what='--schedule=parallel_schedule --max-concurrent-tests=20'
    cd /suites/postgres/src/test/regress && rm -f $out/regression.*
    limited runuser -u postgres -- ./pg_regress --host=/tmp --user=postgres --dlpath=. \
        --inputdir=. --outputdir=$out --bindir=/usr/local/pgsql/bin $what
    local failed=$?
    [ $code = 0 ] || tail -n 60 $out/regression.diffs $out/server.log
    return $failed
}
