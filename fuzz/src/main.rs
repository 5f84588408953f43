//! Replays the fuzz targets without libFuzzer.

use std::process::ExitCode;

fn main() -> ExitCode {
    ring3_fuzz::replay::main(std::env::args().skip(1))
}
