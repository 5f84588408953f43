//! Programs of a supervised guest.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use ring3_lab::Guest;

/// Shell functions of a load that checks what it reads: `load OPTION...` starts fio in the
/// background as FIO, and it lasts until `verified`, however slow the host is; that fails, and
/// shows what fio has said, unless all was right. fio's own exit code is 128 after a signal.
#[allow(dead_code, reason = "who supervises on this machine has no guest")]
pub const LOAD: &str = r#"
load() {
    fio --name=verify --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 \
        --verify_backlog=64 --time_based --runtime=900 --output=/tmp/fio "$@" >/dev/null &
    FIO=$!
}
verified() {
    kill -INT $FIO; wait $FIO
    grep -q 'err= 0' /tmp/fio &&
        ! grep -q 'err=[^ ]\|verify: bad\|verify failed' /tmp/fio && return
    cat /tmp/fio; return 1
}
"#;

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
        let is_release = ring3.components().any(|part| part.as_os_str() == "release");
        // As `cargo test` does: of another profile, the C library would be in the place of the one
        // that it has made, and all that stands on that would be made anew.
        build.args(["--profile", if is_release { "release" } else { "test" }]);
        assert!(build.status().unwrap().success());
    });
    ring3.parent().unwrap()
}
