//! The qtest socket: a line for each access, replies in order, and lines about interrupt pins in
//! between.
//!
//! # Ordering
//! QEMU executes lines in the order in which they were sent. A write is posted: its `OK` is
//! collected later, at the latest by the next read, so a doorbell costs one `send` and no wait.
//!
//! # Waiting
//! Nothing waits longer than the wire's limit. After that, after an end of file and after nonsense
//! the wire is gone for good, and every further access fails at once.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_device::{Deadline, Error};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send};

use super::inbox::{Inbox, Line};
use super::intx::Pin;

/// How long a reply is awaited without sleeping: most come within 10 microseconds, a sleep and its
/// wake-up cost 40.
const SPIN: Duration = Duration::from_micros(30);
/// Replies that may be owed before they are collected. The socket's buffer holds about 270 of them.
const OWED_LIMIT: usize = 128;

/// One connection to a QEMU.
pub(super) struct Wire {
    socket: OwnedFd,
    limit: Duration,
    gone: AtomicBool,
    inbox: Mutex<Inbox>,
    pins: Mutex<Option<Arc<Vec<Pin>>>>,
}

impl Wire {
    /// Speaks over `socket`, a connected stream. Who does not answer for `limit` is gone.
    pub(super) fn new(socket: OwnedFd, limit: Duration) -> Self {
        let inbox = Mutex::new(Inbox::new());
        Self { socket, limit, gone: AtomicBool::new(false), inbox, pins: Mutex::new(None) }
    }

    /// Sends a line that only changes something, and does not wait.
    pub(super) fn post(&self, line: std::fmt::Arguments<'_>) {
        let mut inbox = self.inbox();
        if self.send(line).is_err() {
            return;
        }
        self.owe(&mut inbox, 1);
    }

    /// Sends `count` lines that only change something, and does not wait.
    pub(super) fn post_text(&self, lines: &str, count: usize) {
        let mut inbox = self.inbox();
        if self.send_text(lines.as_bytes()).is_ok() {
            self.owe(&mut inbox, count);
        }
    }

    fn owe(&self, inbox: &mut Inbox, replies: usize) {
        inbox.owed += replies;
        // Down to half, so that the waits are few and long instead of one for each write.
        if inbox.owed >= OWED_LIMIT {
            let _ = self.collect(inbox, OWED_LIMIT / 2, Deadline::after(self.limit));
        }
    }

    /// Sends a line and waits for its reply: a number, or zero for a bare `OK`.
    pub(super) fn ask(&self, line: std::fmt::Arguments<'_>) -> Result<u64, Error> {
        let mut inbox = self.inbox();
        self.send(line)?;
        let deadline = Deadline::after(self.limit);
        self.collect(&mut inbox, 0, deadline)?;
        self.reply(&mut inbox, deadline)
    }

    /// Takes what has arrived, without waiting: replies that are owed and interrupt lines.
    pub(super) fn pump(&self) {
        let mut inbox = self.inbox();
        let _ = self.collect(&mut inbox, usize::MAX, Deadline::after(self.limit));
    }

    /// Whose levels the lines about pins set from now on, each by its number.
    pub(super) fn watch(&self, pins: Option<Arc<Vec<Pin>>>) {
        *self.pins.lock().unwrap_or_else(PoisonError::into_inner) = pins;
    }

