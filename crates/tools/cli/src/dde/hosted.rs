//! A hosted driver as a process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ring3_backend::Uri;
use ring3_process::log;
use ring3_process::{PendingSignals, Signals};
use serde::Deserialize;

use super::coverage::{Counts, Coverage};
use super::program::Program;
use super::tools::Tools;
use super::{Class, Dma, Name, RunArgs};
use crate::leave::Kept;

/// How long a driver may take to probe, and its link to come up.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same under a debugger or valgrind.
const LONG_PATIENCE: Duration = Duration::from_secs(900);
/// How long it may take to close its device; after 10 seconds it ends itself.
const FAREWELL: Duration = Duration::from_secs(12);

/// The name of its socket, in a folder of its own.
const SOCKET: &str = "device";

/// A driver of Linux that drives a card or a disk. It ends when this is dropped, or when a signal
/// ends this program.
pub struct Hosted {
    process: Kept<Process>,
    device: Uri,
    said: Receiver<Said>,
    patience: Duration,
    farewell: Duration,
    counts: Option<Counts>,
}

/// Its process, and the folder where its card is served.
struct Process {
    child: Child,
    _folder: tempfile::TempDir,
}

/// A line of the process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    served: bool,
    link: bool,
}

/// What starts the driver, and where it counts if it does.
fn command(
    name: &Name,
    class: Option<Class>,
    tools: &Tools,
    alone: bool,
) -> Result<(Command, Option<Counts>)> {
    let program = Program::with(name, class, tools)?;
    let mut command = program.command(tools, alone);
    let counts = tools.coverage().map(|_| Counts::of(&name.0, program.path())).transpose()?;
    counts.iter().for_each(|counts| counts.take(&mut command));
    Ok((command, counts))
}

fn add_arguments(command: &mut Command, device: &Uri, unprotected: bool) {
    command.arg("--device").arg(device.to_string());
    if unprotected {
        command.arg("--unprotected");
    }
}

/// A replay needs nobody who uses what the driver drives: what its users have asked for is in the
/// recording.
fn refuse_replay(device: &Uri) -> Result<()> {
    ensure!(
        device.scheme != "replay",
        "{device}: what a driver of Linux's users have asked for is in its recording, so that \
        nobody else can use the device: ring3 replay {} goes through it",
        device.target
    );
    Ok(())
}

impl Hosted {
    /// Builds the driver of `class` if need be, starts it for `device`, and waits until it is
    /// served, and until a card's link is up.
    pub fn start(name: &Name, class: Class, device: &Uri, unprotected: bool) -> Result<Self> {
        Self::start_with(name, class, device, unprotected, &Tools::default())
    }

    /// The same, looked at with `tools`.
    pub fn start_with(
        name: &Name,
        class: Class,
        device: &Uri,
        unprotected: bool,
        tools: &Tools,
    ) -> Result<Self> {
        refuse_replay(device)?;
        let (mut command, counts) = command(name, Some(class), tools, true)?;
        let folder = tempfile::tempdir().context("creating a folder for a socket")?;
        let socket = folder.path().join(SOCKET);
        let served = format!("remote:{}", socket.display())
            .parse()
            .context("the name of the hosted device")?;
        add_arguments(&mut command, device, unprotected);
        command.arg("--socket").arg(&socket);
        // gdb is the driver's parent then, and ends it.
        let debugged = tools.debugs();
        if !debugged {
            command.arg("--with-parent").arg(std::process::id().to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // A terminal's signals are for this program, which closes the card when nobody uses it any
        // more.
        let mut child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let lines = child.stdout.take().map(BufReader::new);
        let process = Kept::new(Process { child, _folder: folder });
        let (sender, said) = channel();
        std::thread::spawn(move || {
            for line in lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    // Nobody waits any more; what gdb has to say is wanted all the same.
                    Ok(said) => {
                        if sender.send(said).is_err() && !debugged {
                            break;
                        }
                    }
                    Err(_) if debugged => errln!("{line}"),
                    Err(_) => {}
                }
            }
        });
        let patience = if tools.is_slow() { LONG_PATIENCE } else { PATIENCE };
        // One that is recorded ends itself after 50 seconds.
        let farewell = if tools.is_slow() || device.options.contains_key("record") {
            PATIENCE
        } else {
            FAREWELL
        };
        let mut hosted = Self { process, device: served, said, patience, farewell, counts };
        hosted.wait(|said| said.served, name, "to probe the device")?;
        if class == Class::Net {
            hosted.wait(|said| said.link, name, "for its link")?;
        }
        Ok(hosted)
    }

