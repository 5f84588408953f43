//! `ring3 net info`: what a network card is.

use std::process::ExitCode;

use anyhow::Result;
use ring3_backend::Uri;
use ring3_class::net::Nic;
use serde_json::{Value, json};

use super::target::Target;
use crate::leave::Watch;

/// Arguments of `ring3 net info`.
#[derive(clap::Args)]
pub struct Args {
    /// The card: vfio:0000:01:00.0, uio:0000:01:00.0, vfio-user:PATH, sim:e1000 or sim:virtio-net,
    /// or remote:PATH, a part of one that ring3 serve shares.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    target: Target,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints what the card is.
pub fn run(args: &Args) -> Result<ExitCode> {
    let _watch = if args.target.is_hosted() { Some(Watch::start()?) } else { None };
    let place = args.target.place(&args.device)?;
    let card = describe(&*args.target.open(place.device())?)?;
    if args.json {
        outln!("{card}");
        return Ok(ExitCode::SUCCESS);
    }
    for (key, value) in card.as_object().into_iter().flatten() {
        outln!("{:24} {}", key.replace('_', " "), plain(value));
    }
    Ok(ExitCode::SUCCESS)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Null => "not known".into(),
        Value::Array(words) if words.is_empty() => "none".into(),
        Value::Array(words) => words.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn describe(nic: &dyn Nic) -> Result<Value> {
    let (info, link) = (nic.info(), nic.link()?);
    let offloads = json!(info.offloads);
    let able =
        offloads.as_object().into_iter().flatten().filter(|(_, has)| **has == Value::Bool(true));
    Ok(json!({
        "name": nic.name(),
        "model": info.model,
        "mac": info.mac,
        "mtu_min": info.mtu.0,
        "mtu_max": info.mtu.1,
        "queues": info.max_queues,
        "rx_depth": info.max_depth.0,
        "tx_depth": info.max_depth.1,
        "headroom": info.headroom,
        "max_pieces": info.max_pieces,
        "receives_pieces": info.receives_pieces,
        "max_segmented": info.max_segmented,
        "offloads": able.map(|(name, _)| name.clone()).collect::<Vec<_>>(),
        "unicast_filters": info.filters.unicast,
        "multicast_filters": info.filters.multicast,
        "vlan_filter": info.filters.vlan,
        "counts_missed": info.counts_missed,
        "shared": info.shared,
        "link": link.up,
        "speed_mbit_s": link.speed,
        "full_duplex": link.full_duplex,
    }))
}
