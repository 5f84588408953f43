//! Guests boot, run, fail and come back. Each test takes some seconds:
//! `cargo test -p ring3-lab -- --ignored`, or `make test`. What is missing is fetched, which needs
//! the network the first time.

use ring3_lab::{Backing, Boot, Cache, Device, Error, Event, Guest, Mode, Outcome, Size};
use std::time::{Duration, Instant};

fn run(guest: &Guest) -> Result<Outcome, Error> {
    guest.run(&Cache::open().unwrap(), &mut |_| {})
}

fn guest(name: &str) -> Guest {
    Guest { vcpus: Some(1), ..Guest::new(name) }
}

#[test]
#[ignore = "boots a guest"]
fn exit_code_output_and_files_come_back() {
    let guest = guest("files")
        .variable("WORD", "it's here")
        .step(
            "write",
            r#"echo "{\"word\": \"$WORD\"}" >$OUT/a.json; mkdir $OUT/sub
               seq 100000 >$OUT/sub/b; echo done"#,
        )
        .step("fail", "echo before; exit 7")
        .step("never", "echo after");
    let outcome = run(&guest).unwrap();
    assert_eq!(outcome.exit, 7);
    assert_eq!(outcome.output(), "done\nbefore\n");
    assert_eq!(outcome.json("a.json").unwrap()["word"], "it's here");
    assert_eq!(outcome.files["sub/b"].len(), 588_895);
}

#[test]
#[ignore = "boots a guest"]
fn lines_are_seen_while_the_guest_runs() {
    let mut seen = Vec::new();
    let guest = guest("lines").step("count", "for n in 1 2 3; do echo $n; sleep 0.3; done");
    let mut last = Instant::now();
    guest
        .run(&Cache::open().unwrap(), &mut |event| {
            if let Event::Line(line) = event {
                seen.push((line.to_string(), last.elapsed()));
                last = Instant::now();
            }
        })
        .unwrap();
    let lines: Vec<_> = seen.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(lines, ["1", "2", "3"]);
    assert!(seen[1..].iter().all(|(_, pause)| *pause > Duration::from_millis(100)), "{seen:?}");
}

#[test]
#[ignore = "boots a guest"]
fn a_guest_that_hangs_ends_at_its_time_limit() {
    let guest =
        Guest { time_limit: Duration::from_secs(15), ..guest("hang").step("hang", "sleep 1000") };
    let error = run(&guest).unwrap_err();
    assert!(matches!(&error, Error::TimeLimit { when, .. } if when.contains("hang")), "{error}");
}

#[test]
#[ignore = "boots a guest"]
fn a_guest_that_hangs_says_what_it_waits_for() {
    let guest = Guest {
        time_limit: Duration::from_secs(45),
        ..guest("waits").step("hang", "echo so far; tail -f /dev/null")
    };
    let error = run(&guest).unwrap_err().to_string();
    assert!(error.contains("so far") && error.contains("(tail) S "), "{error}");
}

#[test]
#[ignore = "boots a guest"]
fn a_guest_whose_processors_are_halted_is_run_again_once_and_ends_long_before_its_time_limit() {
    let guest = Guest {
        time_limit: Duration::from_secs(600),
        ..guest("halted").step("halt", "echo once; halt -f; sleep 1000")
    };
    let mut told = 0;
    let error = guest.run(&Cache::open().unwrap(), &mut |event| {
        told += u32::from(matches!(event, Event::Progress(line) if line.contains("stood still")));
    });
    assert!(
        matches!(&error, Err(Error::StoodStill { when, .. }) if when.contains("halt")),
        "{error:?}"
    );
    assert_eq!(told, 1);
}

#[test]
#[ignore = "boots a guest"]
fn a_guest_that_stands_still_behind_its_verdict_has_given_it() {
    // The port that ends the machine is a pipe that nobody reads.
    let step = "rm /dev/port && mkfifo /dev/port && echo here >$OUT/file";
    let outcome = run(&guest("no-end").step("no end", step)).unwrap();
    assert_eq!((outcome.exit, &*outcome.files["file"]), (0, b"here\n".as_slice()));
}

#[test]
#[ignore = "boots a guest"]
fn a_guest_that_never_stops_printing_ends_at_its_time_limit() {
    let guest = Guest { time_limit: Duration::from_secs(15), ..guest("yes").step("yes", "yes") };
    assert!(matches!(run(&guest).unwrap_err(), Error::TimeLimit { .. }));
}

