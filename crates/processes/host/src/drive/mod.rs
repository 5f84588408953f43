//! The driver process of a supervised device: it drives what it is leased, and holds nothing of its
//! own.
//!
//! # Shape
//! One thread takes the supervisor's orders (`ring3_control::drive`) and waits for what happens
//! besides; the disks' queues have a thread each, which it never touches while they serve, as have
//! the queues of network cards. `standby` is all that comes before there is a device, `driven` a
//! device and its disks, `card` a network card, `share` what clients have of it in place of the
//! kernel, `left` what the next process is left with, `hosted` a device whose driver is another
//! part of the program.
//!
//! # Waiting
//! From the lease to the first request, users wait. So memory, queues and threads are there before
//! the kernel's device comes, and the threads have only to be told of it.
//!
//! # Death
//! A driver that fails ends no request: it says why, and ends. What it had, the kernel gives to the
//! next process, after a fence. So nothing here cleans up after a failure. If the supervisor goes,
//! disks that are served are served on; a process that serves none ends.
//!
//! # Trust
//! The supervisor is trusted with the device, and its messages are still checked: an order that
//! makes no sense now ends the process with an error.

mod card;
mod driven;
mod hosted;
mod left;
mod lent;
mod share;
mod standby;

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use ring3_control::drive::{DriverCommand, DriverMessage};
use ring3_lease::Channel;
use ring3_stats::Phase;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use driven::ServedDevice;
pub use driven::facts;
pub use hosted::Hosted;
use left::InheritedState;
pub use left::{Left, read as read_left};
use standby::{Drivers, Standby};

/// The descriptor by which the supervisor speaks to a process that it starts.
const CONTROL: RawFd = 3;

/// How long the supervisor may take to take a report.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// How often the device is asked what it has to report.
const LOOK: Duration = Duration::from_secs(10);
/// How long after the start what turned out not to be needed is given back: users have their disks
/// then, and the next driver does not wait for it.
const SETTLED: Duration = Duration::from_secs(1);

/// The supervisor's socket, as this process was started with it.
///
/// # Safety
/// Nothing in this process owns descriptor 3, as is so of one that was inherited: call it once,
/// before the process opens files of its own, which could have got that number if nothing was
/// inherited.
pub unsafe fn inherited() -> Result<OwnedFd, Error> {
    // SAFETY: open or not, it is used for one query, which fails if it is not.
    let open = rustix::fs::fcntl_getfl(unsafe { std::os::fd::BorrowedFd::borrow_raw(CONTROL) });
    open.map_err(|error| {
        Error::os(
            "descriptor 3, the supervisor's socket: ring3d starts this command, nobody else",
            error,
        )
    })?;
    // SAFETY: it is open, and the caller promises that nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(CONTROL) })
}

/// Drives the device for which a lease comes over `control`, until the supervisor ends it. The
/// error was reported to the supervisor; the process ends then at once.
pub fn run(control: OwnedFd) -> Result<(), Error> {
    let mut process = Process::new(control)?;
    let lived = process.take_lease(Drivers::Own).and_then(|leased| {
        let Some(Leased { standby, lease, before }) = leased else { return Ok(()) };
        let driven = ServedDevice::start(standby, lease, before)?;
        process.drive(driven)
    });
    lived.inspect_err(|error| process.fail(error))
}

/// What comes with the order to drive.
struct Leased {
    standby: Standby,
    lease: OwnedFd,
    before: InheritedState,
}

struct Process {
    control: Channel,
    /// The supervisor, or who keeps its end for the next one, is there.
    connected: bool,
    driven: Option<ServedDevice>,
}

/// What a message of the supervisor's was, with what came beside it.
type Message = (DriverCommand, std::vec::IntoIter<OwnedFd>);

impl Process {
    fn new(control: OwnedFd) -> Result<Self, Error> {
        let failed = |error| Error::os("the supervisor's socket", error);
        let control = Channel::new(control, SEND_LIMIT, false).map_err(failed)?;
        Ok(Self { control, connected: true, driven: None })
    }

    /// Tells the supervisor why this process ends.
    fn fail(&mut self, error: &Error) {
        let _ = self
            .control
            .send(&DriverMessage::Failed { error: error.to_string(), gone: error.is_gone() }, &[]);
        // Its end would speak to a device that does not obey, for as long as that takes, while
        // users wait for the next process.
        std::mem::forget(self.driven.take());
    }

