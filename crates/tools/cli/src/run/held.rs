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
use ring3_host::serve::AccessPaths;
use ring3_host::{ANNOUNCE, Exported, Ready, check_report, say};
use ring3_process::{Signals, log};
use ring3_sandbox::Program;
use ring3_supervisor::export::Export;
use ring3_supervisor::export::ReservedIds;
use ring3_supervisor::export::ublk::Ublk;
use ring3_supervisor::keeper::PublishedState;
use ring3_supervisor::manifest::{Device, Limits, Match, Restart, User};
pub use ring3_supervisor::manifest::{ExportConfig, Kind, Share};
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
/// Stop signals within this time of the first, and before a refusal is printed, count as one.
const SAME_STOP: Duration = Duration::from_secs(1);

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
        announced: false,
        running: None,
        refusal_reported: false,
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
            "--user: without an IOMMU the device reaches all memory, whatever its driver may: \
            leave --unprotected out"
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
        pids: usual.pids + u32::from(export.queues) * u32::from(usual.disks),
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

struct Run {
    supervisor: Supervisor,
    device: Arc<PublishedState>,
    /// Remove the export even if it is in use.
    force: bool,
    /// What the sockets for clients publish.
    board: Option<Board>,
    json: bool,
    ready: Option<Ready>,
    stats: Option<PathBuf>,
    announced: bool,
    /// When the device began to serve, while its partitions are scanned.
    running: Option<Instant>,
    /// The message that a disk is in use was printed.
    refusal_reported: bool,
    /// Restarts that were reported.
    restarts: u64,
    /// The figures of the last check at which there were disks or interfaces.
    last: Option<DeviceStatus>,
}

/// A stop that is under way.
struct Stop {
    since: Instant,
    force: bool,
    code: u8,
}

impl Run {
    fn serve(mut self, signals: &Signals) -> anyhow::Result<ExitCode> {
        let status = std::io::stderr().is_terminal() && !self.json;
        let mut stop: Option<Stop> = None;
        let mut wrong = None;
        loop {
            self.wait(signals, stop.is_some());
            let wishes = signals.wishes();
            if wishes.report
                && let Err(error) = self.report()
            {
                tracing::warn!("the report was not written: {error:#}");
            }
            match &mut stop {
                None if wishes.stop || wishes.hang_up => {
                    stop = Some(self.begin_stop(self.force, 0));
                }
                Some(stop)
                    if wishes.stop
                        && (self.refusal_reported || stop.since.elapsed() > SAME_STOP) =>
                {
                    if self.refusal_reported && !stop.force {
                        stop.code = FORCED;
                    }
                    stop.force = true;
                    self.supervisor.insist();
                }
                _ => {}
            }
            for why in self.supervisor.reap() {
                // The users of the disk, without the advice for users of ring3d.
                let why = self.device.take_reason().unwrap_or(why);
                if !self.refusal_reported {
                    log::notice(format_args!(
                        "ring3: {why}, or stop again to take it away; it is served until it is free"
                    ));
                }
                self.refusal_reported = true;
            }
            if stop.is_none() {
                match self.check() {
                    Ok(None) => {}
                    Ok(Some(code)) => stop = Some(self.begin_stop(true, code)),
                    Err(error) => {
                        wrong = Some(error);
                        stop = Some(self.begin_stop(true, 1));
                    }
                }
            }
            if status && self.announced && stop.is_none() {
                self.show_status();
            }
            let Some(Stop { force, code, .. }) = stop else { continue };
            if !self.supervisor.is_empty() {
                self.supervisor.end(force);
                continue;
            }
            if let Some(error) = wrong {
                return Err(error);
            }
            // An error of the stop itself: a disk that did not flush.
            if let Some(why) = self.device.take_reason().filter(|_| code == 0) {
                bail!(why);
            }
            self.report()?;
            return Ok(ExitCode::from(code));
        }
    }

    /// Sleeps until a signal or the next check.
    fn wait(&self, signals: &Signals, stops: bool) {
        let limit = match (stops, self.announced) {
            (true, _) if self.refusal_reported => RETRY,
            (false, true) => SERVING,
            _ => CHANGING,
        };
        let limit = Timespec::try_from(limit).ok();
        let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], limit.as_ref());
    }

    fn begin_stop(&mut self, force: bool, code: u8) -> Stop {
        self.remember();
        // Discards older reasons: those that come from now on are of the stop.
        self.device.take_reason();
        Stop { since: Instant::now(), force, code }
    }

    /// Announces the disks or the interface once, and reports restarts of the driver. Returns the
    /// exit code if the device is lost, and an error if it never served.
    fn check(&mut self) -> anyhow::Result<Option<u8>> {
        let state = self.device.state();
        if !self.announced {
            if state == State::Running {
                // A partition table that cannot be read must not delay the announcement for ever.
                let since = *self.running.get_or_insert_with(Instant::now);
                if !self.device.is_settled() && since.elapsed() < PARTITIONS {
                    return Ok(None);
                }
                self.announced = true;
                self.device.take_reason();
                return self.announce().map(|()| None);
            }
            return match self.device.take_reason() {
                // Before the announcement, the message does not name the driver process.
                Some(why) => Err(match why.split_once(" cannot go on: ") {
                    Some((_, why)) => anyhow!("{why}"),
                    None => anyhow!(why),
                }),
                None if state == State::Failed => {
                    let why = self.device.now().last_end;
                    Err(anyhow!(why.unwrap_or_else(|| "the driver does not start".into())))
                }
                None => Ok(None),
            };
        }
        match state {
            State::Absent => {
                let why = self.device.take_reason();
                let why = why.unwrap_or_else(|| "the device is gone".into());
                log::notice(format_args!("ring3: {why}"));
                return Ok(Some(FORCED));
            }
            State::Failed => {
                let why = self.device.take_reason().or_else(|| self.device.now().last_end);
                let why = why.unwrap_or_else(|| "it does not start".into());
                log::notice(format_args!(
                    "ring3: the driver is lost, and what it served with it: {why}"
                ));
                return Ok(Some(LOST));
            }
            State::Running if self.device.restarts() > self.restarts => self.report_restart(),
            _ => {}
        }
        Ok(None)
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

    /// Keeps the current figures, if there are any: a removed disk has none.
    fn remember(&mut self) {
        let status = self.device.now();
        if self.stats.is_some() && !(status.disks.is_empty() && status.interfaces.is_empty()) {
            self.last = Some(status);
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
