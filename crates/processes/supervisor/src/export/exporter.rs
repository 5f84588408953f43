//! The thread in which an export waits for the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use ring3_class::net::Link;
use ring3_control::drive::{DriverCommand, Offered};
use rustix::event::{EventfdFlags, eventfd};

use super::{CancelFlags, Export, Refusal, ServeRequest, StatusSource};

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    /// [`Export::create`].
    Create(Offered),
    /// [`Export::recover`].
    Recover,
    /// [`Export::serve`].
    Serve(Offered),
    /// [`Export::start`].
    Start,
    /// [`Export::handle_link`].
    Link {
        /// The card's place.
        nic: u16,
        /// How it is.
        link: Link,
    },
    /// [`Export::handle_shared`].
    Shared {
        /// The device reaches clients' memory by itself.
        mapped: bool,
        /// Of a card: the addresses of all clients' places.
        addresses: Vec<[u8; 6]>,
    },
    /// [`Export::handle_registration`].
    Heard {
        /// The order's number.
        number: u64,
        /// Why it was not done.
        refused: Option<String>,
    },
    /// [`Export::go_on`].
    GoOn,
    /// [`Export::hold_clients`].
    HoldClients,
    /// [`Export::stop`].
    Stop {
        /// Whoever uses it.
        force: bool,
    },
}

/// What became of it.
pub enum Done {
    /// Created, or recovered.
    Prepared(Result<(), Refusal>),
    /// What goes to the driver.
    Served(Result<Vec<ServeRequest>, String>),
    /// Users have it.
    Started(Result<Arc<dyn StatusSource>, String>),
    /// Nothing is done for clients any more: the driver may be told to leave.
    Held,
    /// Users have it no more.
    Stopped(Result<(), Refusal>),
    /// Nothing that was asked: the driver is to be told that, with descriptors beside it, if it
    /// serves.
    Order(DriverCommand, Vec<OwnedFd>),
    /// Nothing that was asked: what another supervisor needs has changed.
    Keep,
}

/// By which an export says something to its keeper.
#[derive(Clone)]
pub struct EventSender {
    tell: Sender<Done>,
    raised: Option<Arc<OwnedFd>>,
    kept: RetainedFds,
    vain: CancelFlags,
}

/// What is kept open until nothing of a dead driver goes on.
type RetainedFds = Arc<Mutex<Vec<OwnedFd>>>;

impl EventSender {
    /// Its events go nowhere.
    pub fn silent() -> Self {
        Self {
            tell: channel().0,
            raised: None,
            kept: RetainedFds::default(),
            vain: CancelFlags::default(),
        }
    }

    /// Keeps `file`, which a driver has, open until the device is fenced, if the driver dies: the
    /// kernel ends nothing of it before.
    pub fn keep_open(&self, file: OwnedFd) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }

    /// Whether the driver is known to be dead.
    pub fn is_dead(&self) -> bool {
        self.vain.dead.load(Ordering::Acquire)
    }

    /// Closes the descriptors that were kept open; they are not needed any more.
    pub fn close_retained(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Sends it to the keeper. A keeper that has ended does not receive it.
    pub fn say(&self, done: Done) {
        let _ = self.tell.send(done);
        if let Some(raised) = &self.raised {
            let _ = rustix::io::write(raised, &1u64.to_ne_bytes());
        }
    }
}

/// An export and its thread, which ends with it.
pub struct Exporter {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    raised: Arc<OwnedFd>,
    kept: RetainedFds,
    /// Ends what is under way.
    pub vain: CancelFlags,
}

impl Exporter {
    /// Starts the thread of `export`, called `name`.
    pub fn start(name: &str, mut export: Box<dyn Export>) -> io::Result<Self> {
        let (jobs, orders) = channel();
        let (tell, done) = channel();
        let raised = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let kept = RetainedFds::default();
        let vain = CancelFlags::default();
        let voice = EventSender {
            tell,
            raised: Some(raised.clone()),
            kept: kept.clone(),
            vain: vain.clone(),
        };
        let its = vain.clone();
        let work = move || {
            export.speak(voice.clone());
            work(export, &orders, &its, &voice);
        };
        thread::Builder::new().name(format!("export-{name}")).spawn(work)?;
        Ok(Self { jobs, done, raised, kept, vain })
    }

    /// Has `job` done after those before.
    pub fn order(&self, job: Job) {
        // The thread ends with this value alone.
        let _ = self.jobs.send(job);
    }

    /// Closes what was kept open of the last driver, so that the kernel sees the driver's death.
    pub fn close_retained(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What has been done.
    pub fn next(&self) -> Option<Done> {
        let _ = rustix::io::read(&*self.raised, &mut [0; 8]);
        self.done.try_recv().ok()
    }
}

impl AsFd for Exporter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raised.as_fd()
    }
}

fn work(
    mut export: Box<dyn Export>,
    jobs: &Receiver<Job>,
    vain: &CancelFlags,
    voice: &EventSender,
) {
    for job in jobs {
        voice.say(match job {
            Job::Create(offered) => Done::Prepared(export.create(&offered, vain)),
            Job::Recover => Done::Prepared(export.recover(vain).map_err(Refusal::Failed)),
            Job::Serve(offered) => Done::Served(export.serve(&offered)),
            Job::Link { nic, link } => {
                export.handle_link(nic, &link);
                continue;
            }
            Job::Shared { mapped, addresses } => {
                export.handle_shared(mapped, addresses);
                continue;
            }
            Job::Heard { number, refused } => {
                export.handle_registration(number, refused);
                continue;
            }
            Job::GoOn => {
                export.go_on();
                continue;
            }
            Job::HoldClients => {
                export.hold_clients();
                Done::Held
            }
            Job::Start => Done::Started(export.start()),
            Job::Stop { force } => Done::Stopped(export.stop(force)),
        });
    }
}
