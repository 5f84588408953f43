//! `ring3 blk info`: what a disk is.

use std::process::ExitCode;

use anyhow::Result;
use ring3_class::block::{Disk, Info};
use serde_json::{Value, json};

use super::target::Target;
use crate::sizes::human;

/// Arguments of `ring3 blk info`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Print a JSON list, one object for each disk.
    #[arg(long)]
    json: bool,
}

/// Queues to ask for, so that the controller's own number shows.
const QUEUES: u16 = 128;

/// Prints the disks of a device.
pub fn run(args: &Args) -> Result<ExitCode> {
    let attached = args.target.attach(QUEUES, 0)?;
    if attached.disks.is_empty() {
        return Err(args.target.no_disk());
    }
    let disks: Vec<_> = attached.disks.iter().map(|disk| describe(&**disk)).collect();
    if args.json {
        outln!("{}", Value::from(disks));
        return Ok(ExitCode::SUCCESS);
    }
    for (index, disk) in disks.iter().enumerate() {
        if index > 0 {
            outln!();
        }
        for (key, value) in disk.as_object().into_iter().flatten() {
            outln!("{:24} {}", key.replace('_', " "), plain(key, value));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Numbers of bytes that are long are shown with a unit, too.
const BYTES: [&str; 5] = ["bytes", "max_transfer", "optimal_io", "boundary", "discard_granularity"];

fn plain(key: &str, value: &Value) -> String {
    if let Some(bytes) = value.as_u64().filter(|&bytes| bytes >= 1024 && BYTES.contains(&key)) {
        return format!("{bytes} ({})", human(bytes));
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Null => "none".into(),
        other => other.to_string(),
    }
}

fn describe(disk: &dyn Disk) -> Value {
    let info: &Info = disk.info();
    json!({
        "name": disk.name(),
        "model": info.model,
        "serial": info.serial,
        "firmware": info.firmware,
        "bytes": info.capacity(),
        "blocks": info.blocks,
        "block_size": info.block_size,
        "max_transfer": info.max_transfer,
        "optimal_io": info.optimal_io,
        "boundary": info.boundary,
        "queues": disk.max_queues(),
        "volatile_cache": info.volatile_cache,
        "fua": info.fua,
        "read_only": info.read_only,
        "max_write_zeroes_blocks": info.max_write_zeroes_blocks,
        "max_discard_blocks": info.discard.map(|discard| discard.max_blocks),
        "discard_granularity": info.discard.map(|discard| discard.granularity),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_number_of_bytes_has_its_unit_beside_it() {
        assert_eq!(plain("bytes", &json!(1 << 30)), "1073741824 (1 GiB)");
        assert_eq!(plain("blocks", &json!(1 << 30)), "1073741824");
        assert_eq!(plain("optimal_io", &json!(512)), "512");
    }
}
