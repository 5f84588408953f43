//! Options of the commands that ask a controller about itself.

use anyhow::Context;
use ring3_backend::Uri;

use crate::protection::Protection;

/// Which controller is asked, and how its answer is printed.
#[derive(clap::Args)]
pub struct Asked {
    /// The controller, by its URI.
    #[arg(long, value_name = "URI", global = true)]
    device: Option<Uri>,
    #[command(flatten)]
    pub protection: Protection,
    /// Print one JSON object; its fields are in docs/json.md.
    #[arg(long, global = true)]
    json: bool,
}

impl Asked {
    /// The controller; without one, an error that gives `examples`.
    pub fn device(&self, examples: &str) -> anyhow::Result<&Uri> {
        self.device.as_ref().with_context(|| format!("no device: add --device {examples}"))
    }

    /// Prints what it said.
    pub fn print(&self, answer: &serde_json::Value) {
        if self.json { outln!("{answer}") } else { crate::facts::print(answer, 0) }
    }
}
