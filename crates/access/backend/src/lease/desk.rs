//! The holder's answers to what a driver asks.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Access, Bar, Device, Error};
use ring3_lease::{Answer, Channel, Kind, MAX_FDS, Refusal, Request, VERSION};
use ring3_spec::pci;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::facts::Constants;
use super::maps::{Files, Mapping};
use super::pace::ChangeRateLimit;
use super::rate::{InterruptRate, Verdict};
use super::saved::OnChange;
use crate::eventfd;
use crate::vfio::Windows;

/// Bytes of configuration space, at most. [PCIe 7.2]
const CONFIG_LEN: u64 = 4096;

/// A claimed device, and what its drivers have asked for.
pub(super) struct LeaseServer {
    pub(super) device: Arc<dyn Device>,
    pub(super) windows: Option<Windows>,
    bars: [Option<Bar>; pci::BAR_COUNT as usize],
    pub(super) constants: Constants,
    pub(super) below: u64,
    asked: Mutex<DriverGrants>,
    /// Raised from before a request is taken until it is answered.
    pub(super) turn: OwnedFd,
    /// Who keeps what is saved.
    pub(super) changed: OnceLock<OnChange>,
    /// What of configuration space a driver may write, if somebody has said.
    pub(super) writable: OnceLock<Vec<Range<u64>>>,
    /// Bytes that a driver may have mapped beside its own.
    pub(super) allowed: AtomicUsize,
    rate: Mutex<InterruptRate>,
}

/// What stays when a driver goes.
pub(super) struct DriverGrants {
    /// The interrupts that are enabled.
    pub(super) irqs: Option<EnabledInterrupts>,
    /// What is mapped beside the arena, by device address.
    pub(super) mapped: BTreeMap<u64, Mapping>,
    /// The files of that.
    pub(super) files: Files,
    /// The holder's end of the lease that is out.
    pub(super) lease: Option<(u64, Arc<Channel>)>,
    /// Nothing that a driver has started goes on.
    pub(super) quiet: bool,
    /// The last number that was given to a descriptor's name.
    pub(super) serial: u64,
    /// The driver has agreed on a version.
    pub(super) agreed: bool,
    /// Interrupts are held back, whatever the driver wants.
    pub(super) held: bool,
}

/// Interrupts, by the number under which they are saved.
pub(super) struct EnabledInterrupts {
    pub(super) serial: u64,
    pub(super) kind: IrqKind,
    pub(super) irqs: Vec<Irq>,
}

impl DriverGrants {
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

impl Default for DriverGrants {
    fn default() -> Self {
        let (irqs, mapped, files, lease) = (None, BTreeMap::new(), Files::default(), None);
        Self { irqs, mapped, files, lease, quiet: true, serial: 0, agreed: false, held: false }
    }
}

/// An answer with the descriptors beside it.
pub(super) type Reply = (Answer, Vec<OwnedFd>);

impl LeaseServer {
    /// [`Error::Unsupported`] if the device's memory cannot be shared.
    pub(super) fn new(
        device: Arc<dyn Device>,
        windows: Option<Windows>,
        below: u64,
    ) -> Result<Self, Error> {
        Self::with(device, windows, below, DriverGrants::default(), eventfd::new()?)
    }

