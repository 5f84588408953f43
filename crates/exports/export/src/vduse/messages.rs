//! The thread that answers the kernel: it says where a driver has its virtqueues, and takes them
//! away at a reset.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_vduse::{Begin, Device, Error, Message, Request, status};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::gate::{QueueHandover, ReadyVirtqueue};

/// How long a queue's thread may take to open its queue, or to let go of it. The kernel waits for
/// 30 s.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The thread, which ends when this is dropped.
pub struct Messages {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

struct Answering {
    device: Arc<Device>,
    gates: Vec<Arc<QueueHandover>>,
    /// The queues are where their threads know them to be.
    running: bool,
}

impl Messages {
    /// Answers for `device`, whose queues are served behind `gates`. What a server that is no more
    /// has left is gone on with first.
    pub fn start(device: Arc<Device>, gates: Vec<Arc<QueueHandover>>) -> Result<Self, Error> {
        let failed = |error: std::io::Error| {
            Error::os(format!("{}: the thread that answers the kernel", device.name()), error)
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let told = stop.try_clone().map_err(failed)?;
        let mut answering = Answering { device: device.clone(), gates, running: false };
        if device.features()? != 0 && device.vring(0)?.ready {
            answering.open(Begin::Resume)?;
        }
        let name = format!("{}-kernel", device.name());
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || answering.run(&told))
            .map_err(failed)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Answering {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            let mut fds =
                [PollFd::new(stop, PollFlags::IN), PollFd::new(&*self.device, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            if !fds[0].revents().is_empty() {
                return;
            }
            if fds[1].revents().contains(PollFlags::ERR) {
                // It says so without end.
                let name = self.device.name();
                tracing::error!(
                    "{name}: the kernel has given the device up, because an answer took more than \
                    30 s: stop it (ring3 vduse delete {name} --force)"
                );
                return;
            }
            match self.device.message() {
                Ok(Some(message)) => self.answer(&message),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(
                        %error,
                        "{}: the kernel cannot be read any more",
                        self.device.name()
                    );
                    return;
                }
            }
        }
    }

    fn answer(&mut self, message: &Message) {
        let answer = self
            .handle_request(message.request)
            .map_err(|error| tracing::warn!(%error, "{}", self.device.name()));
        if let Err(error) = self.device.answer(message, answer) {
            tracing::warn!(%error, "{}: the kernel has given an answer up", self.device.name());
        }
    }

    fn handle_request(&mut self, request: Request) -> Result<u16, Error> {
        tracing::debug!(?request, "{}", self.device.name());
        match request {
            Request::Status(0) => self.close(),
            Request::Status(status) if status & status::DRIVER_OK != 0 && !self.running => {
                self.open(Begin::Fresh)
            }
            Request::Status(_) => Ok(()),
            // What was mapped is mapped anew: by the same queues, with what they have in flight. No
            // reset: that would forget it.
            Request::Iotlb { .. } if self.running => self.open(Begin::Resume),
            Request::Iotlb { .. } => Ok(()),
            Request::State { queue } => {
                let gate = self
                    .gates
                    .get(queue as usize)
                    .ok_or_else(|| unknown(format!("it asks for queue {queue}")))?;
                return Ok(gate.available());
            }
            Request::Unknown(kind) => {
                Err(unknown(format!("it asks for what only newer versions have ({kind})")))
            }
        }?;
        Ok(0)
    }

    fn open(&mut self, begin: Begin) -> Result<(), Error> {
        let features = self.device.features()?;
        for (queue, gate) in (0..).zip(&self.gates) {
            let vring = self.device.vring(queue)?;
            if vring.ready {
                self.device.kicks(queue, gate.kicks())?;
                self.announce(gate, Some(ReadyVirtqueue { vring, features, begin }))?;
                // What a server that is no more has shown, it may not have announced.
                if begin == Begin::Resume {
                    self.device.interrupt(queue);
                }
            }
        }
        self.running = true;
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.running = false;
        self.gates.iter().try_for_each(|gate| self.announce(gate, None))
    }

    fn announce(&self, gate: &QueueHandover, opening: Option<ReadyVirtqueue>) -> Result<(), Error> {
        if gate.announce(opening, TIMEOUT) {
            Ok(())
        } else {
            Err(unknown("a queue's thread does not acknowledge a reset".into()))
        }
    }
}

fn unknown(what: String) -> Error {
    Error::os(what, std::io::Error::from_raw_os_error(libc::EINVAL))
}
