//! A guest with a supervisor, which measures itself.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::restart::Outcome;
use ring3_lab::{Backing, Cache, Device, Event, Guest, Size};

use super::{Args, Controller};
use crate::bench::guest::{NAME, supervisor, with_this_program};

/// Bytes of the disk.
const SIZE: Size = Size(256 << 20);

/// Starts the supervisor and waits until the disk is there; `$RESTART` is more of the manifest's restart policy.
pub const PRELUDE: &str = r#"
mkdir -p /etc/ring3
cat >/etc/ring3/bench.toml <<END
[device.bench]
match = { address = "$DISK" }
[device.bench.export]
kind = "ublk"
depth = ${TAGS:-64}
link = "bench"
[device.bench.restart]
burst = 1000000
window_s = 1
backoff_ms = 1
$RESTART
END
start_supervisor() {
    ring3d >/tmp/ring3d.log 2>&1 &
    SUPERVISOR=$!
    for try in $(seq 400); do [ -b /dev/ring3/bench ] && return; [ -d /proc/$SUPERVISOR ] || break; sleep 0.05; done
    cat /tmp/ring3d.log
    return 1
}
end_supervisor() { kill $SUPERVISOR; wait $SUPERVISOR; code=$?; [ $code = 0 ] || tail -n 20 /tmp/ring3d.log; return $code; }
start_supervisor || exit 1
"#;

/// On the block device itself.
const RAW: &str = r#"ring3 bench restart --here --disk /dev/ring3/bench --overwrite $MEASURE --json || { tail -n 40 /tmp/ring3d.log; exit 1; }
end_supervisor"#;

/// In a file of a file system, with fio's verification beside it.
const EXT4: &str = r#"
mkfs.ext4 -q -F /dev/ring3/bench && mount -t ext4 /dev/ring3/bench /mnt || exit 1
dd if=/dev/zero of=/mnt/load bs=1M count=64 2>/dev/null; sync
fio --name=verify --filename=/mnt/fio --size=32M --direct=1 --ioengine=io_uring --rw=randwrite --bs=4k --iodepth=32 --verify=crc32c --verify_fatal=1 --verify_backlog=256 \
    --rate_iops=${FIO_RATE:-500} --time_based --runtime=100000 --output=/tmp/fio >/dev/null 2>&1 & FIO=$!
ring3 bench restart --here --disk /mnt/load --overwrite $MEASURE --json || { tail -n 40 /tmp/ring3d.log; exit 1; }
[ -d /proc/$FIO ] || { echo "fio has ended:"; cat /tmp/fio; exit 1; }
kill -INT $FIO; wait $FIO; grep -q 'verify: bad' /tmp/fio && { cat /tmp/fio; exit 1; }
umount /mnt && fsck.ext4 -f -n /dev/ring3/bench >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
echo "ext4 is clean"
end_supervisor"#;

/// A guest with the supervisor's program, this one and the disk.
pub fn guest(args: &Args, name: &str) -> Result<Guest> {
    let device = match args.controller {
        Controller::Nvme => Device::nvme("disk", SIZE, Backing::Memory),
        Controller::Ahci => Device::ahci("disk", SIZE, Backing::Memory),
    };
    let mut guest = with_this_program(Guest::new(name))?.program(&supervisor()?).device(device.bound("vfio-pci"));
    guest.kernel = args.kernel.clone();
    guest.memory_mib = 1024;
    guest.modules = ["ublk_drv", "ext4"].map(Into::into).to_vec();
    Ok(guest.variable("RESTART", if args.expedited { "expedited_rcu = true" } else { "" }))
}

/// Measures in a guest of its own.
pub fn measure(args: &Args) -> Result<Outcome> {
    let (kills, upgrades) = args.counts();
    let words = format!("--kills {kills} --upgrades {upgrades} --depth {} --controller {}", args.depth, args.controller.name());
    let mut guest = guest(args, "bench-restart")?.variable("MEASURE", &words);
    guest.time_limit = Duration::from_secs(300) + Duration::from_secs(8) * (kills + upgrades);
    let script = if args.ext4 { EXT4 } else { RAW };
    let guest = guest.step("measure", &format!("{NAME}{PRELUDE}{script}"));
    let outcome = guest.run(&Cache::open()?, &mut |event| match event {
        Event::Progress(line) => errln!("{line}"),
        Event::Line(line) if !line.starts_with('{') => errln!("{line}"),
        _ => {}
    })?;
    if !outcome.succeeded() {
        bail!("the measurement in the guest failed (exit code {}):\n{}\n{}", outcome.exit, outcome.output(), outcome.messages);
    }
    let output = outcome.output();
    let line = output.lines().find(|line| line.starts_with('{')).context("the guest has measured nothing")?;
    serde_json::from_str(line).context("reading what the guest has measured")
}
