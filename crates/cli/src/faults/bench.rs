//! A model with its claim, and the application of its disk: what outlives the drivers of a campaign.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use command_fds::{CommandFdExt, FdMapping};
use ring3_backend::{Claim, Lease, OpenOptions, Quiesce, Uri, claim};
use ring3_driver::registry::Driver;
use ring3_faults::{Application, Model, Spec, Wire};
use ring3_model::fault::{Action, FaultPlan, Queues, Rule, When};
use ring3_model::vfio_user::{Running, Server};
use ring3_stats::Segment;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;

use super::life::{DEPTH, Orders};
use crate::model;

/// Bytes of a driver's arena.
const ARENA: usize = 16 << 20;
/// Bytes of what a driver said that are looked at.
const SAID: u64 = 64 << 10;

/// How many rules of their specification drivers have broken, as far as the model has noticed.
type Complaints = Box<dyn Fn() -> usize + Send>;

/// A disk that drivers come to and die at.
pub struct Bench {
    pub claim: Claim,
    quiesce: Option<Quiesce>,
    pub application: Application,
    pub plan: FaultPlan,
    pub complaints: Complaints,
    /// When its application last saw a request end, if the driver of that is dead.
    pub last_end: Option<Instant>,
    /// Faults whose driver nobody has followed yet.
    pub pending: Vec<Spec>,
    model: Model,
    log: PathBuf,
    _server: Running,
}

impl Bench {
    /// A new one; its files are called `name` and lie in `folder`.
    pub fn new(model: Model, seed: u64, folder: &Path, name: &str) -> Result<Self> {
        let socket = folder.join(format!("{name}.socket"));
        let _ = std::fs::remove_file(&socket);
        let words = match model {
            Model::Nvme => "sim:nvme,size=1M,delay=20us",
            Model::Ahci => "sim:ahci,ports=1,size=1M,delay=20us",
            Model::Ide => "sim:ide,size=1M",
        };
        let uri: Uri = words.parse()?;
        macro_rules! serve {
            ($model:ident) => {{
                let device = ring3_model::$model::open(&uri, model::OPTIONS)?;
                let handle = device.handle();
                let plan = handle.plan();
                (
                    plan,
                    Box::new(move || handle.complaints().len()) as Complaints,
                    Server::bind(&socket, std::sync::Arc::new(device))?,
                )
            }};
        }
        let (plan, complaints, server) = match model {
            Model::Nvme => serve!(nvme),
            Model::Ahci => serve!(ahci),
            Model::Ide => serve!(ide),
        };
        let server = server.spawn()?;
        let uri: Uri = model::name(&socket)?.parse()?;
        let below = Driver::dma_limit(ring3_backend::class_of(&uri), None);
        let claim = claim(&uri, OpenOptions { arena: ARENA, below, ..OpenOptions::default() })?;
        let manifest = Driver::of_class(claim.class(), None).map(|driver| driver.manifest);
        let quiesce = manifest.map_or(Ok(None), Quiesce::from_manifest).map_err(|error| anyhow!("{error}"))?;
        let application = Application::new(seed, usize::from(DEPTH));
        let log = folder.join(format!("{name}.log"));
        Ok(Self {
            claim,
            quiesce,
            application,
            plan,
            complaints,
            last_end: None,
            pending: Vec::new(),
            model,
            log,
            _server: server,
        })
    }

    /// Starts a driver to which `orders` will happen.
    pub fn start(&self, orders: &Orders) -> Result<Life> {
        let (wire, end) = Wire::pair().context("making a socket for an application")?;
        let segment = Segment::create(1).context("making a stats segment")?;
        let lease: Lease = self.claim.lease()?;
        let program = std::env::current_exe().context("finding this program, which is the driver, too")?;
        let mut command = Command::new(program);
        command.args(["faults", "--live"]).arg(serde_json::to_string(orders)?);
        command.stdin(OwnedFd::from(lease)).stdout(end).stderr(File::create(&self.log).context("making a driver's log")?);
        let parent_fd = segment.as_fd().try_clone_to_owned().context("copying the stats segment")?;
        command.fd_mappings(vec![FdMapping { parent_fd, child_fd: 3 }])?;
        // In a group of its own, so that control-C ends the campaign and not a driver first; a signal that kills leaves no file.
        let child = command.process_group(0).env("RUST_BACKTRACE", "0").spawn().context("starting a driver")?;
        Ok(Life { child, wire, segment })
    }

    /// What the last driver said.
    pub fn said(&self) -> String {
        let mut said = Vec::new();
        let file = File::open(&self.log).map(|file| file.take(SAID).read_to_end(&mut said));
        if file.is_ok() { String::from_utf8_lossy(&said).into_owned() } else { String::new() }
    }

    /// Stops what a dead driver has started.
    pub fn fence(&self) -> Result<()> {
        self.plan.clear();
        self.claim.quiesce(self.quiesce.as_ref()).map(drop).context("fencing a driver that is dead")
    }

    /// Makes the device lie.
    pub fn lie(&self, spec: &Spec) {
        self.plan.add(lie(self.model, spec));
    }
}

/// How a device lies, so that it still works when it was fenced. None of them forgets what it has acknowledged.
fn lie(model: Model, spec: &Spec) -> Rule {
    let bits = 1u16 << (spec.word(1) % 16);
    let delay = Duration::from_micros(spec.word(1) % 20_000);
    let actions = match model {
        Model::Nvme => vec![
            Action::Drop,
            Action::WrongId(bits),
            Action::Invent(bits),
            Action::Duplicate,
            Action::WrongPhase,
            Action::Reorder,
            Action::Delay(delay),
            Action::Hang,
            Action::Status(0x281),
            Action::LoseInterrupt,
            Action::Storm(2000),
            Action::StrayDma(0xdead_0000),
            Action::FunctionReset,
            Action::Fatal,
        ],
        _ => vec![
            Action::Drop,
            Action::Duplicate,
            Action::Delay(delay),
            Action::Hang,
            Action::Error(1 << (spec.word(1) % 8)),
            Action::DriveFault,
            Action::DmaError,
            Action::Stuck,
            Action::LoseInterrupt,
            Action::Storm(2000),
            Action::BusyUntilReset,
            Action::WrongInterrupt,
            Action::StrayDma(0xdead_0000),
        ],
    };
    let action = actions[(spec.word(0) % actions.len() as u64) as usize];
    let when = When::Command { queues: Queues::Io, opcode: None, blocks: None };
    Rule { when, nth: 1, times: 1 + spec.word(2) % 3, action }
}

/// A driver's process.
pub struct Life {
    child: Child,
    pub wire: Wire,
    pub segment: Segment,
}

impl Life {
    /// How it has ended, once it has.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        self.child.wait().context("waiting for a driver")
    }

    /// Ends it.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill().context("killing a driver")?;
        self.ended()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
