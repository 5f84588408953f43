//! One device: what the policy decides is done here, and what happens is told to it.
//!
//! # Shape
//! A `Keeper` is a thread that sleeps until something happens: a process ends, reports or writes,
//! the kernel's half is ready, a user asks, time is over. `act` does what the policy wants,
//! `events` judges what drivers say, `outage` keeps the times. It is generic over what the disks
//! become ([`Export`]).
//!
//! # Order
//! Of what is to be done at the same time, that which waits comes last: the kernel is asked to see
//! a driver's death while its device is fenced.
//!
//! # Trust
//! A driver's process is the enemy: its messages are checked, its words are bounded and cut, its
//! shared memory means nothing but that it lives. If it breaks the protocol it is ended, and the
//! log names what it did.

mod act;
mod device;
mod events;
mod handle;
mod outage;
mod shared;
mod sleep;
mod survive;
mod voice;

use std::collections::{BTreeSet, VecDeque};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_control::drive::{Offered, OfferedDisk};
use ring3_sandbox::Program;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::export::{Export, Exporter, Job};
use crate::health::Watch;
use crate::manifest;
use crate::notify::Notifier;
use crate::policy::{Action, DesiredState, Event, Machine, PreviousState};
use crate::process::Process;
use crate::rcu::Expedited;
use crate::store::Store;
use device::ClaimedDevice;
pub use device::Taken;
pub(crate) use device::{STORAGE, check_interrupts, find_driver, unknown};
pub(crate) use events::word_of;
pub(crate) use handle::KeeperRequest;
pub use handle::{Answer, Handle, KeeperCommand};
use outage::Record;
pub use shared::PublishedState;
pub(crate) use survive::named;
pub use survive::{Adopted, Records, StatePersistence, abandon, adopt, keep_shape};
use voice::Lines;

/// Between two looks at a driver that serves.
const LOOK: Duration = Duration::from_secs(1);
/// The same at one that had nothing to do at the last: it is noticed so much later if it stands
/// still then.
const IDLE_LOOK: Duration = Duration::from_secs(3);
/// Bytes that a driver may write between two looks; it waits with what is more.
const WORDS: usize = 256 << 10;
/// Messages that a driver may send between two looks.
const MESSAGES: u32 = 100;

/// What a keeper is made of.
pub struct KeeperOptions {
    /// What its user wants.
    pub device: manifest::Device,
    /// The drivers' program.
    pub program: Arc<Program>,
    /// Its words.
    pub argv: Vec<CString>,
    /// Drivers do without a sandbox: on models, by who may not make one.
    pub unconfined: bool,
    /// Addresses that other keepers have.
    pub taken: Taken,
}

/// The thread's own.
struct Keeper {
    setup: KeeperOptions,
    survival: StatePersistence,
    /// The next ring3d goes on with it.
    left: bool,
    machine: Machine,
    shared: Arc<PublishedState>,
    asked: KeeperRequest,
    queue: VecDeque<Event>,
    held: Option<ClaimedDevice>,
    driver: Option<Process>,
    standby: Option<Process>,
    /// Drivers that have left the device or have ended, until there is time for them.
    dismissed: Vec<Process>,
    /// What is to be the program, and is on trial.
    candidate: Option<Arc<Program>>,
    exporter: Exporter,
    facts: Offered,
    /// The disks that users have, as the driver of that time has offered them.
    shown: Vec<OfferedDisk>,
    /// The driver has what it serves by.
    given: bool,
    /// The driver has reported that it has stopped the device.
    stopped: bool,
    /// Disks whose queues the driver has not lent to the kernel yet.
    awaited: BTreeSet<u16>,
    /// What the last driver has left to the next.
    saved: Option<OwnedFd>,
    /// By what the driver's device can be adopted if it is killed.
    adoptable: Option<OwnedFd>,
    /// The driver was told to adopt its device.
    adopting: bool,
    record: Record,
    watch: Option<Watch>,
    looked: Instant,
    words: usize,
    messages: u32,
    /// Of the log, for the driver.
    lines: Lines,
    answer: Option<Answer>,
    /// What is waited for is an upgrade.
    upgrading: bool,
    /// Waits until the machine may sleep.
    sleeper: Option<Answer>,
    /// Why somebody else uses the disk, or another thing that the next answer says.
    reason: String,
    ending: bool,
    /// Drivers that have died, and that were replaced, since others were shown where the device is.
    news: (u64, u64),
    expedited: Option<Expedited>,
}

/// Starts a keeper of `setup`, whose disks become `export`, and of which nothing survives this
/// process.
pub fn start(setup: KeeperOptions, export: Box<dyn Export>) -> io::Result<Handle> {
    let (store, ..) = Store::open(Notifier::silent(), Vec::new());
    let survival = StatePersistence::new(&Arc::new(store), &setup.device.name);
    go_on(setup, export, survival, None)
}

