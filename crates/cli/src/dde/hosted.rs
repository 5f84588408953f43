//! A hosted driver as a process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_process::log;
use serde::Deserialize;

use super::build::{Built, build};
use super::{Name, RunArgs};

/// How long a driver may take to probe, and its link to come up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take to close its card; after 10 seconds it ends itself.
const FAREWELL: Duration = Duration::from_secs(12);

/// A driver of Linux that drives a card. It ends when this is dropped.
pub struct Hosted {
    child: Child,
    folder: tempfile::TempDir,
    said: Receiver<Said>,
}

/// A line of the process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Said {
    served: bool,
    link: bool,
}

fn command(built: &Built, device: &Uri, socket: &Path, unprotected: bool) -> Command {
    let mut command = Command::new(&built.program);
    command.arg("--device").arg(device.to_string()).arg("--socket").arg(socket);
    if unprotected {
        command.arg("--unprotected");
    }
    command.env("LD_LIBRARY_PATH", &built.library);
    command
}

impl Hosted {
    /// Builds the driver if need be, starts it for `device`, and waits until its link is up.
    pub fn start(name: &Name, device: &Uri, unprotected: bool) -> Result<Self> {
        let built = build(&name.0, true)?;
        let folder = tempfile::tempdir().context("creating a folder for a socket")?;
        let mut command = command(&built, device, &folder.path().join("card"), unprotected);
        command.arg("--with-parent").arg(std::process::id().to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("starting {}", built.program.display()))?;
        let lines = child.stdout.take().map(BufReader::new);
        let (sender, said) = channel();
        std::thread::spawn(move || {
            for line in lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                if serde_json::from_str(&line).is_ok_and(|said| sender.send(said).is_err()) {
                    break;
                }
            }
        });
        let mut hosted = Self { child, folder, said };
        hosted.wait(|said| said.served, name, "to probe the device")?;
        hosted.wait(|said| said.link, name, "for its link")?;
        Ok(hosted)
    }

    fn wait(&mut self, until: impl Fn(&Said) -> bool, name: &Name, what: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(said) if until(&said) => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("dde:{} has needed more than {PATIENCE:?} {what}", name.0),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().context("waiting for the driver")?;
                    bail!("dde:{} has ended ({status}); what it said is above", name.0);
                }
            }
        }
    }

    /// The card as a device of this program.
    pub fn device(&self) -> Result<Uri> {
        let path = self.folder.path().join("card");
        format!("remote:{}", path.display()).parse().context("the name of the hosted card")
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if !status.success() => {
                    return errln!("the hosted driver has ended ({status}) when it closed its card");
                }
                _ => return,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Becomes the driver.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let built = build(&args.driver, true)?;
    let mut command = command(&built, &args.device, &args.socket, args.unprotected);
    if args.verbose {
        command.arg("--verbose");
    }
    if let Some(arena) = args.arena {
        command.arg("--arena").arg(arena.to_string());
    }
    log::flush(log::LAST_LINES);
    Err(command.exec()).with_context(|| format!("starting {}", built.program.display()))
}
