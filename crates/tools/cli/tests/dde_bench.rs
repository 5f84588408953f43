//! The developer's bench for hosted drivers: checkers, counts, the tutorial. Each builds files of a
//! kernel once more, which takes minutes the first time, so that they are run with those that boot
//! guests.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");

fn ring3(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    command.env("RING3_WERROR", "1").env("RING3_DDE", Path::new(ROOT).join("dde"));
    command.args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn last_object(output: &Output) -> Value {
    let said = text(&output.stdout);
    serde_json::from_str(said.lines().last().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{said}\n{}", text(&output.stderr)))
}

const CHECK: [&str; 8] =
    ["net", "check", "--driver", "dde:e1000e", "--device", "qtest:e1000e", "--packets", "200"];

#[test]
#[ignore = "builds a kernel's files: make test"]
fn linuxs_e1000e_passes_the_suite_under_addresssanitizer() {
    let output = ring3(&[&CHECK[..], &["--asan", "--json"]].concat());
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(last_object(&output)["failed"], 0);
}

#[test]
#[ignore = "builds a kernel's files: make test"]
fn drivers_of_linux_7_2_pass_their_suites() {
    let cache = ring3_lab::Cache::open().unwrap();
    if !cache.path("sources/7.2/release").is_file() {
        eprintln!(
            "skipped: the source of Linux 7.2 is not in the cache; lab/setup.sh source 7.2 fetches \
            it"
        );
        return;
    }
    let disk = [
        "blk",
        "check",
        "--destroy",
        "--requests",
        "100",
        "--driver",
        "dde:nvme",
        "--device",
        "qtest:nvme",
    ];
    for check in [&CHECK[..], &disk] {
        let output = ring3(&[check, &["--kernel", "7.2", "--json"]].concat());
        assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(last_object(&output)["failed"], 0);
    }
}

#[test]
fn a_kernel_whose_drivers_are_not_hosted_is_refused_with_those_that_are() {
    let output = ring3(&[&CHECK[..], &["--kernel", "7.1"]].concat());
    assert!(
        !output.status.success() && text(&output.stderr).contains("6.12 and 7.2"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
#[ignore = "builds a kernel's files: make test"]
fn what_the_suite_reaches_of_a_driver_is_counted_for_people_programs_and_lcov() {
    let folder = tempfile::tempdir().unwrap();
    let info = folder.path().join("e1000e.info");
    let output =
        ring3(&[&CHECK[..], &["--json", &format!("--coverage={}", info.display())]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let coverage = &last_object(&output)["coverage"];
    let files = coverage["files"].as_array().unwrap();
    let netdev =
        files.iter().find(|file| file["file"].as_str().unwrap().ends_with("/netdev.c")).unwrap();
    assert!(netdev["lines_reached"].as_u64().unwrap() > 500, "{netdev}");
    assert!(coverage["lines"].as_u64() > coverage["lines_reached"].as_u64());
    let trace = std::fs::read_to_string(info).unwrap();
    assert!(
        trace.contains("SF:drivers/net/ethernet/intel/e1000e/netdev.c\n")
            && trace.contains(",e1000_probe\n")
    );
}

#[test]
fn an_overlay_without_a_file_of_the_kernel_is_refused_with_where_one_would_lie() {
    let folder = tempfile::tempdir().unwrap();
    let overlay = folder.path().to_str().unwrap();
    let output = ring3(&["dde", "build", "e1000e", "--overlay", overlay]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("drivers/net/ethernet/intel/e1000e/netdev.c"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_looks_at_a_driver_wants_one() {
    for tool in ["--asan", "--gdb", "--coverage"] {
        let output = ring3(&["net", "check", "--device", "qtest:e1000e", tool]);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("--driver"), "{tool}: {}", text(&output.stderr));
    }
}

/// A command of the tutorial, and what it prints.
struct Step {
    command: String,
    prints: Vec<String>,
}

/// The indented blocks of a page: lines after `$ ` are commands, others what they print.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("    ")) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.into(), prints: Vec::new() }),
            (None, Some(step)) => step.prints.push(line.into()),
            (None, None) => {}
        }
    }
    steps
}

/// A line without what differs from run to run: numbers of processes, addresses, times.
fn steady(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line.trim();
    while let Some(letter) = rest.chars().next() {
        let len = if let Some(digits) = rest.strip_prefix("0x") {
            2 + digits.chars().take_while(char::is_ascii_hexdigit).count()
        } else {
            rest.chars().take_while(char::is_ascii_digit).count()
        };
        match len {
            0 => {
                out.push(letter);
                rest = &rest[letter.len_utf8()..];
            }
            _ => {
                out.push('N');
                rest = &rest[len..];
            }
        }
    }
    out
}

#[test]
fn what_differs_from_run_to_run_is_left_out_of_a_comparison() {
    assert_eq!(
        steady("==123==ERROR: at 0x7f00ab in f netdev.c:1250"),
        steady("==9==ERROR: at 0x12 in f netdev.c:7")
    );
    assert_ne!(steady("in f netdev.c"), steady("in g netdev.c"));
}

#[test]
#[ignore = "builds a kernel's files: make test"]
fn every_command_of_the_tutorial_does_what_the_page_says() {
    let page =
        std::fs::read_to_string(Path::new(ROOT).join("docs/debugging-a-kernel-driver.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("changed").display().to_string();
    let cache = ring3_lab::Cache::open().unwrap().root().display().to_string();
    let mut path = vec![Path::new(env!("CARGO_BIN_EXE_ring3")).parent().unwrap().to_owned()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let steps = steps(&page);
    assert!(steps.len() > 6);
    let mut before = String::new();
    for Step { command, prints } in steps {
        let command = command.replace("/tmp/changed", &changed).replace("~/.cache/ring3", &cache);
        let mut shell = Command::new("sh");
        shell
            .current_dir(ROOT)
            .env("PATH", std::env::join_paths(&path).unwrap())
            .env("RING3_DDE", Path::new(ROOT).join("dde"));
        // What earlier commands have set is there, as in a terminal.
        let output = shell.arg("-c").arg(format!("{before}{command} 2>&1")).output().unwrap();
        if !command.contains(' ') {
            before += &format!("{command}\n");
        }
        let said = text(&output.stdout);
        let lines: Vec<_> = said.lines().map(steady).collect();
        for wanted in prints
            .iter()
            .filter(|line| !line.contains("..."))
            .map(|line| line.replace("/tmp/changed", &changed))
        {
            assert!(
                lines.contains(&steady(&wanted)),
                "{command}\nprints no\n{wanted}\nbut\n{said}"
            );
        }
    }
}

#[test]
#[ignore = "builds a kernel's files: make test"]
fn the_fuzzer_gets_a_driver_through_its_probe_and_runs_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("corpus");
    // 8139cp gives up where its cache line size does not stay as it was written.
    let words = [
        "dde",
        "fuzz",
        "8139cp",
        "--runs",
        "100",
        "--seed",
        "1",
        "--json",
        "--corpus",
        corpus.to_str().unwrap(),
    ];
    let output = ring3(&words);
    let result = last_object(&output);
    assert!(
        result["runs"].as_u64().unwrap() >= 100 && result["edges"].as_u64().unwrap() > 100,
        "{result}"
    );
    assert_eq!(
        (output.status.code(), result["findings"].as_array().map(Vec::len)),
        (Some(0), Some(0)),
        "{result}"
    );
}