/// As [`start`]; it goes on with what was `adopted` of the device, and what it does survives by
/// `survival`.
pub fn go_on(
    setup: KeeperOptions,
    export: Box<dyn Export>,
    mut survival: StatePersistence,
    adopted: Option<Adopted>,
) -> io::Result<Handle> {
    survival.begin(adopted.as_ref());
    let name = setup.device.name.clone();
    let shared =
        Arc::new(PublishedState::new(&name, setup.device.driver.as_deref().unwrap_or_default()));
    let state = shared.clone();
    let make = |asked| {
        let exporter = Exporter::start(&setup.device.name, export)?;
        let mut keeper = Keeper::new(setup, survival, (asked, state), exporter);
        adopted.into_iter().for_each(|adopted| keeper.take_over(adopted));
        Ok(keeper)
    };
    Handle::start(&name, shared, make, Keeper::live)
}
/// What a wait ended for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Asked,
    Exported,
    Removal,
    DriverEnd,
    DriverReport,
    DriverWords,
    StandbyEnd,
    StandbyReport,
    StandbyWords,
}

impl Keeper {
    fn new(
        setup: KeeperOptions,
        survival: StatePersistence,
        (asked, shared): (KeeperRequest, Arc<PublishedState>),
        exporter: Exporter,
    ) -> Self {
        Self {
            record: Record::new(&setup.device.name),
            survival,
            left: false,
            machine: Machine::new(setup.device.policy()),
            shared,
            asked,
            queue: VecDeque::new(),
            held: None,
            driver: None,
            standby: None,
            dismissed: Vec::new(),
            candidate: None,
            exporter,
            facts: Offered::default(),
            shown: Vec::new(),
            given: false,
            stopped: false,
            awaited: BTreeSet::new(),
            saved: None,
            adoptable: None,
            adopting: false,
            watch: None,
            looked: Instant::now(),
            words: 0,
            messages: 0,
            lines: Lines::new(Instant::now()),
            answer: None,
            upgrading: false,
            sleeper: None,
            reason: String::new(),
            ending: false,
            news: (0, 0),
            expedited: None,
            setup,
        }
    }

    fn live(mut self) {
        self.happen(Event::Timer);
        while !self.ending {
            for source in self.wait() {
                self.take(source);
                self.settle();
            }
            self.poll();
            self.happen(Event::Timer);
        }
        if !self.left {
            self.survival.forget();
        }
    }

    /// Goes on where the last ring3d was.
    fn take_over(&mut self, adopted: Adopted) {
        let (held, driven, shown) =
            (adopted.held.is_some(), adopted.driver.is_some(), adopted.look.is_some());
        let goal =
            if adopted.stopped { DesiredState::Stop { force: false } } else { DesiredState::Run };
        self.machine = Machine::restore(
            self.setup.device.policy(),
            goal,
            PreviousState { held, driven, shown },
            Instant::now(),
        );
        (self.held, self.driver, self.facts) = (adopted.held, adopted.driver, adopted.offered);
        self.given = self.driver.is_some();
        self.shown = self.facts.disks.clone();
        self.shared.publish(adopted.look);
        let address =
            self.held.as_ref().and_then(|held| held.name().strip_prefix("vfio:")?.parse().ok());
        self.setup.taken.set(&self.setup.device.name, address);
        let of = self.held.as_ref().map(ClaimedDevice::claim_of);
        of.into_iter().for_each(|claim| self.survival.watch(claim));
        if let Some(driver) = &self.driver {
            self.exporter.order(Job::GoOn);
            self.watch =
                Some(Watch::new(act::patience(&self.setup.device.restart), Instant::now()));
            self.note(&format!("driver {} goes on with a new ring3d", driver.pid()));
        } else if shown {
            self.record.begin("ring3d has died while no driver served");
        }
    }

