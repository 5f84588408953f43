//! `ring3 lab` around a QEMU that is a shell script, with a cache of a few small files: what it
//! does when QEMU, the cache or the user does not do what is expected. No guest is booted.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;
/// What a guest says on its port from the start to its verdict.
const PASSES: &str = r"printf '\001start 1.0\n\001step 0 1.5\nfresh\n\001done 0 0 2.0\n' >&3
printf '\001files 0\n\001exit 0\n' >&3; read answer <&3; exit 1";
/// A guest in its first step when QEMU aborts.
const ABORTS: &str = r"printf '\001start 1.0\n\001step 0 1.5\nstale\n' >&3
echo 'physmem.c: iotlb_to_section: Assertion failed.' >&2; kill -ABRT $$";
const HANGS: &str = "echo $$ >$PID; exec sleep 1000";

struct Lab(tempfile::TempDir);

fn write(path: &Path, content: impl AsRef<[u8]>, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A bzImage whose payload is not packed. [BOOT setup_sects, version, payload_offset,
/// payload_length]
fn image() -> Vec<u8> {
    let payload = b"\x7fELF and no more";
    let mut image = vec![0; 1024 + 64];
    image[0x1f1] = 1;
    image[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
    image[0x248] = 64;
    image[0x24c] = payload.len() as u8;
    image.extend_from_slice(payload);
    image
}

impl Lab {
    /// Its QEMU runs `script`.
    fn new(script: &str) -> Self {
        let lab = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(lab.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        lab.qemu(script);
        let kernel = lab.cache().join("kernels/6.12");
        for part in ["tools", "fio", "kernels/6.12"] {
            write(&lab.cache().join(part).join("layout-1"), "", 0o644);
        }
        write(&lab.cache().join("tools/bin/busybox"), "#!/bin/sh\necho sh\n", 0o755);
        write(&kernel.join("release"), "6.12.0-fake\n", 0o644);
        write(&kernel.join("vmlinuz"), image(), 0o644);
        let modules = kernel.join("lib/modules/6.12.0-fake");
        write(&modules.join("modules.dep"), "", 0o644);
        write(
            &modules.join("modules.builtin"),
            "kernel/virtio_pci.ko\nkernel/virtio_console.ko\n",
            0o644,
        );
        let scenario = "about = 'x'\n[[device]]\nid = 'disk'\nmodel = 'nvme'\nsize = \
                        '64M'\nbacking = 'memory'\n[[step]]\nname = 'look'\nrun = 'true'\n";
        write(&lab.path("t.toml"), scenario, 0o644);
        lab
    }

    fn qemu(&self, script: &str) {
        let version = "[ \"$1\" != --version ] || { echo QEMU emulator version 10.0.2; exit 0; }";
        write(&self.path("qemu"), format!("#!/bin/sh\n{version}\n{script}\n"), 0o755);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
        command
            .arg("lab")
            .args(words)
            .env("RING3_CACHE", self.cache())
            .env("RING3_QEMU", self.path("qemu"));
        command
            .env("PID", self.path("pid"))
            .env("TRY", self.path("try"))
            .env("TMPDIR", self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(&[&["run", self.path("t.toml").to_str().unwrap()], words].concat())
            .output()
            .unwrap()
    }

    /// Starts a run whose QEMU hangs, and waits until it is there.
    fn hang(&self) -> (Child, String) {
        let child = self.command(&["run", self.path("t.toml").to_str().unwrap()]).spawn().unwrap();
        let pid = || fs::read_to_string(self.path("pid")).ok().filter(|text| text.ends_with('\n'));
        assert!(within(60, || pid().is_some()), "QEMU did not start");
        (child, pid().unwrap().trim().into())
    }

    /// Folders of runs.
    fn runs(&self) -> usize {
        fs::read_dir(self.cache().join("runs")).map_or(0, Iterator::count)
    }
}

fn within(seconds: u64, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

fn is_dead(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.is_empty() || state.contains(") Z ")
}

fn kill(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

fn fails_with(output: &Output, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?} in {said}");
}

#[test]
fn an_interrupted_run_leaves_neither_qemu_nor_its_disks_nor_its_folder() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let lab = Lab::new(HANGS);
        let (mut child, qemu) = lab.hang();
        assert_eq!(lab.runs(), 1);
        kill(signal, &child.id().to_string());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(within(10, || is_dead(&qemu)), "an orphaned QEMU");
        assert_eq!(lab.runs(), 0);
    }
}

#[test]
fn what_a_killed_run_leaves_on_the_disk_goes_with_the_next_run_and_the_rest_at_once() {
    let lab = Lab::new(HANGS);
    let (mut child, qemu) = lab.hang();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(within(10, || is_dead(&qemu)), "an orphaned QEMU");
    let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    assert!(
        !shared
            .map(|entry| entry.file_name())
            .any(|name| name.to_string_lossy().starts_with("ring3-t-"))
    );
    lab.qemu(PASSES);
    assert!(lab.run(&[]).status.success());
    assert_eq!(lab.runs(), 0);
}

#[test]
fn a_qemu_that_is_killed_ends_the_run_with_nothing_left() {
    let lab = Lab::new(HANGS);
    let (child, qemu) = lab.hang();
    kill("-KILL", &qemu);
    fails_with(&child.wait_with_output().unwrap(), &["SIGKILL"]);
    assert_eq!(lab.runs(), 0);
}

#[test]
fn a_guest_whose_qemu_aborts_in_its_job_is_run_again_once_and_the_outcome_says_so() {
    let once = format!("if [ -e $TRY ]; then {PASSES}; fi; touch $TRY; {ABORTS}");
    let output = Lab::new(&once).run(&["--json"]);
    assert!(output.status.success(), "{}", said(&output));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(outcome["retried"].as_str().unwrap().contains("iotlb_to_section"), "{outcome}");
    assert_eq!(
        (&outcome["steps"][0]["output"], &outcome["steps"][1]),
        (&"fresh\n".into(), &serde_json::Value::Null)
    );
    let said_so = said(&Lab::new(&once).run(&[]));
    assert!(
        said_so.contains("the guest is run again")
            && said_so.contains("passed at the second try (QEMU aborted"),
        "{said_so}"
    );
    fails_with(&Lab::new(ABORTS).run(&[]), &["iotlb_to_section"]);
}

#[test]
fn another_abort_of_qemu_or_one_beside_an_image_is_an_error_at_once() {
    let other =
        Lab::new("echo try >>$TRY; echo 'nvme_map_prp: Assertion failed.' >&2; kill -ABRT $$");
    fails_with(&other.run(&[]), &["nvme_map_prp"]);
    assert_eq!(fs::read_to_string(other.path("try")).unwrap(), "try\n");
    let image = Lab::new(&format!("echo try >>$TRY; {ABORTS}"));
    let scenario = fs::read_to_string(image.path("t.toml")).unwrap();
    write(&image.path("disk.img"), vec![0; 1 << 16], 0o644);
    write(
        &image.path("t.toml"),
        scenario.replace("'memory'", &format!("'{}'", image.path("disk.img").display())),
        0o644,
    );
    fails_with(&image.run(&[]), &["iotlb_to_section"]);
    assert_eq!(fs::read_to_string(image.path("try")).unwrap(), "try\n");
}

#[test]
fn values_that_make_no_sense_are_refused_before_qemu_is_asked() {
    let lab = Lab::new("touch $TRY");
    for (setting, word) in [
        ("memory=0", "128M at least"),
        ("memory=1K", "128M at least"),
        ("memory=4000000T", "this machine has"),
        ("memory=x", "is not a size"),
        ("vcpus=0", "1 to 64"),
        ("vcpus=100000", "1 to 64"),
        ("time_limit=0", "from 1 to"),
        ("time_limit=-1", "-1"),
        ("time_limit=9223372036854775807", "from 1 to"),
        ("hugepages=100000", "hugepages"),
        ("kernel=", "'' is not a kernel version"),
    ] {
        fails_with(&lab.run(&["--set", setting]), &[word]);
    }
    fails_with(&lab.run(&["--kernel", ""]), &["'' is not a kernel version such as 6.12"]);
    fails_with(&lab.run(&["--kernel", "6.12", "--set", "kernel=6.1"]), &["'kernel' is set twice"]);
    fails_with(&lab.run(&["--set", "memory=1G", "--set", "memory=2G"]), &["'memory' is set twice"]);
    assert!(!lab.path("try").exists());
}

#[test]
fn results_that_have_no_place_are_refused_before_the_run() {
    let lab = Lab::new("touch $TRY");
    fails_with(&lab.run(&["--out", "/proc/nonsense"]), &["/proc/nonsense"]);
    assert!(!lab.path("try").exists());
}

#[test]
fn a_damaged_cache_says_what_mends_it() {
    let next = "next: ring3 lab prepare (it verifies the cache";
    let lab = Lab::new("exit 1");
    let kernel = lab.cache().join("kernels/6.12");
    write(&kernel.join("vmlinuz"), &image()[..1000], 0o644);
    fails_with(&lab.run(&[]), &["vmlinuz: kernel image: cut short", next]);
    write(&kernel.join("vmlinuz"), image(), 0o644);
    fs::remove_file(kernel.join("lib/modules/6.12.0-fake/modules.dep")).unwrap();
    fails_with(&lab.run(&[]), &["modules.dep", next]);
    let lab = Lab::new("exit 1");
    write(
        &lab.path("qemu"),
        "#!/bin/sh\necho 'error while loading shared libraries: libpixman-1.so.0' >&2; exit 127",
        0o755,
    );
    fails_with(&lab.run(&[]), &["libpixman-1.so.0", next]);
}

#[test]
fn another_user_runs_guests_from_a_cache_that_he_cannot_write() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return;
    }
    let lab = Lab::new(PASSES);
    // As it is where programs lie that only root may reach.
    let program = lab.path("ring3");
    fs::copy(env!("CARGO_BIN_EXE_ring3"), &program).unwrap();
    let other = lab.path("tmp");
    fs::create_dir(&other).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o1777)).unwrap();
    let run = || {
        let mut command = Command::new(&program);
        command
            .args(["lab", "run"])
            .arg(lab.path("t.toml"))
            .env("RING3_CACHE", lab.cache())
            .env("RING3_QEMU", lab.path("qemu"));
        command
            .env("HOME", "/nonexistent")
            .env_remove("XDG_CACHE_HOME")
            .env("TMPDIR", &other)
            .current_dir("/");
        command.uid(NOBODY).gid(NOBODY);
        // A test beside this one may start a process while the copy is written: until that runs its
        // own program, it has the descriptor, too.
        for _ in 0..500 {
            match command.output() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    thread::sleep(Duration::from_millis(10));
                }
                output => return output.unwrap(),
            }
        }
        panic!("somebody keeps {} open for writing", program.display())
    };
    assert!(run().status.success(), "{}", said(&run()));
    assert!(lab.run(&[]).status.success());
    let output = run();
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        !other.join(format!("ring3-{NOBODY}/kernels")).exists(),
        "what the owner has is not built again"
    );
    fs::remove_file(lab.cache().join("kernels/6.12/lib/modules/6.12.0-fake/modules.dep")).unwrap();
    fails_with(&run(), &["next: ring3 lab prepare by the owner of", "or set RING3_CACHE"]);
}
