//! Holds one device in the foreground and supervises its driver process, with ring3d's keeper.
//!
//! # Shape
//! [`run`] and [`share`] make the manifest of one device from the options. [`Run`] starts its
//! keeper and reports when the disks, the interface or the sockets exist. It ends on a signal, or
//! when the keeper has given the device up. The keeper restarts a driver that dies.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ring3_control::status::{DeviceStatus, DiskStatus, InterfaceStatus, State};
use ring3_device::irq::IrqKind;
use ring3_driver::Interrupts;
use ring3_export::ublk;
use ring3_host::open::Claim;
use ring3_host::run::Stop;
use ring3_host::serve::AccessPaths;
use ring3_host::{ANNOUNCE, Exported, Ready, check_report, say};
use ring3_process::{PendingSignals, Signals, log};
use ring3_sandbox::Program;
use ring3_supervisor::export::Export;
use ring3_supervisor::export::ReservedIds;
use ring3_supervisor::export::ublk::Ublk;
use ring3_supervisor::keeper::PublishedState;
use ring3_supervisor::manifest::{Device, Limits, Match, Restart, User};
pub use ring3_supervisor::manifest::{ExportConfig, Kind, Share};
use ring3_supervisor::process::QUEUES;
use ring3_supervisor::supervisor::Supervisor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::{Value, json};

use super::disk::{FORCED, LOST};
use crate::serve::share::{Beside, Board, Share as Served};

/// Interval between checks of the device while it starts or stops.
const CHANGING: Duration = Duration::from_millis(20);
/// Interval between checks of the device while it serves.
const SERVING: Duration = Duration::from_secs(1);
/// Interval between attempts to stop a disk that is in use.
const RETRY: Duration = Duration::from_millis(500);
/// How long the partition scan may delay the announcement of a disk.
const PARTITIONS: Duration = Duration::from_secs(10);
/// How long a stop may take before the user is told that it can be cut short.
const SLOW: Duration = Duration::from_secs(5);

/// What the user asks of a held device, besides its manifest.
#[derive(Default)]
pub struct HeldOptions {
    /// The user that the driver process runs as. `None`: a user id that owns nothing.
    pub user: Option<User>,
    /// Print what is exported as JSON.
    pub json: bool,
    /// Receives the same JSON once the export exists, and is then closed.
    pub ready: Option<Ready>,
    /// The file for figures, written at the end and on SIGUSR1.
    pub stats: Option<PathBuf>,
}

/// Exports the device of `claim` until a signal stops it. The driver is `driver` (dde:NAME), or
/// that of the claim's family. `beside` also serves the one disk at sockets.
pub fn run(
    claim: &Claim,
    driver: Option<String>,
    export: ExportConfig,
    beside: Option<Served>,
    options: HeldOptions,
) -> anyhow::Result<ExitCode> {
    if export.kind == Kind::Ublk {
        // Certain errors are reported before anything is changed.
        let features = ublk::Control::open()?.features();
        if export.share.is_some() && !features.shared_memory {
            return Err(ublk::Error::NoSharedMemory.into());
        }
        if export.batch && !features.batches {
            return Err(ublk::Error::NoBatches.into());
        }
    }
    let memory = beside.as_ref().map_or(0, Served::memory);
    let export = ExportConfig { beside: beside.is_some(), ..export };
    run_with(device(claim, driver, (export, memory), options.user)?, beside, options)
}

/// Serves the device of `claim` to clients by `share`, which publishes on its `board` what exists.
pub fn share(claim: &Claim, share: Served, options: HeldOptions) -> anyhow::Result<ExitCode> {
    let kind = if share.is_card() { Kind::SharedCard } else { Kind::SharedDisk };
    let export = ExportConfig { kind, poll_us: share.poll_us, ..ExportConfig::default() };
    run_with(device(claim, None, (export, share.memory()), options.user)?, Some(share), options)
}

