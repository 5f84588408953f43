//! Machines with a real systemd that power off while a disk of ring3's is mounted and written to by
//! a process that ignores SIGTERM: a supervised disk, and disks with the root file system on them,
//! of `ring3 run` and of ring3d. The disk's image is looked at afterwards: a file system that was
//! unmounted, or mounted read-only, needs no recovery. And one that starts another kernel by kexec
//! with such a disk, which that kernel's own driver reads.
//!
//! `cargo test -p ring3-cli --test poweroff -- --ignored`, or `make test`.

mod installed;
mod supervised;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use installed::installed;
use ring3_lab::{Backing, Cache, Device, Disk, Error, Guest, Need, Size};
use supervised::with_programs;
use tempfile::TempDir;

const BUSY: &str = r#"
status() { ring3 status scratch --json >/tmp/status 2>/tmp/refused; }
ready() {
    for try in $(seq 600); do
        status && grep -q '"state": "running"' /tmp/status &&
            ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status /tmp/refused; journalctl --no-pager -u ring3d -n 30; return 1
}
mkdir -p /etc/ring3 /data
printf '%s\n' '[device.scratch]' "match = { address = \"$DISK\" }" 'bind = true' \
    '[device.scratch.export]' 'id = 0' >/etc/ring3/scratch.toml
# What waits 90 s otherwise.
for unit in ring3d.service lab.service; do
    mkdir -p /run/systemd/system/$unit.d
    printf '[Service]\nTimeoutStopSec=5\n' >/run/systemd/system/$unit.d/short.conf
done
systemctl daemon-reload && systemctl enable --now ring3d.socket ring3d.service 2>&1 && ready ||
    exit 1
mount /dev/ring3/scratch /data || exit 1
echo "kept" >/data/kept; sync
sh -c 'trap "" TERM HUP; exec 9>>/data/held; while :; do echo "written" >&9
    # The file has no moment without data in which the machine could end.
    dd if=/dev/zero of=/data/written bs=4k count=4 conv=notrunc,fsync 2>/dev/null; done' &
sleep 2
"#;

const POWER_OFF: &str = "systemctl poweroff --no-block; sleep 1000";

/// The next kernel is this one's. It has the same programs and modules, and its own driver for the
/// disk, and leaves the journal alone, which shows whether the disk was unmounted.
const KEXEC: &str = r#"
mkdir -p /next/job && cp -a /lab/bin /next/bin && cp -a /job/early /job/late /next/job/ || exit 1
cat >/next/init <<'END'
#!/bin/busybox sh
export PATH=/bin
mkdir -p /proc /sys /dev /data
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
for stage in early late; do
    while read -r file parameters; do
        [ -e "/sys/module/${file%.ko}" ] || insmod /job/$stage/$file $parameters
    done </job/$stage/order
done
for try in $(seq 200); do [ -b /dev/nvme0n1 ] && break; sleep 0.05; done
mount -t ext4 -o ro,noload /dev/nvme0n1 /data && echo "by the next kernel: $(cat /data/kept)"
[ -s /data/written ] && echo "by the next kernel: what was written"
umount /data; poweroff -f
END
chmod 755 /next/init
(cd /next && find . | cpio -o -H newc) >/run/initrd 2>/dev/null || exit 1
line=$(tr ' ' '\n' </proc/cmdline | grep -E '^(console|intel_iommu)=' | tr '\n' ' ')
kexec -s -l /job/kexec/vmlinuz --initrd=/run/initrd --command-line="$line" || exit 1
systemctl kexec --no-block; sleep 1000
"#;

/// Byte 0x60 behind the superblock's begin, and in it: the journal is to be replayed. [Linux,
/// Documentation/filesystems/ext4/super.rst]
const INCOMPATIBLE: u64 = 1024 + 0x60;
const NEEDS_RECOVERY: u32 = 0x4;

