//! `ring3d`: keeps drivers alive.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use ring3_process::{Signals, log};
use ring3_sandbox::Program;
use ring3_supervisor::admin::Server;
use ring3_supervisor::rcu;
use ring3_supervisor::supervisor::Supervisor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often a stop that was refused, because a disk was in use, is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Keeps the drivers of disks alive: holds their devices, starts a process for each, and the next one when that dies.
#[derive(Parser)]
#[command(name = "ring3d", version)]
struct Args {
    /// The devices: a file, or a folder of files called *.toml. docs/supervisor.md says what they hold.
    #[arg(long, value_name = "PATH", default_value = "/etc/ring3")]
    config: PathBuf,
    /// Where `ring3 status` and the other commands find it.
    #[arg(long, value_name = "PATH", default_value = ring3_control::admin::SOCKET)]
    socket: PathBuf,
    /// The program of the drivers; the ring3 beside this one if it is not given.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

fn main() -> ExitCode {
    log::start();
    std::panic::set_hook(Box::new(|panic| log::notice(format_args!("ring3d: a bug: {panic}"))));
    let filter = tracing_subscriber::EnvFilter::try_from_env("RING3_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log::writer)
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .init();
    let code = match Args::try_parse() {
        Ok(args) => run(&args).unwrap_or_else(|error| {
            log::notice(format_args!("ring3d: {error:#}"));
            ExitCode::FAILURE
        }),
        Err(answer) => {
            let printed = answer.print();
            let failed = answer.use_stderr() || printed.is_err();
            if failed { ExitCode::from(2) } else { ExitCode::SUCCESS }
        }
    };
    log::flush(log::LAST_LINES);
    code
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let signals = Signals::take().context("taking signals")?;
    let path = args.program.clone().map_or_else(beside, Ok)?;
    let program =
        Program::open(&path).with_context(|| format!("the drivers' program {}: name it with --program", path.display()))?;
    // What is wrong in the manifest is said before anything is changed.
    ring3_supervisor::manifest::read(&args.config)?;
    let mut server = Server::listen(&args.socket)?;
    rcu::put_back_after_a_crash();
    let doubts = ring3_process::prepare(&[&args.config, &path, &args.socket])?;
    doubts.iter().for_each(|doubt| tracing::warn!("{doubt}"));
    let mut supervisor = Supervisor::start(&args.config, Arc::new(program))?;
    serve(&mut supervisor, &mut server, &signals)
}

/// The `ring3` that was built with this program.
fn beside() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where this program is")?;
    Ok(own.with_file_name("ring3"))
}

/// Answers users, until a signal ends it: disks that nobody uses are stopped and their devices given back, the others are named. A second signal insists.
fn serve(supervisor: &mut Supervisor, server: &mut Server, signals: &Signals) -> anyhow::Result<ExitCode> {
    let (mut stopping, mut force, mut told) = (false, false, false);
    loop {
        let timeout = if stopping { Timespec::try_from(RETRY).ok() } else { None };
        let signalled = {
            let sources = server.fds();
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            fds.extend(sources.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let _ = poll(&mut fds, timeout.as_ref());
            !fds[0].revents().is_empty()
        };
        if signalled {
            let wishes = signals.wishes();
            force |= stopping && told && wishes.stop;
            stopping |= wishes.stop || wishes.hang_up;
        }
        for request in server.take() {
            supervisor.obey(server, request);
        }
        for why in supervisor.reap() {
            if !told {
                log::notice(format_args!("ring3d: {why}; it is served until it is free, and a second signal takes it away"));
            }
            told = true;
        }
        if stopping {
            if supervisor.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            supervisor.end(force);
        }
    }
}
