//! A connection to ring3d.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_control::admin::{Command, Reply, VERSION};
use ring3_control::status::DeviceStatus;
use ring3_lease::Channel;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// One that has agreed on a version.
pub struct Link(Channel);

impl Link {
    /// Connects to the ring3d that listens at `path`; each answer may take `limit`.
    pub fn open(path: &Path, limit: Duration) -> Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?).with_context(|| {
            format!(
                "nobody answers at {}: start ring3d (systemctl start ring3d, or ring3d --hold), or name its socket with --socket",
                path.display()
            )
        })?;
        let mut link = Self(Channel::new(socket, limit, true)?);
        match link.ask(&Command::Hello { version: VERSION })? {
            Reply::Hello { version: VERSION, .. } => Ok(link),
            Reply::Hello { version, .. } => {
                bail!("ring3d speaks version {version} of its protocol, and this ring3 {VERSION}: use the ring3 beside it")
            }
            Reply::Refused(why) => bail!("{why}"),
            _ => bail!("who answers at {} is no ring3d", path.display()),
        }
    }

    /// Asks, and returns the answer.
    pub fn ask(&mut self, command: &Command) -> Result<Reply> {
        self.0.send(command, &[]).context("asking ring3d")?;
        let (reply, _) = self.0.receive().context("waiting for ring3d")?.context("ring3d has closed the connection")?;
        Ok(reply)
    }

    /// All devices.
    pub fn status(&mut self) -> Result<Vec<DeviceStatus>> {
        match self.ask(&Command::Status)? {
            Reply::Status(devices) => Ok(devices),
            Reply::Refused(why) => bail!("{why}"),
            _ => bail!("ring3d has answered something else"),
        }
    }
}