/// Little-endian numbers of a file system's superblock: its features, and the magic number 0xef53
/// with its state, of which bit 0 means clean.
fn superblock(image: &Path) -> (u32, u32) {
    let file = File::open(image).unwrap();
    let word = |at| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, at).unwrap();
        u32::from_le_bytes(bytes)
    };
    (word(INCOMPATIBLE), word(1024 + 0x38))
}

/// Puts ext4 on it here: the guest's own libraries are not those of the lab's programs.
fn format(cache: &Cache, image: &Path) {
    let place = |paths: [&str; 2]| paths.map(|path| cache.path(path));
    let programs = place(["tools/sbin/mkfs.ext4", "tools/usr/sbin/mkfs.ext4"]);
    let libraries = place(["tools/lib/x86_64-linux-gnu", "tools/usr/lib/x86_64-linux-gnu"]);
    let program = programs.iter().find(|path| path.exists()).expect("the lab has mkfs.ext4");
    let mut mkfs = Command::new(program);
    mkfs.arg("-q").arg(image).env("LD_LIBRARY_PATH", std::env::join_paths(libraries).unwrap());
    assert!(mkfs.status().unwrap().success());
}

/// The first process of the machine begins with an initial file system, from which the disk is
/// served on, by a driver in one process: its files are deleted.
const ROOT: &str = r#"
ring3 run nvme --device vfio:$DISK --in-process --id 0 >/tmp/ready 2>/tmp/log &
for try in $(seq 600); do [ -b /dev/ublkb0 ] && break; sleep 0.05; done
root /dev/ublkb0 || { cat /tmp/ready /tmp/log; exit 1; }
cat >>/new/busy <<'END'
(sleep 3; systemctl poweroff --no-block) &
write
END
sync; echo "$SWITCH" >/switch
"#;

/// The same with ring3d, whose files stay when those of the initial file system are deleted: it has
/// a root of its own. What is mounted there is not mounted on a folder of the initial file system,
/// which the kernel would unmount with that folder.
const HELD: &str = r#"
mkdir -p /held /run && mount -t tmpfs run /run && mount -t tmpfs held /held || exit 1
mkdir -p /held/proc /held/sys /held/dev /held/run /held/tmp /held/etc/ring3
cp -a /lib /lib64 /usr /held/ && cp /etc/passwd /etc/group /held/etc/ || exit 1
for folder in proc sys dev run; do mount -o rbind /$folder /held/$folder || exit 1; done
printf '%s\n' '[device.root]' "match = { address = \"$DISK\" }" '[device.root.export]' 'id = 0' \
    '[device.root.restart]' 'burst = 100' >/held/etc/ring3/root.toml
