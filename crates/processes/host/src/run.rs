//! The life of a driver process.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ring3_broker::server::Access;
use ring3_control::drive::SHARED_ARENA;
use ring3_export::ublk;
use ring3_process::{PendingSignals, Signals, log};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::attach::{Source, attach};
use crate::disks::{DiskExportKind, Disks};
use crate::open::{Attached, OpenedDevice};
use crate::ready::write_within;
use crate::report::{Exported, Report, StartupTimes};
use crate::serve::{AccessPaths, BoundServer, ServedInfo, Serving};
use crate::{Error, Ready};

/// How often a stop that was refused, because the disk was in use, is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// How often the status line is renewed.
const STATUS: Duration = Duration::from_secs(1);

/// How often the device is asked what it has to report.
pub(crate) const LOOK: Duration = Duration::from_secs(10);

/// How long it may take to say that the disks are there, on standard output and to who waits for
/// it.
pub const ANNOUNCE: Duration = Duration::from_secs(10);

/// How to run a driver.
#[derive(Debug)]
pub struct Options {
    /// What its disks become.
    pub way: DiskExportKind,
    /// How they are exported.
    pub ublk: ublk::Options,
    /// Where the disk is served to other programs, beside its block device.
    pub sockets: Vec<Access>,
    /// Say what is exported as JSON, one line for each disk.
    pub json: bool,
    /// Told the same as JSON once the disks are there, then closed.
    pub ready: Option<Ready>,
    /// Where the report goes.
    pub stats: Option<PathBuf>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// As it was asked to; nobody used the disks.
    Stopped,
    /// The disks were taken away from those who used them, as a signal after the refusal asks for.
    Forced,
    /// Somebody else has stopped the export.
    Removed,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nobody has asked for it.
    No,
    /// It is asked for, and tried.
    Asked,
    /// It is tried, and the user was told that somebody uses the disks.
    Refused,
    /// The user forces the stop.
    Insisted,
}

impl Stop {
    /// Only who can have read the refusal can insist; a terminal that is closed and a session that
    /// ends do not.
    pub fn after(self, pending: PendingSignals) -> Self {
        match self {
            Self::No if pending.stop || pending.hang_up => Self::Asked,
            Self::Refused if pending.stop => Self::Insisted,
            unchanged => unchanged,
        }
    }

    /// The state after a refusal, which `say` tells the user. The signals that came before belong
    /// to the first, so `take` comes first: whoever reads the refusal and answers at once insists.
    fn refuse(take: impl FnOnce() -> PendingSignals, say: impl FnOnce()) -> (Self, PendingSignals) {
        let before = take();
        say();
        (Self::Refused, before)
    }
}

/// Drives the disks of `source` until a signal ends it.
pub fn run(source: &Source, options: Options) -> Result<ExitReason, Error> {
    let signals = Signals::take().map_err(|source| Error::os("taking signals", source))?;
    // What cannot go well is found before anything is changed.
    options.way.check()?;
    options.stats.as_deref().map_or(Ok(()), check_report)?;
    if options.ublk.batches && !ublk::Control::open()?.features().batches {
        return Err(ublk::Error::NoBatches.into());
    }
    let sockets = options.sockets.iter().map(|access| &access.path);
    let keep: Vec<_> = options.stats.iter().chain(sockets).map(PathBuf::as_path).collect();
    let doubts = ring3_process::prepare(&keep)?;
    let since = Instant::now();
    let mut exports =
        ublk::Options { queues: options.ublk.queues.min(processors()), ..options.ublk };
    let served = !options.sockets.is_empty();
    let Attached { disks, driven, .. } =
        attach(source, &exports, if served { SHARED_ARENA } else { 0 })?;
    let bind = || BoundServer::new(&disks, source.name(), options.sockets.clone(), exports.poll);
    let bound = served.then(bind).transpose()?;
    if bound.is_some() {
        let most = disks.iter().map(|disk| disk.max_queues()).min().unwrap_or(1);
        exports.queues = exports.queues.min(most - 1);
    }
    let attached = since.elapsed();
    let disks = Disks::export(disks, (&options.way, &exports), since)?;
    let shared = bound.as_ref().map(|bound| bound.shared.clone());
    let serving = bound.map(BoundServer::serve).transpose()?;
    let times = StartupTimes { attached, ready: Some(since.elapsed()) };
    let stop = Stop::No;
    let mut host = Host {
        name: source.name(),
        disks,
        serving,
        driven,
        times,
        signals,
        options,
        stop,
        failure: None,
    };
    host.announce(shared)?;
    doubts.iter().for_each(|doubt| tracing::warn!("{doubt}"));
    let ending = host.serve();
    let reported = host.report();
    host.part();
    ending.and_then(|ending| reported.map(|()| ending))
}

