//! Unmodified drivers of Linux in a process, on QEMU's devices.

mod hosted;

use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosted::{can_build, program};
use serde_json::Value;

fn ring3(words: &[&str]) -> Output {
    program().args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether valgrind is there, which is the distribution's.
fn has_valgrind() -> bool {
    let there = Command::new("valgrind").arg("--version").output().is_ok()
        && Path::new("/usr/include/valgrind/memcheck.h").exists();
    if !there {
        eprintln!("skipped: there is no valgrind: apt-get install valgrind");
    }
    there
}

/// The suite on Linux's e1000e, with `tool`.
fn check_with(tool: &str) -> Output {
    let device = ["--driver", "dde:e1000e", "--device", "qtest:e1000e"];
    ring3(&[&["net", "check", "--packets", "50"], &device[..], &[tool]].concat())
}

#[test]
fn memcheck_finds_nothing_in_a_driver_of_linux_that_conforms() {
    if !can_build() || !has_valgrind() {
        return;
    }
    let output = check_with("--valgrind");
    let said = text(&output.stderr);
    assert!(
        output.status.success() && said.contains("ERROR SUMMARY: 0 errors"),
        "{} {said}",
        text(&output.stdout)
    );
}

#[test]
fn callgrind_counts_the_instructions_of_a_driver_of_linux_by_function() {
    if !can_build() || !has_valgrind() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts");
    let output = check_with(&format!("--callgrind={}", file.display()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let counts = std::fs::read_to_string(file).unwrap();
    assert!(
        counts.contains("e1000_xmit_frame") && counts.contains("e1000_clean_rx_irq"),
        "the driver's functions are not there"
    );
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
fn a_driver_of_another_kind_of_device_is_refused_with_the_command_for_it() {
    let output = ring3(&["net", "check", "--driver", "dde:nvme", "--device", "qtest:nvme"]);
    assert!(text(&output.stderr).contains("ring3 blk check"), "{}", text(&output.stderr));
    let output =
        ring3(&["blk", "check", "--destroy", "--driver", "dde:e1000e", "--device", "qtest:e1000e"]);
    assert!(text(&output.stderr).contains("ring3 net check"), "{}", text(&output.stderr));
}

#[test]
fn a_driver_that_is_none_is_refused_with_those_that_there_are() {
    let output = ring3(&["dde", "build", "nosuch"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("e1000e"), "{}", text(&output.stderr));
    let output = ring3(&["net", "check", "--driver", "e1000e", "--device", "qtest:e1000e"]);
    assert!(
        text(&output.stderr).contains("dde:e1000e and dde:nvme are such"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_card_without_a_peer_is_asked_for_one_unless_it_is_of_qemu() {
    let output = ring3(&["net", "check", "--device", "sim:e1000"]);
    assert!(text(&output.stderr).contains("--peer names it"), "{}", text(&output.stderr));
}

#[test]
fn who_chooses_interrupts_for_a_driver_of_linux_is_told_who_does() {
    let output = ring3(&[
        "net",
        "check",
        "--driver",
        "dde:e1000e",
        "--device",
        "qtest:e1000e",
        "--irq",
        "intx",
    ]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("msix=off"), "{}", text(&output.stderr));
}

#[test]
fn a_driver_whose_starter_is_gone_ends_at_once() {
    if !can_build() {
        return;
    }
    let built = ring3(&["dde", "build", "e1000e", "--json"]);
    let built: Value =
        serde_json::from_slice(&built.stdout).unwrap_or_else(|_| panic!("{}", text(&built.stderr)));
    let folder = Path::new(env!("CARGO_BIN_EXE_ring3")).parent().unwrap();
    let mut command = Command::new(built["program"].as_str().unwrap());
    command.env(
        "LD_LIBRARY_PATH",
        std::env::join_paths([folder.to_owned(), folder.join("deps")]).unwrap(),
    );
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
        .args([
            "dde",
            "run",
            "e1000e",
            "--device",
            &device,
            "--socket",
            &path("card"),
            "--arena",
            "48",
        ])
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
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&driver),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        let status = driver.wait().unwrap();
        stop.store(true, Ordering::Relaxed);
        status
    });
    assert!(status.success(), "{status}");
}

/// A command on a driver that is built, with a folder of its own for what is temporary, told to end
/// by a signal at once and when it has begun.
fn is_told_to_end(words: &[&str], began: impl Fn(&str) -> bool) {
    for late in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = program();
        command
            .args(words)
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut command = command.spawn().unwrap();
        let mut lines =
            BufReader::new(command.stdout.take().unwrap()).lines().map_while(Result::ok);
        match late {
            true => assert!(lines.any(|line| began(&line))),
            false => std::thread::sleep(Duration::from_millis(200)),
        }
        let pid = rustix::process::Pid::from_child(&command);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let ended = command.wait_with_output().unwrap();
        assert_eq!(
            ended.status.code(),
            Some(130),
            "{words:?} late: {late}\n{}",
            text(&ended.stderr)
        );
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{words:?} late: {late}: {left:?}");
    }
}

#[test]
fn who_is_told_to_end_leaves_no_folder_behind() {
    is_told_to_end(
        &["net", "check", "--device", "qtest:e1000e", "--packets", "100000000"],
        |line| line.starts_with("ok"),
    );
    if !can_build() {
        return;
    }
    let built = ring3(&["dde", "build", "e1000e"]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    let check = [
        "net",
        "check",
        "--driver",
        "dde:e1000e",
        "--device",
        "qtest:e1000e",
        "--packets",
        "100000000",
    ];
    is_told_to_end(&check, |line| line.starts_with("ok"));
}

#[test]
fn a_driver_is_named_in_the_same_way_by_every_command_of_a_card() {
    for words in [
        &["net", "info", "--device", "qtest:e1000e"][..],
        &["net", "bench", "--device", "qtest:e1000e"],
        &["net", "check", "--device", "qtest:e1000e"],
        &["run", "net", "--device", "qtest:e1000e"],
        &["serve", "net", "--device", "qtest:e1000e", "--socket", "/nowhere/card"],
    ] {
        let named =
            |driver: &str, more: &[&str]| ring3(&[words, &["--driver", driver], more].concat());
        let unknown = named("dde:nosuch", &[]);
        assert!(
            !unknown.status.success() && text(&unknown.stderr).contains("there are"),
            "{words:?} {}",
            text(&unknown.stderr)
        );
        let wrong = named("nosuch", &[]);
        assert!(
            !wrong.status.success() && text(&wrong.stderr).contains("ring3 dde list"),
            "{words:?} {}",
            text(&wrong.stderr)
        );
        for (option, value) in [("--irq", "msi"), ("--throttle", "adaptive")] {
            let chosen = named("dde:e1000e", &[option, value]);
            let said = text(&chosen.stderr);
            assert!(
                !chosen.status.success()
                    && said.contains(option)
                    && said.contains("chooses itself"),
                "{words:?} {said}"
            );
        }
    }
    let run = ring3(&["run", "dde:nosuch", "--device", "qtest:e1000e"]);
    assert!(
        !run.status.success() && text(&run.stderr).contains("there are"),
        "{}",
        text(&run.stderr)
    );
    let run = ring3(&["run", "nosuch", "--device", "qtest:e1000e"]);
    assert!(
        !run.status.success() && text(&run.stderr).contains("ring3 run --help"),
        "{}",
        text(&run.stderr)
    );
}

#[test]
fn a_device_of_another_kind_is_refused_with_what_the_driver_takes() {
    if !can_build() {
        return;
    }
    let output = ring3(&["net", "info", "--driver", "dde:e1000e", "--device", "qtest:e1000"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(
        said.contains("has not taken the device, 8086:100e")
            && said.contains("e1000e takes 8086:105e"),
        "{said}"
    );
}

#[test]
fn a_driver_that_was_put_beside_an_installed_ring3_needs_no_source() {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib/ring3"));
    let built = ring3(&["dde", "build", "e1000e", "--to", lib.to_str().unwrap()]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    std::fs::create_dir(&bin).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_ring3"), bin.join("ring3")).unwrap();
    let mut installed = Command::new(bin.join("ring3"));
    let output = installed
        .args(["net", "info", "--driver", "dde:e1000e", "--device", "qtest:e1000e", "--json"])
        .output()
        .unwrap();
    let card: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    assert_eq!((&card["model"], &card["link"]), (&"e1000e".into(), &true.into()), "{card}");
}

/// Linux's drivers of network cards, and what each is tried with: by MSI-X, MSI and the pin.
const CARDS: [(&str, &str); 8] = [
    ("e1000e", "qtest:e1000e"),
    ("e1000e", "qtest:e1000e,msix=off"),
    ("e1000e", "qtest:e1000e,msix=off,msi=off"),
    ("e1000", "qtest:e1000"),
    ("igb", "qtest:igb"),
    ("8139cp", "qtest:rtl8139"),
    ("virtio-net", "qtest:virtio-net-pci,iommu_platform=on"),
    // QEMU's packed rings by event numbers lose one: docs/hosting.md.
    ("virtio-net", "qtest:virtio-net-pci,iommu_platform=on,packed=on,event_idx=off"),
];

#[test]
fn linuxs_drivers_of_cards_drive_qemus_as_every_card_must_be_driven() {
    if !can_build() {
        return;
    }
    let built = ring3(&["dde", "build", "e1000e", "--json"]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    let again: Value =
        serde_json::from_slice(&ring3(&["dde", "build", "e1000e", "--json"]).stdout).unwrap();
    assert_eq!(again["cached"], true, "{again}");
    for (driver, device) in CARDS {
        let driver = format!("dde:{driver}");
        let output = ring3(&[
            "net",
            "check",
            "--driver",
            &driver,
            "--device",
            device,
            "--packets",
            "2000",
            "--json",
        ]);
        let (said, wrong) = (text(&output.stdout), text(&output.stderr));
        let result: Value =
            serde_json::from_str(said.lines().last().unwrap_or_else(|| panic!("{wrong}"))).unwrap();
        assert_eq!(result["failed"], 0, "{driver} {device}\n{said}\n{wrong}");
    }
}

/// Linux's drivers of disks, and what each is tried with.
const DISKS: [(&str, &str); 10] = [
    ("nvme", "qtest:nvme"),
    ("nvme", "qtest:nvme,msix=off,block=4096"),
    ("ahci", "qtest:ich9-ahci"),
    ("ahci", "qtest:ich9-ahci,msi=off"),
    ("ata_piix", "qtest:piix3-ide"),
    ("virtio-blk", "qtest:virtio-blk-pci,iommu_platform=on"),
    ("xhci", "qtest:qemu-xhci"),
    ("xhci", "qtest:qemu-xhci,msix=off,msi=off"),
    ("am53c974", "qtest:am53c974"),
    ("megaraid_sas", "qtest:megasas"),
];

#[test]
fn linuxs_drivers_of_disks_drive_qemus_as_every_disk_must_be_driven() {
    if !can_build() {
        return;
    }
    for (driver, device) in DISKS {
        let driver = format!("dde:{driver}");
        // The Am53C974's chip asks for each phase of a command.
        let requests = if driver == "dde:am53c974" { "20" } else { "300" };
        let words = [
            "blk",
            "check",
            "--destroy",
            "--driver",
            &driver,
            "--device",
            device,
            "--requests",
            requests,
            "--json",
        ];
        let output = ring3(&words);
        let (said, wrong) = (text(&output.stdout), text(&output.stderr));
        let result: Value =
            serde_json::from_str(said.lines().last().unwrap_or_else(|| panic!("{wrong}"))).unwrap();
        assert_eq!(result["failed"], 0, "{driver} {device}\n{said}\n{wrong}");
        // It has ended well, too.
        assert!(!wrong.contains("has ended"), "{driver} {device}\n{wrong}");
    }
}

#[test]
fn a_controller_without_a_disk_is_given_up_with_the_time_that_was_waited() {
    if !can_build() {
        return;
    }
    let output = ring3(&[
        "dde",
        "run",
        "xhci",
        "--device",
        "qtest:qemu-xhci,disks=0",
        "--socket",
        "/nowhere/disk",
    ]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("no disk on the bus within 45 s"),
        "{}",
        text(&output.stderr)
    );
}

/// A WAV file of so many frames of PCM, whose samples are made up: its header, its samples.
fn wav(channels: u16, rate: u32, bits: u16, frames: u32) -> (Vec<u8>, Vec<u8>) {
    let align = channels * bits / 8;
    let length = frames * u32::from(align);
    let samples: Vec<u8> = (1..=length.div_ceil(4))
        .flat_map(|index| index.wrapping_mul(0x9e37_79b1).rotate_left(13).to_le_bytes())
        .collect();
    let format = [
        16u32.to_le_bytes(),
        [1, 0, channels as u8, 0],
        rate.to_le_bytes(),
        (rate * u32::from(align)).to_le_bytes(),
    ];
    let form = [&b"RIFF"[..], &(36 + length).to_le_bytes(), b"WAVEfmt "].concat();
    let header = [
        &form[..],
        &format.concat(),
        &align.to_le_bytes(),
        &bits.to_le_bytes(),
        b"data",
        &length.to_le_bytes(),
    ]
    .concat();
    (header, samples[..length as usize].to_vec())
}

/// A sound card of QEMU's, by Linux's driver, that plays a file of so many frames: the command, and
/// where QEMU writes what it hears.
fn player(folder: &Path, frames: u32) -> (Command, std::path::PathBuf, Vec<u8>) {
    let (played, heard) = (folder.join("played.wav"), folder.join("heard.wav"));
    let (header, samples) = wav(2, 44100, 16, frames);
    std::fs::write(&played, [header, samples.clone()].concat()).unwrap();
    let mut command = program();
    command.args([
        "dde",
        "run",
        "snd-ens1370",
        "--device",
        &format!("qtest:ES1370,wav={}", heard.display()),
    ]);
    command.arg("--play").arg(played);
    (command, heard, samples)
}

/// What the driver says at its end.
fn summary(stdout: &str) -> Value {
    serde_json::from_str(stdout.lines().last().unwrap_or_default()).unwrap_or_default()
}

#[test]
fn linuxs_driver_of_a_sound_card_plays_a_file_sample_by_sample() {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // A host that is so busy that the driver comes late is no fault of the driver's, which says so.
    for _ in 0..5 {
        let (mut command, heard, samples) = player(folder.path(), 44100);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let said = summary(&text(&output.stdout));
        assert_eq!(said["played"], 44100, "{said}");
        if said["underruns"] != 0 {
            continue;
        }
        let file = std::fs::read(heard).unwrap();
        let length = u32::from_le_bytes(file[40..44].try_into().unwrap()) as usize;
        assert_eq!(file.len(), 44 + length, "QEMU has ended the file");
        let heard = &file[44..];
        let lead = heard.iter().position(|&byte| byte != 0).unwrap() / 4 * 4;
        assert!(
            heard[lead..].starts_with(&samples),
            "after {lead} bytes of silence something else is heard than was played"
        );
        assert!(
            heard[lead + samples.len()..].iter().all(|&byte| byte == 0),
            "what follows is not silence"
        );
        return;
    }
    panic!("the card has run dry each time");
}

#[test]
fn a_sound_card_that_runs_dry_is_counted_and_goes_on() {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let built = ring3(&["dde", "build", "snd-ens1370"]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    let (mut command, heard, _) = player(folder.path(), 3 * 44100);
    let mut driver = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It plays when something is heard.
    let begin = std::time::Instant::now();
    while std::fs::metadata(&heard).is_ok_and(|file| file.len() <= 44) || !heard.exists() {
        assert!(driver.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&driver);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // Longer than the card's buffer lasts.
    std::thread::sleep(Duration::from_millis(1500));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let output = driver.wait_with_output().unwrap();
    let said = summary(&text(&output.stdout));
    assert!(
        output.status.success() && said["underruns"].as_u64() > Some(0),
        "{said}\n{}",
        text(&output.stderr)
    );
    assert!(text(&output.stderr).contains("no samples in time"), "{}", text(&output.stderr));
}

#[test]
fn what_a_sound_card_cannot_play_is_refused_with_what_it_can() {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (stereo, samples) = wav(2, 44100, 16, 10);
    let cut = [&stereo[..], &samples[..20]].concat();
    for (file, reason) in [
        (b"no sound".to_vec(), "no WAV file"),
        (stereo[..36].to_vec(), "no chunk \"data\""),
        (cut, "40 bytes by its own account, and 20 are there"),
        (wav(1, 44100, 24, 10).0, "of 24 bits"),
        (wav(2, 44100, 16, 0).0, "no sample in it"),
        (
            [wav(6, 44100, 16, 10).0, wav(6, 44100, 16, 10).1].concat(),
            "does not play 6 channels; it has 2",
        ),
        (
            [wav(1, 96000, 16, 10).0, wav(1, 96000, 16, 10).1].concat(),
            "does not play 96000 samples a second; it has 48000",
        ),
    ] {
        let path = folder.path().join("file.wav");
        std::fs::write(&path, file).unwrap();
        let output = ring3(&[
            "dde",
            "run",
            "snd-ens1370",
            "--device",
            "qtest:ES1370",
            "--play",
            path.to_str().unwrap(),
        ]);
        assert!(
            !output.status.success() && text(&output.stderr).contains(reason),
            "{reason}: {}",
            text(&output.stderr)
        );
    }
    let output =
        ring3(&["net", "check", "--driver", "dde:snd-ens1370", "--device", "qtest:ES1370"]);
    assert!(text(&output.stderr).contains("--play"), "{}", text(&output.stderr));
    let output = ring3(&[
        "dde",
        "run",
        "snd-ens1370",
        "--device",
        "qtest:ES1370",
        "--socket",
        "/nowhere/card",
    ]);
    assert!(text(&output.stderr).contains("--play FILE.wav"), "{}", text(&output.stderr));
}
