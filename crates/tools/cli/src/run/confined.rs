//! `ring3 run --user NAME`: this process holds the device and the kernel's half of its disks or its
//! interface, and the driver runs in a sandbox, as that user.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ring3_control::status::{DeviceStatus, InterfaceStatus, State};
use ring3_device::irq::IrqKind;
use ring3_driver::Interrupts;
use ring3_host::open::Claim;
use ring3_process::{Signals, log};
use ring3_sandbox::Program;
use ring3_supervisor::manifest::{Device, Limits, Match, Restart, User};
pub use ring3_supervisor::manifest::{ExportConfig, Kind, Share};
use ring3_supervisor::supervisor::Supervisor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::serve::share::{Board, Share as Served};

/// Exit code of a run whose driver has lost its device, or itself.
const LOST: u8 = 4;
/// How often the driver is looked at.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// How long a device may be absent at the start.
const CLAIM: Duration = Duration::from_secs(10);

/// Drives the device of `claim` as a user, for an export, until a signal ends it: by `driver`,
/// dde:NAME, or by that of the claim's family.
pub fn run(
    claim: &Claim,
    driver: Option<String>,
    (user, export): (User, ExportConfig),
    json: bool,
) -> anyhow::Result<ExitCode> {
    run_with(device(claim, driver, user, export)?, None, json)
}

/// The same for clients that share it: by `share`, which says on its `board` what there is.
pub fn share(claim: &Claim, user: User, share: Served, json: bool) -> anyhow::Result<ExitCode> {
    let kind = if share.is_card() { Kind::SharedCard } else { Kind::SharedDisk };
    let export = ExportConfig { kind, poll_us: share.poll_us, ..ExportConfig::default() };
    let mut device = device(claim, None, user, export)?;
    // Clients' memory is made by the driver.
    device.limits.memory_mib += share.memory().div_ceil(1 << 20);
    run_with(device, Some(share), json)
}

fn run_with(device: Device, share: Option<Served>, json: bool) -> anyhow::Result<ExitCode> {
    let signals = Signals::take().context("taking signals")?;
    let path =
        std::env::current_exe().context("where this program is")?.with_file_name("ring3-driver");
    let program = Program::open(&path).with_context(|| {
        format!(
            "{}, the drivers' program, which lies beside this one: make build, or make install",
            path.display()
        )
    })?;
    ring3_process::prepare(&[&path])?.iter().for_each(|doubt| tracing::warn!("{doubt}"));
    // Nobody waits for packets as for a disk: an interface goes at once, as it does with a driver
    // in this process.
    let force = device.export.kind == Kind::Tap;
    let board = share.as_ref().map(Served::board);
    let export = share.map(|share| Box::new(share) as Box<dyn ring3_supervisor::export::Export>);
    let supervisor = Supervisor::of(device, Arc::new(program), export)?;
    Run { supervisor, force, since: Instant::now(), board, json, announced: false, told: false }
        .serve(&signals)
}

fn device(
    claim: &Claim,
    driver: Option<String>,
    user: User,
    export: ExportConfig,
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
    Ok(Device {
        name: format!("run-{}", std::process::id()),
        r#match: Match::Device(claim.device.to_string()),
        driver: driver.or_else(|| claim.family.map(str::to_owned)),
        part: claim.settings.part,
        bind: false,
        interrupts: interrupts.into(),
        throttle: claim.settings.throttle,
        export,
        // Who wants it restarted has a supervisor, and nobody's I/O waits for what does not come.
        restart: Restart { burst: 0, deadline_s: 0, ..Restart::default() },
        limits: Limits::default(),
        user: Some(user),
        // Whoever has told VFIO so meant it, and is told again.
        unsafe_interrupts: true,
    })
}

struct Run {
    supervisor: Supervisor,
    /// It is taken from its users without asking.
    force: bool,
    since: Instant,
    /// What clients share.
    board: Option<Board>,
    json: bool,
    announced: bool,
    /// The user was told that a disk is in use.
    told: bool,
}

impl Run {
    fn serve(mut self, signals: &Signals) -> anyhow::Result<ExitCode> {
        let (mut stopping, mut force, mut code) = (false, self.force, ExitCode::SUCCESS);
        loop {
            let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&LOOK));
            let wishes = signals.wishes();
            if stopping && wishes.stop {
                force = true;
                self.supervisor.insist();
            }
            stopping |= wishes.stop || wishes.hang_up;
            for why in self.supervisor.reap() {
                if !self.told {
                    log::notice(format_args!("ring3: {why}; it is served until it is free"));
                }
                self.told = true;
            }
            if !stopping && self.is_over()? {
                (stopping, force, code) = (true, true, ExitCode::from(LOST));
            }
            if stopping && self.supervisor.is_empty() {
                return Ok(code);
            }
            if stopping {
                self.supervisor.end(force);
            }
        }
    }

    /// Says once that the disks or the interface are there. True if the driver has ended; an error
    /// if it never began.
    fn is_over(&mut self) -> anyhow::Result<bool> {
        let Some(status) = self.supervisor.devices().pop() else { return Ok(true) };
        match status.state {
            State::Running if !self.announced => {
                self.announced = true;
                self.announce(&status);
            }
            State::Absent if !self.announced && self.since.elapsed() > CLAIM => {
                bail!("the device cannot be claimed; ring3 doctor says what stands in the way");
            }
            State::Failed => {
                let why = status.last_end.unwrap_or_else(|| "it does not start".into());
                log::notice(format_args!(
                    "ring3: the driver is lost, and what it served with it: {why}"
                ));
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    fn announce(&self, status: &DeviceStatus) {
        status.unlimited.iter().for_each(|what| log::notice(format_args!("ring3: {what}")));
        for InterfaceStatus { name, index, mac, mtu, queues, .. } in &status.interfaces {
            let (device, pid) = (&status.device, status.pid);
            if self.json {
                let object = serde_json::json!({
                    "interface": name, "index": index, "device": device, "mac": mac, "mtu": mtu,
                    "queues": queues, "pid": pid,
                });
                outln!("{object}");
            } else {
                outln!(
                    "{name} is {device} ({mac}), driven by process {pid}; set it up with: ip link \
                    set {name} up"
                );
            }
        }
        if let Some(shared) = self.board.as_ref().and_then(Board::shared) {
            outln!("{}", shared.words(status.pid, self.json).trim_end());
        }
        for disk in &status.disks {
            if self.json {
                outln!(
                    "{}",
                    serde_json::json!({
                        "device": disk.path, "bytes": disk.bytes, "pid": status.pid,
                    })
                );
            } else {
                outln!(
                    "{} is {} ({} MiB), driven by process {}",
                    disk.path,
                    status.device,
                    disk.bytes >> 20,
                    status.pid
                );
            }
        }
    }
}