    /// Becomes one for `drivers`, confined, and waits for a lease; `None` if the supervisor has
    /// gone.
    fn take_lease(&mut self, drivers: Drivers) -> Result<Option<Leased>, Error> {
        let Some((order, mut fds)) = self.receive()? else { return Ok(None) };
        let DriverCommand::Prepare(prepare) = order else { return Err(misplaced(&order)) };
        let standby = Standby::new(*prepare, drivers, self.control.as_fd(), fds.next())?;
        self.report(&DriverMessage::Standby, &[])?;
        let Some((order, mut fds)) = self.receive()? else { return Ok(None) };
        let DriverCommand::Drive { resume, adopt } = order else { return Err(misplaced(&order)) };
        let lease =
            fds.next().ok_or_else(|| Error::protocol("no lease came with the order to drive"))?;
        let before = match (resume, adopt) {
            (false, false) => InheritedState::Nothing,
            (true, _) => InheritedState::Left(left::read(fds.next())?),
            (false, true) => InheritedState::Killed(left::read(fds.next())?),
        };
        standby.recorder.phase(Phase::Recovering);
        Ok(Some(Leased { standby, lease, before }))
    }

    /// Does what it is ordered to with what it drives, until the end.
    fn drive(&mut self, driven: ServedDevice) -> Result<(), Error> {
        let recorder = driven.recorder();
        self.report(&driven.offers(), &[])?;
        self.driven.insert(driven).prepare()?;
        let mut next = Instant::now() + SETTLED;
        loop {
            recorder.phase(Phase::Idle);
            let ordered = self.wait(next)?;
            recorder.phase(Phase::Working);
            recorder.beat();
            if Instant::now() >= next {
                self.report_events();
                self.driven.iter().for_each(ServedDevice::trim);
                next = Instant::now() + LOOK;
            }
            self.report_links();
            if ordered && self.handle_command()? || !self.connected && !self.serves() {
                return Ok(());
            }
        }
    }

    fn serves(&self) -> bool {
        self.driven.as_ref().is_some_and(ServedDevice::serves)
    }

    /// The next order; `None` if the supervisor has gone.
    fn receive(&self) -> Result<Option<Message>, Error> {
        let received = self
            .control
            .receive()
            .map_err(|error| Error::os("an order of the supervisor's", error))?;
        Ok(received.map(|(order, fds)| (order, fds.into_iter())))
    }

    /// Handles the next command; true if it was the last.
    fn handle_command(&mut self) -> Result<bool, Error> {
        let Some((order, mut fds)) = self.receive()? else {
            tracing::warn!("the supervisor has gone; what is served is served on");
            self.connected = false;
            return Ok(false);
        };
        let Some(driven) = &mut self.driven else { return Err(misplaced(&order)) };
        match order {
            DriverCommand::Connect(connect) => {
                let place = connect.nic;
                driven.connect(connect, fds.collect())?;
                self.report(&DriverMessage::Serving { disk: place }, &[])?;
                Ok(false)
            }
            DriverCommand::Share(share) => {
                let report = driven.share(&share, fds.collect())?;
                let beside = driven.is_beside();
                self.report(&report, &[])?;
                // With a kernel's device beside, that is what is served at last.
                if !beside {
                    self.report(&DriverMessage::Serving { disk: 0 }, &[])?;
                }
                Ok(false)
            }
            DriverCommand::Region(region) => {
                let file = fds
                    .next()
                    .ok_or_else(|| Error::protocol("no memory came with the order to lend it"))?;
                let lent = driven.register_region(region, file);
                self.answer(region.number, lent)
            }
            DriverCommand::Forget(region) => {
                let forgotten = driven.forget(region);
                self.answer(region.number, forgotten)
            }
            DriverCommand::Wish { nic, settings } => driven.wish(nic, settings).map(|()| false),
            DriverCommand::Serve(serve) => {
                let disk = serve.disk;
                let file = fds
                    .next()
                    .ok_or_else(|| Error::protocol("no device came with the order to serve"))?;
                driven.serve(serve, file)?;
                // Users wait for the first, and not for the second.
                self.report(&DriverMessage::Serving { disk }, &[])?;
                self.record()?;
                Ok(false)
            }
            DriverCommand::Refuse => {
                driven.refuse();
                Ok(false)
            }
            DriverCommand::Leave => {
                // Whoever hears of it hands the device on at once.
                let saved = self
                    .driven
                    .take()
                    .map(ServedDevice::detach)
                    .ok_or_else(|| misplaced(&DriverCommand::Leave))??;
                self.report(&DriverMessage::Left, &[saved.as_fd()])?;
                Ok(true)
            }
            order @ (DriverCommand::Stop | DriverCommand::Rest) => {
                match order {
                    DriverCommand::Rest => driven.suspend()?,
                    _ => driven.stop()?,
                }
                // The driver ends its device before that is said.
                self.driven = None;
                self.report(&DriverMessage::Stopped, &[])?;
                Ok(true)
            }
            order @ (DriverCommand::Prepare(_) | DriverCommand::Drive { .. }) => {
                Err(misplaced(&order))
            }
        }
    }