    /// Sleeps until something happens.
    fn wait(&self) -> Vec<Source> {
        let mut sources =
            vec![(Source::Asked, self.asked.as_fd()), (Source::Exported, self.exporter.as_fd())];
        sources.extend(
            self.held.as_ref().and_then(ClaimedDevice::removal).map(|fd| (Source::Removal, fd)),
        );
        let driver = (&self.driver, [Source::DriverEnd, Source::DriverReport, Source::DriverWords]);
        let standby =
            (&self.standby, [Source::StandbyEnd, Source::StandbyReport, Source::StandbyWords]);
        for (process, [end, report, words]) in [driver, standby] {
            let Some(process) = process else { continue };
            // What it has said comes before its end.
            sources.extend(process.reports().map(|fd| (report, fd)));
            if self.words < WORDS {
                sources.push((words, process.words()));
            }
            sources.push((end, process.end()));
        }
        let mut fds: Vec<_> =
            sources.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)).collect();
        let due = self.machine.deadline();
        let (speaks, idle) =
            (self.words > 0 || self.messages > 0, self.watch.as_ref().is_some_and(Watch::is_idle));
        let pause = if idle && !speaks { IDLE_LOOK } else { LOOK };
        // A driver has the device's interrupts before it serves, and while it stops.
        let drives =
            self.machine.is_running() || self.machine.is_opening() || self.machine.is_stopping();
        let look = (drives || speaks || !self.dismissed.is_empty()).then(|| self.looked + pause);
        let closed = [&self.driver, &self.standby]
            .into_iter()
            .flatten()
            .filter_map(Process::closed)
            .map(|at| at + LOOK);
        let next = due.into_iter().chain(look).chain(closed).min();
        let timeout = next.and_then(|next| {
            Timespec::try_from(next.saturating_duration_since(Instant::now())).ok()
        });
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        sources
            .iter()
            .zip(&fds)
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|((source, _), _)| *source)
            .collect()
    }

    fn take(&mut self, source: Source) {
        match source {
            Source::Asked => self.take_asks(),
            Source::Exported => self.take_exported(),
            Source::Removal => {
                if self.held.as_ref().is_some_and(ClaimedDevice::is_wanted_back) {
                    let why = "the system wants the device back; its disks are taken away";
                    self.note_reason(why);
                    self.queue.push_back(Event::Gone);
                }
            }
            Source::DriverReport => self.handle_driver_event(),
            Source::StandbyReport => self.handle_standby_event(),
            Source::DriverWords => self.words += read_words(&mut self.driver, &self.shared),
            Source::StandbyWords => self.words += read_words(&mut self.standby, &self.shared),
            Source::DriverEnd => self.end_driver(),
            Source::StandbyEnd => self.end_standby(),
        }
    }

    fn happen(&mut self, event: Event) {
        self.queue.push_back(event);
        self.settle();
    }

    /// Has the policy decide about all that has happened, and does it.
    fn settle(&mut self) {
        while let Some(event) = self.queue.pop_front() {
            let now = Instant::now();
            let mut actions = self.machine.handle(event, now);
            actions.sort_by_key(|action| act::waits(*action));
            self.exporter
                .vain
                .given_up
                .store(!self.machine.is_wanted(), std::sync::atomic::Ordering::Release);
            // Who asked and then looks sees what he was told.
            let (answers, actions): (Vec<_>, Vec<_>) =
                actions.into_iter().partition(|action| matches!(action, Action::Answer(_)));
            actions.into_iter().for_each(|action| self.act(action));
            self.show();
            answers.into_iter().for_each(|answer| self.act(answer));
            self.answer_sleeper();
        }
    }

    /// Polls the health of a driver that serves, and resets the limits of log lines and messages.
    fn poll(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < LOOK {
            return;
        }
        (self.looked, self.words, self.messages) = (now, 0, 0);
        self.reap();
        let limited = self
            .held
            .as_ref()
            .and_then(|held| held.limit_interrupts(self.setup.device.limits.irqs_per_s));
        limited.into_iter().for_each(|what| self.note(&what));
        let is_deaf =
            |process: &Process| process.closed().is_some_and(|at| now.duration_since(at) >= LOOK);
        if let Some(driver) = self.driver.as_ref().filter(|driver| is_deaf(driver)) {
            self.report_misbehaviour(&format!(
                "driver {} breaks the protocol, and is ended: it has closed its socket",
                driver.pid()
            ));
        }
        if let Some(standby) = self.standby.as_ref().filter(|standby| is_deaf(standby)) {
            self.note(&format!(
                "standby {} breaks the protocol, and is ended: it has closed its socket",
                standby.pid()
            ));
            self.queue.push_back(Event::StandbyLied);
        }
        let queues = self.queues();
        let (Some(watch), Some(driver)) =
            (self.watch.as_mut().filter(|_| self.machine.is_running()), &self.driver)
        else {
            return;
        };
        if let Some(why) = watch.poll(&driver.stats, queues, self.shared.users(), now) {
            self.report_misbehaviour(&format!("driver {} is taken for dead: {why}", driver.pid()));
        }
    }
}

/// Bytes that a process has written, into the journal.
fn read_words(process: &mut Option<Process>, shared: &PublishedState) -> usize {
    let Some(process) = process else { return 0 };
    let mut buffer = [0; 4096];
    let read = process.read(&mut buffer);
    shared.journal().written(process.pid(), &buffer[..read]);
    // Who has closed his end is not asked again before the next look.
    if read == 0 { WORDS } else { read }
}
