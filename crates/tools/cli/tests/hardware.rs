//! `ring3 hardware`: its steps on models, its file, its recording, and hostile files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn ring3(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    command.arg("hardware").args(words);
    command
}

fn says(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// A test of a device, quick and with so little verify that nobody waits for it.
struct Tested {
    folder: tempfile::TempDir,
    output: Output,
}

impl Tested {
    fn new(device: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("file.json");
        let words = ["test", device, "--quick", "--verify", "1s", "--out", out.to_str().unwrap()];
        let output = ring3(&[&words, options].concat()).output().unwrap();
        Self { folder, output }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    #[track_caller]
    fn report(&self) -> Value {
        let text = fs::read(self.path("file.json"));
        serde_json::from_slice(&text.unwrap_or_else(|_| panic!("{}", says(&self.output)))).unwrap()
    }

    /// How the steps ended, by name.
    #[track_caller]
    fn verdict(&self, step: &str) -> String {
        let report = self.report();
        let found = report["steps"].as_array().unwrap().iter().find(|one| one["step"] == step);
        found.unwrap_or_else(|| panic!("{step}: {report}"))["verdict"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn passed(&self, steps: &[&str]) {
        assert!(self.output.status.success(), "{}", says(&self.output));
        for step in steps {
            assert_eq!(self.verdict(step), "passed", "{step}: {}", says(&self.output));
        }
    }
}

/// The steps that a disk of the models passes.
const STEPS: [&str; 7] =
    ["identity", "recording", "conformance", "performance", "kill", "reset", "verify"];

#[test]
fn a_simulated_nvme_drive_passes_all_steps_that_need_no_kernel() {
    let tested = Tested::new("sim:nvme,size=16M", &[]);
    tested.passed(&STEPS);
    tested.passed(&["temperature"]);
    let report = tested.report();
    assert_eq!((&report["finished"], &report["device"]["kind"]), (&json!(true), &json!("disk")));
    assert_eq!(report["performance"].as_array().unwrap().len(), 3, "{report}");
    assert!(report["kill"]["reads"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["kill"]["writes"], 0, "{report}");
    assert_eq!(report["reset"]["recovery_ms"].as_array().unwrap().len(), 2, "{report}");
    assert!(report["verify"]["passes"].as_u64().unwrap() > 1, "{report}");
}

#[test]
fn simulated_drives_of_each_family_pass() {
    for device in ["sim:ahci,size=16M", "sim:ide,size=16M", "sim:virtio-blk,size=16M"] {
        Tested::new(device, &[]).passed(&STEPS);
    }
}

#[test]
fn simulated_cards_pass_with_a_cable_of_their_own() {
    for device in ["sim:e1000", "sim:virtio-net"] {
        let tested = Tested::new(device, &[]);
        tested.passed(&["identity", "conformance"]);
        assert_eq!(tested.report()["device"]["kind"], "card");
    }
}

#[test]
fn with_destroy_the_steps_write_and_read_back_what_they_wrote() {
    let tested = Tested::new("sim:nvme,size=16M", &["--destroy"]);
    tested.passed(&STEPS);
    let report = tested.report();
    assert_eq!(report["options"]["destroy"], true);
    assert!(report["kill"]["writes"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["performance"].as_array().unwrap().len(), 5, "{report}");
}

#[test]
fn without_destroy_a_disk_that_refuses_to_be_written_passes() {
    Tested::new("sim:nvme,size=16M,readonly=on", &[]).passed(&STEPS);
    let written = Tested::new("sim:nvme,size=16M,readonly=on", &["--destroy"]);
    assert_eq!(written.output.status.code(), Some(1), "{}", says(&written.output));
    assert_eq!(written.verdict("kill"), "failed");
}

#[test]
fn a_step_that_fails_ends_no_other_and_is_named_with_exit_code_1() {
    let tested = Tested::new("sim:nvme,size=16M,fault=status/0x281:read:1:all", &[]);
    assert_eq!(tested.output.status.code(), Some(1), "{}", says(&tested.output));
    for step in ["same data", "conformance", "performance", "verify"] {
        assert_eq!(tested.verdict(step), "failed", "{step}");
    }
    assert_eq!(tested.verdict("temperature"), "passed");
    assert_eq!(tested.report()["finished"], true);
    assert!(says(&tested.output).contains("failed: same data, conformance"));
}

#[test]
fn a_drive_that_does_not_start_leaves_a_recording_of_its_start() {
    let tested = Tested::new("sim:nvme,size=16M,fault=status/0x2:identify:1:all", &[]);
    assert_eq!(tested.output.status.code(), Some(1), "{}", says(&tested.output));
    assert_eq!(tested.verdict("identity"), "failed");
    assert_eq!(tested.verdict("conformance"), "skipped");
    assert_eq!(tested.verdict("recording"), "passed");
    let replayed = Command::new(env!("CARGO_BIN_EXE_ring3"))
        .args(["replay", tested.path("file.rec").to_str().unwrap()])
        .output()
        .unwrap();
    // The same error without the device.
    let said = says(&replayed);
    assert!(!replayed.status.success() && !said.contains("leaves its recording"), "{said}");
}

/// Serial numbers of the models, as they are known to them alone.
fn serials_of(device: &str) -> Vec<String> {
    let (command, model) = match device {
        "ahci" | "ide" => (["ata", "id"], device),
        _ => (["nvme", "id"], device),
    };
    let output = Command::new(env!("CARGO_BIN_EXE_ring3"))
        .args(command)
        .args(["--json", "--device", &format!("sim:{model},size=16M")])
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let drives = value["drives"].as_array().into_iter().flatten();
    drives.chain([&value]).filter_map(|one| Some(one["serial"].as_str()?.to_owned())).collect()
}

/// What a recording shows, a line an event, in which memory and registers are numbers.
fn shown(path: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ring3"))
        .args(["replay", "--show", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", says(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The bytes of `text`, as a recording shows them.
fn numbers(text: &[u8]) -> String {
    text.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn no_serial_number_is_in_the_file_nor_in_the_recording() {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for device in ["nvme", "ahci", "ide"] {
        let serials = serials_of(device);
        assert!(
            !serials.is_empty() && serials.iter().all(|serial| serial.len() >= 4),
            "{serials:?}"
        );
        let tested = Tested::new(&format!("sim:{device},size=16M"), &[]);
        let (file, recording) = (
            fs::read_to_string(tested.path("file.json")).unwrap(),
            shown(&tested.path("file.rec")),
        );
        for serial in serials {
            // `ring3` is what the models have as one, and what the file is called after.
            assert!(!file.contains(&format!("\"{serial}\"")) || serial == "ring3", "{file}");
            let swapped: Vec<u8> =
                serial.as_bytes().chunks(2).flat_map(|pair| pair.iter().rev().copied()).collect();
            for bytes in [serial.as_bytes(), &swapped[..]] {
                let start = &bytes[..bytes.len().min(16)];
                assert!(!recording.contains(&numbers(start)), "{device}: {serial}");
            }
        }
        for field in ["\"serial\"", "\"mac\"", "eui", "nguid"] {
            assert!(!file.contains(field), "{device}: {field}: {file}");
        }
        let host = host.trim();
        assert!(host.len() < 4 || !file.contains(host), "{host}: {file}");
        assert!(!file.contains("/tmp/"), "{file}");
    }
}

#[test]
fn no_address_of_a_card_is_in_the_file() {
    let tested = Tested::new("sim:e1000,mac=52:54:00:ab:cd:ef", &[]);
    tested.passed(&["identity"]);
    let file = fs::read_to_string(tested.path("file.json")).unwrap().to_lowercase();
    assert!(!file.contains("ab:cd:ef") && !file.contains("abcdef"), "{file}");
    assert!(!tested.path("file.rec").exists());
}

#[test]
fn a_card_that_does_not_start_is_not_recorded_and_its_error_has_no_address() {
    let tested = Tested::new("sim:e1000,nvm=bad", &[]);
    assert_eq!(tested.verdict("identity"), "failed", "{}", says(&tested.output));
    assert_eq!(tested.verdict("recording"), "skipped");
    let file = fs::read_to_string(tested.path("file.json")).unwrap().to_lowercase();
    assert!(!file.contains("12:34:56") && !file.contains("525400123456"), "{file}");
    assert!(!tested.path("file.rec").exists());
}

#[test]
fn names_that_cannot_be_used_are_refused_before_the_device_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("taken.rec"), "mine").unwrap();
    fs::write(path("kept-data.rec"), "mine").unwrap();
    let (same, rec) = (path("same"), path("same.rec"));
    for (options, why) in [
        (vec!["--out", &*path("taken.json")], "it exists: choose another name"),
        (vec!["--record-data", "--out", &*path("kept.json")], "it exists: choose another name"),
        (vec!["--out", &*path("a"), "--recording", &*path("none/b")], "its folder is not there"),
        (vec!["--out", &*same, "--recording", &*same], "have the same name"),
        (vec!["--out", &*rec], "have the same name"),
        (vec!["--out", &*path("a,b.json")], "has no comma"),
        (vec!["--recording", &*path("a,b.rec")], "has no comma"),
    ] {
        let words = [&["test", "sim:nvme", "--quick"][..], &options].concat();
        let output = ring3(&words).current_dir(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{options:?}: {}", says(&output));
        assert!(says(&output).contains(why), "{options:?}: {}", says(&output));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    assert_eq!(fs::read(path("taken.rec")).unwrap(), b"mine");
}

#[test]
fn control_c_under_kills_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("file.json");
    let words = ["test", "sim:nvme,size=16M", "--verify", "1s", "--out", out.to_str().unwrap()];
    let mut child = ring3(&words)
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let below = |process: &str| {
        let text = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        let text = text.unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // A driver is a process of the step's.
    let drivers = loop {
        let found: Vec<_> = children_of(&child).iter().flat_map(|step| below(step)).collect();
        if !found.is_empty() {
            break found;
        }
        assert!(since.elapsed() < Duration::from_secs(240) && child.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(1));
    };
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let until = Instant::now() + Duration::from_secs(5);
    for driver in drivers {
        while Path::new("/proc").join(&driver).join("exe").exists() {
            assert!(Instant::now() < until, "{driver} still runs");
            sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn data_of_the_disk_is_recorded_only_if_it_is_wanted() {
    let tested = Tested::new("sim:nvme,size=16M", &[]);
    assert!(!tested.path("file-data.rec").exists());
    assert_eq!(tested.report()["recording"]["data"], false);
    let recorded = Tested::new("sim:nvme,size=16M", &["--record-data"]);
    recorded.passed(&["recorded reads"]);
    assert!(recorded.path("file-data.rec").exists());
}

#[test]
fn a_file_that_exists_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("mine.json");
    fs::write(&out, "mine").unwrap();
    for option in ["--out", "--recording"] {
        let words = ["test", "sim:nvme", "--quick", option, out.to_str().unwrap()];
        let output = ring3(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", says(&output));
        assert!(says(&output).contains("it exists: choose another name"), "{}", says(&output));
    }
    assert_eq!(fs::read(&out).unwrap(), b"mine");
}

#[test]
fn a_folder_that_takes_no_file_is_an_error_before_the_device_is_used_for_long() {
    let output =
        ring3(&["test", "sim:nvme", "--quick", "--out", "/no/such/folder/a"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", says(&output));
    assert!(says(&output).contains("/no/such/folder/a"), "{}", says(&output));
}

#[test]
fn a_device_that_is_none_is_refused_with_its_name() {
    for (device, code) in [("sim:toaster", 1), ("vfio:0000:ff:1f.7", 1), ("toaster", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a.json");
        let words = ["test", device, "--quick", "--out", out.to_str().unwrap()];
        let output = ring3(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{device}: {}", says(&output));
    }
}

/// Processes that stand in the process group of none but themselves and hang below `child`.
fn children_of(child: &Child) -> Vec<String> {
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn control_c_ends_the_step_and_leaves_the_file_of_what_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("file.json");
    let words = ["test", "sim:nvme,size=16M", "--quick", "--verify", "10m", "--out"];
    let mut child = ring3(&[&words[..], &[out.to_str().unwrap()]].concat())
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let done = |text: &str| text.contains("\"step\": \"reset\"");
    while !fs::read_to_string(&out).is_ok_and(|text| done(&text)) {
        assert!(since.elapsed() < Duration::from_secs(120) && child.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(20));
    }
    while children_of(&child).is_empty() {
        assert!(since.elapsed() < Duration::from_secs(120));
        sleep(Duration::from_millis(5));
    }
    let step = children_of(&child);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", says(&output));
    for process in step {
        assert!(!Path::new("/proc").join(&process).join("exe").exists(), "{process} still runs");
    }
    let report: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(report["finished"], false);
    // What was not done is not called a failure.
    let verdicts = report["steps"].as_array().unwrap().iter().map(|step| &step["verdict"]);
    assert!(verdicts.into_iter().all(|verdict| verdict != "failed"), "{report}");
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["file.json", "file.rec"].contains(&name.as_str()))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let listed = ring3(&["list", out.to_str().unwrap()]).output().unwrap();
    assert!(says(&listed).contains("not finished"), "{}", says(&listed));
}

#[test]
fn a_full_disk_fails_the_command_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("file.json");
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let words = ["test", "sim:e1000", "--quick", "--out", out.to_str().unwrap()];
    let output = ring3(&words).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", says(&output));
    assert!(says(&output).contains("standard output: No space left on device"));
    // What was to be written to the file is there all the same.
    assert!(fs::read_to_string(&out).unwrap().contains("\"finished\": true"));
}

#[test]
fn json_is_the_content_of_the_file_and_as_its_schema_says() {
    let tested = Tested::new("sim:nvme,size=16M", &["--json"]);
    let printed: Value = serde_json::from_slice(&tested.output.stdout).unwrap();
    assert_eq!(printed, tested.report());
    let text = include_str!("../../../../docs/output.schema.json");
    let mut schema: Value = serde_json::from_str(text).unwrap();
    schema["$ref"] = "#/$defs/hardware-test".into();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<_> = validator.iter_errors(&printed).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A report that somebody has written by hand, as far as the list needs it.
fn report(change: impl FnOnce(&mut Value)) -> Value {
    let tested = Tested::new("sim:e1000", &[]);
    let mut report = tested.report();
    change(&mut report);
    report
}

#[test]
fn a_folder_of_files_is_a_table_and_hostile_ones_are_named_with_their_reason() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let odd = report(|report| {
        report["device"]["name"] = "\u{1b}]0;title\u{7}\u{202e}evil\n\n".into();
        report["device"]["identity"]["model"] = "\u{9b}2J".into();
        report["machine"]["distribution"] = "x".repeat(100_000).into();
    });
    put("a-odd.json", odd.to_string().as_bytes());
    put("b-empty.json", b"");
    put("c-binary.json", b"\xff\xfe\x00");
    put("d-deep.json", "[".repeat(200_000).as_bytes());
    put("e-huge.json", &vec![b' '; 5 << 20]);
    put("f-other.json", b"{\"bench\": \"disk\"}");
    put("g-later.json", b"{\"format\": \"ring3-hardware\", \"schema\": 2}");
    put("h-\u{1b}[2J.json", b"{}");
    fs::create_dir(folder.path().join("i-folder.json")).unwrap();
    put("not-listed.txt", b"text");
    let output = ring3(&["list", folder.path().to_str().unwrap()]).output().unwrap();
    let said = says(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in [
        "evil",
        "b-empty.json: it is no file of ring3 hardware test",
        "c-binary.json: it is no text",
        "d-deep.json: it is no file of ring3 hardware test",
        "e-huge.json: it has more than 256 KiB",
        "f-other.json: it is no file of ring3 hardware test",
        "g-later.json: its fields have version 2",
        "i-folder.json: it is no file",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let is_control = |letter: char| letter.is_control() && letter != '\n';
    assert!(!said.contains(is_control) && !said.contains('\u{202e}'), "{said:?}");
    assert!(said.lines().all(|line| line.chars().count() < 400), "{said}");

    let output = ring3(&["list", folder.path().to_str().unwrap(), "--json"]).output().unwrap();
    assert!(!output.stdout.contains(&0x1b), "{}", says(&output));
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all.len(), 9, "{}", says(&output));
    assert_eq!(all.iter().filter(|one| one["report"].is_null()).count(), 8);
}

#[test]
fn the_reason_why_a_file_is_none_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.json");
    let text = report(|report| report["steps"][0]["verdict"] = "x".repeat(10_000).into());
    fs::write(&path, text.to_string()).unwrap();
    let output = ring3(&["list", path.to_str().unwrap(), "--json"]).output().unwrap();
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let why = all[0]["problem"].as_str().unwrap();
    assert!(why.starts_with("its fields are not those") && why.chars().count() < 210, "{why}");
}

#[test]
fn a_folder_without_files_and_one_that_is_none_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none");
    for (path, why) in [
        (folder.path(), "no file of ring3 hardware test"),
        (none.as_path(), "No such file or directory"),
    ] {
        let output = ring3(&["list", path.to_str().unwrap()]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", says(&output));
        assert!(says(&output).contains(why), "{}", says(&output));
    }
}

#[test]
fn the_list_that_comes_with_ring3_has_disks_and_cards() {
    let output = ring3(&["list"]).output().unwrap();
    assert!(output.status.success(), "{}", says(&output));
    for part in ["disk: ", "card: ", "sim", "qtest"] {
        assert!(says(&output).contains(part), "{part}: {}", says(&output));
    }
}
