//! What a client shares with the server beside its rings: the memory of its data, and what either
//! wakes the other by.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ring3_class::Error;
use ring3_class::dma::{
    Arena, Dma, Foreign, MAX_REGIONS, Mapping, MemoryReservation, Placed, Region,
};
use ring3_reactor::{Reactor, Token};
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::{memory, region};

/// The memory of a client's data. What is in flight keeps it, so that it is taken from the device,
/// and given back, when the device is done.
pub struct Memory {
    /// Dropped first.
    _mapping: Option<Mapping>,
    /// Of regions of the client's own.
    registered: Mutex<Vec<(Mapping, Option<MemoryReservation>)>>,
    pub foreign: Foreign,
    /// The client's memory alone, its own regions included, by the device's addresses if it is
    /// mapped.
    pub arena: Arena,
    pub mapped: bool,
    _admitted: MemoryReservation,
}

impl Memory {
    /// As many bytes as are `wanted`, or as `most` grants, and the file that the client gets; for
    /// the device's `dma` if that reaches it.
    pub fn make(wanted: u64, most: u64, dma: Option<&Dma>) -> Result<(OwnedFd, Self), Error> {
        let bytes = wanted.clamp(1, most).next_multiple_of(4096);
        let file = memory::make(bytes as usize)?;
        let admitted = MemoryReservation::of(bytes as usize);
        let copy = file.try_clone().map_err(|error| Error::os("duplicating memory", error))?;
        let foreign = Foreign::from(Region::from_fd(copy)?);
        let mapping = dma.map(|dma| dma.map(foreign.region().pages()?)).transpose()?;
        let arena = Arena::new(foreign.region().clone(), mapping.as_ref().map_or(0, Mapping::iova));
        let registered = Mutex::default();
        Ok((
            file,
            Self {
                mapped: mapping.is_some(),
                _mapping: mapping,
                registered,
                foreign,
                arena,
                _admitted: admitted,
            },
        ))
    }

    /// Takes in a region that the client says to be `bytes` bytes of its own, for the device's
    /// `dma`, unless it would have more than `most` bytes then.
    pub fn take_in(&self, fd: &OwnedFd, bytes: u64, dma: &Dma, most: u64) -> Result<(), Error> {
        let had = self.arena.len() as u64;
        if had.saturating_add(bytes) > most {
            return Err(Error::Invalid(format!(
                "{bytes} bytes beside the {had} that the client has, of {most} that it may have: \
                let the server grant more (memory=)"
            )));
        }
        if self.arena.regions().count() == MAX_REGIONS {
            return Err(Error::Unsupported(format!(
                "a client has {} regions at most",
                MAX_REGIONS - 1
            )));
        }
        let region = Arc::new(region::check(fd, bytes)?);
        // Huge ones were set aside by somebody.
        let admitted = (!region.is_huge()).then(|| MemoryReservation::of(bytes as usize));
        let mapping = dma.map(region.pages()?).map_err(|error| match region.is_huge() {
            true => Error::Unsupported(format!("of huge pages: {error}; share small pages")),
            false => error,
        })?;
        self.arena.register_region(Placed { region, iova: mapping.iova() });
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).push((mapping, admitted));
        Ok(())
    }
}

/// Wakes a client, and is woken by it.
pub struct ClientNotifier {
    waker: OwnedFd,
    /// By which the reactor knows the client's eventfd.
    pub kick: Token,
}

impl ClientNotifier {
    /// With the descriptors that are the client's: eventfd, pipe.
    pub fn new(reactor: &mut Reactor) -> Result<(Self, [OwnedFd; 2]), Error> {
        let failed = |error| Error::os("making a client's queue", error);
        // Never read here: its flags are the client's, too, and a read could block.
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let (waker, woken) = pipe()?;
        let token = reactor
            .add(kick.as_fd())
            .map_err(|error| Error::os("watching a client's queue", error))?;
        Ok((Self { waker, kick: token }, [kick, woken]))
    }

    /// Wakes the client.
    pub fn ring(&self) {
        ring(&self.waker);
    }
}

/// An end to write to, and the client's, to be woken by. A pipe's end has flags of its own, so that
/// the client cannot make a write block.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let made = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    made.map(|(woken, waker)| (waker, woken))
        .map_err(|error| Error::os("making a client's queue", error))
}

/// Wakes who reads the other end: one that is full wakes it as well, and one that is closed nobody.
pub fn ring(waker: &OwnedFd) {
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}
