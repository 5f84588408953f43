//! A device whose claim outlives the processes that drive it.
//!
//! # Shape
//! [`Claim`] is the holder's half: the device as [`open`](crate::open) gives it, with group,
//! container, descriptors, interrupts' eventfds and arena. [`Claim::lease`] gives a [`Lease`], one
//! descriptor, which goes to a process by inheritance or over a socket; `desk` answers what is
//! asked through it. [`attach`] makes a device of it there, the driver's half, whose drop does
//! nothing to the device: it closes its own descriptors. Registers that the kernel lets be mapped
//! are mapped there, too, and all else is asked of the holder.
//!
//! # One driver at a time
//! A second lease is refused as long as the first one's driver is there, and after it until
//! [`Claim::quiesce`] has fenced what it left behind: transfers and commands that are under way,
//! and what it has mapped beside the arena. [`Claim::hand_over`] leases without a fence, to a
//! process that resumes what the last driver has saved, or that brings to an end what a dead one
//! has begun.
//!
//! # Holders
//! The claim outlives its holder, too, where the kernel's descriptors are all that it is: `saved`
//! says what another process needs to go on with it.
//!
//! # Trust
//! What a driver asks is input. It can do to the device what a driver can do, and to the holder
//! nothing: what makes no sense is refused, and a message that is none ends the lease. Revoking a
//! lease ends what goes through the holder; registers that a living process has mapped stay mapped
//! there, so whoever fences a driver ends its process first.

mod attached;
mod desk;
mod facts;
mod fence;
mod link;
mod maps;
mod pace;
mod rate;
mod saved;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_device::irq::Irq;
use ring3_device::{Device, Error};
use ring3_lease::{Channel, Quiesce};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use attached::{attach, attach_running};
pub use fence::Fenced;
pub use saved::SavedClaim;

use crate::vfio::Windows;
use crate::{OpenOptions, Uri, eventfd, vfio};
use desk::LeaseServer;

/// How long a driver may take to take an answer.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// The right to drive a claimed device, as a descriptor: the end of a socket. Closing it gives the
/// right back.
#[derive(Debug)]
pub struct Lease(OwnedFd);

impl From<OwnedFd> for Lease {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Lease> for OwnedFd {
    fn from(lease: Lease) -> Self {
        lease.0
    }
}

/// A claimed device without its driver. Dropping it ends the lease that is out and gives the
/// function up, as dropping the device of [`open`](crate::open) does: transfers off, reset.
pub struct Claim {
    // Before the desk, as the thread that serves a lease holds that, too.
    state: Mutex<State>,
    desk: Arc<LeaseServer>,
}

/// Who has the device.
enum State {
    /// Nobody, and it does nothing.
    Quiet,
    /// A driver, as long as its end of the lease is open.
    Leased(Serving),
    /// Nobody, and what the last driver started may go on.
    Unfenced,
    /// Another holder, who adopts the claim.
    Left,
}

/// A lease that is out. Dropping it revokes it.
struct Serving {
    channel: Arc<Channel>,
    /// Raised when another process is to go on with the lease.
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Claims the device that `uri` names, for drivers in other processes.
pub fn claim(uri: &Uri, options: OpenOptions) -> Result<Claim, Error> {
    let below = options.clone().overridden_by(uri)?.below;
    match uri.scheme.as_str() {
        "vfio" => {
            let device = vfio::open(uri, options)?;
            let windows = device.windows()?;
            Claim::new(Arc::new(device), Some(windows), below)
        }
        "vfio-user" | "sim" => Claim::new(crate::open(uri, options)?, None, below),
        other => Err(Error::Unsupported(format!(
            "{uri}: there is no lease of this backend ({other}), so that the device ends with its \
             driver's process: use sim:, vfio: or vfio-user:"
        ))),
    }
}

impl Claim {
    fn new(device: Arc<dyn Device>, windows: Option<Windows>, below: u64) -> Result<Self, Error> {
        Ok(Self {
            state: Mutex::new(State::Quiet),
            desk: Arc::new(LeaseServer::new(device, windows, below)?),
        })
    }

    /// What the user calls the device.
    pub fn name(&self) -> &str {
        self.desk.device().name()
    }

    /// Its class code (24 bits), by which most drivers are found; all ones if the device is gone.
    /// [PCI 6.2.1]
    pub fn class(&self) -> u32 {
        self.desk.device().config_read(ring3_spec::pci::REVISION, 4) >> 8
    }

    /// Its vendor and its device, by which a driver is found where the class does not say enough;
    /// all ones if the device is gone. [PCI 6.2.1]
    pub fn ids(&self) -> (u16, u16) {
        let ids = self.desk.device().config_read(ring3_spec::pci::VENDOR_ID, 4);
        (ids as u16, (ids >> 16) as u16)
    }

    /// Raised when the platform wants the device back, where it says so.
    pub fn removal(&self) -> Option<&Irq> {
        self.desk.device().removal()
    }

    /// Takes the arena's pages out of this process's memory: the device and its drivers have them,
    /// and the holder looks at none.
    pub fn release_pages(&self) {
        self.desk.device().dma().arena().regions().for_each(|placed| placed.region.release_pages());
    }

