//! The supervisor in a guest: its program, and what a step does to have it keep a disk.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ring3_lab::Guest;

/// The drivers' program.
pub const DRIVERS: &str = "ring3-driver";

/// The supervisor's program, which lies beside this one.
pub fn supervisor() -> Result<PathBuf> {
    beside("ring3d")
}

/// Puts it and the drivers' program into `guest`.
pub fn with_supervisor(guest: Guest) -> Result<Guest> {
    Ok(guest.program(&supervisor()?).program(&beside(DRIVERS)?))
}

/// The program `name` that lies beside this one.
pub fn beside(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?.with_file_name(name);
    ensure!(program.exists(), "{} is missing: `make build` makes it", program.display());
    Ok(program)
}

/// Shell functions of every step that has to do with it. It goes on running from step to step.
pub const RING3D: &str = r#"
# describe NAME ADDRESS [EXPORT [RESTART [DRIVER]]]: writes a manifest for the device at that
# address, as /dev/ring3/NAME. EXPORT and RESTART are lines of its tables.
describe() {
    mkdir -p /etc/ring3
    {
        printf '[device.%s]\nmatch = { address = "%s" }\n%b' $1 $2 "${5:+driver = \"$5\"\\n}"
        printf '[device.%s.export]\nkind = "ublk"\nlink = "%s"\n%b\n' $1 $1 "$3"
        printf '[device.%s.restart]\n%b\n' $1 "$4"
    } >/etc/ring3/$1.toml
}
# supervise NAME ADDRESS [EXPORT [RESTART [DRIVER]]]: has ring3d keep it, and what else was
# described.
supervise() {
    describe "$@"
    rm -f /tmp/ring3d.code
    {
        ring3d >/tmp/ring3d.log 2>&1 & echo $! >/tmp/ring3d.pid
        wait $! && code=0 || code=$?; echo $code >/tmp/ring3d.code
    } &
    for try in $(seq 600); do
        [ -b /dev/ring3/$1 ] && return; [ -e /tmp/ring3d.code ] && break; sleep 0.05
    done
    cat /tmp/ring3d.log
    return 1
}
# Ends it; fails as it does.
end_supervisor() {
    kill $(cat /tmp/ring3d.pid)
    for try in $(seq 600); do [ -e /tmp/ring3d.code ] && break; sleep 0.05; done
    [ "$(cat /tmp/ring3d.code)" = 0 ] || { tail -n 20 /tmp/ring3d.log; return 1; }
}
"#;
