//! A queue's commands to the kernel, in the io_uring of its reactor.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::opcode::UringCmd16;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use ring3_reactor::{Pool, Reactor};

use super::batches::{self, BatchEvent, Batches};
use super::features::Commands;
use super::uapi::{self, IoCommand};

/// Rings for `count` queues of `depth` requests, for a process that will not be able to make one.
/// They take commands of ublk, for `batches` of requests or for one each, and of other operations
/// nothing but what a reactor needs.
pub fn rings(count: u16, depth: u16, batches: bool) -> io::Result<Pool> {
    let filled = if batches { Pool::providing } else { Pool::filled };
    filled(count, depth.into(), &[UringCmd16::CODE])
}

/// The ublk half of a queue's reactor. A command for one tag is named by that.
pub struct Ring {
    pub reactor: Reactor,
    /// Not registered with the io_uring, which would close it a grace period of RCU after the
    /// process has died: so long nobody else could serve.
    file: Arc<File>,
    /// The ublk queue's number.
    queue: u16,
    fetch: u32,
    commit: u32,
    /// Of a device whose commands are for many tags.
    batches: Option<Batches>,
}

impl Ring {
    /// Of `queue` of the device `file`, which has so many tags, in `reactor`, for the thread that
    /// calls.
    pub fn new(
        mut reactor: Reactor,
        (file, queue): (Arc<File>, u16),
        depth: u16,
        commands: Commands,
    ) -> io::Result<Self> {
        let encoded = commands != Commands::Bare;
        let (fetch, commit) = (
            uapi::io_opcode(uapi::IO_FETCH, encoded),
            uapi::io_opcode(uapi::IO_COMMIT_AND_FETCH, encoded),
        );
        let batches = (commands == Commands::Batched).then(|| Batches::new(queue, depth));
        if batches.is_some() {
            reactor.provide(batches::BUFFERS, u32::from(depth) * size_of::<u16>() as u32)?;
        }
        Ok(Self { reactor, file, queue, fetch, commit, batches })
    }

    /// Lends `tag`'s buffer at `addr` to the kernel, for the first request.
    ///
    /// # Safety
    /// `addr` is the start of a buffer as long as the device was told, which stays until the tag's
    /// fetch has ended.
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
        if let Some(batches) = &mut self.batches {
            batches.gather(command.tag, command.result, command.addr);
            return Ok(());
        }
        let entry =
            UringCmd16::new(Fd(self.file.as_raw_fd()), operation).cmd(command.to_bytes()).build();
        // SAFETY: passed on: the command's only memory is the buffer.
        unsafe { self.reactor.push(&entry.user_data(command.tag.into())) }
    }

    /// Pushes what was gathered for one command: before each turn of the reactor.
    #[inline]
    pub fn push_gathered(&mut self) -> io::Result<()> {
        match self.batches.as_mut().and_then(Batches::send) {
            Some(command) => self.push_batch(command),
            None => Ok(()),
        }
    }

    /// Whether commands are for many tags, and have [events](Self::handle_event).
    #[inline]
    pub fn is_batched(&self) -> bool {
        self.batches.is_some()
    }

    /// Handles an event of a command for many tags: how many tags will have no request any more.
    /// Others may have one now: see [`next`](Self::next).
    pub fn handle_event(&mut self, name: u64, result: i32, flags: u32) -> io::Result<usize> {
        let Self { reactor, batches: Some(batches), .. } = self else { return Ok(0) };
        let more = Reactor::more(flags);
        let mut event = None;
        reactor.provided(flags, result.max(0) as u32, |tags| {
            event = Some(batches.handle_event(name, result, more, tags))
        });
        match event.unwrap_or_else(|| batches.handle_event(name, result, more, &[]))? {
            BatchEvent::Aborted(tags) => Ok(tags),
            BatchEvent::Requests { fetch: false } => Ok(0),
            BatchEvent::Requests { fetch: true } => {
                let command = batches.fetch();
                self.push_batch(command).map(|()| 0)
            }
        }
    }

    /// A tag that has a request, of those that an [event](Self::handle_event) has named.
    #[inline]
    pub fn next(&mut self) -> Option<u16> {
        self.batches.as_mut()?.next()
    }

    fn push_batch(&mut self, command: batches::Command) -> io::Result<()> {
        let operation = uapi::batch_opcode(command.operation);
        let entry =
            UringCmd16::new(Fd(self.file.as_raw_fd()), operation).cmd(command.header.to_bytes());
        let entry = match command.elements {
            Some(addr) => entry.addr(Some(addr)).build(),
            None => multishot(entry.build()),
        };
        // SAFETY: elements are in a list that is not touched before the command has ended; what
        // they lend was promised to `fetch` and `commit`.
        unsafe { self.reactor.push(&entry.user_data(command.name)) }
    }
}

/// Makes a command go on, and say what it has to say in the buffers of group 0.
fn multishot(mut entry: Entry) -> Entry {
    const _: () = assert!(size_of::<Entry>() == 64);
    // SAFETY: an entry is the kernel's structure (`repr(C)`), all of it plain bytes, in which this
    // field has its place by the kernel's ABI.
    unsafe {
        (&raw mut entry)
            .cast::<u32>()
            .add(uapi::SQE_COMMAND_FLAGS / 4)
            .write(uapi::COMMAND_MULTISHOT)
    };
    entry.flags(Flags::BUFFER_SELECT)
}
