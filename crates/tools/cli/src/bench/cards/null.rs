//! An interface without a card, whose only packets are those of the peer behind it.

use std::sync::Arc;

use anyhow::Result;
use ring3_bench::net::Reflector;
use ring3_export::tap::{Options, TapExport, arena_bytes};

use crate::run::net::Engine;

/// Is the interface `name`, by `engine`, until it is killed.
pub fn run(name: &str, engine: Engine) -> Result<()> {
    let card = Arc::new(Reflector::new(arena_bytes(1))?);
    let export = TapExport::start(
        card,
        &Options { name: Some(name.into()), engine: engine.into(), ..Options::default() },
    )?;
    outln!("{}", serde_json::json!({ "interface": export.name() }));
    crate::output::flush();
    loop {
        std::thread::park();
    }
}
