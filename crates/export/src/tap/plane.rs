//! The ways of what is not packets between a card and the kernel: what users want of the interface comes down, the card's link goes up.
//!
//! # Shape
//! A process that may ask the kernel does ([`Rtnetlink`]). A driver's process in its sandbox may not: whoever holds the interface asks for it, and a [`Relay`] is where the two threads of that process
//! meet, the one that hears its supervisor and the one that serves the card.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring3_class::net::Link;

use super::control::{event, ring};
use super::netlink::{Changes, Netlink, Wishes};
use super::{Error, Interface};

/// Of what no kernel tells (addresses that a program joins by a packet socket, and before Linux 6.14 all groups) is asked this often.
pub const LOOK: Duration = Duration::from_secs(2);

/// What the thread that serves a card needs beside packets.
pub trait ControlPlane: Send {
    /// What is wanted of the interface.
    fn wishes(&self) -> Result<Wishes, Error>;
    /// Whether there is somebody at the other end of the card's wire, and how fast that is.
    fn set_link(&self, link: Link) -> Result<(), Error>;
    /// Sets the interface's MTU back to one that the card takes.
    fn set_mtu(&self, mtu: u32) -> io::Result<()>;
    /// Readable when the wishes may be others.
    fn changes(&self) -> BorrowedFd<'_>;
    /// Forgets that they may be.
    fn hear(&self);
    /// How often they are asked for though nobody has said that they are others.
    fn period(&self) -> Option<Duration>;
}

/// The kernel is asked.
pub struct Rtnetlink {
    interface: Arc<Interface>,
    netlink: Netlink,
    changes: Changes,
}

impl Rtnetlink {
    /// Of an interface in the network namespace of the calling thread.
    pub fn new(interface: Arc<Interface>, netlink: Netlink) -> io::Result<Self> {
        Ok(Self { interface, netlink, changes: Changes::new()? })
    }
}

impl ControlPlane for Rtnetlink {
    fn wishes(&self) -> Result<Wishes, Error> {
        self.netlink.wishes(self.interface.index()).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => Error::Deleted(self.interface.name().into()),
            _ => Error::os(format!("{}: asking the kernel for its state", self.interface.name()), error),
        })
    }

    fn set_link(&self, link: Link) -> Result<(), Error> {
        // Who is told of a carrier may ask for its speed at once.
        self.interface.set_speed(&link);
        self.interface.set_carrier(link.up)
    }

    fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.netlink.set_mtu(self.interface.index(), mtu)
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    fn hear(&self) {
        self.changes.hear();
    }

    fn period(&self) -> Option<Duration> {
        Some(LOOK)
    }
}

/// Whoever holds the interface is asked, by another thread of this process. Its copies are the same one.
#[derive(Clone)]
pub struct Relay(Arc<Inner>);

struct Inner {
    wishes: Mutex<Wishes>,
    changed: OwnedFd,
    /// What the holder has not been told yet.
    link: Mutex<Option<Link>>,
    linked: OwnedFd,
}

impl Relay {
    /// With what is wanted now.
    pub fn new(wishes: Wishes) -> io::Result<Self> {
        let (changed, linked) = (event()?, event()?);
        Ok(Self(Arc::new(Inner { wishes: Mutex::new(wishes), changed, link: Mutex::new(None), linked })))
    }

    /// That is wanted from now on.
    pub fn wish(&self, wishes: Wishes) {
        *lock(&self.0.wishes) = wishes;
        ring(&self.0.changed);
    }

    /// Readable when the holder is to be told of the card's link.
    pub fn linked(&self) -> BorrowedFd<'_> {
        self.0.linked.as_fd()
    }

    /// How the link is, if that has not been said yet.
    pub fn take_link(&self) -> Option<Link> {
        let _ = rustix::io::read(&self.0.linked, &mut [0; 8]);
        lock(&self.0.link).take()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ControlPlane for Relay {
    fn wishes(&self) -> Result<Wishes, Error> {
        Ok(lock(&self.0.wishes).clone())
    }

    fn set_link(&self, link: Link) -> Result<(), Error> {
        *lock(&self.0.link) = Some(link);
        ring(&self.0.linked);
        Ok(())
    }

    fn set_mtu(&self, _: u32) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "whoever holds the interface sets it"))
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.0.changed.as_fd()
    }

    fn hear(&self) {
        let _ = rustix::io::read(&self.0.changed, &mut [0; 8]);
    }

    fn period(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn a_wish_is_heard_once_and_stays_wanted() {
        let relay = Relay::new(Wishes::default()).unwrap();
        assert!(!is_readable(relay.changes()));
        relay.clone().wish(Wishes { mtu: 9000, ..Wishes::default() });
        assert!(is_readable(relay.changes()));
        relay.hear();
        assert!(!is_readable(relay.changes()) && relay.wishes().unwrap().mtu == 9000);
    }

    #[test]
    fn of_a_link_that_flaps_the_last_state_is_told_once() {
        let relay = Relay::new(Wishes::default()).unwrap();
        let link = |up| Link { up, ..Link::default() };
        [true, false, true].into_iter().for_each(|up| relay.set_link(link(up)).unwrap());
        assert!(is_readable(relay.linked()));
        assert_eq!((relay.take_link(), relay.take_link()), (Some(link(true)), None));
        assert!(!is_readable(relay.linked()));
    }
}
