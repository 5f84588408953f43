//! The supervisor as its users' commands reach it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_control::admin::{Command, Reply, VERSION};
use ring3_control::status::DeviceStatus;
use ring3_lease::Channel;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// How long an answer may take: an upgrade waits for what is with the device.
const PATIENCE: Duration = Duration::from_secs(180);
/// Most bytes of an answer: thousands of devices.
const LONGEST: u64 = 256 << 20;

/// A connection to the supervisor, which has agreed on a version.
pub struct Client(Channel);

impl Client {
    /// To the one that listens at `socket`.
    pub fn connect(socket: &Path) -> Result<Self> {
        Self::within(socket, PATIENCE)
    }

    /// The same; each answer may take `limit`.
    pub fn within(socket: &Path, limit: Duration) -> Result<Self> {
        let address = SocketAddrUnix::new(socket).context("the supervisor's socket")?;
        let end =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&end, &address).with_context(|| {
            format!(
                "nobody answers at {}: start ring3d (systemctl start ring3d, or ring3d --hold), or \
                name its socket with --socket",
                socket.display()
            )
        })?;
        let client = Self(Channel::new(end, limit, true)?);
        match client.ask(&Command::Hello { version: VERSION })? {
            Reply::Hello { version: VERSION, .. } => Ok(client),
            Reply::Hello { version, .. } => {
                bail!(
                    "ring3d speaks version {version} of its protocol, and this ring3 {VERSION}: \
                    use the ring3 beside it"
                )
            }
            Reply::Refused(why) => bail!("{why}"),
            _ => bail!("who answers at {} is no ring3d", socket.display()),
        }
    }

    /// Its answer.
    pub fn ask(&self, command: &Command) -> Result<Reply> {
        self.0.send(command, &[]).context("asking ring3d")?;
        let (reply, fds) = self
            .0
            .receive()
            .context("waiting for ring3d")?
            .context("ring3d has closed the connection")?;
        match reply {
            Reply::Long => long(fds),
            reply => Ok(reply),
        }
    }

    /// All devices.
    pub fn status(&self) -> Result<Vec<DeviceStatus>> {
        match self.ask(&Command::Status)? {
            Reply::Status(devices) => Ok(devices),
            Reply::Refused(why) => bail!("{why}"),
            _ => bail!("ring3d has answered something else"),
        }
    }
}

/// An answer that came in a file.
fn long(fds: Vec<OwnedFd>) -> Result<Reply> {
    let file = File::from(fds.into_iter().next().context("ring3d's answer is missing")?);
    let len = file.metadata()?.len();
    if len > LONGEST {
        bail!("ring3d's answer has {len} bytes");
    }
    let mut bytes = vec![0; len as usize];
    // From its beginning: the place in it is ring3d's.
    file.read_exact_at(&mut bytes, 0).context("reading ring3d's answer")?;
    serde_json::from_slice(&bytes).context("ring3d's answer")
}

#[cfg(test)]
mod tests {
    use ring3_control::status::State;
    use ring3_supervisor::admin::AdminServer;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn device(number: usize) -> DeviceStatus {
        DeviceStatus {
            name: format!("device-{number}"),
            device: format!("vfio:0000:{number:02x}:00.0"),
            driver: "nvme".into(),
            state: State::Running,
            since: 1,
            pid: 2,
            standby: 3,
            disks: Vec::new(),
            interfaces: Vec::new(),
            restarts: 0,
            upgrades: 0,
            last_end: Some("x".repeat(400)),
            outages: Vec::new(),
            interrupts: 0,
            iommu_faults: 0,
            cpu_ms: 0,
            memory: 0,
            shared_hits: 0,
            unlimited: Vec::new(),
        }
    }

    #[test]
    fn the_status_of_two_hundred_devices_arrives_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let mut server = AdminServer::listen(&path).unwrap();
        let devices: Vec<_> = (0..200).map(device).collect();
        let wanted = devices.clone();
        let client =
            std::thread::spawn(move || Client::connect(&path).and_then(|client| client.status()));
        while !client.is_finished() {
            {
                let sources = server.fds();
                let mut fds: Vec<_> =
                    sources.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
                let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                let _ = poll(&mut fds, Some(&soon));
            }
            for request in server.take() {
                server.answer(request.from, &Reply::Status(devices.clone()));
            }
        }
        assert_eq!(client.join().unwrap().unwrap(), wanted);
    }
}
