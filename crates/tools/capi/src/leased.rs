//! A device that ring3d holds and leases to this process: the program drives it, confined, and what
//! it makes of the device goes to ring3d.
//!
//! # Shape
//! The program opens its device by `lease:3`, which waits until there is one, and lends its card or
//! its disk, which starts a thread that takes ring3d's orders. When ring3d wants the driver to end,
//! the card or the disk says so to the program, and the thread waits until the program has closed
//! its device.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ring3_device::Error;
use ring3_driver::registry::{Controller, Offer};
use ring3_host::drive::Hosted;

/// How long a program may take to close its device when it is asked to.
const FAREWELL: Duration = Duration::from_secs(10);

/// The lease of a device.
pub(crate) struct Leased {
    /// Until the card or the disk is lent.
    hosted: Mutex<Option<Hosted>>,
    orders: Mutex<Option<Orders>>,
}

/// The thread that takes ring3d's orders.
struct Orders {
    closed: Sender<()>,
    /// The program was asked to end.
    asked: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The descriptor of `lease:N`; `None` for other names.
pub(crate) fn descriptor(uri: &str) -> Option<Result<RawFd, Error>> {
    let number = uri.strip_prefix("lease:")?;
    let usable = number.parse().ok().filter(|&fd| fd > 2);
    Some(usable.ok_or_else(|| {
        Error::Invalid(format!(
            "{uri}: lease:N is a device of ring3d's, which starts this program with its socket as \
            descriptor N: 3"
        ))
    }))
}

impl Leased {
    /// Waits for a device over the socket `descriptor`, which ring3d has started this program with,
    /// and is confined before it comes.
    pub(crate) fn wait(descriptor: RawFd) -> Result<(Self, Arc<dyn ring3_device::Device>), Error> {
        // SAFETY: open or not, it is used for one query, which fails if it is not.
        let open =
            rustix::fs::fcntl_getfl(unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) });
        open.map_err(|error| {
            Error::os(
                format!(
                    "lease:{descriptor}: ring3d starts this program with its socket there, nobody \
                     else"
                ),
                error,
            )
        })?;
        // SAFETY: it is open, and was inherited for this.
        let control = unsafe { OwnedFd::from_raw_fd(descriptor) };
        match Hosted::wait(control) {
            Ok(Some(hosted)) => {
                let device = hosted.device().clone();
                Ok((Self { hosted: Mutex::new(Some(hosted)), orders: Mutex::default() }, device))
            }
            Ok(None) => Err(Error::Invalid("ring3d has no use for this process any more".into())),
            Err(error) => Err(Error::Invalid(error.to_string())),
        }
    }

    /// Hands the disk or card over to ring3d. A thread of the library calls `stop` when the program
    /// has to close its device.
    pub(crate) fn hand_to_supervisor(
        &self,
        offer: Offer,
        stop: Box<dyn Fn() + Send>,
    ) -> Result<(), Error> {
        let taken = self.hosted.lock().unwrap_or_else(PoisonError::into_inner).take();
        let hosted =
            taken.ok_or_else(|| Error::Busy("the device has a card or a disk already".into()))?;
        let (closed, hear) = channel();
        let asked = Arc::new(AtomicBool::new(false));
        let program = Box::new(Program { stop, asked: asked.clone(), closed: hear });
        let thread = std::thread::Builder::new()
            .name("ring3-orders".into())
            .spawn(move || take_orders(hosted, offer, program));
        let thread =
            thread.map_err(|error| Error::os("starting the thread that takes orders", error))?;
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Orders { closed, asked, thread });
        Ok(())
    }
}

impl Drop for Leased {
    /// The program has closed its device: whoever has asked for that is answered before this
    /// returns.
    fn drop(&mut self) {
        let orders = self.orders.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Orders { closed, asked, thread }) = orders else { return };
        let _ = closed.send(());
        if asked.load(Ordering::Acquire) {
            let _ = thread.join();
        }
    }
}

/// Until the end, and that of the process: nobody else would hear of it.
fn take_orders(hosted: Hosted, offer: Offer, program: Box<Program>) {
    let Err(error) = hosted.drive(offer, program) else { return };
    tracing::error!(%error, "the device is not driven any more");
    // SAFETY: nothing of the process is used any more, and what would run at its end belongs to
    // another thread.
    unsafe { libc::_exit(1) };
}

/// The program, as the device's controller: dropped when it shall end.
struct Program {
    stop: Box<dyn Fn() + Send>,
    asked: Arc<AtomicBool>,
    closed: Receiver<()>,
}

impl Controller for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        self.asked.store(true, Ordering::Release);
        (self.stop)();
        if self.closed.recv_timeout(FAREWELL).is_err() {
            tracing::warn!("the driver has not closed its device within {FAREWELL:?}");
        }
    }
}
