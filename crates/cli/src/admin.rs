//! The supervisor as its users' commands reach it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_control::admin::{Command, Reply, VERSION};
use ring3_lease::Channel;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// How long an answer may take: an upgrade waits for what is with the device.
const PATIENCE: Duration = Duration::from_secs(180);

/// A connection to the supervisor.
pub struct Client(Channel);

impl Client {
    /// To the one that listens at `socket`.
    pub fn connect(socket: &Path) -> Result<Self> {
        let missing = || format!("no supervisor listens at {}: start ring3d", socket.display());
        let address = SocketAddrUnix::new(socket).context("the supervisor's socket")?;
        let end = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&end, &address).with_context(missing)?;
        let client = Self(Channel::new(end, PATIENCE, true)?);
        match client.ask(&Command::Hello { version: VERSION })? {
            Reply::Hello { version: VERSION, .. } => Ok(client),
            Reply::Hello { version, .. } => {
                bail!("the supervisor speaks version {version}, this program {VERSION}: use those of one build")
            }
            other => bail!("the supervisor answered {other:?}"),
        }
    }

    /// Its answer.
    pub fn ask(&self, command: &Command) -> Result<Reply> {
        self.0.send(command, &[]).context("asking the supervisor")?;
        let (reply, _) = self.0.receive().context("waiting for the supervisor")?.context("the supervisor is gone")?;
        Ok(reply)
    }
}
