//! `ring3 serve disk`: one disk for several programs, each of which is an ordinary `ring3 blk`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

fn ring3() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ring3"))
}

struct Served {
    folder: tempfile::TempDir,
    server: Child,
    facts: serde_json::Value,
}

impl Served {
    /// `device` on a socket for each of `terms`.
    fn start(device: &str, terms: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = ring3();
        command.args(["serve", "disk", "--json", "--device", device]);
        for (index, terms) in terms.iter().enumerate() {
            command.arg("--socket").arg(format!("{}/{index}{terms}", folder.path().display()));
        }
        let mut server = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let facts = serde_json::from_str(&line).unwrap();
        Self { folder, server, facts }
    }

    fn path(&self, index: usize) -> PathBuf {
        self.folder.path().join(index.to_string())
    }

    fn device(&self, index: usize) -> String {
        format!("remote:{}", self.path(index).display())
    }

    /// Ends it as a user does.
    fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.server), Signal::TERM).unwrap();
        self.server.wait().unwrap().code()
    }

    /// Ticks of processor time that it has used.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server.id())).unwrap();
        let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn blk(args: &[&str]) -> Output {
    ring3().arg("blk").args(args).output().unwrap()
}

fn check(device: &str) {
    let output = blk(&["check", "--destroy", "--requests", "200", "--device", device]);
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn write(device: &str, from: &Path) -> Output {
    blk(&["write", "--device", device, "--from", from.to_str().unwrap()])
}

#[test]
fn the_suite_passes_in_a_process_beside_the_drivers() {
    let mut served = Served::start("sim:nvme,size=32M", &[""]);
    assert_eq!(served.facts["mapped"], true);
    check(&served.device(0));
    assert_eq!(served.stop(), Some(0));
    assert!(!served.path(0).exists());
}

#[test]
fn the_suite_passes_on_qemus_disk_whose_memory_is_copied() {
    let served = Served::start("qtest:nvme,size=32M", &[""]);
    assert_eq!(served.facts["mapped"], false);
    check(&served.device(0));
}

/// Whether a load of 64 requests from memory that the program lends was right, and what it says of
/// that memory.
fn load_from_lent_memory(device: &str) -> (Option<i32>, String) {
    let output = blk(&[
        "bench",
        "--dma",
        "lent",
        "--workload",
        "randwrite-64k-qd8",
        "--count",
        "64",
        "--overwrite",
        "--device",
        device,
    ]);
    (
        output.status.code(),
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    )
}

#[test]
fn nobody_copies_what_lies_in_memory_that_a_program_lends_to_a_server_or_to_its_own_driver() {
    let served = Served::start("sim:nvme,size=32M", &[""]);
    for device in [&served.device(0), "sim:nvme,size=32M", "sim:ahci,size=32M"] {
        let (code, says) = load_from_lent_memory(device);
        assert!(
            code == Some(0)
                && says.contains("64 requests mapped in 64 segments")
                && says.contains(" 0 copied"),
            "{says}"
        );
    }
}

#[test]
fn a_server_that_copies_refuses_memory_that_is_lent_and_says_why() {
    let below = Served::start("sim:nvme,size=32M", &[""]);
    let above = Served::start(&below.device(0), &[""]);
    let (code, says) = load_from_lent_memory(&above.device(0));
    assert!(code == Some(1) && says.contains("this server copies"), "{says}");
}

#[test]
fn two_programs_write_and_read_one_disk_each_on_its_own_terms() {
    let served = Served::start("sim:nvme,size=32M", &["", ",offset=1M,size=1M", ",access=ro"]);
    let (from, to) = (served.folder.path().join("from"), served.folder.path().join("to"));
    std::fs::write(&from, vec![0x42; 1 << 20]).unwrap();
    assert!(write(&served.device(1), &from).status.success());
    let output = blk(&[
        "read",
        "--device",
        &served.device(0),
        "--offset",
        "1M",
        "--length",
        "1M",
        "--to",
        to.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::read(&to).unwrap() == std::fs::read(&from).unwrap());
    assert!(!write(&served.device(2), &from).status.success());
}

#[test]
fn a_part_of_a_share_can_be_shared_again() {
    let below = Served::start("sim:nvme,size=32M", &[",offset=8M,size=8M"]);
    let above = Served::start(&below.device(0), &[",offset=4M"]);
    assert_eq!(above.facts["bytes"], 8 << 20);
    check(&above.device(0));
}

#[test]
fn clients_that_are_killed_under_load_hurt_nobody() {
    let served = Served::start("sim:nvme,size=32M", &[",size=8M", ",offset=8M"]);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let checked = scope.spawn(|| {
            check(&served.device(1));
            over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let mut killed = 0;
        while !checked.is_finished() || killed < 3 {
            let load = [
                "blk",
                "bench",
                "--workload",
                "randwrite-4k-qd32",
                "--overwrite",
                "--seconds",
                "60",
                "--device",
                &served.device(0),
            ];
            let mut client =
                ring3().args(load).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(300));
            assert!(client.try_wait().unwrap().is_none(), "the load has ended by itself");
            client.kill().unwrap();
            client.wait().unwrap();
            killed += 1;
        }
    });
    assert!(over.into_inner());
    check(&served.device(0));
}

/// Root may make namespaces, and others may where the kernel lets them.
#[test]
fn two_containers_share_a_disk_each_in_its_own_range() {
    let served = Served::start("sim:nvme,size=32M", &[",size=8M", ",offset=8M,size=8M"]);
    let contained = |index: usize| {
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--net",
            "--ipc",
            "--uts",
            "--mount",
            "--pid",
            "--fork",
            env!("CARGO_BIN_EXE_ring3"),
        ]);
        command.args([
            "blk",
            "check",
            "--destroy",
            "--requests",
            "200",
            "--device",
            &served.device(index),
        ]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for client in [contained(0), contained(1)] {
        let output = client.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn an_idle_server_costs_no_processor_time() {
    let served = Served::start("sim:nvme,size=32M", &[""]);
    check(&served.device(0));
    std::thread::sleep(Duration::from_millis(100));
    let before = served.ticks();
    std::thread::sleep(Duration::from_secs(2));
    let spent = served.ticks() - before;
    assert!(spent <= 1, "{spent} ticks in two seconds");
}

#[test]
fn terms_that_make_no_sense_and_devices_without_one_disk_are_refused_with_what_would() {
    let fails = |device: &str, socket: &str, says: &str| {
        let output = ring3()
            .args(["serve", "disk", "--device", device, "--socket", socket])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(says), "{error}");
    };
    fails("sim:nvme,size=1M", "/tmp/none,colour=red", "there are: mode");
    fails("sim:nvme,size=1M", "/no/such/folder/disk", "create its folder first");
    fails("sim:nvme,size=1M", "/tmp/none,offset=2M", "2048 blocks of 512 bytes");
    fails("sim:nvme,size=1M,namespaces=2", "/tmp/none", "has 2 disks");
    fails("remote:/no/such/disk", "/tmp/none", "nobody serves a disk or a card there");
}

#[test]
fn a_remote_disk_is_no_device_and_the_error_says_so() {
    let output = ring3().args(["nvme", "id", "--device", "remote:/tmp/none"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no device"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
