//! Where packets go into the kernel and come out of it: a queue of a TAP, or a virtqueue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use ring3_reactor::{Reactor, Token};

use super::{Interface, header};
use crate::vduse::VduseRing;

/// One direction of a queue of the interface.
pub enum Port<'a> {
    /// By `write` or `read`.
    Tap(BorrowedFd<'a>),
    /// By a virtqueue.
    Virtio(Box<VduseRing>),
}

/// What a write can end with.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// It has so many bytes.
    Taken(usize),
    /// The kernel has not taken it, and takes others.
    Dropped,
    /// The interface is no more.
    Deleted,
}

/// What a read can end with.
pub enum Read {
    /// So many bytes, the header's included.
    Bytes(usize),
    /// There is no packet.
    Nothing,
    /// The interface is no more.
    Deleted,
}

impl Port<'_> {
    /// Hands a packet to the kernel, its header first.
    ///
    /// # Safety
    /// Each vector is memory of so many bytes.
    #[inline]
    pub unsafe fn write(&mut self, vectors: &[libc::iovec]) -> Written {
        match self {
            Self::Tap(tap) => {
                let tap = tap.as_raw_fd();
                match vectors {
                    // SAFETY: the caller's promise.
                    [one] => written(|| unsafe { libc::write(tap, one.iov_base, one.iov_len) }),
                    // SAFETY: as above.
                    several => written(|| unsafe {
                        libc::writev(tap, several.as_ptr(), several.len() as i32)
                    }),
                }
            }
            // SAFETY: as above.
            Self::Virtio(half) => match unsafe { half.deliver(vectors) } {
                true => Written::Taken(
                    vectors
                        .iter()
                        .map(|vector| vector.iov_len)
                        .sum::<usize>()
                        .saturating_sub(header::BYTES),
                ),
                false => Written::Dropped,
            },
        }
    }

    /// Takes a packet from the kernel, its header first.
    ///
    /// # Safety
    /// Each vector is memory of so many bytes, which nobody else has.
    #[inline]
    pub unsafe fn read(&mut self, vectors: &[libc::iovec]) -> Read {
        match self {
            Self::Tap(tap) => {
                let tap = tap.as_raw_fd();
                match vectors {
                    // SAFETY: the caller's promise.
                    [one] => read(|| unsafe { libc::read(tap, one.iov_base, one.iov_len) }),
                    several => {
                        // SAFETY: as above.
                        read(|| unsafe { libc::readv(tap, several.as_ptr(), several.len() as i32) })
                    }
                }
            }
            // SAFETY: as above.
            Self::Virtio(half) => unsafe { half.fetch(vectors) }.map_or(Read::Nothing, Read::Bytes),
        }
    }

    /// How many pieces of packets, each of at most `bytes`, surely find room when they are
    /// [written](Self::write): `least` or fewer if none more do, and the thread is woken then when
    /// that is over. A TAP takes what it takes.
    #[inline]
    pub fn room(&mut self, bytes: u32, least: usize) -> usize {
        match self {
            Self::Tap(_) => usize::MAX,
            Self::Virtio(half) => half.room(bytes, least),
        }
    }

    /// A virtqueue has been set up, or reset.
    #[cold]
    pub fn apply_queue_change(&mut self) {
        if let Self::Virtio(half) = self {
            half.apply_queue_change();
        }
    }

    /// Has the kernel see what a turn has done.
    #[inline]
    pub fn publish(&mut self) {
        if let Self::Virtio(half) = self {
            half.publish();
        }
    }
}

/// What a thread watches of its ports.
#[derive(Clone, Copy, Default)]
pub struct Watched {
    /// There may be something to read.
    pub readable: Option<Token>,
    /// There may be [room](Port::room) again.
    pub writable: Option<Token>,
    /// A virtqueue is elsewhere now.
    pub changed: [Option<Token>; 2],
}

impl Watched {
    /// Watches both directions of a queue.
    pub fn new(ports: (&Port<'_>, &Port<'_>), reactor: &mut Reactor) -> io::Result<Self> {
        let (receive, send) = match ports {
            (Port::Virtio(receive), Port::Virtio(send)) => (receive, send),
            (Port::Tap(tap), _) | (_, Port::Tap(tap)) => {
                return Ok(Self { readable: Some(reactor.add(*tap)?), ..Self::default() });
            }
        };
        Ok(Self {
            readable: Some(reactor.add(send.kicks())?),
            writable: Some(reactor.add(receive.kicks())?),
            changed: [Some(reactor.add(receive.changed())?), Some(reactor.add(send.changed())?)],
        })
    }

    /// All.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        let [one, other] = self.changed;
        [self.readable, self.writable, one, other].into_iter().flatten()
    }
}

impl Interface {
    /// How many queues it has.
    pub fn count(&self) -> usize {
        if self.virtio.is_some() { 1 } else { self.files.len() }
    }

    /// Where packets of queue `number` go to the kernel, and where they come from it.
    pub(super) fn ports(&self, number: usize) -> Option<(Port<'_>, Port<'_>)> {
        match &self.virtio {
            None => self.queue(number).map(|tap| (Port::Tap(tap), Port::Tap(tap))),
            Some(link) => {
                let (receive, send) = link.halves();
                (number == 0)
                    .then(|| (Port::Virtio(Box::new(receive)), Port::Virtio(Box::new(send))))
            }
        }
    }
}

/// What the call has come to. Errors that are not the interface's end are a packet's: the interface
/// is down, its queue is full, memory is short.
#[inline]
fn written(mut call: impl FnMut() -> isize) -> Written {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Written::Taken(bytes.saturating_sub(header::BYTES));
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EBADFD) => return Written::Deleted,
            _ => return Written::Dropped,
        }
    }
}

/// What the call has come to.
#[inline]
fn read(mut call: impl FnMut() -> isize) -> Read {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Read::Bytes(bytes);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EBADFD) => return Read::Deleted,
            _ => return Read::Nothing,
        }
    }
}