fn run_with(
    device: Device,
    share: Option<Served>,
    options: HeldOptions,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::take().context("taking signals")?;
    let HeldOptions { json, ready, stats, .. } = options;
    stats.as_deref().map_or(Ok(()), check_report)?;
    let path =
        std::env::current_exe().context("where this program is")?.with_file_name("ring3-driver");
    let program = Program::open(&path).with_context(|| {
        format!(
            "{}, the drivers' program, which lies beside this one: make build, or make install",
            path.display()
        )
    })?;
    let program = Arc::new(program);
    let sockets = share.iter().flat_map(Served::paths);
    let lent = device.export.share.iter().map(|share| &*share.socket);
    let keep: Vec<&Path> =
        [&*path].into_iter().chain(stats.as_deref()).chain(sockets).chain(lent).collect();
    ring3_process::prepare(&keep)?.iter().for_each(|doubt| tracing::warn!("{doubt}"));
    // Users of an interface need not release it as those of a disk do, so it is removed at once, as
    // with a driver in this process.
    let force = device.export.kind == Kind::Tap;
    let board = share.as_ref().map(Served::board);
    let export: Option<Box<dyn Export>> = match share {
        Some(share) if device.export.beside => {
            let disks = Ublk::new(&device, ReservedIds::default(), program.clone());
            Some(Box::new(Beside::new(disks, share)))
        }
        share => share.map(|share| Box::new(share) as Box<dyn Export>),
    };
    let supervisor = Supervisor::of(device, program, export)?;
    let device = supervisor.published().context("its keeper has ended")?;
    let run = Run {
        supervisor,
        device,
        force,
        board,
        json,
        ready,
        stats,
        phase: Phase::Starting,
        stop: Stop::No,
        asked: None,
        stuck: false,
        code: 0,
        error: None,
        restarts: 0,
        last: None,
    };
    run.serve(&signals)
}

/// The manifest of `claim`. `memory` is what clients may have in addition, in bytes.
fn device(
    claim: &Claim,
    driver: Option<String>,
    (export, memory): (ExportConfig, u64),
    user: Option<User>,
) -> anyhow::Result<Device> {
    if claim.unprotected {
        bail!(
            "a device without an IOMMU reaches all memory, whatever its driver may, so it is not \
            held: leave --unprotected out"
        );
    }
    let interrupts = match claim.settings.interrupts {
        Interrupts::Auto => "auto",
        Interrupts::Only(IrqKind::MsiX) => "msix",
        Interrupts::Only(IrqKind::Msi) => "msi",
        Interrupts::Only(IrqKind::Intx) => "intx",
        Interrupts::Polled => "poll",
    };
    let usual = Limits::default();
    let limits = Limits {
        // The driver allocates the memory of clients, so it is charged to the driver.
        memory_mib: usual.memory_mib + memory.div_ceil(1 << 20),
        // A thread for each queue.
        pids: usual.pids + u32::from(QUEUES),
        // The user has started this one device by hand: no other device needs its share.
        cpu_percent: NO_LIMIT,
        disks: MOST_DISKS,
        ..usual
    };
    Ok(Device {
        name: format!("run-{}", std::process::id()),
        r#match: Match::Device(claim.device.to_string()),
        driver: driver.or_else(|| claim.family.map(str::to_owned)),
        part: claim.settings.part,
        bind: false,
        interrupts: interrupts.into(),
        throttle: claim.settings.throttle,
        quirks: claim.settings.quirks.overrides.0.clone(),
        hmb_mib: claim.settings.host_memory.map(|bytes| (bytes >> 20) as u16),
        power_latency_ms: claim.settings.power_latency.map(|latency| latency.as_millis() as u32),
        export,
        restart: Restart::default(),
        limits,
        user,
        // The user has allowed this in VFIO's options. The start prints a warning.
        unsafe_interrupts: true,
    })
}

/// A limit in percent of a processor that no driver reaches.
const NO_LIMIT: u32 = 100_000;
/// The maximum number of disks of a driver.
const MOST_DISKS: u16 = 128;

/// How far the start has come.
enum Phase {
    Starting,
    /// The device serves, and since then its partitions are scanned.
    Scanning(Instant),
    /// It was announced.
    Serving,
}

