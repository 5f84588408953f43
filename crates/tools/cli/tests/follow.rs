//! `ring3 logs --follow` and `ring3 status --watch`: they go on until their reader has read enough.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use ring3_control::admin::{Command as Asked, Reply};
use ring3_control::status::{DeviceStatus, State};
use ring3_supervisor::admin::AdminServer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

/// Long enough on the busiest host.
const PATIENCE: Duration = Duration::from_secs(60);

fn device(restarts: u64) -> DeviceStatus {
    DeviceStatus {
        name: "scratch".into(),
        device: "vfio:0000:01:00.0".into(),
        driver: "nvme".into(),
        state: State::Running,
        since: 1,
        pid: 2,
        standby: 3,
        disks: Vec::new(),
        interfaces: Vec::new(),
        restarts,
        upgrades: 0,
        last_end: None,
        outages: Vec::new(),
        interrupts: 0,
        iommu_faults: 0,
        cpu_ms: 0,
        memory: 3 << 20,
        shared_hits: 0,
        unlimited: Vec::new(),
    }
}

/// A ring3d with one device, whose log has one line more each time that it is asked for.
struct Ring3d {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ring3d {
    fn start(folder: &Path) -> Self {
        let socket = folder.join("control");
        let mut server = AdminServer::listen(&socket).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = spawn(move || {
            let mut asked = 0;
            while !stopped.load(Ordering::Relaxed) {
                {
                    let sources = server.fds();
                    let mut fds: Vec<_> =
                        sources.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
                    let soon = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                    let _ = poll(&mut fds, Some(&soon));
                }
                for request in server.take() {
                    asked += 1;
                    let reply = match request.command {
                        Asked::Status => Reply::Status(vec![device(asked)]),
                        Asked::Logs { .. } => Reply::Logs((1..=asked).map(line).collect()),
                        _ => Reply::Done,
                    };
                    server.answer(request.from, &reply);
                }
            }
        });
        Self { socket, stop, thread: Some(thread) }
    }

    /// The command's process, and the lines that it prints.
    fn ask(&self, words: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ring3"))
            .args(words.split(' '))
            .arg("--socket")
            .arg(&self.socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines)
    }
}

impl Drop for Ring3d {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn line(number: u64) -> String {
    format!("2026-11-29 10:00:00.{number:03} nvme: line {number}")
}

/// Whether the command ends well once nobody reads what it prints.
fn ends_without_a_reader(mut child: Child, lines: Lines<BufReader<ChildStdout>>) -> bool {
    drop(lines);
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

#[test]
fn a_log_is_followed_line_by_line_until_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let ring3d = Ring3d::start(folder.path());
    let (child, mut lines) = ring3d.ask("logs scratch --follow");
    for number in 1..=3 {
        assert_eq!(lines.next().unwrap().unwrap(), line(number));
    }
    assert!(ends_without_a_reader(child, lines));
}

#[test]
fn a_log_in_json_has_an_object_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let ring3d = Ring3d::start(folder.path());
    let (mut child, mut lines) = ring3d.ask("logs scratch --json");
    let object: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((&object["from"], &object["text"]), (&"nvme".into(), &"line 1".into()));
    assert_eq!(object["time"], "2026-11-29 10:00:00.001");
    assert!(lines.next().is_none() && child.wait().unwrap().success());
}

#[test]
fn a_status_that_is_watched_is_shown_again_until_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let ring3d = Ring3d::start(folder.path());
    let (child, mut lines) = ring3d.ask("status --watch=0.1 --json");
    for restarts in 1..=3 {
        let devices: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(devices[0]["restarts"], restarts);
    }
    assert!(ends_without_a_reader(child, lines));
}

#[test]
fn the_sizes_of_a_status_have_units() {
    let folder = tempfile::tempdir().unwrap();
    let ring3d = Ring3d::start(folder.path());
    let (mut child, lines) = ring3d.ask("status scratch");
    let text: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(text.iter().any(|line| line.ends_with(", 3 MiB of memory")), "{text:?}");
    assert!(child.wait().unwrap().success());
}
