//! The scripts of `etc/bpftrace` show what ring3's probe points say, in a guest with a supervised
//! disk whose driver is killed.
//!
//! `cargo test -p ring3-cli --test tracing -- --ignored`, or `make test`.

mod supervised;

use std::path::Path;
use std::time::Duration;

use ring3_lab::{Backing, Cache, Device, Disk, Guest, Need, Outcome, SharedOutcome, Size};
use supervised::with_programs;

/// bpftrace with its own libraries: the guest has none.
const TRACED: &str = r#"
mkdir /bpf && tar -xf /bpftrace.tar -C /bpf && rm /bpftrace.tar
mount -t tracefs none /sys/kernel/tracing
mount -t debugfs none /sys/kernel/debug
programs=$(dirname $(command -v ring3d))
lib=/bpf/usr/lib/x86_64-linux-gnu
trace() {
    sed "s|@PREFIX@/bin|$programs|" /scripts/$1.bt >/tmp/$1.bt
    /bpf/usr/lib64/ld-linux-x86-64.so.2 --library-path $lib /bpf/usr/bin/bpftrace \
        /tmp/$1.bt $2 >/tmp/$1.out 2>&1 &
    echo $! >>/tmp/tracers
}
ready() {
    for try in $(seq 600); do
        ring3 status scratch --json >/tmp/status 2>/dev/null
        grep -q '"state": "running"' /tmp/status && ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status /tmp/ring3d
    return 1
}
mkdir -p /etc/ring3
printf '%s\n' '[device.scratch]' "match = { address = \"$DISK\" }" 'bind = true' \
    '[device.scratch.export]' 'id = 0' 'depth = 32' >/etc/ring3/scratch.toml
ring3d >/tmp/ring3d 2>&1 & RING3D=$!
ready || exit
trace request-latency; trace request-size; trace doorbell-batch
trace slow-requests 1; trace outages
for try in $(seq 1200); do
    [ $(grep -l '^Attach' /tmp/*.out | wc -l) = 5 ] && break
    sleep 0.1
done
fio --name=load --filename=/dev/ring3/scratch --size=8M --rw=randrw --bs=4k --iodepth=8 --direct=1 \
    --ioengine=io_uring --fsync=64 --number_ios=1500 --output=/tmp/fio || cat /tmp/fio
kill -9 $(sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status)
sleep 0.5; ready
dd if=/dev/ring3/scratch of=/dev/null bs=64k count=16 iflag=direct 2>/dev/null && echo read
for tracer in $(cat /tmp/tracers); do kill -INT $tracer; done
for tracer in $(cat /tmp/tracers); do
    for try in $(seq 600); do [ -d /proc/$tracer ] || break; sleep 0.05; done
done
for script in request-latency request-size doorbell-batch outages; do
    echo "== $script"; grep -v ^WARNING /tmp/$script.out
done
echo "== slow-requests"; grep -v ^WARNING /tmp/slow-requests.out | head -n 40
kill $RING3D
"#;

fn outcome() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| {
        let cache = Cache::open().unwrap();
        ring3_lab::prepare(&cache, &[Need::Bpftrace], &mut |_| {})
            .unwrap_or_else(|error| panic!("{error}"));
        let disk = Device {
            namespaces: vec![Disk::new(Size(64 << 20), Backing::Memory)],
            ..Device::new("disk", "nvme").bound("vfio-pci")
        };
        let guest = Guest {
            // bpftrace with LLVM is 290 MB, as an archive and unpacked.
            memory_mib: 2048,
            time_limit: Duration::from_secs(600),
            ..Guest::new("tracing")
        };
        let guest = with_programs(guest).module("ublk_drv").module("vfio-pci").device(disk);
        let guest = guest.file("/bpftrace.tar", &cache.path("bpftrace/bpftrace.tar"));
        let scripts = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../etc/bpftrace"));
        let names: Vec<_> =
            scripts.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let guest = names.iter().map(|name| name.to_str().unwrap()).fold(guest, |guest, name| {
            guest.file(&format!("/scripts/{name}"), &scripts.join(name))
        });
        let outcome = guest
            .step("traced", TRACED)
            .run(&cache, &mut |_| {})
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
        outcome
    })
}

/// What a script has said.
#[track_caller]
fn assert_says(script: &str, wanted: &[&str]) {
    let said = outcome().said("traced").unwrap();
    let said = said.split("== ").find_map(|part| part.strip_prefix(script)).unwrap();
    for wanted in wanted {
        assert!(said.contains(wanted), "{wanted:?} is not in what {script} says:\n{said}");
    }
}

#[test]
#[ignore = "boots a guest: make test"]
fn histograms_of_latency_have_reads_writes_and_flushes() {
    assert_says("request-latency", &["@read_us:", "@write_us:", "@flush_us:"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn histograms_of_sizes_have_the_blocks_of_the_load() {
    // 4 KiB by fio and 64 KiB by dd, in blocks of 512 bytes.
    assert_says("request-size", &["@read_blocks:", "@write_blocks:", "[8, 16)", "[128, 256)"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn requests_are_counted_by_doorbell() {
    assert_says("doorbell-batch", &["@requests_a_doorbell:", "[1]"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn slow_requests_are_shown_with_their_block() {
    assert_says("slow-requests", &[" at block ", " took "]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn an_outage_is_shown_step_by_step() {
    assert_says("outages", &["scratch: users wait: ", "scratch: a driver drives it, "]);
    assert_says("outages", &["scratch: users are served", ", as the next driver"]);
}
