//! `ring3 blk lend`: memory that is shared with an export, for other programs to map.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use ring3_broker::region::SharedMemory;
use ring3_process::Signals;
use rustix::event::{PollFd, PollFlags, poll};

/// Options of `ring3 blk lend`.
#[derive(clap::Args)]
pub struct Args {
    /// The socket of the export (ring3 run --share SOCKET).
    #[arg(long, value_name = "SOCKET")]
    share: PathBuf,
    /// Size of the memory in MiB, from 1 to 4096. It has huge pages if enough are free.
    #[arg(
        long, value_name = "MIB", default_value_t = 64,
        value_parser = clap::value_parser!(u64).range(1..=4096),
    )]
    size: u64,
    /// Print the file and its size as a JSON object.
    #[arg(long)]
    json: bool,
}

/// Shares memory, says by which file it is mapped, and holds it until a signal comes or the export
/// ends.
pub fn run(args: &Args) -> Result<ExitCode> {
    let signals = Signals::take().context("taking signals")?;
    let bytes = usize::try_from(args.size << 20).context("so many bytes have no addresses here")?;
    let (memory, loan) = SharedMemory::taken(bytes, |memory| memory.register(&args.share))?;
    let file = format!("/proc/{}/fd/{}", std::process::id(), memory.as_fd().as_raw_fd());
    if args.json {
        let (bytes, huge) = (memory.len(), memory.is_huge());
        outln!(
            "{}",
            serde_json::json!({ "file": file, "bytes": bytes, "huge": huge, "disks": loan.disks() })
        );
    } else {
        outln!(
            "{file} is {} MiB for {}, until this ends",
            memory.len() >> 20,
            loan.disks().join(", ")
        );
    }
    let pending = loop {
        let mut fds = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::from_borrowed_fd(loan.socket(), PollFlags::RDHUP),
        ];
        let _ = poll(&mut fds, None);
        let pending = signals.take_pending();
        if pending.stop || pending.hang_up || loan.is_lost() {
            break pending;
        }
    };
    if !(pending.stop || pending.hang_up) {
        bail!(
            "{}: the export has ended, and the memory is shared with nobody",
            args.share.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
