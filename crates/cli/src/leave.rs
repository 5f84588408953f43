//! Control-C while guests run.

use anyhow::{Context, Result};
use ring3_process::log;

/// Exit code of a program that a signal ended, as shells have it: 128 and SIGINT.
const INTERRUPTED: i32 = 130;

/// From now on SIGINT, SIGTERM and SIGHUP end this process with nothing left behind: no guest, no disk in shared memory, no folder.
pub fn nothing_behind() -> Result<()> {
    let ended = || {
        ring3_lab::abandon();
        errln!("\nring3: interrupted; nothing is left behind");
        log::flush(log::LAST_LINES);
        std::process::exit(INTERRUPTED);
    };
    ctrlc::set_handler(ended).context("taking signals")
}
