//! The life of a driver process.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ring3_export::ublk;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::attach::{Source, attach};
use crate::disks::Disks;
use crate::open::{Attached, Monitor};
use crate::report::{Milestones, Report};
use crate::signals::{Signals, Wish};
use crate::{Error, Ready, process};

/// How often a stop that was refused, because the disk was in use, is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How often the status line is renewed.
const STATUS: Duration = Duration::from_secs(1);

/// How often the device is asked what it has to report.
const LOOK: Duration = Duration::from_secs(10);

/// How to run a driver.
#[derive(Debug)]
pub struct Options {
    /// How its disks are exported.
    pub ublk: ublk::Options,
    /// Say what is exported as JSON, one line for each disk.
    pub json: bool,
    /// Told the same as JSON once the disks are there, then closed.
    pub ready: Option<Ready>,
    /// Where the report goes.
    pub stats: Option<PathBuf>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it was asked to; nobody used the disks.
    Stopped,
    /// The disks were taken away from those who used them, as the second signal asks for.
    Forced,
    /// Somebody else has stopped the export.
    Removed,
}

/// Drives the disks of `source` until a signal ends it.
pub fn run(source: &Source, options: Options) -> Result<Ending, Error> {
    let signals = Signals::take().map_err(|source| Error::os("taking signals", source))?;
    let keep: Vec<_> = options.stats.iter().map(PathBuf::as_path).collect();
    process::prepare(&keep)?;
    let since = Instant::now();
    let Attached { disks, monitor } = attach(source, &options.ublk)?;
    let attached = since.elapsed();
    let disks = Disks::export(disks, &options.ublk, since)?;
    let times = Milestones { attached, ready: Some(since.elapsed()) };
    let mut host = Host { name: source.name(), disks, monitor, times, signals, options };
    host.announce()?;
    let ending = host.serve();
    host.report();
    ending
}

/// What a wait ended for; all false at its time limit.
struct Woken {
    signalled: bool,
    ended: bool,
    wanted_back: bool,
}

struct Host {
    name: String,
    disks: Disks,
    monitor: Option<Box<dyn Monitor>>,
    times: Milestones,
    signals: Signals,
    options: Options,
}

impl Host {
    /// Says that the disks are there.
    fn announce(&mut self) -> Result<(), Error> {
        let mut json = String::new();
        let mut text = String::new();
        for exported in self.disks.exported() {
            json += &serde_json::to_string(exported).map_err(|error| Error::os("writing JSON", error))?;
            json.push('\n');
            let size = exported.bytes as f64 / f64::from(1 << 20);
            text += &format!("{} is {} ({size:.0} MiB, blocks of {})\n", exported.device, exported.disk, exported.block_size);
        }
        let line = if self.options.json { &json } else { &text };
        // Who closed the pipe does not want to know; the disk is there all the same.
        let _ = std::io::stdout().write_all(line.as_bytes()).and_then(|()| std::io::stdout().flush());
        if let Some(ready) = self.options.ready.take() {
            // The same: whoever waited has gone, and the disks' users have not.
            if let Err(error) = ready.tell(&json) {
                tracing::warn!(%error, "nobody was told that the disks are there; they are");
            }
        }
        Ok(())
    }

    /// Serves until the end, and stops the disks.
    fn serve(&mut self) -> Result<Ending, Error> {
        let status = std::io::stderr().is_terminal() && !self.options.json;
        let (mut stopping, mut told, mut looked) = (false, false, Instant::now());
        loop {
            let woken = self.wait(if stopping {
                RETRY
            } else if status {
                STATUS
            } else {
                LOOK
            })?;
            if let Some(monitor) = self.monitor.as_ref().filter(|_| looked.elapsed() >= LOOK) {
                monitor.look();
                looked = Instant::now();
            }
            if woken.wanted_back {
                eprintln!("ring3: {}: the system wants the device back; its disks are taken away", self.name);
                return self.disks.stop(true).map(|()| Ending::Forced);
            }
            if woken.signalled {
                while let Some(wish) = self.signals.next() {
                    match wish {
                        Wish::Report => self.report(),
                        Wish::Stop if stopping => {
                            return self.disks.stop(true).map(|()| Ending::Forced);
                        }
                        Wish::Stop => stopping = true,
                    }
                }
            }
            if woken.ended {
                let failure = self.disks.failure();
                self.disks.stop(true)?;
                return failure.map_or(Ok(Ending::Removed), Err);
            }
            if stopping {
                match self.disks.stop(false) {
                    Ok(()) => return Ok(Ending::Stopped),
                    Err(error @ Error::Export(ublk::Error::Busy { .. })) => {
                        if !std::mem::replace(&mut told, true) {
                            eprintln!("ring3: {error}; it is served until it is free");
                        }
                    }
                    Err(error) => return Err(error),
                }
            } else if status {
                self.show_status();
            }
        }
    }

    /// Waits for a signal, the end of an export or the removal of the device.
    fn wait(&self, timeout: Duration) -> Result<Woken, Error> {
        let ended = self.disks.ended();
        let removal = self.monitor.as_ref().and_then(|monitor| monitor.removal());
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(ended.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(removal.map(|irq| PollFd::new(irq, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(source) => return Err(Error::os("waiting for signals", source)),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (exports, removal) = fds[1..].split_at(ended.len());
        Ok(Woken { signalled: is_ready(&fds[0]), ended: exports.iter().any(is_ready), wanted_back: removal.iter().any(is_ready) })
    }

    fn show_status(&self) {
        let (mut requests, mut moved, mut errors) = (0, 0, 0);
        for (_, _, stats) in self.disks.stats() {
            requests += stats.requests;
            moved += stats.bytes;
            errors += stats.errors;
        }
        eprint!("\r\x1b[K{}: {requests} requests, {} MiB, {errors} errors", self.name, moved >> 20);
    }

    /// Writes the report, if the user wants one.
    fn report(&self) {
        let Some(path) = &self.options.stats else { return };
        let report = Report::new(self.name.clone(), self.times, &self.disks.stats());
        let written = serde_json::to_vec_pretty(&report).map_err(std::io::Error::from).and_then(|text| fs::write(path, text));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "the report was not written");
        }
    }
}
