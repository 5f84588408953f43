//! Clients' memory in which requests of exported disks need no copy: `ring3 run --share SOCKET`.
//!
//! # Shape
//! A thread hears [`Clients`] on a socket. What one offers is checked, mapped for the disks'
//! device, registered with the kernel for each disk, and told to the disks' queues
//! ([`Regions`](ring3_export::ublk::Regions)); backwards when the client goes. The commands that
//! register are given by another process, the [`guard`], which outlives this one by a moment.
//!
//! # When this process dies
//! The kernel ends what it had as soon as `/dev/ublkcN` is closed, and lets clients' pages go; the
//! device may be writing there still. So the guard has that file open, too, and closes it when the
//! device can write nothing any more: a request whose memory a device may write has not ended. If
//! the disks outlive their server, the guard hands clients and their memory to the next one.

pub mod guard;
mod registered;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use ring3_broker::region::Clients;
use ring3_broker::server::Listener;
use ring3_export::ublk;
use rustix::event::{EventfdFlags, eventfd};

use crate::Error;
use crate::attach::Source;
use guard::{Guard, PreviousExporter};
use registered::{Disk, Place, Registered, Registrar};

/// Where clients offer memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The socket.
    pub path: PathBuf,
    /// Its file's rights.
    pub mode: u32,
}

/// What is needed before the disks are there.
pub(crate) struct ShareSetup {
    listener: Listener,
    guard: Guard,
    /// The disks so far.
    disks: Vec<Disk>,
    /// Of a server that has died.
    left: PreviousExporter,
    /// What of it the disks so far have.
    adopted: Vec<Place>,
}

impl ShareSetup {
    /// Listens, and starts the guard of the device of `source`; or goes on with the one that a
    /// server has left who has died, if `options` say to recover its disks.
    pub fn new(share: &Share, source: &Source, options: &ublk::Options) -> Result<Self, Error> {
        let failed = |source| Error::Share { path: share.path.display().to_string(), source };
        let function = guard::function(source).map_err(failed)?;
        let successors = guard::successors(&share.path);
        let (guard, left) = match options.id.filter(|_| options.recover) {
            Some(id) => Guard::take_over(&successors, function, id).map_err(|reason| {
                ublk::Error::Guard { device: format!("/dev/ublkb{id}"), reason }
            })?,
            None => {
                let successors = (options.recovery != ublk::Recovery::None).then_some(successors);
                let guard = Guard::start(function, successors);
                (
                    guard.map_err(|source| {
                        Error::os("starting the guard of clients' memory", source)
                    })?,
                    PreviousExporter::default(),
                )
            }
        };
        let listener = Listener::bind(&share.path, share.mode).map_err(failed)?;
        Ok(Self { listener, guard, disks: Vec::new(), left, adopted: Vec::new() })
    }

    /// A disk is about to be there. What the kernel knows of clients' memory since a server before
    /// is its from now on: requests may name that as soon as it is served.
    pub fn add(&mut self, disk: ublk::Sharing) -> Result<(), ublk::Error> {
        let failed =
            |reason| ublk::Error::Guard { device: format!("/dev/ublkb{}", disk.id), reason };
        // Before its device reaches any of it.
        self.guard.hold(disk.id, &disk.file).map_err(failed)?;
        // Of the file the guard has one, and this process those that end with its threads.
        let ublk::Sharing { id, regions, dma, .. } = disk;
        let disk = Disk { id, regions, dma };
        for (key, memory) in self.left.regions.extract_if(.., |(key, _)| key.id == id) {
            self.adopted.push(disk.adopt(key, memory));
        }
        self.disks.push(disk);
        Ok(())
    }

    /// Hears clients from now on.
    pub fn serve(self) -> Result<RegistrationThread, Error> {
        let failed =
            |source: std::io::Error| Error::os("hearing clients that share memory", source);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let heard = stop.try_clone().map_err(failed)?;
        let Self { listener, guard, disks, left, mut adopted } = self;
        let mut clients = Clients::new(listener, Registrar::new(guard, disks));
        for (keys, socket) in left.clients {
            let places = adopted.extract_if(.., |place| keys.contains(&place.key)).collect();
            clients.adopt(socket, Registered(places)).map_err(failed)?;
        }
        let thread = thread::Builder::new().name("ring3-share".into());
        let thread = thread.spawn(move || {
            // Their clients have never heard that they are shared, or have taken them back.
            clients.revoke(Registered(adopted));
            clients.serve(heard.as_fd())
        });
        let thread = thread.map_err(failed)?;
        Ok(RegistrationThread { stop, thread: Some(thread) })
    }
}

/// The thread that hears clients. Dropping it leaves their memory to the end of this process.
pub(crate) struct RegistrationThread {
    stop: OwnedFd,
    thread: Option<JoinHandle<(Registrar, Vec<Registered>)>>,
}

impl RegistrationThread {
    /// Parts with the clients, after the disks have gone in good order: nothing is in flight any
    /// more.
    pub fn end(mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some((registrar, shared)) = self.thread.take().and_then(|thread| thread.join().ok())
        {
            registrar.end(shared).release();
        }
    }
}