/// Processors that this process may use: a queue more than that would wait for the others.
fn processors() -> u16 {
    thread::available_parallelism().map_or(1, |count| count.get()).min(u16::MAX.into()) as u16
}

/// Fails if no report can be written to `path`; what it holds is left as it is.
pub fn check_report(path: &Path) -> Result<(), Error> {
    let file = fs::File::options().create(true).truncate(false).write(true).open(path);
    file.map(drop).map_err(|source| Error::os(format!("--stats {}", path.display()), source))
}

/// Writes `text` to standard output. Who closed the pipe does not want to know, and the disks are
/// there all the same.
pub fn say(text: String) -> Result<(), Error> {
    let refused = |source| Error::os("saying on standard output what is there", source);
    // Without the standard library's lock, which the end of the process would wait for.
    match write_within(io::stdout(), text, ANNOUNCE) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(refused),
    }
}

/// What a wait ended for; all false at its time limit.
struct Woken {
    signalled: bool,
    ended: bool,
    wanted_back: bool,
}

/// What is said of a disk in JSON.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    exported: &'a Exported,
    #[serde(flatten)]
    ways: Option<&'a AccessPaths>,
}

struct Host {
    name: String,
    disks: Disks,
    serving: Option<Serving>,
    driven: Option<OpenedDevice>,
    times: StartupTimes,
    signals: Signals,
    options: Options,
    stop: Stop,
    /// Why a disk ended while others went on.
    failure: Option<Error>,
}

impl Host {
    /// Says that the disks are there.
    fn announce(&mut self, shared: Option<ServedInfo>) -> Result<(), Error> {
        let mut json = String::new();
        let mut text = String::new();
        for exported in self.disks.exported() {
            let line = Line { exported, ways: shared.as_ref().map(|shared| &shared.ways) };
            json +=
                &serde_json::to_string(&line).map_err(|error| Error::os("writing JSON", error))?;
            json.push('\n');
            let size = exported.bytes as f64 / f64::from(1 << 20);
            text += &format!(
                "{} is {} ({size:.0} MiB, blocks of {})\n",
                exported.device, exported.disk, exported.block_size
            );
        }
        text += &shared.map(|shared| shared.words(std::process::id(), false)).unwrap_or_default();
        say(if self.options.json { json.clone() } else { text })?;
        if let Some(ready) = self.options.ready.take() {
            // The same: whoever waited has gone or does not read, and the disks' users have not.
            if let Err(error) = ready.tell(&json, ANNOUNCE) {
                tracing::warn!(%error, "nobody was told that the disks are there; they are");
            }
        }
        Ok(())
    }

    /// Serves until the end, and stops the disks.
    fn serve(&mut self) -> Result<ExitReason, Error> {
        let status = io::stderr().is_terminal() && !self.options.json;
        let mut looked = Instant::now();
        loop {
            let woken = self.wait(match self.stop {
                Stop::No if status => STATUS,
                Stop::No => LOOK,
                _ => RETRY,
            })?;
            if let Some(driven) = self.driven.as_ref().filter(|_| looked.elapsed() >= LOOK) {
                driven.log_events();
                looked = Instant::now();
            }
            if woken.wanted_back && self.has_bus_error() {
                self.disks.stop(true)?;
                return Err(Error::Bus { device: self.name.clone() });
            }
            if woken.wanted_back {
                log::notice(format_args!(
                    "ring3: {}: the system wants the device back; its disks are taken away",
                    self.name
                ));
                return self.disks.stop(true).map(|()| ExitReason::Forced);
            }
            if woken.signalled {
                self.handle_signals();
            }
            if woken.ended && !self.take_ended()? {
                return self.ending(ExitReason::Removed);
            }
            if let Some(ending) = self.try_stop()? {
                return self.ending(ending);
            }
            if status && self.stop == Stop::No {
                self.show_status();
            }
        }
    }

    /// Does what signals ask for.
    fn handle_signals(&mut self) {
        let pending = self.signals.take_pending();
        self.stop = self.stop.after(pending);
        self.report_if(pending);
    }

    fn report_if(&self, pending: PendingSignals) {
        if pending.report
            && let Err(error) = self.report()
        {
            tracing::warn!(%error, "the report was not written");
        }
    }

