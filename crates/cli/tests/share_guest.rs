//! Memory that a C program shares with an exported disk's driver, by `ring3.h` and as its user builds it.

mod booted;
mod supervised;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use booted::Booted;
use ring3_lab::{Backing, Cache, Device, Error, Guest, Size};
use supervised::with_programs;

const READ: &str = r#"
: >/tmp/ready; ring3 run nvme --device vfio:$DISK --json --id 0 --share /tmp/share --stats /tmp/stats >/tmp/ready 2>/tmp/log & PID=$!
for try in $(seq 300); do grep -q ublkb /tmp/ready && break; [ -d /proc/$PID ] || break; sleep 0.05; done
hits() { rm -f /tmp/stats; kill -USR1 $PID; for try in $(seq 100); do grep -q peak /tmp/stats 2>/dev/null && break; sleep 0.05; done; sed -n 's/.*"shared_hits": \([0-9]*\).*/\1/p' /tmp/stats; }
dd if=/dev/urandom of=/tmp/bytes bs=1000 count=1000 2>/dev/null; dd if=/tmp/bytes of=/dev/ublkb0 2>/dev/null; sync
before=$(hits); share /tmp/share /dev/ublkb0 1000000 >/tmp/read; echo "exit $?"
cmp /tmp/bytes /tmp/read && echo "the bytes of the disk"; echo "not copied: $(($(hits) - before))"
share /tmp/share /dev/ublkb0 1000000 >/dev/full; echo "full $?"
share /tmp/nobody /dev/ublkb0 1000000; echo "nobody $?"
share /tmp/share /dev/ublkb0 99999999999 2>&1 >/dev/null; echo "short $?"
for try in $(seq 100); do [ "$(cat /sys/block/ublkb0/queue/nomerges)" = 2 ] || break; sleep 0.05; done
echo "merges $(cat /sys/block/ublkb0/queue/nomerges)"; kill $PID; wait $PID; echo "ended $?"; cat /tmp/log
"#;

static GUEST: Booted = Booted::on("7.2", guest, "", &[("read", READ)]);

/// `examples/share.c`.
fn example() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi");
        // `with_programs` has built the library.
        let library = Path::new(env!("CARGO_BIN_EXE_ring3")).parent().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("share");
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-I"]).arg(capi.join("include"));
        command.arg("-o").arg(&program).arg(capi.join("examples/share.c"));
        command.arg("-L").arg(library).arg("-lring3").arg(format!("-Wl,-rpath,{}", library.display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (folder, program)
    });
    program
}

fn guest(_: &Cache) -> Result<Guest, Error> {
    let guest = with_programs(Guest { time_limit: Duration::from_secs(300), memory_mib: 1024, ..Guest::new("share") })
        .device(Device::nvme("disk", Size(64 << 20), Backing::Memory).bound("vfio-pci"))
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .module("ublk_drv");
    Ok(guest.program(example()))
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_program_in_c_reads_a_disk_into_memory_that_it_shares_and_says_what_cannot_be() {
    GUEST.says(
        "read",
        &[
            "exit 0",
            "the bytes of the disk",
            "not copied: 8",
            "share: standard output: No space left on device\nfull 1",
            "nobody 1",
            "it is shorter than that\nshort 1",
            "merges 0",
            "ended 0",
        ],
    );
}
