//! For tests of hosted drivers. Where what they are built of is not in the cache, a test that
//! builds one is skipped, and says so: nothing is fetched for it.

use std::process::Command;

/// The program, which cargo may have put anywhere: the source is named.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    command
        .env("RING3_WERROR", "1")
        .env("RING3_DDE", concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dde"));
    command
}

/// Whether there is what drivers are built of.
pub fn can_build() -> bool {
    let there = ring3_lab::Need::Hosting.is_met(&ring3_lab::Cache::open().unwrap());
    if !there {
        eprintln!(
            "skipped: what hosted drivers are built of is not in the cache; lab/setup.sh hosting \
            fetches it"
        );
    }
    there
}
