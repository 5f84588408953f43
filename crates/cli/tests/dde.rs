//! Unmodified drivers of Linux in a process, on QEMU's cards. Where what they are built of is not in the cache, a test that builds one is skipped, and says so: nothing is fetched for it.

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

/// The program, which cargo may have put anywhere: the source is named.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    command.env("RING3_WERROR", "1").env("RING3_DDE", concat!(env!("CARGO_MANIFEST_DIR"), "/../../dde"));
    command
}

fn ring3(words: &[&str]) -> Output {
    program().args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether there is what drivers are built of.
fn can_build() -> bool {
    let cache = ring3_lab::Cache::open().unwrap();
    let there = ring3_lab::Need::Hosting.is_met(&cache);
    if !there {
        eprintln!("skipped: what hosted drivers are built of is not in the cache; lab/setup.sh hosting fetches it");
    }
    there
}

#[test]
fn hosted_drivers_are_listed_with_what_they_were_tried_with() {
    let output = ring3(&["dde", "list", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let e1000e = listed.iter().find(|listed| listed["driver"] == "e1000e").unwrap();
    assert_eq!(e1000e["devices"][0], "qtest:e1000e");
}

#[test]
fn a_driver_that_is_none_is_refused_with_those_that_there_are() {
    let output = ring3(&["dde", "build", "nosuch"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("e1000e"), "{}", text(&output.stderr));
    let output = ring3(&["net", "check", "--driver", "e1000e", "--device", "qtest:e1000e"]);
    assert!(text(&output.stderr).contains("dde:e1000e is one"), "{}", text(&output.stderr));
}

#[test]
fn a_card_without_a_peer_is_asked_for_one_unless_it_is_of_qemu() {
    let output = ring3(&["net", "check", "--device", "sim:e1000"]);
    assert!(text(&output.stderr).contains("--peer names it"), "{}", text(&output.stderr));
}

#[test]
fn who_chooses_interrupts_for_a_driver_of_linux_is_told_who_does() {
    let output = ring3(&["net", "check", "--driver", "dde:e1000e", "--device", "qtest:e1000e", "--irq", "intx"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("msix=off"), "{}", text(&output.stderr));
}

#[test]
fn a_driver_whose_starter_is_gone_ends_at_once() {
    if !can_build() {
        return;
    }
    let built = ring3(&["dde", "build", "e1000e", "--json"]);
    let built: Value = serde_json::from_slice(&built.stdout).unwrap_or_else(|_| panic!("{}", text(&built.stderr)));
    let folder = Path::new(env!("CARGO_BIN_EXE_ring3")).parent().unwrap();
    let mut command = Command::new(built["program"].as_str().unwrap());
    command.env("LD_LIBRARY_PATH", std::env::join_paths([folder.to_owned(), folder.join("deps")]).unwrap());
    command.args(["--device", "qtest:e1000e", "--socket", "/nowhere/card", "--with-parent", "1"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("not its child"), "{}", text(&output.stderr));
}

#[test]
fn a_driver_that_is_told_to_end_while_frames_come_closes_its_card() {
    if !can_build() {
        return;
    }
    let built = ring3(&["dde", "build", "e1000e"]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let wire = UnixDatagram::bind(path("wire")).unwrap();
    wire.set_nonblocking(true).unwrap();
    let device = format!("qtest:e1000e,wire={}", path("wire"));
    let mut driver = program()
        .args(["dde", "run", "e1000e", "--device", &device, "--socket", &path("card"), "--arena", "48"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(r#""link":true"#)));
    let (stop, card) = (AtomicBool::new(false), path("wire.card"));
    let status = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match wire.send_to(&[0xff; 200], &card) {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => break,
                    Err(_) => std::thread::sleep(Duration::from_micros(20)),
                    Ok(_) => {}
                }
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        rustix::process::kill_process(rustix::process::Pid::from_child(&driver), rustix::process::Signal::TERM).unwrap();
        let status = driver.wait().unwrap();
        stop.store(true, Ordering::Relaxed);
        status
    });
    assert!(status.success(), "{status}");
}

#[test]
fn linuxs_e1000e_drives_qemus_card_as_every_card_must_be_driven() {
    if !can_build() {
        return;
    }
    let built = ring3(&["dde", "build", "e1000e", "--json"]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    let again: Value = serde_json::from_slice(&ring3(&["dde", "build", "e1000e", "--json"]).stdout).unwrap();
    assert_eq!(again["cached"], true, "{again}");
    // By MSI-X, MSI and the pin.
    for device in ["qtest:e1000e", "qtest:e1000e,msix=off", "qtest:e1000e,msix=off,msi=off"] {
        let output = ring3(&["net", "check", "--driver", "dde:e1000e", "--device", device, "--packets", "2000", "--json"]);
        let (said, wrong) = (text(&output.stdout), text(&output.stderr));
        let result: Value = serde_json::from_str(said.lines().last().unwrap_or_else(|| panic!("{wrong}"))).unwrap();
        assert_eq!(result["failed"], 0, "{device}\n{said}\n{wrong}");
    }
}
