//! An interface without a card, whose only packets are those of the peer behind it.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use ring3_bench::net::Reflector;
use ring3_export::tap::{Export, Options, arena_bytes};

/// Is the interface `name` until it is killed.
pub fn run(name: &str) -> Result<ExitCode> {
    let card = Arc::new(Reflector::new(arena_bytes(1))?);
    let export = Export::start(card, &Options { name: Some(name.into()), ..Options::default() })?;
    outln!("{}", serde_json::json!({ "interface": export.name() }));
    crate::output::flush();
    loop {
        std::thread::park();
    }
}