struct Run {
    supervisor: Supervisor,
    device: Arc<PublishedState>,
    /// It is taken from its users without asking.
    force: bool,
    /// What clients share.
    board: Option<Board>,
    json: bool,
    ready: Option<Ready>,
    stats: Option<PathBuf>,
    phase: Phase,
    stop: Stop,
    /// When the stop was asked for.
    asked: Option<Instant>,
    /// The kernel does not end a command about the disks, or the device cannot be stopped: trying
    /// again changes nothing.
    stuck: bool,
    /// The exit code, if nothing else goes wrong.
    code: u8,
    /// Why the start has failed.
    error: Option<anyhow::Error>,
    /// Restarts that were reported.
    restarts: u64,
    /// The figures of the last check at which the device served.
    last: Option<DeviceStatus>,
}

impl Run {
    fn serve(mut self, signals: &Signals) -> anyhow::Result<ExitCode> {
        let status = std::io::stderr().is_terminal() && !self.json;
        loop {
            self.wait(signals);
            self.handle_signals(signals.take_pending());
            for why in self.supervisor.reap() {
                self.take_refusal(&why);
            }
            if matches!(self.stop, Stop::No | Stop::Refused) && !self.supervisor.is_ending() {
                self.check();
            }
            self.remember();
            if self.supervisor.is_empty() {
                return self.finish();
            }
            match self.stop {
                Stop::No if status && matches!(self.phase, Phase::Serving) => self.show_status(),
                Stop::No => {}
                Stop::Insisted if self.stuck => bail!("the device was not stopped"),
                Stop::Refused if self.stuck => {}
                // A successor of a dead driver is not disturbed while users wait for it.
                Stop::Refused if self.device.state() != State::Running => {}
                Stop::Asked | Stop::Refused | Stop::Insisted => {
                    self.supervisor.end(self.force || self.stop == Stop::Insisted);
                    self.report_slow_stop();
                }
            }
        }
    }

