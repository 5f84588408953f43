//! Programs in C that use ring3's drivers, on a controller behind VFIO and an IOMMU, in a guest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use ring3_lab::{Backing, Cache, Device, Error, Guest, Size};

mod booted;

use booted::Booted;

static GUEST: Booted = Booted::new(
    guest,
    "",
    &[
        ("verify", "verify vfio:$DISK overwrite"),
        ("poll", "{ sleep 1; echo; sleep 1; } | poll vfio:$DISK && echo the loop has ended"),
        (
            // A program that dies gives the device back, and the next one finds it.
            "killed",
            "sleep 100 | poll vfio:$DISK & sleep 1; kill -9 $! && sleep 0.5
            verify vfio:$DISK overwrite",
        ),
        ("blocked", "dmesg | grep -ciE 'DMAR:.*fault' || true"),
    ],
);

/// Where cargo puts what it has built for tests: the library and the examples.
fn built() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().and_then(Path::parent).unwrap().to_owned()
}

/// `NAME.c` of the examples, compiled.
fn example(name: &str) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi");
    let program = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(name);
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I"])
        .arg(capi.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(capi.join(format!("examples/{name}.c")))
        .arg("-L")
        .arg(built().join("deps"))
        .arg("-lring3")
        .arg(format!("-Wl,-rpath,{}", built().join("deps").display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn guest(_: &Cache) -> Result<Guest, Error> {
    Ok(Guest { time_limit: Duration::from_secs(300), ..Guest::new("programs") }
        .program(&example("verify"))
        .program(&example("poll"))
        .libraries(&built().join("deps"))
        .device(Device::nvme("disk", Size(64 << 20), Backing::Memory).bound("vfio-pci"))
        .module("vfio-pci")
        .module("vfio_iommu_type1"))
}

fn said(step: &str) -> &'static str {
    let steps = &GUEST.outcome().steps;
    &steps.iter().find(|other| other.name == step).expect("the guest has done it").output
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_program_in_c_verifies_blocks_behind_an_iommu() {
    assert!(
        said("verify").contains("1024 blocks written, read and verified"),
        "{}",
        said("verify")
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn its_own_loop_is_woken_by_the_interrupt_of_the_device() {
    let said = said("poll");
    let read = said.lines().find_map(|line| line.strip_suffix(" blocks read"));
    let read: u64 = read.and_then(|count| count.trim().parse().ok()).unwrap_or_default();
    assert!(read > 16 && said.contains("the loop has ended"), "{said}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_program_that_is_killed_leaves_a_disk_that_the_next_one_opens() {
    assert!(
        said("killed").contains("1024 blocks written, read and verified"),
        "{}",
        said("killed")
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn no_transfer_of_theirs_goes_where_it_must_not() {
    assert_eq!(said("blocked").trim(), "0");
}
