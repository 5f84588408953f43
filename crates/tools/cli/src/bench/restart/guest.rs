//! A guest with a supervisor, which measures itself.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::report::{Lab, Report};
use ring3_bench::restart::Outcome;
use ring3_lab::{Backing, Cache, Device, Event, Guest, Mode, Outcome as Guested, Size};

use super::{Args, Controller, of_load};
use crate::bench::guest::{NAME, with_this_program};
use crate::bench::ring3d::{RING3D, with_supervisor};
use crate::dde;

/// Bytes of the disk.
const SIZE: Size = Size(256 << 20);

/// `step` after the supervisor has the disk; `$EXPORT`, `$RESTART` and `$DRIVER` are more of its
/// manifest.
pub fn script(step: &str) -> String {
    let supervise = r#"supervise bench $DISK "$EXPORT" "$RESTART" "$DRIVER" || exit 1"#;
    format!("{NAME}{RING3D}\n{supervise}\n{step}")
}

/// For how many seconds nobody uses the disk, and in a quick run.
const IDLE_SECONDS: u32 = 60;
const IDLE_QUICK: u32 = 5;

/// While nobody uses the disk; the first line that is JSON.
const IDLE: &str = r#"
ring3 bench restart --here --disk /dev/ring3/bench --overwrite --kills 0 --upgrades 0 \
    --idle $IDLE --json || { tail -n 40 /tmp/ring3d.log; exit 1; }
"#;

/// On the block device itself.
const RAW: &str = r#"ring3 bench restart --here --disk /dev/ring3/bench --overwrite \
    $MEASURE --json || { tail -n 40 /tmp/ring3d.log; exit 1; }
end_supervisor"#;

/// In a file of a file system, with fio's verification beside it. What had the disk open
/// exclusively by io_uring, and has ended, gives it back a moment later.
const EXT4: &str = r#"
for try in $(seq 50); do mkfs.ext4 -q -F /dev/ring3/bench 2>/tmp/mkfs && break; sleep 0.1; done
mount -t ext4 /dev/ring3/bench /mnt || { cat /tmp/mkfs; exit 1; }
dd if=/dev/zero of=/mnt/load bs=1M count=64 2>/dev/null; sync
fio --name=verify --filename=/mnt/fio --size=32M --direct=1 --ioengine=io_uring --rw=randwrite \
    --bs=4k --iodepth=32 --verify=crc32c --verify_fatal=1 --verify_backlog=256 \
    --rate_iops=${FIO_RATE:-500} --time_based --runtime=100000 --output=/tmp/fio \
    >/dev/null 2>&1 & FIO=$!
ring3 bench restart --here --disk /mnt/load --overwrite $MEASURE --json ||
    { tail -n 40 /tmp/ring3d.log; exit 1; }
[ -d /proc/$FIO ] || { echo "fio has ended:"; cat /tmp/fio; exit 1; }
kill -INT $FIO; wait $FIO
grep -q 'err= 0' /tmp/fio && grep -q READ: /tmp/fio && ! grep -q 'verify: bad' /tmp/fio ||
    { cat /tmp/fio; exit 1; }
umount /mnt && fsck.ext4 -f -n /dev/ring3/bench >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
echo "ext4 is clean"
end_supervisor"#;

/// A guest with the supervisor's program, this one and the disk.
pub fn guest(args: &Args, name: &str) -> Result<Guest> {
    let device = match args.controller {
        Controller::Nvme => Device::nvme("disk", SIZE, Backing::Memory),
        Controller::Ahci => Device::ahci("disk", SIZE, Backing::Memory),
    };
    let mut guest =
        with_supervisor(with_this_program(Guest::new(name))?)?.device(device.bound("vfio-pci"));
    if let Some(driver) = &args.driver {
        guest = dde::enter(guest, std::slice::from_ref(driver))?;
    }
    let driver = args.driver.as_ref().map_or(String::new(), |name| format!("dde:{name}"));
    guest.kernel = args.kernel.clone();
    guest.memory_mib = 1024;
    if args.instructions {
        // The processor is one of 125 million instructions a second, and the disk's pace is the
        // host's.
        (guest.mode, guest.instruction_shift) = (Mode::Instructions, Some(3));
    }
    guest.modules = ["ublk_drv", "ext4"].map(Into::into).to_vec();
    // As many drivers may die as are killed, and none waits.
    let restart = format!(
        "burst = 1000000\\nwindow_s = 1\\nbackoff_ms = 1\\nexpedited_rcu = {}\\nadopt = {}",
        args.expedited, args.adopt
    );
    Ok(guest
        .variable("EXPORT", &format!("depth = {}", args.tags))
        .variable("RESTART", &restart)
        .variable("DRIVER", &driver))
}

/// Where a guest has measured, but for its kernel.
pub fn lab(outcome: &Guested, args: &Args) -> Lab {
    let (mode, vcpus) = if args.instructions { ("instructions", 1) } else { ("wall", 2) };
    Lab { qemu: outcome.qemu.clone(), mode: mode.into(), vcpus, ..Lab::default() }
}

/// Measures in a guest of its own.
pub fn measure(args: &Args) -> Result<Report> {
    let (kills, upgrades) = args.counts();
    let words = format!(
        "--kills {kills} --upgrades {upgrades} --depth {} --controller {}",
        args.depth,
        args.controller.name()
    );
    let idle = if args.quick { IDLE_QUICK } else { IDLE_SECONDS };
    let mut guest = guest(args, "bench-restart")?
        .variable("MEASURE", &words)
        .variable("IDLE", &idle.to_string());
    // The instruction clock may be many times slower than the host's.
    let slow = if args.instructions { 8 } else { 1 };
    guest.time_limit = slow
        * (Duration::from_secs(300 + u64::from(idle))
            + Duration::from_secs(8) * (kills + upgrades));
    let load = if args.ext4 { EXT4 } else { RAW };
    let guest = guest.step("measure", &script(&format!("{IDLE}{load}")));
    let outcome = guest.run(&Cache::open()?, &mut |event| match event {
        Event::Progress(line) => errln!("{line}"),
        Event::Line(line) if !line.starts_with('{') => errln!("{line}"),
        _ => {}
    })?;
    let output = outcome.output();
    let lines: Vec<Outcome> = output
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("reading what the guest has measured")?;
    match <[Outcome; 2]>::try_from(lines) {
        // What failed is what it has counted.
        Ok([idle, load]) if outcome.succeeded() || (load.errors, load.mismatches) != (0, 0) => {
            let lab = Lab { kernel: load.kernel.clone(), ..lab(&outcome, args) };
            let found = Outcome {
                tags: args.tags,
                driver: args.driver.as_ref().map(|name| format!("dde:{name}")),
                ext4: args.ext4,
                expedited: args.expedited,
                instructions: args.instructions,
                supervisor_mib: idle.supervisor_mib,
                supervisor_idle_percent: idle.supervisor_idle_percent,
                driver_idle_percent: idle.driver_idle_percent,
                ..load
            };
            of_load(&found, lab)
        }
        _ => bail!(
            "the measurement in the guest failed (exit code {}):\n{output}\n{}",
            outcome.exit,
            outcome.messages
        ),
    }
}
