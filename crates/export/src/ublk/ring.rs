//! A queue's commands to the kernel, in the io_uring of its reactor.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::opcode::UringCmd16;
use io_uring::types::Fd;
use ring3_reactor::{Pool, Reactor};

use super::uapi::{self, IoCommand};

/// Rings for `count` queues of `depth` requests, for a process that will not be able to make one. They take commands of ublk, and of other operations nothing but what a reactor needs.
pub fn rings(count: u16, depth: u16) -> io::Result<Pool> {
    Pool::filled(count, depth.into(), &[UringCmd16::CODE])
}

/// The ublk half of a queue's reactor. A command is named by its tag.
pub struct Ring {
    pub reactor: Reactor,
    /// Not registered with the io_uring, which would close it a grace period of RCU after the process has died: so long nobody else could serve.
    file: Arc<File>,
    /// The ublk queue's number.
    queue: u16,
    fetch: u32,
    commit: u32,
}

impl Ring {
    /// Of `queue` of the device `file`, in `reactor`, for the thread that calls. `encoded` is [`super::features::Features::encoded`].
    pub fn new(reactor: Reactor, (file, queue): (Arc<File>, u16), encoded: bool) -> Self {
        let (fetch, commit) = (uapi::io_opcode(uapi::IO_FETCH, encoded), uapi::io_opcode(uapi::IO_COMMIT_AND_FETCH, encoded));
        Self { reactor, file, queue, fetch, commit }
    }

    /// Lends `tag`'s buffer at `addr` to the kernel, for the first request.
    ///
    /// # Safety
    /// `addr` is the start of a buffer as long as the device was told, which stays until the tag's fetch has ended.
    pub unsafe fn fetch(&mut self, tag: u16, addr: u64) -> io::Result<()> {
        // SAFETY: passed on.
        unsafe { self.push(self.fetch, IoCommand { q_id: self.queue, tag, result: 0, addr }) }
    }

    /// Gives the result of `tag`'s request, and lends its buffer for the next.
    ///
    /// # Safety
    /// As [`fetch`](Ring::fetch).
    #[inline]
    pub unsafe fn commit(&mut self, tag: u16, result: i32, addr: u64) -> io::Result<()> {
        // SAFETY: passed on.
        unsafe { self.push(self.commit, IoCommand { q_id: self.queue, tag, result, addr }) }
    }

    /// # Safety
    /// As [`fetch`](Ring::fetch).
    #[inline]
    unsafe fn push(&mut self, operation: u32, command: IoCommand) -> io::Result<()> {
        let entry = UringCmd16::new(Fd(self.file.as_raw_fd()), operation).cmd(command.to_bytes()).build();
        // SAFETY: passed on: the command's only memory is the buffer.
        unsafe { self.reactor.push(&entry.user_data(command.tag.into())) }
    }
}
