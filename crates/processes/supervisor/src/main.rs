//! `ring3d`: keeps drivers alive.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use ring3_process::{Signals, log};
use ring3_sandbox::Program;
use ring3_supervisor::admin::AdminServer;
use ring3_supervisor::hotplug::Hotplug;
use ring3_supervisor::journald::Journal;
use ring3_supervisor::notify::{self, Notifier};
use ring3_supervisor::store::Store;
use ring3_supervisor::supervisor::Supervisor;
use ring3_supervisor::{listen, rcu, scrape};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How often a stop that was refused, because a disk was in use, is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Keeps the drivers of disks alive: holds their devices, starts a process for each, and the next
/// one when that dies.
#[derive(Parser)]
// Its own first word has a mark, which is no part of its name.
#[command(name = "ring3d", bin_name = "ring3d", version)]
struct Args {
    /// The devices: a file, or a folder of files called *.toml. docs/supervisor.md says what they
    /// hold.
    #[arg(long, value_name = "PATH", default_value = "/etc/ring3")]
    config: PathBuf,
    /// Where `ring3 status` and the other commands find it.
    #[arg(long, value_name = "PATH", default_value = ring3_control::admin::SOCKET)]
    socket: PathBuf,
    /// The program of the drivers; the ring3-driver beside this one if it is not given.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Keep what must outlive ring3d, start it, and start it again when it dies: for machines
    /// without systemd.
    #[arg(long)]
    hold: bool,
}