#[test]
#[ignore = "boots a guest"]
fn a_guest_that_panics_is_an_error_with_the_end_of_its_console() {
    let error = run(&guest("panic").step("panic", "echo c >/proc/sysrq-trigger")).unwrap_err();
    let Error::Died { console, log, .. } = &error else { panic!("{error}") };
    assert!(console.contains("Kernel Offset") || console.contains("sysrq"), "{console}");
    assert!(std::fs::read_to_string(log.as_ref().unwrap()).unwrap().contains("Kernel panic"));
}

#[test]
#[ignore = "boots a guest"]
fn a_device_that_qemu_does_not_have_is_an_error_with_qemus_words() {
    for boot in [Boot::Plain, Boot::Snapshot] {
        let error = run(&Guest { boot, ..guest("nonsense").device(Device::new("a", "nvmee")) })
            .unwrap_err()
            .to_string();
        assert!(error.contains("nvmee"), "{error}");
    }
}

#[test]
#[ignore = "boots guests"]
fn a_guest_from_a_snapshot_has_the_devices_of_its_own_run() {
    let with = |device| Guest {
        boot: Boot::Snapshot,
        ..guest("snapshot")
            .device(device)
            .step("look", "cat /sys/bus/pci/devices/0000:01:00.0/class")
    };
    let disk = run(&with(Device::nvme("disk", Size(64 << 20), Backing::Memory))).unwrap();
    let edu = run(&with(Device::new("edu", "edu").bound("vfio-pci"))).unwrap();
    assert_eq!((disk.output().as_str(), edu.output().as_str()), ("0x010802\n", "0x00ff00\n"));
}

#[test]
#[ignore = "boots a guest"]
fn a_guest_from_a_snapshot_takes_files_of_many_megabytes_and_knows_the_time() {
    let folder = tempfile::tempdir().unwrap();
    let big = folder.path().join("big");
    std::fs::write(&big, vec![b'x'; 40 << 20]).unwrap();
    let guest = Guest { boot: Boot::Snapshot, ..guest("big") }
        .file("/tmp/big", &big)
        .step("count", "wc -c </tmp/big; date +%s");
    let outcome = run(&guest).unwrap();
    let output = outcome.output();
    let (size, time) = output.trim().split_once('\n').unwrap();
    assert_eq!(size, "41943040");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(time.parse().unwrap()) < 60, "{time} is not near {now}");
}

#[test]
#[ignore = "boots guests"]
fn two_guests_at_once_do_not_disturb_each_other() {
    let one = |word: &str| Guest {
        boot: Boot::Snapshot,
        ..guest("both").step("say", &format!("echo {word}"))
    };
    let outputs = ["left", "right"].map(|word| {
        let guest = one(word);
        std::thread::spawn(move || run(&guest).unwrap().output())
    });
    assert_eq!(outputs.map(|thread| thread.join().unwrap()), ["left\n", "right\n"]);
}

#[test]
#[ignore = "boots guests"]
fn instruction_time_repeats() {
    let guest = Guest { mode: Mode::Instructions, ..guest("count") };
    let guest = guest.step("count", "n=0; while [ $n -lt 60000 ]; do n=$((n+1)); done");
    let seconds = [(); 2].map(|()| run(&guest).unwrap().steps[0].seconds);
    assert!((seconds[0] - seconds[1]).abs() <= 0.011, "{seconds:?}");
    assert!(seconds[0] > 0.05, "{seconds:?}");
}

#[test]
#[ignore = "boots a guest"]
fn a_btrfs_over_two_disks_is_made_and_mounted() {
    let disk = |id| Device::nvme(id, Size(128 << 20), Backing::Memory);
    let guest = guest("btrfs")
        .device(disk("one"))
        .device(disk("two"))
        .module("nvme")
        .module("btrfs")
        .step(
        "mount",
        "mkfs.btrfs -q -d single /dev/nvme0n1 /dev/nvme1n1 && mount -t btrfs /dev/nvme0n1 /mnt && \
        echo x >/mnt/x && sync && cat /mnt/x",
    );
    let output = run(&guest).unwrap().output();
    assert!(output.ends_with("x\n"), "{output}");
}