    /// Says whether an order about a client's memory was done. Nobody waits for what a driver
    /// before this one had: what of that cannot be mapped any more (its client has made holes in
    /// huge pages, and there are no others) names no memory. Requests that lie there end with
    /// errors, and nobody else's.
    fn answer(&self, number: u64, done: Result<(), Error>) -> Result<bool, Error> {
        if number == 0 {
            if let Err(error) = done {
                tracing::warn!("requests in the memory of one client end with errors: {error}");
            }
            return Ok(false);
        }
        let refused = done.err().map(|error| error.to_string());
        self.report(&DriverMessage::Heard { number, refused }, &[]).map(|()| false)
    }

    fn report(
        &self,
        report: &DriverMessage,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), Error> {
        self.control
            .send(report, fds)
            .map_err(|error| Error::os("reporting to the supervisor", error))
    }

    /// Says by what the device could be adopted.
    fn record(&self) -> Result<(), Error> {
        let record = self.driven.as_ref().and_then(ServedDevice::record);
        record.map_or(Ok(()), |record| self.report(&DriverMessage::Adoptable, &[record.as_fd()]))
    }

    /// Waits until there is an order (true), until a disk has ended, or until it is time to look at
    /// the device, at `next`.
    fn wait(&mut self, next: Instant) -> Result<bool, Error> {
        let Some(driven) = &mut self.driven else { return Ok(true) };
        let (ended, errors) = (driven.events_of_threads(), driven.device().bus_errors());
        let next = driven.due().map_or(next, |due| due.min(next));
        let mut fds = Vec::with_capacity(2 + ended.len());
        fds.extend(self.connected.then(|| PollFd::new(&self.control, PollFlags::IN)));
        fds.extend(ended.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(errors.map(|irq| PollFd::new(irq, PollFlags::IN)));
        let lost = if self.connected { None } else { driven.device().removal() };
        fds.extend(lost.map(|irq| PollFd::new(irq, PollFlags::IN)));
        let timeout = Timespec::try_from(next.saturating_duration_since(Instant::now())).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(source) => return Err(Error::os("waiting for orders", source)),
        }
        let ordered = self.connected && !fds[0].revents().is_empty();
        // Without orders nobody gives another lease.
        if lost.is_some_and(|irq| irq.take().is_ok_and(|count| count > 0)) && !driven.is_mapped() {
            return Err(Error::Device {
                device: driven.device().name().into(),
                source: ring3_device::Error::Gone,
            });
        }
        driven.check()?;
        Ok(ordered)
    }

    /// Says how the links of cards are, if that is new.
    fn report_links(&mut self) {
        for report in self.driven.iter_mut().flat_map(ServedDevice::links).collect::<Vec<_>>() {
            if self.connected {
                let _ = self.control.send(&report, &[]);
            }
        }
    }

    /// Passes on what the device has to say. Whoever does not hear it has the log.
    fn report_events(&self) {
        for text in self.driven.iter().flat_map(ServedDevice::events) {
            tracing::warn!("the controller reports: {text}");
            if self.connected {
                let _ = self.control.send(&DriverMessage::Event { text }, &[]);
            }
        }
    }
}

fn misplaced(order: &DriverCommand) -> Error {
    let word = match order {
        DriverCommand::Prepare(_) => "prepare",
        DriverCommand::Drive { .. } => "drive",
        DriverCommand::Serve(_) => "serve",
        DriverCommand::Connect(_) => "connect",
        DriverCommand::Share(_) => "share",
        DriverCommand::Region(_) => "lend",
        DriverCommand::Forget(_) => "forget",
        DriverCommand::Wish { .. } => "wish",
        DriverCommand::Refuse => "refuse",
        DriverCommand::Leave => "leave",
        DriverCommand::Stop => "stop",
        DriverCommand::Rest => "rest",
    };
    Error::protocol(format!("the order to {word} makes no sense now"))
}
