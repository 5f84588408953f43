//! Control-C: a program that is told to end leaves nothing behind.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use ring3_process::{Signals, log};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

/// Exit code of a program that a signal ended, as shells have it: 128 and SIGINT.
pub const INTERRUPTED: i32 = 130;

/// From now on SIGINT, SIGTERM and SIGHUP end this process with nothing left behind: no guest, no
/// disk in shared memory, no folder.
pub fn nothing_behind() -> Result<()> {
    let ended = || {
        ring3_lab::abandon();
        end();
    };
    ctrlc::set_handler(ended).context("taking signals")
}

fn end() -> ! {
    errln!("\nring3: interrupted; nothing is left behind");
    log::flush(log::LAST_LINES);
    std::process::exit(INTERRUPTED);
}

type Drops = Vec<Box<dyn Fn() + Send>>;

/// What is dropped when the program is told to end, the newest first.
static KEPT: Mutex<Drops> = Mutex::new(Vec::new());

fn kept() -> std::sync::MutexGuard<'static, Drops> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What must not outlive the program: it is dropped with this, or when a [`Watch`] ends the
/// program.
pub struct Kept<T>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> Kept<T> {
    /// Keeps it.
    pub fn new(value: T) -> Self {
        let shared = Arc::new(Mutex::new(Some(value)));
        let other = shared.clone();
        kept().push(Box::new(move || drop(take(&other))));
        Self(shared)
    }
}

impl<T> Kept<T> {
    /// Does something with it; `None` if the program is ending.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(work)
    }
}

/// What [`Kept::with`] has given. If the program is ending, this thread waits for that, and does
/// nothing more.
pub fn or_end<T>(given: Option<T>) -> T {
    given.unwrap_or_else(|| {
        loop {
            std::thread::park();
        }
    })
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        drop(take(&self.0));
    }
}

fn take<T>(shared: &Mutex<Option<T>>) -> Option<T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// While this lives, SIGINT, SIGTERM and SIGHUP drop what is [`Kept`] and end the program. They
/// stay held back when it is dropped: whoever takes them then has those that have come since.
pub struct Watch {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Takes the signals, for this thread and those that it starts from now on.
    pub fn start() -> Result<Self> {
        let signals = Signals::take().context("taking signals")?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("creating an eventfd")?;
        let stopped = stop.try_clone().context("duplicating an eventfd")?;
        let thread = std::thread::Builder::new()
            .name("ring3-signals".into())
            .spawn(move || watch(&signals, &stopped));
        Ok(Self { stop, thread: Some(thread.context("starting a thread")?) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn watch(signals: &Signals, stopped: &OwnedFd) {
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        let pending = signals.take_pending();
        if pending.stop || pending.hang_up {
            // Nobody else ends the program before this is done.
            let kept = kept();
            kept.iter().rev().for_each(|drop| drop());
            end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_goes_with_its_keeper_and_is_gone_for_who_asks_when_the_program_ends() {
        let told = Arc::new(());
        let keeper = Kept::new(told.clone());
        assert_eq!(keeper.with(|_| 1), Some(1));
        drop(take(&keeper.0));
        assert!(keeper.with(|_| 1).is_none());
        drop(Kept::new(told.clone()));
        assert_eq!(Arc::strong_count(&told), 1);
    }
}
