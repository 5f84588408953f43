//! Waiting for a message-signalled interrupt with one system call.
//!
//! A message is edge-triggered: nothing has to be acknowledged, and the count of an eventfd can
//! grow unread. An epoll that watches the eventfd for edges ends a sleep once for all signals since
//! the last one, whatever the count is.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use super::{Counter, Irq, IrqKind};
use crate::Error;

/// Watches one message.
pub(crate) struct Edges {
    epoll: OwnedFd,
}

impl Edges {
    /// `None` for a pin, which must be read and opened again after each time, and where the kernel
    /// has no room for the watch.
    pub(crate) fn of(irq: &Irq) -> Option<Self> {
        if irq.kind() == IrqKind::Intx || !matches!(irq.counter, Counter::Eventfd) {
            return None;
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, irq.as_fd(), epoll::EventData::new_u64(0), flags).ok()?;
        Some(Self { epoll })
    }

    /// Sleeps until `irq` is signalled, a storm's pause is over, or `left` has passed; true if it
    /// was signalled since the last sleep.
    pub(crate) fn sleep(&self, irq: &Irq, left: Duration) -> Result<bool, Error> {
        let mut room = [MaybeUninit::<epoll::Event>::uninit()];
        let fired = match epoll::wait(&self.epoll, &mut room[..], irq.patience(left).as_ref()) {
            Ok((events, _)) => !events.is_empty(),
            Err(Errno::INTR) => false,
            Err(error) => return Err(Error::os("waiting for an interrupt", error)),
        };
        irq.rearm()?;
        Ok(fired)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn message() -> (Irq, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let device = fd.try_clone().unwrap();
        (Irq::new(fd, IrqKind::Msi, 0, None), device)
    }

    fn raise(device: &OwnedFd) {
        rustix::io::write(device, &1u64.to_ne_bytes()).unwrap();
    }

    #[test]
    fn each_message_ends_one_sleep_though_nobody_reads_the_count() {
        let (irq, device) = message();
        let edges = Edges::of(&irq).unwrap();
        for _ in 0..3 {
            raise(&device);
            assert!(edges.sleep(&irq, Duration::from_secs(10)).unwrap());
            assert!(!edges.sleep(&irq, Duration::from_millis(2)).unwrap());
        }
        assert_eq!(irq.take().unwrap(), 3);
    }

    #[test]
    fn a_pin_is_not_watched_for_edges() {
        let (_, fd) = message();
        assert!(Edges::of(&Irq::new(fd, IrqKind::Intx, 0, None)).is_none());
    }
}