    /// Goes on with a stop that was asked for: how it ended, or `None` if it has not.
    fn try_stop(&mut self) -> Result<Option<ExitReason>, Error> {
        match self.stop {
            Stop::No => return Ok(None),
            Stop::Insisted => return self.disks.stop(true).map(|()| Some(ExitReason::Forced)),
            Stop::Asked | Stop::Refused => {}
        }
        match self.disks.stop(false) {
            Ok(()) => Ok(Some(ExitReason::Stopped)),
            Err(error @ Error::Export(ublk::Error::Busy { .. })) => {
                if self.stop == Stop::Asked {
                    let say = || {
                        log::notice(format_args!("ring3: {error}; it is served until it is free"));
                    };
                    let (stop, pending) = Stop::refuse(|| self.signals.take_pending(), say);
                    self.stop = stop;
                    self.report_if(pending);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes disks away that have ended by themselves; false if none is left. The others are served
    /// on.
    fn take_ended(&mut self) -> Result<bool, Error> {
        for failure in self.disks.take_ended()? {
            if self.disks.is_running() {
                log::notice(format_args!(
                    "ring3: {failure}; it is taken away, the other disks are served"
                ));
            }
            self.failure.get_or_insert(failure);
        }
        Ok(self.disks.is_running())
    }

    /// `ending`, unless a disk has failed before, or at the last moment.
    fn ending(&mut self, ending: ExitReason) -> Result<ExitReason, Error> {
        self.failure.take().or_else(|| self.disks.failure()).map_or(Ok(ending), Err)
    }

    /// Waits for a signal, the end of an export or the removal of the device.
    fn wait(&self, timeout: Duration) -> Result<Woken, Error> {
        let ended = self.disks.ended();
        let devices = self.driven.iter().map(OpenedDevice::device);
        let calls = devices.flat_map(|device| [device.removal(), device.bus_errors()]).flatten();
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(ended.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(calls.map(|irq| PollFd::new(irq, PollFlags::IN)));
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(source) => return Err(Error::os("waiting for signals", source)),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (exports, removal) = fds[1..].split_at(ended.len());
        Ok(Woken {
            signalled: is_ready(&fds[0]),
            ended: exports.iter().any(is_ready),
            wanted_back: removal.iter().any(is_ready),
        })
    }

    /// Whether the bus has reported an error of the device that it cannot correct.
    fn has_bus_error(&self) -> bool {
        let errors = self.driven.as_ref().and_then(|driven| driven.device().bus_errors());
        errors.is_some_and(|errors| errors.take().is_ok_and(|count| count > 0))
    }

    fn show_status(&self) {
        let (mut requests, mut moved, mut errors) = (0, 0, 0);
        for (_, _, stats) in self.disks.stats() {
            requests += stats.requests;
            moved += stats.bytes;
            errors += stats.errors;
        }
        log::status(format_args!(
            "{}: {requests} requests, {} MiB, {errors} errors",
            self.name,
            moved >> 20
        ));
    }

    /// Parts with the disks, then with who shares one, then with the device.
    fn part(self) {
        let Self { disks, serving, driven, .. } = self;
        drop(disks);
        drop(serving);
        drop(driven);
    }

    /// Writes the report, if the user wants one.
    fn report(&self) -> Result<(), Error> {
        let Some(path) = &self.options.stats else { return Ok(()) };
        let report = Report::new(self.name.clone(), self.times, &self.disks.stats());
        let written = serde_json::to_vec_pretty(&report)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(path, text));
        written.map_err(|source| Error::os(format!("--stats {}", path.display()), source))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const STOP: PendingSignals = PendingSignals { stop: true, hang_up: false, report: false };
    const HANG_UP: PendingSignals = PendingSignals { stop: false, hang_up: true, report: false };

    #[test]
    fn a_signal_before_the_refusal_was_said_does_not_insist() {
        assert_eq!(Stop::No.after(STOP), Stop::Asked);
        assert_eq!(Stop::Asked.after(STOP), Stop::Asked);
        assert_eq!(Stop::Refused.after(STOP), Stop::Insisted);
    }

    #[test]
    fn a_signal_that_answers_the_refusal_at_once_insists() {
        let pending = Cell::new(PendingSignals::default());
        let (stop, before) = Stop::refuse(|| pending.take(), || pending.set(STOP));
        assert_eq!((stop, before), (Stop::Refused, PendingSignals::default()));
        assert_eq!(stop.after(pending.take()), Stop::Insisted);
    }

    #[test]
    fn a_terminal_that_is_closed_asks_for_a_stop_and_never_insists() {
        assert_eq!(Stop::No.after(HANG_UP), Stop::Asked);
        assert_eq!(Stop::Refused.after(HANG_UP), Stop::Refused);
    }

    #[test]
    fn terminate_and_hang_up_together_are_one_polite_stop() {
        assert_eq!(Stop::No.after(PendingSignals { stop: true, ..HANG_UP }), Stop::Asked);
    }

    #[test]
    fn a_report_that_cannot_be_written_is_known_at_the_start_by_its_path() {
        let error = check_report(Path::new("/no/such/folder/stats")).unwrap_err().to_string();
        assert!(error.starts_with("--stats /no/such/folder/stats: "), "{error}");
    }
}
