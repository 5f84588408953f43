//! The ways of what is not packets between a card and the kernel: what users want of the interface
//! comes down, the card's link goes up.
//!
//! # Shape
//! A process that may ask the kernel does ([`Rtnetlink`]). A driver's process in its sandbox may
//! not: whoever holds the interface asks for it, and a [`Relay`] is where the two threads of that
//! process meet, the one that hears its supervisor and the one that serves the card.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring3_class::net::Link;
use rustix::event::epoll;

use super::eventfd::{event, ring};
use super::netlink::RequestedSettings;
use super::{Error, Interface, NamespaceSockets};

/// Of what no kernel tells (addresses that a program joins by a packet socket, and before Linux
/// 6.14 all groups) is asked this often.
pub const LOOK: Duration = Duration::from_secs(2);

/// What the thread that serves a card needs beside packets.
pub trait ControlPlane: Send {
    /// What is wanted of the interface.
    fn requested_settings(&self) -> Result<RequestedSettings, Error>;
    /// Whether there is somebody at the other end of the card's wire, and how fast that is.
    fn set_link(&self, link: Link) -> Result<(), Error>;
    /// Sets the interface's MTU back to one that the card takes.
    fn set_mtu(&self, mtu: u32) -> io::Result<()>;
    /// Readable when the requested may be others.
    fn changes(&self) -> BorrowedFd<'_>;
    /// Forgets that they may be.
    fn acknowledge(&self);
    /// How often they are asked for though nobody has said that they are others.
    fn period(&self) -> Option<Duration>;
}

/// The kernel is asked, where the interface is.
pub struct Rtnetlink {
    interface: Arc<Interface>,
    /// `None` while it is where this process cannot follow.
    place: RefCell<Option<NamespaceSockets>>,
    /// Readable when a socket of the place is. The place may change, and who waits has this one
    /// descriptor.
    changes: OwnedFd,
    /// What was wanted last.
    last: RefCell<RequestedSettings>,
}

impl Rtnetlink {
    /// Of an interface that was just made, or found.
    pub fn new(interface: Arc<Interface>, place: NamespaceSockets) -> io::Result<Self> {
        let changes = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&changes, &place)?;
        Ok(Self { interface, place: RefCell::new(Some(place)), changes, last: RefCell::default() })
    }

    /// Goes to where the interface is now. What it was called before is what it is called in the
    /// log.
    fn follow(&self) -> Result<RequestedSettings, Error> {
        let followed = NamespaceSockets::of(&self.interface).and_then(|place| {
            let failed = |error| {
                Error::os(format!("{}: watching it in its network namespace", place.name), error)
            };
            let requested = place.netlink.requested_settings(place.index).map_err(failed)?;
            watch(&self.changes, &place).map_err(failed)?;
            Ok((requested, place))
        });
        match followed {
            Ok((requested, place)) => {
                tracing::info!(
                    "{} is {} in another network namespace, and is followed",
                    self.interface.name(),
                    place.name
                );
                *self.place.borrow_mut() = Some(place);
                Ok(requested)
            }
            Err(Error::Deleted(name)) => Err(Error::Deleted(name)),
            Err(error) => {
                // It is served on; it is looked for again each time.
                if self.place.take().is_some() {
                    tracing::warn!(
                        "{error}; what its users change there does not reach its driver"
                    );
                }
                Ok(self.last.borrow().clone())
            }
        }
    }
}

/// Has `changes` be readable when something has changed at `place`. The sockets of a place before
/// it are closed.
fn watch(changes: &OwnedFd, place: &NamespaceSockets) -> io::Result<()> {
    Ok(epoll::add(changes, &place.changes, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

impl ControlPlane for Rtnetlink {
    fn requested_settings(&self) -> Result<RequestedSettings, Error> {
        let asked =
            self.place.borrow().as_ref().map(|place| place.netlink.requested_settings(place.index));
        let requested = match asked {
            Some(Err(error)) if error.raw_os_error() != Some(libc::ENODEV) => {
                return Err(Error::os(
                    format!("{}: asking the kernel for its state", self.interface.name()),
                    error,
                ));
            }
            Some(Ok(requested)) => requested,
            // Deleted, or moved.
            _ => self.follow()?,
        };
        self.last.borrow_mut().clone_from(&requested);
        Ok(requested)
    }

    fn set_link(&self, link: Link) -> Result<(), Error> {
        // Who is told of a carrier may ask for its speed at once.
        self.interface.set_speed(&link);
        self.interface.set_carrier(link.up)
    }

    fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let place = self.place.borrow();
        let place = place.as_ref().ok_or(io::ErrorKind::NotFound)?;
        place.netlink.set_mtu(place.index, mtu)
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    fn acknowledge(&self) {
        self.place.borrow().iter().for_each(|place| place.changes.drain());
    }

    fn period(&self) -> Option<Duration> {
        Some(LOOK)
    }
}

/// Whoever holds the interface is asked, by another thread of this process. Its copies are the same
/// one.
#[derive(Clone)]
pub struct Relay(Arc<Inner>);

struct Inner {
    requested: Mutex<RequestedSettings>,
    changed: OwnedFd,
    /// What the holder has not been told yet.
    link: Mutex<Option<Link>>,
    linked: OwnedFd,
}

impl Relay {
    /// With what is wanted now.
    pub fn new(requested: RequestedSettings) -> io::Result<Self> {
        let (changed, linked) = (event()?, event()?);
        Ok(Self(Arc::new(Inner {
            requested: Mutex::new(requested),
            changed,
            link: Mutex::new(None),
            linked,
        })))
    }

    /// That is wanted from now on.
    pub fn apply_settings(&self, requested: RequestedSettings) {
        *lock(&self.0.requested) = requested;
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
    fn requested_settings(&self) -> Result<RequestedSettings, Error> {
        Ok(lock(&self.0.requested).clone())
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

    fn acknowledge(&self) {
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
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default()))
            .unwrap()
            > 0
    }

    #[test]
    fn a_change_of_settings_is_announced_once_and_stays_wanted() {
        let relay = Relay::new(RequestedSettings::default()).unwrap();
        assert!(!is_readable(relay.changes()));
        relay
            .clone()
            .apply_settings(RequestedSettings { mtu: 9000, ..RequestedSettings::default() });
        assert!(is_readable(relay.changes()));
        relay.acknowledge();
        assert!(!is_readable(relay.changes()) && relay.requested_settings().unwrap().mtu == 9000);
    }

    #[test]
    fn of_a_link_that_flaps_the_last_state_is_told_once() {
        let relay = Relay::new(RequestedSettings::default()).unwrap();
        let link = |up| Link { up, ..Link::default() };
        [true, false, true].into_iter().for_each(|up| relay.set_link(link(up)).unwrap());
        assert!(is_readable(relay.linked()));
        assert_eq!((relay.take_link(), relay.take_link()), (Some(link(true)), None));
        assert!(!is_readable(relay.linked()));
    }
}
