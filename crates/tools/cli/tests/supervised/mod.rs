//! Programs of a supervised guest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use ring3_lab::Guest;

/// `guest` with `ring3`, and with `ring3d` and `ring3-driver`.
#[allow(dead_code, reason = "who supervises on this machine has no guest")]
pub fn with_programs(guest: Guest) -> Guest {
    let [ring3d, driver] = programs();
    guest.program(Path::new(env!("CARGO_BIN_EXE_ring3"))).program(&ring3d).program(&driver)
}

/// Where `ring3d` and `ring3-driver` are, which are of other packages.
#[allow(dead_code, reason = "who wants an example alone has no use for it")]
pub fn programs() -> [PathBuf; 2] {
    let folder = built();
    ["ring3d", "ring3-driver"].map(|name| folder.join(name))
}

/// The folder of the programs of all packages and of `examples/`, which are built as this test was.
/// It asks for the whole workspace, as `tests/run` does: of a part of it Cargo would make other
/// programs, and put them in the place of those that other tests run. `cargo test --no-run` would
/// leave out the C library, which only `--lib` puts beside the programs.
pub fn built() -> &'static Path {
    static BUILT: Once = Once::new();
    let ring3 = Path::new(env!("CARGO_BIN_EXE_ring3"));
    BUILT.call_once(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--offline", "--workspace"]);
        build.args(["--lib", "--bins", "--tests", "--examples"]);
        build.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
        if ring3.components().any(|part| part.as_os_str() == "release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
    });
    ring3.parent().unwrap()
}
