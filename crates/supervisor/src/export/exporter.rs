//! The thread in which an export waits for the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use ring3_control::drive::{DiskFacts, Serve};
use rustix::event::{EventfdFlags, eventfd};

use super::{Export, Look, Refusal, Vain};

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    /// [`Export::create`].
    Create(Vec<DiskFacts>),
    /// [`Export::recover`].
    Recover,
    /// [`Export::serve`].
    Serve(Vec<DiskFacts>),
    /// [`Export::start`].
    Start,
    /// [`Export::quiesce`].
    Quiesce,
    /// [`Export::stop`].
    Stop {
        /// Whoever uses it.
        force: bool,
    },
}

/// What became of it.
pub enum Done {
    /// Created, or recovered.
    Prepared(Result<(), String>),
    /// What goes to the driver.
    Served(Result<Vec<(Serve, OwnedFd)>, String>),
    /// Users have it.
    Started(Result<Arc<dyn Look>, String>),
    /// The driver has heard it.
    Quiesced(Result<(), String>),
    /// Users have it no more.
    Stopped(Result<(), Refusal>),
}

/// An export and its thread, which ends with it.
pub struct Exporter {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    raised: Arc<OwnedFd>,
    /// Ends what is under way.
    pub vain: Vain,
}

impl Exporter {
    /// Starts the thread of `export`, called `name`.
    pub fn start(name: &str, export: Box<dyn Export>) -> io::Result<Self> {
        let (jobs, orders) = channel();
        let (tell, done) = channel();
        let raised = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (vain, raise) = (Vain::default(), raised.clone());
        let its = vain.clone();
        let work = move || {
            work(export, &orders, &its, &|done| {
                // Its keeper has gone if nobody hears it.
                let _ = tell.send(done);
                let _ = rustix::io::write(&*raise, &1u64.to_ne_bytes());
            })
        };
        thread::Builder::new().name(format!("export-{name}")).spawn(work)?;
        Ok(Self { jobs, done, raised, vain })
    }

    /// Has `job` done after those before.
    pub fn order(&self, job: Job) {
        // The thread ends with this value alone.
        let _ = self.jobs.send(job);
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

fn work(mut export: Box<dyn Export>, jobs: &Receiver<Job>, vain: &Vain, tell: &dyn Fn(Done)) {
    for job in jobs {
        tell(match job {
            Job::Create(disks) => Done::Prepared(export.create(&disks, vain)),
            Job::Recover => Done::Prepared(export.recover(vain)),
            Job::Serve(disks) => Done::Served(export.serve(&disks)),
            Job::Start => Done::Started(export.start()),
            Job::Quiesce => Done::Quiesced(export.quiesce()),
            Job::Stop { force } => Done::Stopped(export.stop(force)),
        });
    }
}
