//! A client that sends what it is told to.

use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ring3_device::OpenOptions;
use ring3_model::vfio_user::{Channel, Running, VfioUserServer};
use ring3_spec::vfio_user::*;
use rustix::fs::{MemfdFlags, SealFlags};

const PATIENCE: Duration = Duration::from_secs(20);

/// A model that is served by a thread of this process.
pub struct Served {
    pub path: PathBuf,
    _server: Running,
    folder: tempfile::TempDir,
}

pub fn serve(uri: &str) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let device = ring3_model::open(
        &uri.parse().unwrap(),
        OpenOptions { arena: 4096, ..OpenOptions::default() },
    )
    .unwrap();
    Served { _server: VfioUserServer::bind(&path, device).unwrap().spawn().unwrap(), path, folder }
}

impl Served {
    /// Somebody who has connected.
    pub fn raw(&self) -> RawClient {
        let stream = UnixStream::connect(&self.path).unwrap();
        RawClient { channel: Channel::new(stream.try_clone().unwrap(), PATIENCE).unwrap(), stream }
    }

    /// Somebody who has agreed on a version.
    pub fn client(&self) -> RawClient {
        let client = self.raw();
        client.agree().unwrap();
        client
    }

    /// Ends the server; its folder is left.
    pub fn stop(self) -> tempfile::TempDir {
        self.folder
    }
}

pub struct RawClient {
    channel: Channel,
    stream: UnixStream,
}

impl RawClient {
    pub fn agree(&self) -> Result<Vec<u8>, u32> {
        self.request(command::VERSION, &Version { major: 0, minor: 1 }.to_bytes(), &[])
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends a message, of which nothing is said when it cannot be.
    pub fn send(&self, header: Header, body: &[u8]) {
        let _ = self.channel.send(header, [body, &[]], &[]);
    }

    /// The body of the answer, or its errno.
    pub fn request(
        &self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, u32> {
        let header = Header { id: 77, command, len: 0, flags: 0, error: 0 };
        self.channel.send(header, [body, &[]], fds).unwrap();
        let (answer, body) = self.channel.receive().unwrap().unwrap();
        assert_eq!((answer.id, answer.command), (77, command));
        if answer.flags == REPLY { Ok(body.bytes) } else { Err(answer.error) }
    }

    pub fn read(&self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let answer = self.request(
            command::REGION_READ,
            &RegionAccess { offset, region, count }.to_bytes(),
            &[],
        )?;
        Ok(answer[RegionAccess::LEN..].to_vec())
    }

    pub fn write(&self, region: u32, offset: u64, bytes: &[u8]) -> Result<(), u32> {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 }.to_bytes();
        self.request(command::REGION_WRITE, &[&access, bytes].concat(), &[]).map(drop)
    }

    pub fn map(&self, map: &DmaMap, fd: Option<BorrowedFd<'_>>) -> Result<(), u32> {
        self.request(command::DMA_MAP, &map.to_bytes(), fd.as_slice()).map(drop)
    }

    /// Whether the server has ended the connection.
    pub fn is_cut_off(&self) -> bool {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        matches!((&self.stream).read(&mut [0]), Ok(0))
    }
}

/// Memory that cannot shrink.
pub fn memory(len: u64) -> OwnedFd {
    let fd =
        rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}
