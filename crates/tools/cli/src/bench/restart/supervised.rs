//! The device that the supervisor has, as the one who kills its driver sees it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_bench::kill::now;
use ring3_control::admin::{Command, Reply};
use ring3_control::status::{DeviceStatus, Outage, State};
use rustix::process::{Pid, Signal, kill_process};

use crate::admin::Client;

/// How long a driver may take to be replaced.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Lines that are looked at.
const LINES: u32 = 60;

/// A supervised device.
pub struct Supervised {
    client: Client,
    name: String,
}

impl Supervised {
    pub fn connect(socket: &Path, name: &str) -> Result<Self> {
        let mut device = Self { client: Client::connect(socket)?, name: name.into() };
        device.ready(0)?;
        Ok(device)
    }

    pub fn status(&mut self) -> Result<DeviceStatus> {
        let Reply::Status(devices) = self.client.ask(&Command::Status)? else {
            bail!("the supervisor did not say how its devices are")
        };
        let name = &self.name;
        devices
            .into_iter()
            .find(|device| device.name == *name)
            .with_context(|| format!("the supervisor has no device {name}"))
    }

    /// Waits until the device is served by a driver that has a standby, after `ends` ends of
    /// drivers at least.
    pub fn ready(&mut self, ends: u64) -> Result<DeviceStatus> {
        let since = Instant::now();
        loop {
            let status = self.status()?;
            if status.state == State::Running
                && status.standby != 0
                && status.restarts + status.upgrades >= ends
            {
                return Ok(status);
            }
            if matches!(status.state, State::Failed | State::Stopped) || since.elapsed() > PATIENCE
            {
                bail!(
                    "{} is {:?}: {}",
                    self.name,
                    status.state,
                    status.last_end.unwrap_or_default()
                );
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Kills the driver of `status`, and says when.
    pub fn kill(&self, status: &DeviceStatus) -> Result<u64> {
        let pid = i32::try_from(status.pid)
            .ok()
            .and_then(Pid::from_raw)
            .context("the device has no driver")?;
        let time = now();
        kill_process(pid, Signal::KILL).context("killing the driver")?;
        Ok(time)
    }

    /// Has the driver replaced, and says when that began.
    pub fn upgrade(&mut self) -> Result<u64> {
        let time = now();
        match self.client.ask(&Command::Upgrade { name: self.name.clone(), program: None })? {
            Reply::Upgraded { .. } => Ok(time),
            Reply::Refused(why) => bail!("the driver was not replaced: {why}"),
            other => bail!("the supervisor answered an upgrade with {other:?}"),
        }
    }

    /// The last lines about it.
    pub fn log(&mut self) -> Result<Vec<String>> {
        match self.client.ask(&Command::Logs { name: self.name.clone(), lines: LINES })? {
            Reply::Logs(lines) => Ok(lines),
            other => bail!("the supervisor answered with {other:?} when it was asked for lines"),
        }
    }

    /// The last outage.
    pub fn outage(&mut self) -> Result<Option<Outage>> {
        Ok(self.status()?.outages.into_iter().next())
    }
}

/// The supervisor's process, which has started `driver`; `None` if that was another one, which has
/// died since.
pub fn supervisor_of(driver: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{driver}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    (name.trim() == "ring3d").then_some(parent)
}
