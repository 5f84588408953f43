//! Descriptors that a reactor watches.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use io_uring::opcode;
use io_uring::squeue::Flags;

use super::{CANCEL, Event, KIND, Reactor, WATCH};

/// Of the places of descriptors in names.
const INDEX_BITS: u32 = 24;

/// A descriptor that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u32);

pub(super) struct Watch {
    /// Of which user of this place names are.
    generation: u32,
    /// `None`: the place is free.
    fd: Option<OwnedFd>,
    /// The kernel watches it.
    open: bool,
}

impl Watch {
    /// What the kernel calls it, at `token`.
    fn name(&self, token: Token) -> u64 {
        WATCH | u64::from(self.generation) << INDEX_BITS | u64::from(token.0)
    }
}

impl Reactor {
    /// Watches `fd`, of which the reactor keeps a duplicate: an [`Event::Ready`] when it is
    /// readable, and each time it is raised again.
    pub fn add(&mut self, fd: BorrowedFd<'_>) -> io::Result<Token> {
        let token = self.keep(fd)?;
        self.watch(token)?;
        Ok(token)
    }

    /// Keeps `fd`, and does not watch it yet.
    pub(crate) fn keep(&mut self, fd: BorrowedFd<'_>) -> io::Result<Token> {
        let fd = Some(fd.try_clone_to_owned()?);
        let free = self.watches.iter().position(|watch| watch.fd.is_none());
        let place = free.unwrap_or(self.watches.len());
        if place >> INDEX_BITS != 0 {
            return Err(io::Error::other("too many descriptors"));
        }
        match self.watches.get_mut(place) {
            Some(watch) => watch.fd = fd,
            None => self.watches.push(Watch { generation: 0, fd, open: false }),
        }
        Ok(Token(place as u32))
    }

    /// Gives a descriptor back: nothing is heard of it any more, what has happened already
    /// included, and the ring keeps nothing open behind it.
    pub fn remove(&mut self, token: Token) -> io::Result<()> {
        let was_watched = self.is_watched(token);
        self.unwatch(token)?;
        if was_watched {
            self.enter(0)?;
            // The kernel lets go in work that it leaves to this thread.
            if self.submissions.taskrun() {
                self.enter(0)?;
            }
        }
        if let Some(watch) = self.watches.get_mut(token.0 as usize) {
            watch.fd = None;
        }
        Ok(())
    }

    pub(crate) fn watch(&mut self, token: Token) -> io::Result<()> {
        let Some(watch) = self.watches.get_mut(token.0 as usize) else { return Ok(()) };
        let Some(fd) = watch.fd.as_ref().filter(|_| !watch.open) else { return Ok(()) };
        let fd = io_uring::types::Fd(fd.as_raw_fd());
        watch.open = true;
        let name = watch.name(token);
        let entry =
            opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build().user_data(name);
        // SAFETY: no memory is involved.
        unsafe { self.push(&entry) }
    }

    #[inline]
    pub(crate) fn is_watched(&self, token: Token) -> bool {
        self.watches.get(token.0 as usize).is_some_and(|watch| watch.open)
    }

    /// No event of it comes any more, until it is watched again.
    pub(crate) fn unwatch(&mut self, token: Token) -> io::Result<()> {
        let Some(watch) = self.watches.get_mut(token.0 as usize) else { return Ok(()) };
        let name = watch.name(token);
        watch.generation = watch.generation.wrapping_add(1);
        if !std::mem::take(&mut watch.open) {
            return Ok(());
        }
        // A poll's removal fails while an event of it is under way.
        let entry =
            opcode::AsyncCancel::new(name).build().flags(Flags::SKIP_SUCCESS).user_data(CANCEL);
        // SAFETY: no memory is involved.
        unsafe { self.push(&entry) }
    }

    /// What the kernel says of the watch of that name; nothing if that is over.
    pub(super) fn watch_event(&mut self, name: u64, result: i32, more: bool) -> Option<Event> {
        let index = name & ((1 << INDEX_BITS) - 1);
        let watch = self.watches.get_mut(index as usize).filter(|watch| {
            name & KIND == WATCH && watch.open && (name >> INDEX_BITS) as u32 == watch.generation
        })?;
        let token = Token(index as u32);
        watch.open = more;
        if result < 0 {
            return Some(Event::Lost(token, io::Error::from_raw_os_error(-result)));
        }
        // The kernel ends a watch when it has no room for its events. What comes until it is
        // watched again is seen then.
        match self.watch(token) {
            Ok(()) => Some(Event::Ready(token)),
            Err(error) => Some(Event::Lost(token, error)),
        }
    }
}