    /// Whether QEMU has died or stopped to answer.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Gives the connection up; whoever waits on it or on a pin wakes.
    pub(super) fn close(&self) {
        self.gone.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        if let Some(pins) = self.pins.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            pins.iter().for_each(Pin::wake);
        }
    }

    /// Who does not answer for this long is gone.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // The count of owed replies is changed in one statement each, so a poisoned lock is still
        // good.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one line. Holding the inbox keeps lines of several threads apart and their replies in
    /// order.
    fn send(&self, line: std::fmt::Arguments<'_>) -> Result<(), Error> {
        let mut buffer = [0; 128];
        let mut free = &mut buffer[..];
        if writeln!(free, "{line}").is_err() {
            return Err(Error::Invalid(format!("a qtest line of more than 128 bytes: {line}")));
        }
        let unused = free.len();
        self.send_text(&buffer[..buffer.len() - unused])
    }

    /// Sends whole lines, for which the caller holds the inbox.
    pub(super) fn send_text(&self, lines: &[u8]) -> Result<(), Error> {
        let mut rest = lines;
        if self.is_gone() {
            return Err(Error::Gone);
        }
        let deadline = Deadline::after(self.limit);
        while !rest.is_empty() {
            match send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN | Errno::INTR) => self.ready(PollFlags::OUT, deadline)?,
                Err(_) => return Err(self.lost("the connection is closed")),
            }
        }
        Ok(())
    }

    /// Reads owed replies until at most `keep` are owed, and beyond that as many as have arrived
    /// already.
    pub(super) fn collect(
        &self,
        inbox: &mut Inbox,
        keep: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        while inbox.owed > 0 || keep > 0 {
            let Some(line) = inbox.line() else {
                if self.receive(inbox, inbox.owed > keep, deadline)? {
                    continue;
                }
                break;
            };
            if let Some(reply) = self.reply_in(line) {
                inbox.owed = inbox.owed.saturating_sub(1);
                if let Err(error) = reply {
                    tracing::warn!("a write was refused: {error}");
                }
            }
        }
        Ok(())
    }

    /// Reads the one reply that is due.
    pub(super) fn reply(&self, inbox: &mut Inbox, deadline: Deadline) -> Result<u64, Error> {
        loop {
            while let Some(line) = inbox.line() {
                if let Some(reply) = self.reply_in(line) {
                    return reply;
                }
            }
            self.receive(inbox, true, deadline)?;
        }
    }

    /// Receives something, and waits for it if `wait`. False: nothing is there.
    fn receive(&self, inbox: &mut Inbox, wait: bool, deadline: Deadline) -> Result<bool, Error> {
        let spin_until = Instant::now() + SPIN;
        let mut bytes = [0; 1024];
        loop {
            match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(self.lost("the connection ended")),
                Ok((n, _)) => {
                    return if inbox.add(&bytes[..n]) {
                        Ok(true)
                    } else {
                        Err(self.lost("a line without an end"))
                    };
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !wait => return Ok(false),
                Err(Errno::AGAIN) if Instant::now() < spin_until => std::hint::spin_loop(),
                Err(Errno::AGAIN) => self.ready(PollFlags::IN, deadline)?,
                Err(_) => return Err(self.lost("the connection is closed")),
            }
        }
    }

    /// Sleeps until the socket is ready; the connection is lost at the deadline.
    fn ready(&self, flags: PollFlags, deadline: Deadline) -> Result<(), Error> {
        let timeout = rustix::event::Timespec::try_from(deadline.remaining()).ok();
        match poll(&mut [PollFd::new(&self.socket, flags)], timeout.as_ref()) {
            Ok(0) => Err(self.lost("no reply in time")),
            Ok(_) | Err(Errno::INTR) if !deadline.expired() => Ok(()),
            Ok(_) | Err(Errno::INTR) => Err(self.lost("no reply in time")),
            Err(error) => Err(Error::os("waiting for QEMU", error)),
        }
    }

    /// The reply, if the line is one; a line about a pin sets its level here.
    fn reply_in(&self, line: Line) -> Option<Result<u64, Error>> {
        match line {
            Line::Reply(reply) => Some(reply),
            Line::Pin { number, level } => {
                let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(pin) =
                    pins.iter().flat_map(|pins| pins.iter()).find(|pin| pin.number() == number)
                {
                    pin.set_level(level);
                }
                None
            }
        }
    }

    #[cold]
    fn lost(&self, why: &str) -> Error {
        if !self.is_gone() {
            tracing::debug!("QEMU is gone: {why}");
        }
        self.close();
        Error::Gone
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Wire, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Wire::new(ours.into(), Duration::from_millis(200)), theirs)
    }

    #[test]
    fn a_posted_write_does_not_wait_and_its_reply_is_not_taken_for_the_next_one() {
        let (wire, mut qemu) = pair();
        wire.post(format_args!("writel 0x10 0x1"));
        qemu.write_all(b"OK\nOK 0x0000000000000007\n").unwrap();
        assert_eq!(wire.ask(format_args!("readl 0x10")).unwrap(), 7);
        let mut sent = [0; 64];
        let n = qemu.read(&mut sent).unwrap();
        assert_eq!(&sent[..n], b"writel 0x10 0x1\nreadl 0x10\n");
    }

    #[test]
    fn a_line_about_a_pin_between_replies_is_not_a_reply() {
        let (wire, mut qemu) = pair();
        qemu.write_all(b"IRQ raise 20\nOK 0x5\nIRQ lower 20\n").unwrap();
        assert_eq!(wire.ask(format_args!("readl 0x10")).unwrap(), 5);
    }

    #[test]
    fn a_connection_that_ends_is_gone_for_good() {
        let (wire, qemu) = pair();
        drop(qemu);
        assert!(matches!(wire.ask(format_args!("readl 0x10")), Err(Error::Gone)));
        assert!(wire.is_gone());
        wire.post(format_args!("writel 0x10 0x1"));
    }

    #[test]
    fn a_reply_that_does_not_come_is_a_device_that_is_gone() {
        let (wire, _qemu) = pair();
        let start = Instant::now();
        assert!(matches!(wire.ask(format_args!("readl 0x10")), Err(Error::Gone)));
        assert!(start.elapsed() >= Duration::from_millis(200));
        assert!(wire.is_gone());
    }

    #[test]
    fn writes_that_nobody_acknowledges_are_a_device_that_is_gone() {
        let (wire, _qemu) = pair();
        for _ in 0..OWED_LIMIT + 1 {
            wire.post(format_args!("writel 0x10 0x1"));
        }
        assert!(wire.is_gone());
    }

    #[test]
    fn a_refusal_is_an_error_with_its_words_and_the_wire_lives() {
        let (wire, mut qemu) = pair();
        qemu.write_all(b"FAIL Unknown command\nOK\n").unwrap();
        let error = wire.ask(format_args!("nonsense")).unwrap_err();
        assert!(error.to_string().contains("Unknown command"), "{error}");
        assert_eq!(wire.ask(format_args!("outl 0x0 0x0")).unwrap(), 0);
    }

    #[test]
    fn a_line_without_an_end_is_the_end_of_the_connection() {
        let (wire, mut qemu) = pair();
        qemu.write_all(&[b'x'; 8192]).unwrap();
        assert!(matches!(wire.ask(format_args!("readl 0x10")), Err(Error::Gone)));
    }

    #[test]
    fn posted_writes_beyond_the_limit_collect_their_replies() {
        let (wire, mut qemu) = pair();
        let mut line = [0; 16];
        for _ in 0..OWED_LIMIT * 4 {
            qemu.write_all(b"OK\n").unwrap();
            wire.post(format_args!("writel 0x10 0x1"));
            // A socket that nobody empties would fill up long before.
            qemu.read_exact(&mut line).unwrap();
        }
        assert!(!wire.is_gone());
        assert!(wire.inbox().owed <= OWED_LIMIT);
    }
}
