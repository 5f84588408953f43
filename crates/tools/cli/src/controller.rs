//! Options of the commands that ask a controller about itself.

use anyhow::Context;
use ring3_backend::Uri;
use serde_json::Value;

use crate::driving::Protection;

/// Which controller is asked, and how its answer is printed.
#[derive(clap::Args)]
pub struct Asked {
    /// The controller: vfio:0000:01:00.0, uio:0000:01:00.0, qtest:MODEL, vfio-user:PATH or
    /// sim:MODEL.
    #[arg(long, value_name = "URI", global = true)]
    device: Option<Uri>,
    #[command(flatten)]
    pub protection: Protection,
    /// Print one JSON object (docs/json.md) instead of text.
    #[arg(long, global = true)]
    json: bool,
}

impl Asked {
    /// The controller; without one, an error that gives `examples`.
    pub fn device(&self, examples: &str) -> anyhow::Result<&Uri> {
        self.device.as_ref().with_context(|| format!("no device: add --device {examples}"))
    }

    /// Prints what it said.
    pub fn print(&self, answer: &Value) {
        if self.json { outln!("{answer}") } else { print(answer, 0) }
    }
}

/// Prints a line a field, nested ones indented.
fn print(value: &Value, indent: usize) {
    let Value::Object(fields) = value else { return outln!("{:indent$}{value}", "") };
    for (name, value) in fields {
        let name = name.replace('_', " ");
        match value {
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for item in items {
                    outln!("{:indent$}{name}:", "");
                    print(item, indent + 2);
                }
            }
            Value::Array(items) if items.is_empty() => outln!("{:indent$}{name:<28} none", ""),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                outln!("{:indent$}{name:<28} {}", "", items.join("; "));
            }
            Value::Object(_) => {
                outln!("{:indent$}{name}:", "");
                print(value, indent + 2);
            }
            Value::Null => outln!("{:indent$}{name:<28} none", ""),
            Value::String(text) => outln!("{:indent$}{name:<28} {text}", ""),
            other => outln!("{:indent$}{name:<28} {other}", ""),
        }
    }
}
