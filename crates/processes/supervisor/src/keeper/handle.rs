//! A keeper as others have it, and what it is asked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ring3_control::admin::Reply;
use rustix::event::{EventfdFlags, eventfd};

use super::PublishedState;
use crate::policy::Sleep;

/// Hears what became of what a user has asked for.
pub type Answer = Box<dyn FnOnce(Reply) + Send>;

/// What a keeper is asked.
pub enum KeeperCommand {
    /// Another process, or another try.
    Restart(Answer),
    /// Stopped, the claim kept.
    Stop {
        /// Whoever uses it.
        force: bool,
        /// Hears of it.
        answer: Answer,
    },
    /// Another program; what lies at the old one's path now, if `None`.
    Upgrade {
        /// Where it is.
        program: Option<PathBuf>,
        /// Hears of it.
        answer: Answer,
    },
    /// A device may have appeared or disappeared: the keeper checks its own.
    Rescan,
    /// The stop that is under way is forced: a driver that has not ended yet is killed.
    ForceStop,
    /// The machine is about to sleep.
    Sleep {
        /// What becomes of the driver.
        sleep: Sleep,
        /// Hears when the machine may.
        answer: Answer,
    },
    /// The machine is awake.
    Wake,
    /// The end of this ring3d, and not of the device: the next one adopts it.
    Leave,
    /// The end: it is stopped and given back, unless somebody uses it and not `force`.
    End {
        /// Whoever uses it.
        force: bool,
        /// Hears of it; the keeper is gone after [`Reply::Done`].
        answer: Answer,
    },
}

/// A keeper, as others have it.
pub struct Handle {
    /// What its user calls the device.
    pub name: String,
    /// What is known of it.
    pub shared: Arc<PublishedState>,
    asks: Sender<KeeperCommand>,
    raised: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// A thread that keeps `name` by what is made of what it is asked.
    pub(crate) fn start<K: Send + 'static>(
        name: &str,
        shared: Arc<PublishedState>,
        make: impl FnOnce(KeeperRequest) -> io::Result<K>,
        live: impl FnOnce(K) + Send + 'static,
    ) -> io::Result<Self> {
        let (asks, inbox) = channel();
        let raised = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let keeper = make(KeeperRequest { inbox, raised: raised.clone() })?;
        let thread =
            std::thread::Builder::new().name(format!("keep-{name}")).spawn(move || live(keeper))?;
        Ok(Self { name: name.to_owned(), shared, asks, raised, thread })
    }

    /// Asks it for something. A keeper that has ended does not answer.
    pub fn ask(&self, ask: KeeperCommand) {
        let _ = self.asks.send(ask);
        let _ = rustix::io::write(&*self.raised, &1u64.to_ne_bytes());
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// What a keeper is asked, as its thread has it.
pub(crate) struct KeeperRequest {
    inbox: Receiver<KeeperCommand>,
    raised: Arc<OwnedFd>,
}

impl KeeperRequest {
    /// What it was asked since the last call.
    pub(crate) fn take(&self) -> Vec<KeeperCommand> {
        let _ = rustix::io::read(&*self.raised, &mut [0; 8]);
        self.inbox.try_iter().collect()
    }
}

impl AsFd for KeeperRequest {
    /// Readable when there is something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raised.as_fd()
    }
}