    fn wait(&mut self, until: impl Fn(&Said) -> bool, name: &Name, what: &str) -> Result<()> {
        let patience = self.patience;
        let deadline = Instant::now() + patience;
        loop {
            match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(said) if until(&said) => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("dde:{} has needed more than {patience:?} {what}", name.0)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("dde:{} has ended{}; what it said is above", name.0, self.status())
                }
            }
        }
    }

    /// How it has ended, in words.
    fn status(&self) -> String {
        let status = self.process.with(|process| process.child.wait());
        status.and_then(Result::ok).map(|status| format!(" ({status})")).unwrap_or_default()
    }

    /// What it drives as a device of this program.
    pub fn device(&self) -> &Uri {
        &self.device
    }

    /// Has the driver close its device and end; what was reached of it, if that was counted.
    pub fn end(mut self) -> Result<Option<Coverage>> {
        let farewell = self.farewell;
        self.process.with(|process| process.close(farewell)).unwrap_or(Ok(()))?;
        self.counts.take().map(Counts::coverage).transpose()
    }
}

impl Process {
    /// Tells it to end, and waits for that.
    fn close(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut told = false;
        while Instant::now() < deadline {
            match self.child.try_wait().context("waiting for the driver")? {
                // By itself or at the signal: one that is just ending by itself cannot be told from
                // the other.
                Some(status) if is_wrong(status) => {
                    bail!("the hosted driver has ended ({status}); what it said is above")
                }
                Some(_) => return Ok(()),
                None if told => std::thread::sleep(Duration::from_millis(5)),
                None => {
                    let pid = rustix::process::Pid::from_child(&self.child);
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                    told = true;
                }
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        bail!("the hosted driver has not closed its device, and was killed")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Who has waited for its end was told of it.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Err(error) = self.close(FAREWELL) {
            errln!("{error}");
        }
    }
}

/// Whether it has ended otherwise than by being told to. Before it hears of signals, they end it.
fn is_wrong(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    !status.success() && status.signal() != Some(rustix::process::Signal::TERM.as_raw())
}

/// Becomes the driver; one whose lines are counted is waited for.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let (mut command, counts) = command(&Name(args.driver.clone()), None, &args.tools, false)?;
    add_arguments(&mut command, &args.device, args.unprotected);
    for (option, wanted) in
        [("--verbose", args.verbose), ("--reflect", args.reflect), ("--no-msix", args.no_msix)]
    {
        if wanted {
            command.arg(option);
        }
    }
    if let Some(socket) = &args.socket {
        command.arg("--socket").arg(socket);
    }
    if let Some(file) = &args.play {
        command.arg("--play").arg(file);
    }
    if let Some(address) = &args.lwip {
        command.args(["--lwip", address]);
    }
    if args.dma == Dma::Copy {
        command.args(["--dma", "copy"]);
    }
    for (option, number) in [("--poll", args.poll), ("--mtu", args.mtu)] {
        if let Some(number) = number {
            command.arg(option).arg(number.to_string());
        }
    }
    if let Some(arena) = args.arena {
        command.arg("--arena").arg(arena.to_string());
    }
    log::flush(log::LAST_LINES);
    let (Some(counts), Some(path)) = (counts, args.tools.coverage()) else {
        return Err(command.exec())
            .with_context(|| format!("starting {}", command.get_program().display()));
    };
    let signals = Signals::take().context("taking signals")?;
    let mut child =
        command.spawn().with_context(|| format!("starting {}", command.get_program().display()))?;
    let status = loop {
        match child.try_wait().context("waiting for the driver")? {
            Some(status) => break status,
            None if signals.take_pending() != PendingSignals::default() => {
                let _ = rustix::process::kill_process(
                    rustix::process::Pid::from_child(&child),
                    rustix::process::Signal::TERM,
                );
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    counts.coverage()?.tell(path, false)?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