    /// Sleeps until a signal or the next check.
    fn wait(&self, signals: &Signals) {
        let limit = match (self.stop, &self.phase) {
            (Stop::Refused, _) => RETRY,
            (Stop::No, Phase::Serving) => SERVING,
            _ => CHANGING,
        };
        let limit = Timespec::try_from(limit).ok();
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], limit.as_ref());
    }

    /// Does what signals ask for.
    fn handle_signals(&mut self, pending: PendingSignals) {
        if pending.report
            && let Err(error) = self.report()
        {
            tracing::warn!("the report was not written: {error:#}");
        }
        let before = self.stop;
        self.stop = before.after(pending);
        match (before, self.stop) {
            (Stop::No, Stop::Asked) => {
                self.asked = Some(Instant::now());
                // Discards older reasons: those that come from now on are of the stop.
                self.device.take_reason();
            }
            (Stop::Refused, Stop::Insisted) => self.force_stop(FORCED),
            _ => {}
        }
    }

    /// Takes the device from its users, and ends with `code`.
    fn force_stop(&mut self, code: u8) {
        (self.stop, self.stuck) = (Stop::Insisted, false);
        self.code = if self.code == 0 { code } else { self.code };
        self.supervisor.force_stop_all();
    }

    /// Reports once why the stop was refused.
    fn take_refusal(&mut self, why: &str) {
        let users = self.device.take_users();
        self.stuck = users.is_none();
        if self.stop != Stop::Asked {
            return;
        }
        self.stop = Stop::Refused;
        match users {
            Some(users) => log::notice(format_args!(
                "ring3: {users}, or stop again to take it away; it is served until it is free"
            )),
            None => {
                let why = self.device.take_reason().unwrap_or_else(|| why.to_owned());
                log::notice(format_args!(
                    "ring3: {why}; stop again to end without that, and see dmesg"
                ));
            }
        }
    }

    /// Says once that a stop takes long, so that a user can insist.
    fn report_slow_stop(&mut self) {
        if self.stop == Stop::Asked && self.asked.is_some_and(|asked| asked.elapsed() > SLOW) {
            log::notice(format_args!(
                "ring3: the device is still being stopped; stop again to end its driver at once"
            ));
            self.stop = Stop::Refused;
        }
    }

    /// Announces the disks or the interface once, and reports restarts of the driver. Ends the run
    /// if the device never serves, or is lost.
    fn check(&mut self) {
        let state = self.device.state();
        match self.phase {
            Phase::Starting if state == State::Running => {
                self.phase = Phase::Scanning(Instant::now());
            }
            Phase::Starting => {
                let why = match self.device.take_reason() {
                    Some(why) => why,
                    None if state == State::Failed => {
                        let why = self.device.now().last_end;
                        why.unwrap_or_else(|| "the driver does not start".into())
                    }
                    None => return,
                };
                self.error = Some(anyhow!(why));
                return self.force_stop(1);
            }
            _ => {}
        }
        // A partition table that cannot be read must not delay the announcement for ever.
        if let Phase::Scanning(since) = self.phase
            && state == State::Running
            && (self.device.is_settled() || since.elapsed() > PARTITIONS)
        {
            self.phase = Phase::Serving;
            self.device.take_reason();
            if let Err(error) = self.announce() {
                self.error = Some(error);
                self.force_stop(1);
            }
            return;
        }
        match state {
            State::Absent => {
                let why = self.device.take_reason();
                let why = why.unwrap_or_else(|| "the device is gone".into());
                log::notice(format_args!("ring3: {why}"));
                self.force_stop(FORCED);
            }
            State::Failed => {
                let why = self.device.take_reason();
                let why = why.or_else(|| self.device.now().last_end);
                let why = why.unwrap_or_else(|| "it does not start".into());
                log::notice(format_args!(
                    "ring3: the driver is lost, and what it served with it: {why}"
                ));
                self.force_stop(LOST);
            }
            State::Running if self.device.restarts() > self.restarts => self.report_restart(),
            _ => {}
        }
    }

    /// The exit code once the device is let go of.
    fn finish(mut self) -> anyhow::Result<ExitCode> {
        let written = self.report();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.stop == Stop::No {
            bail!(
                "the thread that held the device has ended, which is a defect of ring3; process \
                {} may still drive it",
                self.device.now().pid
            );
        }
        // An error of the stop itself: a disk that did not flush.
        match self.device.take_reason() {
            Some(why) if self.code == 0 => bail!(why),
            Some(why) => log::notice(format_args!("ring3: {why}")),
            None => {}
        }
        match written {
            Err(error) if self.code != 0 => {
                tracing::error!("the report was not written: {error:#}")
            }
            written => written?,
        }
        Ok(ExitCode::from(self.code))
    }

    /// Reports that another driver process serves.
    fn report_restart(&mut self) {
        let status = self.device.now();
        self.restarts = status.restarts;
        self.device.take_reason();
        let waited = status.outages.first().and_then(|outage| outage.total_ms).unwrap_or_default();
        let how = status.last_end.unwrap_or_else(|| "the driver has ended".into());
        log::notice(format_args!(
            "ring3: {how}; process {} drives the device, and its users waited {waited:.0} ms",
            status.pid
        ));
    }

    /// Prints what is exported, as JSON or as text, and writes the JSON to `ready`.
    fn announce(&mut self) -> anyhow::Result<()> {
        let status = self.device.now();
        self.restarts = status.restarts;
        status.unlimited.iter().for_each(|what| log::notice(format_args!("ring3: {what}")));
        let shared = self.board.as_ref().and_then(Board::shared);
        let (mut objects, mut text) = (String::new(), String::new());
        for interface in &status.interfaces {
            let (object, words) = interface_line(&status, interface);
            objects += &format!("{object}\n");
            text += &words;
        }
        for disk in &status.disks {
            let ways = shared.as_ref().map(|shared| &shared.ways);
            let line = Line { exported: exported(disk), ways, pid: status.pid };
            objects += &serde_json::to_string(&line).context("writing JSON")?;
            objects.push('\n');
            let size = disk.bytes as f64 / f64::from(1 << 20);
            text += &format!(
                "{} is {} ({size:.0} MiB, blocks of {}), driven by process {}\n",
                disk.path, disk.disk, disk.block_size, status.pid
            );
        }
        if let Some(shared) = shared {
            if status.disks.is_empty() {
                objects += &shared.clone().words(status.pid, true);
            }
            text += &shared.words(status.pid, false);
        }
        say(if self.json { objects.clone() } else { text })?;
        if let Some(Err(error)) = self.ready.take().map(|ready| ready.tell(&objects, ANNOUNCE)) {
            // The reader has closed `ready` or does not read it. The export stays for its users.
            tracing::warn!(%error, "nobody took the line of --ready-fd; it is served");
        }
        Ok(())
    }

    fn show_status(&mut self) {
        let status = self.device.now();
        let (mut requests, mut bytes, mut errors) = (0, 0, 0);
        for disk in &status.disks {
            requests += disk.reads + disk.writes;
            bytes += disk.bytes_read + disk.bytes_written;
            errors += disk.errors;
        }
        if !status.disks.is_empty() {
            log::status(format_args!(
                "{}: {requests} requests, {} MiB, {errors} errors",
                status.device,
                bytes >> 20
            ));
        }
    }

    /// Keeps the figures of a device that serves: one that was lost has none.
    fn remember(&mut self) {
        if self.stats.is_some() && self.device.state() == State::Running {
            self.last = Some(self.device.now());
        }
    }

    /// Writes the figures, if the user has asked for them.
    fn report(&mut self) -> anyhow::Result<()> {
        self.remember();
        let Some(path) = &self.stats else { return Ok(()) };
        let failed = || format!("--stats {}", path.display());
        let text = serde_json::to_vec_pretty(&report(self.last.as_ref())).with_context(failed)?;
        std::fs::write(path, text).with_context(failed)
    }
}

