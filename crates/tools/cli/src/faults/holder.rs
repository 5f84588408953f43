//! A device that this command holds itself, and the drivers that it starts, fences and follows.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, anyhow};
use command_fds::{CommandFdExt, FdMapping};
use ring3_backend::{Claim, Lease, OpenOptions, Quiesce, Uri, claim};
use ring3_driver::registry::Driver;
use ring3_faults::Wire;
use ring3_stats::Segment;

use super::bench::Place;
use super::life::Orders;
use crate::job::Job;

/// Bytes of a driver's arena.
const ARENA: usize = 16 << 20;
/// Bytes of what a driver said that are looked at.
const SAID: u64 = 64 << 10;

/// A claim, and how it is fenced.
pub struct Holder {
    claim: Claim,
    quiesce: Option<Quiesce>,
    log: PathBuf,
}

impl Holder {
    /// Claims `device`.
    pub fn new(device: &str, place: Place<'_>) -> Result<Self> {
        let uri: Uri = device.parse()?;
        let below = Driver::dma_limit(ring3_backend::class_of(&uri), None);
        let claim = claim(&uri, OpenOptions { arena: ARENA, below, ..OpenOptions::default() })?;
        let manifest =
            Driver::of_function(claim.ids(), claim.class()).map(|driver| driver.manifest);
        let quiesce = manifest
            .map_or(Ok(None), Quiesce::from_manifest)
            .map_err(|error| anyhow!("{error}"))?;
        Ok(Self { claim, quiesce, log: place.file("log") })
    }

    /// Starts a driver to which `orders` will happen, and the way to it.
    pub fn start(&self, orders: &Orders) -> Result<(Life, Wire)> {
        let (wire, end) = Wire::pair().context("making a socket for an application")?;
        let segment = Segment::create(1).context("making a stats segment")?;
        let lease: Lease = self.claim.lease()?;
        let program =
            std::env::current_exe().context("finding this program, which is the driver, too")?;
        let mut command = Command::new(program);
        command.args(Job::Faulty(orders.clone()).words()?);
        command
            .stdin(OwnedFd::from(lease))
            .stdout(end)
            .stderr(File::create(&self.log).context("making a driver's log")?);
        let parent_fd =
            segment.as_fd().try_clone_to_owned().context("copying the stats segment")?;
        command.fd_mappings(vec![FdMapping { parent_fd, child_fd: 3 }])?;
        // In a group of its own, so that control-C ends the campaign and not a driver first; a
        // signal that kills leaves no file.
        let child = command
            .process_group(0)
            .env("RUST_BACKTRACE", "0")
            .spawn()
            .context("starting a driver")?;
        Ok((Life { child, segment }, wire))
    }

    /// What the last driver said.
    pub fn said(&self) -> String {
        let mut said = Vec::new();
        let file = File::open(&self.log).map(|file| file.take(SAID).read_to_end(&mut said));
        if file.is_ok() { String::from_utf8_lossy(&said).into_owned() } else { String::new() }
    }

    /// Stops what a dead driver has started.
    pub fn fence(&self) -> Result<()> {
        self.claim.quiesce(self.quiesce.as_ref()).map(drop).context("fencing a driver that is dead")
    }
}

/// A driver's process.
pub struct Life {
    child: Child,
    pub segment: Segment,
}

impl Life {
    /// How it has ended, once it has; first ends it if it is to be `killed`.
    pub fn end(&mut self, killed: bool) -> Result<ExitStatus> {
        if killed {
            self.child.kill().context("killing a driver")?;
        }
        self.child.wait().context("waiting for a driver")
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the end of a process shows.
pub fn by_end(status: ExitStatus, said: &str) -> &'static str {
    match status.code() {
        _ if said.contains("its lease has ended") => "protocol",
        _ if said.contains("a bug:") => "panic",
        None if status.signal().is_some() => "signal",
        _ => "exit",
    }
}