    /// As [`new`](Self::new), where drivers have asked for something already.
    pub(super) fn with(
        device: Arc<dyn Device>,
        windows: Option<Windows>,
        below: u64,
        asked: DriverGrants,
        turn: OwnedFd,
    ) -> Result<Self, Error> {
        if device.dma().arena().regions().any(|placed| placed.region.file().is_none()) {
            return Err(Error::Unsupported(format!(
                "{}: its memory cannot be leased: it is no file",
                device.name()
            )));
        }
        let bars = std::array::from_fn(|index| device.bar(index as u8).ok());
        let constants = Constants::of(&*device, windows.as_ref());
        Ok(Self {
            device,
            windows,
            bars,
            constants,
            below,
            asked: Mutex::new(asked),
            turn,
            changed: OnceLock::new(),
            writable: OnceLock::new(),
            allowed: AtomicUsize::new(0),
            rate: Mutex::default(),
        })
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Answers until the driver goes, or sends what is no message; or until `stop` is raised: then
    /// another process goes on with the lease.
    pub(super) fn serve(&self, channel: &Channel, stop: &OwnedFd) {
        let mut pace = ChangeRateLimit::new(Instant::now());
        let end = loop {
            eventfd::clear(&self.turn);
            if is_stopped(stop, pace.pause(Instant::now())) || has_come(channel, stop).is_none() {
                return;
            }
            eventfd::signal(&self.turn);
            let (request, fds) = match channel.receive() {
                Ok(Some(message)) => message,
                Ok(None) => break None,
                Err(error) => break Some(error),
            };
            let posted = matches!(request, Request::Write { posted: true, .. });
            if matches!(request, Request::Map(_) | Request::Unmap { .. } | Request::Irqs { .. }) {
                pace.spend(Instant::now());
            }
            // Once: the device's descriptor comes with the answer, and is for who attaches before a
            // driver runs.
            let reply = if self.asked().agreed != matches!(request, Request::Hello { .. }) {
                self.answer(request, fds)
            } else {
                Err(Error::Invalid("the first message, and no other, agrees on a version".into()))
            };
            let (answer, fds) =
                reply.unwrap_or_else(|error| (Answer::Refused(refusal(error)), Vec::new()));
            if posted {
                continue;
            }
            match channel.send(&answer, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => break None,
                Err(error) => break Some(error),
                Ok(()) => {}
            }
        };
        if let Some(error) = end {
            tracing::warn!("{}: the lease of a driver is ended: {error}", self.device.name());
        }
        eventfd::clear(&self.turn);
        channel.close();
    }

    fn answer(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Reply, Error> {
        let device = &self.device;
        match request {
            Request::Hello { version: VERSION } => return self.facts(),
            Request::Hello { version } => {
                return Err(Error::Unsupported(format!(
                    "version {version} of a lease; its holder speaks {VERSION}"
                )));
            }
            Request::ConfigRead { offset, width } => {
                check_config(offset, width)?;
                return Ok(value(device.config_read(offset, width.into()).into()));
            }
            Request::ConfigWrite { offset, width, value } => {
                check_config(offset, width)?;
                self.check_write(offset, width)?;
                device.config_write(offset, width.into(), value)?;
            }
            Request::Read { bar, offset, width } => return self.read(bar, offset, width),
            Request::Write { bar, offset, width, value, .. } => {
                self.write(bar, offset, width, value)?
            }
            Request::Map(memory) => self.map(memory, fds.into_iter().next())?,
            Request::Unmap { iova, len } => self.unmap(iova, len)?,
            Request::Irqs { kind, count } => return self.irqs(kind_here(kind), count),
            Request::Mask { vector, masked } => self.mask(vector, masked)?,
            Request::BusMaster { on } => device.set_bus_master(on)?,
            Request::Reset => device.reset()?,
        }
        Ok((Answer::Done, Vec::new()))
    }

    /// Fails if somebody has said what a driver may write, and it is not that.
    fn check_write(&self, offset: u64, width: u8) -> Result<(), Error> {
        let end = offset + u64::from(width);
        let listed = |ranges: &Vec<Range<u64>>| {
            (offset..end).all(|byte| ranges.iter().any(|range| range.contains(&byte)))
        };
        if self.writable.get().is_none_or(listed) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "configuration space at {offset:#x} is nothing that the driver's manifest lists as \
            written"
        )))
    }

    fn bar(&self, index: u8, width: u8) -> Result<&Bar, Error> {
        let bar = self.bars.get(usize::from(index)).and_then(Option::as_ref);
        bar.filter(|_| [1, 2, 4, 8].contains(&width))
            .ok_or_else(|| Error::Invalid(format!("{width} bytes of BAR {index}")))
    }

    fn read(&self, bar: u8, offset: u64, width: u8) -> Result<Reply, Error> {
        Ok(value(self.bar(bar, width)?.read(offset, width.into())))
    }

    fn write(&self, bar: u8, offset: u64, width: u8, value: u64) -> Result<(), Error> {
        self.bar(bar, width)?.write(offset, width.into(), value);
        Ok(())
    }

    /// Records that nothing goes on which a driver has started, or that nobody knows; nobody has a
    /// lease in either case.
    pub(super) fn is_fenced(&self, quiet: bool) {
        let mut asked = self.asked();
        (asked.lease, asked.quiet) = (None, quiet);
        self.notify(&asked);
        if quiet {
            self.rate().forget();
            if let Err(error) = self.hold_interrupts(&mut asked, false) {
                tracing::warn!("{}: its interrupts stay held back: {error}", self.device.name());
            }
        }
    }

