//! `ring3 net bench`: what a card receives it sends again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_backend::Uri;
use ring3_bench::net::{Forwarding, forward};
use ring3_process::Signals;
use serde_json::json;

use super::target::Target;

/// Arguments of `ring3 net bench`.
#[derive(clap::Args)]
pub struct Args {
    /// The card: vfio:0000:01:00.0, uio:0000:01:00.0, vfio-user:PATH, sim:e1000 or sim:virtio-net,
    /// or remote:PATH.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    target: Target,
    /// What is done to each packet: io (nothing) or macswap (its Ethernet addresses are swapped).
    #[arg(long, default_value = "macswap")]
    forward: Forwarding,
    /// Seconds to forward, from 1 to 86,400. Ctrl-C ends it earlier.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Seconds to forward before the measurement, from 0 to 3600, until the link is up and the
    /// sender sends.
    #[arg(
        long, default_value_t = 0, value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(0..=3600),
    )]
    warm_up: u64,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Forwards, and says what was done.
pub fn run(args: &Args) -> Result<ExitCode> {
    let place = args.target.place(&args.device)?;
    let signals = Signals::take()?;
    let nic = args.target.open(place.device())?;
    let mut stop = || {
        let pending = signals.take_pending();
        pending.stop || pending.hang_up
    };
    let times = [args.warm_up, args.seconds].map(Duration::from_secs);
    let done = forward(&*nic, args.forward, times, &mut stop)?;
    if done.received == 0 {
        bail!(
            "{}: nothing came: who sends at the other end of its cable? ring3 net info says \
            whether it has a link",
            args.device
        );
    }
    let (seconds, packets) = (done.elapsed.as_secs_f64(), done.received as f64);
    let report = json!({
        "device": args.device.to_string(),
        "model": nic.info().model,
        "forward": args.forward.name(),
        "seconds": seconds,
        "received": done.received,
        "sent": done.sent,
        "packets_s": packets / seconds.max(1e-9),
        "ticks_per_packet": done.ticks as f64 / packets,
    });
    if args.json {
        outln!("{report}");
    } else {
        let lost = done.received - done.sent;
        outln!(
            "{}: {} packets in {seconds:.1} s, {:.0} a second, {lost} of them not sent again; \
            {:.1} ticks of the time stamp counter for each",
            args.device,
            done.received,
            packets / seconds.max(1e-9),
            done.ticks as f64 / packets
        );
    }
    Ok(ExitCode::SUCCESS)
}
