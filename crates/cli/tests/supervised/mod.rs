//! Programs of a supervised guest.

use std::path::{Path, PathBuf};
use std::process::Command;

use ring3_lab::Guest;

/// `guest` with `ring3`, and with `ring3d` and `ring3-driver`.
#[allow(dead_code, reason = "who supervises on this machine has no guest")]
pub fn with_programs(guest: Guest) -> Guest {
    let [ring3d, driver] = programs();
    guest.program(Path::new(env!("CARGO_BIN_EXE_ring3"))).program(&ring3d).program(&driver)
}

/// Where `ring3d` and `ring3-driver` are, which are of other packages: they are built as this test
/// was.
pub fn programs() -> [PathBuf; 2] {
    let ring3 = Path::new(env!("CARGO_BIN_EXE_ring3"));
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--quiet",
        "--offline",
        "-p",
        "ring3-supervisor",
        "-p",
        "ring3-host",
        "-p",
        "ring3-capi",
    ]);
    build.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    // So that nothing is built twice.
    let release = ring3.components().any(|part| part.as_os_str() == "release");
    build.args(["--profile", if release { "release" } else { "test" }]);
    assert!(build.status().unwrap().success());
    ["ring3d", "ring3-driver"].map(|name| ring3.with_file_name(name))
}
