//! `ring3 sleep` and `ring3 wake`: what is done before the machine sleeps, and after. systemd's
//! sleep hook runs both.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_control::admin::{Command, Reply, SOCKET};
use ring3_process::marked;
use ring3_sleep::{Host, Note, Options, Processes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admin::Client;

/// How long ring3d may take: its drivers have twenty seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so long whatever was stopped goes on. The clock stands still while the machine sleeps.
const OVERSLEPT: u64 = 90;

/// Options of `ring3 sleep`.
#[derive(clap::Args)]
pub struct SleepArgs {
    /// Prepare for hibernation: drivers serve until the kernel freezes them, because the kernel
    /// still writes to disks.
    #[arg(long)]
    hibernate: bool,
    /// First wait until no other process is in this one's control group, for at most 10 s. Other
    /// sleep hooks may need services that would be frozen.
    #[arg(long)]
    after_others: bool,
    /// The socket of ring3d.
    #[arg(long, default_value = SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

/// Options of `ring3 wake`.
#[derive(clap::Args)]
pub struct WakeArgs {
    /// The socket of ring3d.
    #[arg(long, default_value = SOCKET, value_name = "PATH")]
    socket: PathBuf,
    /// So many seconds later, if nobody has done it: what ring3 sleep starts beside itself.
    #[arg(long, value_name = "SECONDS", hide = true)]
    after: Option<u64>,
}

/// Stops all users of disks that processes serve, and has ring3d's drivers stop their devices.
pub fn sleep(args: &SleepArgs) -> Result<ExitCode> {
    let host = Host::this();
    // It ends with this process, unless something is stopped then.
    let _watch = start_watch(&args.socket)?;
    let options = Options { after_others: args.after_others, no_kernel_sync: !args.hibernate };
    ring3_sleep::stop_users(&host, &options)?;
    let slept = tell(&host, &args.socket, &Command::Sleep { driven: args.hibernate });
    if slept.is_err() {
        // The first error counts.
        let _ = wake_all(&host, &args.socket);
    }
    slept.map(|()| ExitCode::SUCCESS)
}

/// Undoes it.
pub fn wake(args: &WakeArgs) -> Result<ExitCode> {
    let host = Host::this();
    if let Some(seconds) = args.after
        && !watch(&host, Duration::from_secs(seconds))
    {
        return Ok(ExitCode::SUCCESS);
    }
    wake_all(&host, &args.socket).map(|()| ExitCode::SUCCESS)
}

/// First the drivers, then who waits for them.
fn wake_all(host: &Host, socket: &Path) -> Result<()> {
    let told = tell(host, socket, &Command::Wake);
    ring3_sleep::thaw_users(host)?;
    told
}

/// Tells ring3d, if one runs. Nobody is to start one now by its socket.
fn tell(host: &Host, socket: &Path, command: &Command) -> Result<()> {
    if !Processes::is_running(host, "ring3d") || !socket.exists() {
        return Ok(());
    }
    match Client::within(socket, PATIENCE)?.ask(command)? {
        Reply::Done => Ok(()),
        Reply::Refused(why) => bail!("{why}"),
        _ => bail!("ring3d has answered something else"),
    }
}

/// Starts a process that wakes the machine if nobody else does. It goes by its standard input that
/// this one lives.
fn start_watch(socket: &Path) -> Result<Option<ChildStdin>> {
    let program = std::env::current_exe().context("where this program is")?;
    let mut command = std::process::Command::new(&program);
    command
        .arg0(marked(&program))
        .args(["wake", "--after", &OVERSLEPT.to_string(), "--socket"])
        .arg(socket);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let child =
        command.spawn().context("starting the process that wakes the machine if nobody does")?;
    Ok(child.stdin)
}

/// Waits `limit`; false once who has started it has ended, and nothing is stopped.
fn watch(host: &Host, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    let mut parent = Some(std::io::stdin());
    while Instant::now() < end {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut fds: Vec<_> =
            parent.iter().map(|stdin| PollFd::new(stdin, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&second));
        if parent.is_some() && !fds[0].revents().is_empty() {
            drop(fds);
            // Nothing is ever written to it.
            let gone = parent
                .as_mut()
                .is_some_and(|stdin| matches!(stdin.read(&mut [0; 1]), Ok(0) | Err(_)));
            parent = parent.filter(|_| !gone);
        }
        if parent.is_none() && !Note::is_there(host) {
            return false;
        }
    }
    true
}