    /// From now on drivers write of configuration space what is in `ranges` and nothing else, as
    /// their manifest has it; before, all that does not belong to the backend. Only the first call
    /// counts.
    pub fn limit_config(&self, ranges: Vec<Range<u64>>) {
        let _ = self.desk.writable.set(ranges);
    }

    /// Drivers may have `bytes` more mapped than what is usual, from now on: memory of their users.
    pub fn allow_mapped(&self, bytes: usize) {
        self.desk.allowed.store(bytes, std::sync::atomic::Ordering::Relaxed);
    }

    /// Interrupts that the kernel has taken of it, for whomever; `None` where it does not count
    /// them: those of a model.
    pub fn interrupts(&self) -> Option<u64> {
        let serial = self.desk.asked().irqs.as_ref().map_or(0, |enabled| enabled.serial);
        self.desk.windows.as_ref()?.interrupts(serial)
    }

    /// Looks, about once a second, whether the device has raised more than `most` interrupts a
    /// second, and if so holds all of them back for a while: neither the device nor its driver can
    /// undo that. Returns how many there were a second. A device whose interrupts nobody counts is
    /// not limited.
    pub fn limit_interrupts(&self, most: u64) -> Result<Option<u64>, Error> {
        let Some(count) = self.interrupts() else { return Ok(None) };
        self.desk.limit(Instant::now(), count, most)
    }

    /// The right to drive it, for one process. [`Error::Busy`] while another one has it, or has
    /// left without a fence.
    pub fn lease(&self) -> Result<Lease, Error> {
        self.grant(false)
    }

    /// As [`lease`](Self::lease), for a process that resumes what the last driver has saved before
    /// it left, or that adopts what it had recorded before it was killed: the device goes on, and
    /// so does what was mapped.
    pub fn hand_over(&self) -> Result<Lease, Error> {
        self.grant(true)
    }

    fn grant(&self, unfenced: bool) -> Result<Lease, Error> {
        let mut state = self.state();
        self.check_held(&state)?;
        if let State::Leased(serving) = &*state {
            if !serving.has_left() {
                return Err(Error::Busy(format!(
                    "{} has a driver: end its process first, then fence it",
                    self.name()
                )));
            }
            *state = State::Unfenced;
        }
        if matches!(*state, State::Unfenced) && !unfenced {
            return Err(Error::Busy(format!(
                "{}: what its last driver started may go on: fence it first",
                self.name()
            )));
        }
        let failed = |error| Error::os(format!("{}: making a lease", self.name()), error);
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let channel = Arc::new(Channel::new(ours, SEND_LIMIT, false).map_err(failed)?);
        let mut asked = self.desk.asked();
        let serial = asked.next_serial();
        (asked.lease, asked.quiet, asked.agreed) =
            (Some((serial, Arc::clone(&channel))), false, false);
        self.desk.notify(&asked);
        drop(asked);
        *state = State::Leased(Serving::start(&self.desk, channel).map_err(failed)?);
        Ok(Lease(theirs))
    }

    /// Fails if the claim was left to another process.
    fn check_held(&self, state: &State) -> Result<(), Error> {
        match state {
            State::Left => Err(Error::Busy(format!(
                "{}: it was left to another holder: ask that one",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Ends the lease that is out, and makes the device stop as `quiesce` says, its driver's
    /// manifest; or resets the function if that fails, or nothing is said. When this succeeds,
    /// nothing that was started before goes on, and the device reaches the arena alone.
    pub fn quiesce(&self, quiesce: Option<&Quiesce>) -> Result<Fenced, Error> {
        let mut state = self.state();
        self.check_held(&state)?;
        // Revoked before the fence, so that nothing is asked for behind it.
        *state = State::Unfenced;
        self.desk.is_fenced(false);
        let fenced = fence::fence(self.desk.device(), quiesce)?;
        self.desk.unmap_all()?;
        self.desk.is_fenced(true);
        *state = State::Quiet;
        Ok(fenced)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Serving {
    /// Serves the driver at the other end of `channel`.
    fn start(desk: &Arc<LeaseServer>, channel: Arc<Channel>) -> std::io::Result<Self> {
        let stop = Arc::new(eventfd::new().map_err(std::io::Error::other)?);
        let (desk, serves, stops) = (Arc::clone(desk), Arc::clone(&channel), Arc::clone(&stop));
        let serve = move || desk.serve(&serves, &stops);
        let thread = std::thread::Builder::new().name("ring3-lease".into()).spawn(serve)?;
        Ok(Self { channel, stop, thread: Some(thread) })
    }

    /// Stops serving requests of the driver. The lease itself goes on.
    fn stop_serving(&mut self) {
        eventfd::signal(&*self.stop);
        self.join();
    }

    fn join(&mut self) {
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("what served a lease has died of a bug");
        }
    }

    /// Whether the driver's end is closed.
    fn has_left(&self) -> bool {
        let mut fds = [PollFd::new(&*self.channel, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|_| !fds[0].revents().is_empty())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // One that was left is another holder's.
        if self.thread.is_some() {
            self.channel.close();
            self.join();
        }
    }
}
