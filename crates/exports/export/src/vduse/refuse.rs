//! A device that nobody wants any more, served until it is taken from the bus: its driver says
//! goodbye to who answers, and waits for what it has in flight. All that it asks a disk for fails.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ring3_spec::virtio::blk;
use ring3_vduse::{Begin, Chain, Device, Error, Inflight, Memory, Message, Queue, Request};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::block::PIECES;

/// The thread that serves, which ends when this is dropped.
pub struct Refusal {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Refusal {
    /// Serves `device`, whose requests fail from now on: those in flight, too, if there is a `log`
    /// of them. Without, it is a device whose driver waits for nothing.
    pub fn start(device: Device, log: Option<Inflight>) -> Result<Self, Error> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let failed = |error: std::io::Error| {
            Error::os(format!("{}: the thread that ends it", device.name()), error)
        };
        let stop = Arc::new(event().map_err(|error| failed(error.into()))?);
        let kicks = event().map_err(|error| failed(error.into()))?;
        let (told, name) = (stop.clone(), format!("{}-end", device.name()));
        let device = Arc::new(device);
        let mut refusing = Refusing {
            queues: Vec::new(),
            chain: Chain::with_capacity(PIECES),
            device: device.clone(),
            kicks,
            log,
        };
        let failed = |error: std::io::Error| {
            Error::os(format!("{}: the thread that ends it", device.name()), error)
        };
        let thread =
            thread::Builder::new().name(name).spawn(move || refusing.run(&told)).map_err(failed)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Refusing {
    device: Arc<Device>,
    kicks: OwnedFd,
    log: Option<Inflight>,
    /// Those of a disk.
    queues: Vec<(u16, Queue)>,
    chain: Chain,
}

impl Refusing {
    fn run(&mut self, stop: &OwnedFd) {
        self.open();
        loop {
            self.refuse_all();
            let mut fds = [stop.as_fd(), self.device.as_fd(), self.kicks.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let _ = poll(&mut fds, None);
            let broken = fds[1].revents().contains(PollFlags::ERR);
            if !fds[0].revents().is_empty() || broken {
                return;
            }
            let _ = rustix::io::read(&self.kicks, &mut [0; 8]);
            if let Ok(Some(message)) = self.device.message() {
                self.answer(&message);
            }
        }
    }

    /// Opens what the dead server has left.
    fn open(&mut self) {
        let Some(log) = &self.log else { return };
        let features = self.device.features().unwrap_or_default();
        for number in 0.. {
            let (Some(log), Ok(vring)) = (log.queue(number), self.device.vring(number)) else {
                return;
            };
            if !vring.ready || self.device.kicks(number, self.kicks.as_fd()).is_err() {
                continue;
            }
            let memory = Memory::new(self.device.clone());
            match Queue::open(memory, &vring, features, Some(log), Begin::Resume) {
                Ok(queue) => self.queues.push((number, queue)),
                Err(fault) => tracing::warn!(
                    "{}: {}",
                    self.device.name(),
                    Error::Driver { queue: number, fault }
                ),
            }
        }
    }

    fn answer(&mut self, message: &Message) {
        let answer = match message.request {
            Request::Status(0) => {
                self.queues.clear();
                Ok(0)
            }
            Request::Status(_) | Request::Iotlb { .. } => Ok(0),
            Request::State { queue } => Ok(self
                .queues
                .iter()
                .find(|(number, _)| u32::from(*number) == queue)
                .map_or(0, |(_, queue)| queue.available())),
            Request::Unknown(_) => Err(()),
        };
        if let Err(error) = self.device.answer(message, answer) {
            tracing::warn!(%error, "{}: the kernel has given an answer up", self.device.name());
        }
    }

    /// Fails what is in flight, and all that is there.
    fn refuse_all(&mut self) {
        for (number, queue) in &mut self.queues {
            if refuse(queue, &mut self.chain) {
                self.device.interrupt(*number);
            }
        }
    }
}

/// Whether the driver is to be interrupted. A chain that makes no sense ends that queue: its driver
/// has to be unbound by force.
fn refuse(queue: &mut Queue, chain: &mut Chain) -> bool {
    for head in queue.in_flight() {
        if queue.retake(head, chain).is_ok() {
            fail(queue, chain);
        }
    }
    loop {
        match queue.take(chain) {
            Ok(true) => fail(queue, chain),
            Ok(false) if queue.want_kicks() => {}
            Ok(false) | Err(_) => break,
        }
    }
    queue.publish()
}

fn fail(queue: &mut Queue, chain: &Chain) {
    if let Some(last) = chain.writable().checked_sub(1) {
        chain.write(queue.memory(), last, &[blk::IO_ERROR]);
    }
    queue.put(chain.head(), chain.writable());
}