fn main() -> ExitCode {
    // Before anything else: it begins anew.
    ring3_process::mark_process();
    log::start();
    std::panic::set_hook(Box::new(|panic| log::notice(format_args!("ring3d: a bug: {panic}"))));
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("RING3_LOG").unwrap_or_else(|_| "info".into());
    let journal = Journal::of_stderr();
    let lines = journal.is_none().then(|| {
        fmt::layer().with_writer(log::writer).without_time().with_target(false).with_ansi(false)
    });
    tracing_subscriber::registry().with(filter).with(journal).with(lines).init();
    let code = match Args::try_parse() {
        Ok(args) if args.hold => hold().unwrap_or_else(|error| {
            log::notice(format_args!("ring3d --hold: {error:#}"));
            ExitCode::FAILURE
        }),
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

/// Holds this program, started with the same words but one.
fn hold() -> anyhow::Result<ExitCode> {
    let words = std::env::args_os().skip(1).filter(|word| word != "--hold").collect();
    let status = ring3_supervisor::hold::hold(
        std::env::current_exe().context("where this program is")?,
        words,
    )?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let signals = Signals::take().context("taking signals")?;
    let path = args.program.clone().map_or_else(beside, Ok)?;
    let program = Program::open(&path).with_context(|| {
        format!("the drivers' program {}: name it with --program", path.display())
    })?;
    // What is wrong in the manifest is said before anything is changed.
    ring3_supervisor::manifest::read(&args.config)?;
    let metrics = ring3_supervisor::manifest::metrics(&args.config)?;
    let (store, records, passed) = Store::open(Notifier::from_env()?, listen::take());
    let mut passed: BTreeMap<_, _> = passed.into_iter().collect();
    let mut server = match passed.remove("control") {
        Some(socket) => AdminServer::inherited(socket)?,
        None => AdminServer::listen(&args.socket)?,
    };
    rcu::put_back_after_a_crash();
    let doubts = ring3_process::prepare(&[&args.config, &path, &args.socket])?;
    doubts.iter().for_each(|doubt| tracing::warn!("{doubt}"));
    let outside = Outside {
        notifier: Notifier::from_env()?,
        hotplug: hotplug()?,
        has_store: store.is_there(),
    };
    let mut supervisor =
        Supervisor::start(&args.config, Arc::new(program), Arc::new(store), records)?;
    let seen = supervisor.seen();
    let text = move || ring3_supervisor::metrics::text(&seen.devices());
    if let Some(socket) = passed.remove("metrics") {
        scrape::inherited(socket, text.clone())
            .context("serving metrics on the service's socket")?;
    }
    if let Some(endpoint) = metrics {
        scrape::serve(&endpoint, text)
            .with_context(|| format!("serving metrics at {endpoint:?}"))?;
    }
    outside
        .tell(|notifier| notifier.ready(&format!("{} devices", supervisor.seen().devices().len())));
    serve(&mut supervisor, &mut server, &signals, &outside)
}

/// What is around ring3d.
struct Outside {
    notifier: Notifier,
    /// Raised when a device has come or gone.
    hotplug: Arc<OwnedFd>,
    /// Whoever has started it keeps what is to outlive it.
    has_store: bool,
}

impl Outside {
    /// Notifies the service manager. A failure is ignored.
    fn tell(&self, say: impl FnOnce(&Notifier) -> std::io::Result<()>) {
        if let Err(error) = say(&self.notifier) {
            tracing::debug!("who started ring3d does not listen: {error}");
        }
    }
}

/// Raised when a device comes or goes. Where the kernel does not say so, absent ones are looked for
/// now and then all the same.
fn hotplug() -> anyhow::Result<Arc<OwnedFd>> {
    let raised = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let raise = raised.clone();
    let act = move |_| rustix::io::write(&*raise, &1u64.to_ne_bytes()).is_ok();
    if let Err(error) = Hotplug::listen().and_then(|hotplug| hotplug.follow(act)) {
        tracing::warn!("devices that come and go are not seen at once: {error}");
    }
    Ok(raised)
}

/// The `ring3` that was built with this program.
fn beside() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where this program is")?;
    Ok(own.with_file_name("ring3-driver"))
}

/// Answers users, until a signal ends it: disks that nobody uses are stopped and their devices
/// given back, the others are named. A second signal insists. SIGHUP leaves all as it is to the
/// next ring3d, if somebody keeps it for that.
fn serve(
    supervisor: &mut Supervisor,
    server: &mut AdminServer,
    signals: &Signals,
    outside: &Outside,
) -> anyhow::Result<ExitCode> {
    let (mut stopping, mut force, mut told, mut leaving) = (false, false, false, false);
    let watchdog = notify::watchdog();
    loop {
        let retry = (stopping || leaving || supervisor.is_ending()).then_some(RETRY);
        let timeout = retry
            .into_iter()
            .chain(watchdog)
            .chain(server.due())
            .min()
            .and_then(|timeout| Timespec::try_from(timeout).ok());
        let [signalled, hotplug] = {
            let sources = server.fds();
            let mut fds = vec![
                PollFd::new(signals, PollFlags::IN),
                PollFd::new(&*outside.hotplug, PollFlags::IN),
            ];
            fds.extend(sources.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let _ = poll(&mut fds, timeout.as_ref());
            [0, 1].map(|at| !fds[at].revents().is_empty())
        };
        if watchdog.is_some() {
            outside.tell(Notifier::alive);
        }
        if hotplug {
            let _ = rustix::io::read(&*outside.hotplug, &mut [0; 8]);
            supervisor.rescan();
        }
        if signalled {
            let pending = signals.take_pending();
            if stopping && pending.stop {
                force = true;
                supervisor.force_stop_all();
            }
            if (pending.stop || pending.hang_up && !outside.has_store) && !stopping {
                stopping = true;
                outside.tell(Notifier::stopping);
            }
            if pending.hang_up && outside.has_store && !stopping && !leaving {
                match supervisor.hand_over_all() {
                    Ok(()) => leaving = true,
                    Err(why) => log::notice(format_args!("ring3d: it is not replaced: {why}")),
                }
            }
        }
        for request in server.take() {
            supervisor.handle_command(server, request);
        }
        for why in supervisor.reap() {
            if !told {
                log::notice(format_args!(
                    "ring3d: {why}; it is served until it is free, and a second signal takes it \
                    away"
                ));
            }
            told = true;
        }
        if (stopping || leaving) && supervisor.is_empty() {
            return Ok(if leaving {
                ExitCode::from(ring3_supervisor::hold::REPLACE)
            } else {
                ExitCode::SUCCESS
            });
        }
        if stopping && !leaving {
            supervisor.end(force);
        }
    }
}