# systemd moves processes that are in no group to one of its own, below which nothing can be
# limited.
mkdir -p /sys/fs/cgroup/ring3d/supervisor || exit 1
echo '+memory +cpu +pids' >/sys/fs/cgroup/cgroup.subtree_control || exit 1
(
    sh -c 'echo $PPID' >/sys/fs/cgroup/ring3d/supervisor/cgroup.procs
    exec chroot /held /usr/local/bin/ring3d --hold
) >/run/log 2>&1 &
for try in $(seq 600); do [ -b /dev/ring3/root ] && break; sleep 0.05; done
root /dev/ring3/root || { cat /run/log; exit 1; }
mkdir -p /new/usr/local && cp -a /usr/local/. /new/usr/local/ || exit 1
cat >>/new/busy <<'END'
export PATH=/usr/local/bin:$PATH
status() { ring3 status root --json >/run/status 2>&1; }
ready() {
    for try in $(seq 600); do
        status && grep -q '"state": "running"' /run/status &&
            ! grep -q '"standby": 0' /run/status && return
        sleep 0.05
    done
    cat /run/status /run/log; ring3 logs root; return 1
}
driver() { sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /run/status; }
held() {
    for one in /proc/[0-9]*; do
        [ "$(tr '\0' ' ' <$one/cmdline)" = "@ring3d " ] && echo ${one#/proc/}
    done
}
# Reads and writes the disk, and nothing from memory.
used() {
    echo 3 >/proc/sys/vm/drop_caches
    dd if=/dev/urandom of=/used bs=64k count=16 conv=fsync 2>/dev/null
    md5sum /used >/run/sum; sync; echo 3 >/proc/sys/vm/drop_caches
    md5sum -c /run/sum >/dev/null && cat /kept
}
tried() {
    ready || return; old=$(driver); echo "before: $(used)"
    kill -9 $old; echo "meanwhile: $(used)"
    ready && [ $(driver) != $old ] && echo "another driver: $(used)"
    old=$(held); kill -9 $old
    for try in $(seq 600); do
        new=$(held)
        [ -n "$new" ] && [ "$new" != "$old" ] && break
        sleep 0.05
    done
    ready && echo "another ring3d: $(used)"; old=$(driver); kill -9 $old
    ready && [ $(driver) != $old ] && echo "its driver: $(used)"
    ring3 status root | grep -E 'unlimited|restarts'
    echo "I/O errors $(dmesg | grep -ciE 'I/O error')"
}
(sleep 3; tried >/dev/console 2>&1; systemctl poweroff --no-block) &
write
END
sync
echo "for folder in dev proc sys run; do mount -o move /\$folder /new/\$folder; done; $SWITCH" \
    >/switch
"#;

/// Shell functions of both: `root DISK` makes a root with systemd on DISK at /new, whose one
/// service is /new/busy; `write` there writes for ever.
const MADE: &str = r#"
SWITCH='exec switch_root /new /lib/systemd/systemd --unit=busy.service --log-target=console'
SWITCH="$SWITCH --show-status=no --log-level=warning"
root() {
    mkdir /new && mount -t ext4 $1 /new && tar -xf /root.tar -C /new || return
    for folder in proc sys dev run tmp root lab etc/systemd/system; do
        mkdir -p /new/$folder || return
    done
    cp -a /bin /new/lab/bin || return
    cp /etc/passwd /etc/group /new/etc/; echo 0123456789abcdef0123456789abcdef >/new/etc/machine-id
    echo kept >/new/kept
    printf '%s\n' '[Unit]' After=basic.target Requires=basic.target '[Service]' ExecStart=/busy \
        KillMode=process TimeoutStopSec=5 >/new/etc/systemd/system/busy.service
    cat >/new/busy <<'END'
#!/lab/bin/busybox sh
export PATH=/lab/bin:/usr/bin
trap '' TERM HUP
echo "the root is $(grep ' / ' /proc/mounts | tail -n 1)" >/dev/console
write() {
    exec 9>>/held
    while :; do
        echo written >&9
        dd if=/dev/zero of=/written bs=4k count=4 conv=fsync 2>/dev/null
    done
}
END
    chmod 755 /new/busy
}
"#;

#[test]
#[ignore = "boots a guest: make test"]
fn a_machine_whose_root_file_system_is_on_such_a_disk_powers_off_and_leaves_it_clean() {
    let console = powered_off_with_root("poweroff-root", ROOT);
    assert!(console.contains("the root is /dev/ublkb0 / ext4"), "{console}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_root_file_system_on_a_disk_of_ring3ds_outlives_its_driver_and_ring3d_and_is_left_clean() {
    let console = powered_off_with_root("poweroff-held", HELD);
    assert!(console.contains("the root is /dev/ring3/root / ext4"), "{console}");
    let wanted = ["before", "meanwhile", "another driver", "another ring3d", "its driver"];
    for wanted in wanted.map(|wanted| format!("{wanted}: kept")) {
        assert!(console.contains(&wanted), "{wanted:?} is not in:\n{console}");
    }
    assert!(console.contains("I/O errors 0"), "{console}");
}

/// What a machine has said that `step` has given its root file system, which is clean afterwards.
fn powered_off_with_root(name: &str, step: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (image, cache) = image(folder.path(), 512 << 20);
    let guest =
        guest(name, &image, 512 << 20).file("/root.tar", &cache.path("systemd/systemd.tar"));
    let console = powered_off(&guest.step("root", &format!("{MADE}{step}")), &cache);
    assert_clean(&image, &console);
    console
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_machine_powers_off_with_a_mounted_disk_in_use_and_leaves_its_file_system_clean() {
    let folder = tempfile::tempdir().unwrap();
    let (image, cache) = image(folder.path(), 64 << 20);
    let guest = busy("poweroff", &folder, &image, &cache, POWER_OFF);
    assert_clean(&image, &powered_off(&guest, &cache));
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_machine_that_starts_another_kernel_leaves_a_mounted_disk_in_use_clean_and_that_one_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let (image, cache) = image(folder.path(), 64 << 20);
    ring3_lab::prepare(&cache, &[Need::Kexec], &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    let guest = busy("kexec", &folder, &image, &cache, KEXEC).module("nvme");
    let kernel = cache.path(format!("kernels/{}/vmlinuz", guest.kernel));
    let guest = guest
        .file("/systemd/3.tar", &cache.path("kexec/kexec.tar"))
        .file("/job/kexec/vmlinuz", &kernel);
    let console = powered_off(&guest, &cache);
    for wanted in ["kept", "what was written"].map(|file| format!("by the next kernel: {file}")) {
        assert!(console.contains(&wanted), "{wanted:?} is not in:\n{console}");
    }
    assert_clean(&image, &console);
}

/// A machine with systemd whose disk is written to, and which then runs `end`.
fn busy(name: &str, folder: &TempDir, image: &Path, cache: &Cache, end: &str) -> Guest {
    guest(name, image, 64 << 20)
        .file("/systemd/1.tar", &cache.path("systemd/systemd.tar"))
        .file("/systemd/2.tar", &installed(folder.path()))
        .step("busy", &format!("{BUSY}{end}"))
}

/// The image of a disk with an empty file system, and the lab's files.
fn image(folder: &Path, size: u64) -> (PathBuf, Cache) {
    let image = folder.join("disk");
    File::create(&image).unwrap().set_len(size).unwrap();
    let cache = Cache::open().unwrap();
    ring3_lab::prepare(&cache, &[Need::Tools, Need::Systemd], &mut |_| {})
        .unwrap_or_else(|error| panic!("{error}"));
    format(&cache, &image);
    (image, cache)
}

fn guest(name: &str, image: &Path, size: u64) -> Guest {
    let disk = Device {
        namespaces: vec![Disk::new(Size(size), Backing::Image(image.to_owned()))],
        ..Device::new("disk", "nvme").bound("vfio-pci")
    };
    let guest =
        Guest { memory_mib: 1024, time_limit: Duration::from_secs(400), ..Guest::new(name) };
    with_programs(guest).module("ublk_drv").module("vfio-pci").module("ext4").device(disk)
}

/// What a machine has said that has switched itself off.
fn powered_off(guest: &Guest, cache: &Cache) -> String {
    // It ends before its job does, so that the lab calls it dead or finds no end of the step.
    let console = match guest.run(cache, &mut |_| {}) {
        Ok(outcome) => format!("{}\n{}\n{}", outcome.console, outcome.messages, outcome.output()),
        Err(Error::Died { console, .. }) => console,
        Err(error) => panic!("{error}"),
    };
    assert!(console.contains("Power down"), "{console}");
    console
}

fn assert_clean(image: &Path, console: &str) {
    let (features, state) = superblock(image);
    assert_eq!(state & 0xffff, 0xef53, "no file system: {console}");
    assert_eq!(features & NEEDS_RECOVERY, 0, "it was not unmounted: {console}");
}