fn interface_line(status: &DeviceStatus, interface: &InterfaceStatus) -> (Value, String) {
    let InterfaceStatus { name, index, mac, mtu, queues, .. } = interface;
    let (device, pid) = (&status.device, status.pid);
    let object = json!({
        "interface": name, "index": index, "device": device, "mac": mac, "mtu": mtu,
        "queues": queues, "pid": pid,
    });
    let text = format!(
        "{name} is {device} ({mac}), driven by process {pid}; set it up with: ip link set {name} \
        up\n"
    );
    (object, text)
}

/// The JSON line of a disk.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    exported: Exported,
    #[serde(flatten)]
    ways: Option<&'a AccessPaths>,
    pid: u32,
}

/// The fields that a disk with a driver in this process has, too.
fn exported(disk: &DiskStatus) -> Exported {
    Exported {
        device: disk.path.clone(),
        id: disk.path.strip_prefix("/dev/ublkb").and_then(|id| id.parse().ok()),
        name: None,
        disk: disk.disk.clone(),
        bytes: disk.bytes,
        block_size: disk.block_size,
        queues: disk.queues.into(),
    }
}

/// The figures of a run in one process, as far as the holder has them, and those of restarts.
fn report(status: Option<&DeviceStatus>) -> Value {
    let Some(status) = status else { return json!({}) };
    let export = |disk: &DiskStatus| {
        let mut object = json!(exported(disk));
        object["requests"] = (disk.reads + disk.writes).into();
        object["errors"] = disk.errors.into();
        object["bytes_moved"] = (disk.bytes_read + disk.bytes_written).into();
        object
    };
    let exports: Vec<Value> = status.disks.iter().map(export).collect();
    json!({
        "device": status.device, "pid": status.pid, "restarts": status.restarts,
        "outages": status.outages, "interrupts": status.interrupts, "cpu_ms": status.cpu_ms,
        "memory": status.memory, "shared_hits": status.shared_hits, "exports": exports,
        "interfaces": status.interfaces,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_of_run_is_started_again_as_one_of_ring3d_and_its_disks_are_as_many_as_there_are() {
        let claim = Claim::new("vfio:0000:01:00.0".parse().unwrap());
        let export = ExportConfig { queues: 4, ..ExportConfig::default() };
        let device = device(&claim, None, (export, 3 << 20), None).unwrap();
        assert_eq!(device.restart, Restart::default());
        assert_eq!((device.limits.disks, device.limits.memory_mib), (128, 259));
        assert!(device.limits.pids >= 64 + 4);
    }

    #[test]
    fn a_device_without_an_iommu_is_not_held() {
        let claim = Claim { unprotected: true, ..Claim::new("uio:0000:01:00.0".parse().unwrap()) };
        let error = device(&claim, None, (ExportConfig::default(), 0), None).unwrap_err();
        assert!(error.to_string().contains("leave --unprotected out"), "{error}");
    }
}