    /// The eventfds of `count` vectors: the same as before if these are enabled, so that none is
    /// lost that comes between two drivers.
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Reply, Error> {
        if usize::from(count) > MAX_FDS {
            return Err(Error::Unsupported(format!(
                "{count} vectors over a lease, which carries {MAX_FDS}"
            )));
        }
        let mut asked = self.asked();
        let same = asked.irqs.as_ref().is_some_and(|enabled| {
            enabled.kind == kind && enabled.irqs.len() == usize::from(count)
        });
        if same {
            // The last driver may have died with one held back, and with many that it has not
            // taken, which would be a storm to the next.
            asked.irqs.iter().flat_map(|enabled| &enabled.irqs).try_for_each(|irq| {
                eventfd::collapse(irq);
                irq.unmask()
            })?;
        } else {
            asked.irqs = None;
            self.notify(&asked);
            let (serial, irqs) = (asked.next_serial(), self.device.irqs(kind, count)?);
            asked.irqs = (count > 0).then_some(EnabledInterrupts { serial, kind, irqs });
            self.notify(&asked);
        }
        if asked.held {
            self.hold_interrupts(&mut asked, true)?;
        }
        let irqs = asked.irqs.iter().flat_map(|enabled| &enabled.irqs);
        let fds =
            irqs.clone().map(|irq| irq.as_fd().try_clone_to_owned()).collect::<Result<_, _>>();
        let fds = fds.map_err(|error| Error::os("copying an interrupt's descriptor", error))?;
        Ok((Answer::Vectors { maskable: irqs.into_iter().all(Irq::can_mask) }, fds))
    }

    fn mask(&self, vector: u16, masked: bool) -> Result<(), Error> {
        let asked = self.asked();
        let irq = asked.irqs.as_ref().and_then(|enabled| enabled.irqs.get(usize::from(vector)));
        let irq =
            irq.ok_or_else(|| Error::Invalid(format!("interrupt vector {vector} is not enabled")))?;
        // While they are held back, a mask changes nothing; at the end of that, all are open, and
        // the driver is woken to look.
        if asked.held {
            return Ok(());
        }
        if masked { irq.mask() } else { irq.unmask() }
    }

    /// Holds interrupts back, or lets them through, by how many there were.
    pub(super) fn limit(&self, now: Instant, count: u64, most: u64) -> Result<Option<u64>, Error> {
        let mut asked = self.asked();
        let (verdict, wanted) = {
            let mut rate = self.rate();
            (rate.check(now, count, most), rate.is_held())
        };
        match verdict {
            Verdict::Hold(rate, pause) => {
                tracing::warn!(
                    "{}: {rate} interrupts a second, of which its manifest allows {most}: all are \
                    held back for {pause:?}",
                    self.device.name()
                );
                self.hold_interrupts(&mut asked, true).map(|()| Some(rate))
            }
            Verdict::Release => self.hold_interrupts(&mut asked, false).map(|()| None),
            Verdict::Fine if asked.held && !wanted => {
                self.hold_interrupts(&mut asked, false).map(|()| None)
            }
            Verdict::Fine => Ok(None),
        }
    }

    /// Detaches all vectors from their descriptors, or attaches them again and wakes the threads
    /// that wait for one.
    pub(super) fn hold_interrupts(
        &self,
        asked: &mut DriverGrants,
        held: bool,
    ) -> Result<(), Error> {
        let changes = held || asked.held;
        asked.held = held;
        let Some((windows, enabled)) =
            self.windows.as_ref().zip(asked.irqs.as_ref()).filter(|_| changes)
        else {
            return Ok(());
        };
        windows.hold_interrupts(enabled.kind, &enabled.irqs, held)?;
        if !held {
            enabled.irqs.iter().for_each(eventfd::signal);
        }
        Ok(())
    }

    fn rate(&self) -> MutexGuard<'_, InterruptRate> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn asked(&self) -> MutexGuard<'_, DriverGrants> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for `pause`; whether `stop` was raised meanwhile.
fn is_stopped(stop: &OwnedFd, pause: Duration) -> bool {
    let Some(pause) = (!pause.is_zero()).then(|| Timespec::try_from(pause).ok()).flatten() else {
        return false;
    };
    poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&pause)).is_ok_and(|ready| ready > 0)
}

/// Waits for a message, or the end of the channel; `None` if `stop` is raised.
fn has_come(channel: &Channel, stop: &OwnedFd) -> Option<()> {
    let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(channel, PollFlags::IN)];
    while matches!(poll(&mut fds, None), Err(Errno::INTR)) {}
    fds[0].revents().is_empty().then_some(())
}

/// Fails unless there may be `width` bytes of configuration space at `offset`.
fn check_config(offset: u64, width: u8) -> Result<(), Error> {
    if [1, 2, 4].contains(&width) && offset < CONFIG_LEN {
        return Ok(());
    }
    Err(Error::Invalid(format!("{width} bytes of configuration space at {offset:#x}")))
}

fn value(value: u64) -> Reply {
    (Answer::Value(value), Vec::new())
}

fn kind_here(kind: Kind) -> IrqKind {
    match kind {
        Kind::Intx => IrqKind::Intx,
        Kind::Msi => IrqKind::Msi,
        Kind::MsiX => IrqKind::MsiX,
    }
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::Gone => Refusal::Gone,
        Error::Unsupported(text) => Refusal::Unsupported(text),
        Error::Invalid(text) => Refusal::Invalid(text),
        Error::Busy(text) => Refusal::Busy(text),
        other => Refusal::Failed(other.to_string()),
    }
}
