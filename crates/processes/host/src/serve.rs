//! A disk or a network card that several processes share, by sockets: device, driver, broker, and
//! the signals that end it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_broker::server::{self, card};
use ring3_class::block::Disk;
use ring3_class::net::Mac;
use ring3_control::drive::SHARED_ARENA;
use ring3_process::{Signals, log, raise_files};
use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;
use serde_json::{Value, json};

use crate::open::{Attached, Claim, OpenedDevice, Requirements};
use crate::run::{ANNOUNCE, say};
use crate::{Error, ExitReason, Ready};

/// How to share a device.
#[derive(Debug)]
pub struct Options {
    /// What of it, with whom, and on which terms.
    pub shares: Shares,
    /// How long to poll before sleeping, as long as that pays.
    pub poll: Duration,
    /// Copy, also where the device could reach clients' memory.
    pub copy: bool,
    /// Say what is served as JSON.
    pub json: bool,
    /// Told the same as JSON once the sockets are there, then closed.
    pub ready: Option<Ready>,
}

/// What is shared.
#[derive(Debug)]
pub enum Shares {
    /// Its one disk.
    Disk {
        /// Where, and on which terms.
        accesses: Vec<server::Access>,
        /// Requests of all clients together in the disk's hands.
        depth: u16,
    },
    /// Its one network card.
    Card {
        /// Where, and on which terms.
        accesses: Vec<card::Access>,
    },
}

/// What is served, as users are told.
#[derive(Clone)]
pub struct ServedInfo {
    /// What it is called.
    pub name: String,
    /// Of it, an object.
    pub facts: Value,
    /// Where, and how.
    pub ways: AccessPaths,
}

/// How clients get to what is served.
#[derive(Clone, Serialize)]
pub struct AccessPaths {
    /// The paths of its sockets.
    pub sockets: Vec<String>,
    /// The device reaches clients' memory by itself.
    pub mapped: bool,
}

impl ServedInfo {
    /// What is known of a disk.
    pub fn disk(name: &str, bytes: u64, block_size: u32) -> Value {
        json!({ "disk": name, "bytes": bytes, "block_size": block_size })
    }

    /// What is known of a card; `addresses` of the clients of each socket.
    pub fn card(name: &str, model: &str, mac: Mac, addresses: &[Vec<Mac>]) -> Value {
        json!({ "card": name, "model": model, "mac": mac, "addresses": addresses })
    }

    /// All that, in a line for each socket or as an object; process `pid` serves it.
    pub fn words(self, pid: u32, json: bool) -> String {
        let Self { name, mut facts, ways: AccessPaths { sockets, mapped } } = self;
        if json {
            if let Some(facts) = facts.as_object_mut() {
                facts.extend([
                    ("sockets".into(), json!(sockets)),
                    ("mapped".into(), mapped.into()),
                    ("pid".into(), pid.into()),
                ]);
            }
            return format!("{facts}\n");
        }
        let way =
            if mapped { "the device reaches clients' memory" } else { "clients' bytes are copied" };
        sockets
            .iter()
            .map(|socket| format!("{name} is there for many: --device remote:{socket} ({way})\n"))
            .collect()
    }
}

/// A server of either kind.
enum BrokerServer {
    Disk(server::DiskServer),
    Card(card::CardServer),
}

/// Serves the one disk, or card, of `claim` until a signal ends it.
pub fn run(claim: &Claim, options: Options) -> Result<ExitReason, Error> {
    let signals = Signals::take().map_err(|source| Error::os("taking signals", source))?;
    raise_files();
    let needs = Requirements {
        queues: 1,
        arena: SHARED_ARENA,
        max_transfer: None,
        poll: Some(options.poll),
    };
    let mut attached = claim.open(&needs)?;
    let device = claim.device.to_string();
    let (server, shared) = bind(&mut attached, &device, &options)?;
    announce(shared, options.json, options.ready)?;
    let mut ending = ExitReason::Stopped;
    let removal =
        attached.driven.as_ref().map(OpenedDevice::device).and_then(|device| device.removal());
    let mut calls = vec![signals.as_fd()];
    calls.extend(removal.map(AsFd::as_fd));
    let asked = || {
        let pending = signals.take_pending();
        if pending.stop || pending.hang_up {
            return true;
        }
        let wanted_back =
            removal.is_some_and(|removal| removal.take().is_ok_and(|count| count > 0));
        if wanted_back {
            log::notice(format_args!(
                "ring3: {device}: the system wants the device back; its clients lose it"
            ));
            ending = ExitReason::Forced;
        }
        wanted_back
    };
    let ran = match server {
        BrokerServer::Disk(server) => server.run(&calls, asked),
        BrokerServer::Card(server) => server.run(&calls, asked),
    };
    ran.map_err(|source| Error::Device { device, source })?;
    Ok(ending)
}

/// Listens. What is served is the server's alone from now on, so that it goes with that.
fn bind(
    attached: &mut Attached,
    device: &str,
    options: &Options,
) -> Result<(BrokerServer, ServedInfo), Error> {
    let failed = |source| Error::Device { device: device.into(), source };
    let (disks, nics) = (std::mem::take(&mut attached.disks), std::mem::take(&mut attached.nics));
    let &Options { ref shares, poll, copy, .. } = options;
    Ok(match shares {
        Shares::Disk { accesses, depth } => {
            let terms = server::Options { depth: *depth, poll, copy };
            let (server, shared) = bind_disk(&disks, device, accesses.clone(), terms)?;
            (BrokerServer::Disk(server), shared)
        }
        Shares::Card { accesses } => {
            let [nic] = &nics[..] else { return Err(Error::NoNic { device: device.into() }) };
            let server =
                card::CardServer::bind(nic.clone(), accesses.clone(), card::Options { poll, copy })
                    .map_err(failed)?;
            let (sockets, addresses): (Vec<_>, Vec<_>) = server
                .sockets()
                .map(|(path, addresses)| (path.display().to_string(), addresses.to_vec()))
                .unzip();
            let (name, info) = (nic.name(), nic.info());
            let facts = ServedInfo::card(&name, &info.model, info.mac, &addresses);
            let mapped = server.is_mapped();
            (
                BrokerServer::Card(server),
                ServedInfo { name, facts, ways: AccessPaths { sockets, mapped } },
            )
        }
    })
}

fn bind_disk(
    disks: &[Arc<dyn Disk>],
    device: &str,
    accesses: Vec<server::Access>,
    terms: server::Options,
) -> Result<(server::DiskServer, ServedInfo), Error> {
    let [disk] = disks else {
        return Err(Error::OneDisk { device: device.into(), count: disks.len() });
    };
    let server = server::DiskServer::bind(disk.clone(), accesses, terms);
    let server = server.map_err(|source| Error::Device { device: device.into(), source })?;
    let sockets = server.paths().map(|path| path.display().to_string()).collect();
    let (name, info) = (disk.name(), disk.info());
    let facts = ServedInfo::disk(&name, info.capacity(), info.block_size);
    let mapped = server.is_mapped();
    Ok((server, ServedInfo { name, facts, ways: AccessPaths { sockets, mapped } }))
}

/// The one disk of an export, before it is served at sockets beside its block device.
pub(crate) struct BoundServer {
    device: String,
    server: server::DiskServer,
    pub(crate) shared: ServedInfo,
}

impl BoundServer {
    /// Listens. Fails unless there is one disk, with a queue for that beside the export's.
    pub(crate) fn new(
        disks: &[Arc<dyn Disk>],
        device: String,
        accesses: Vec<server::Access>,
        poll: Duration,
    ) -> Result<Self, Error> {
        raise_files();
        let (server, shared) =
            bind_disk(disks, &device, accesses, server::Options { poll, ..Default::default() })?;
        if disks.iter().any(|disk| disk.max_queues() < 2) {
            let source = ring3_device::Error::Unsupported(
                "--socket needs a queue beside that of the block device, and the disk has one: \
                 ring3 serve disk has no block device"
                    .into(),
            );
            return Err(Error::Device { device, source });
        }
        Ok(Self { device, server, shared })
    }

    /// Serves, in a thread of its own, until this is ended.
    pub(crate) fn serve(self) -> Result<Serving, Error> {
        let failed = |source: std::io::Error| Error::os("serving a disk at sockets", source);
        let Self { device, server, .. } = self;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let call = stop.try_clone().map_err(failed)?;
        let serve = move || {
            if let Err(error) = server.run(&[call.as_fd()], || true) {
                tracing::error!("{device}: it is not served at its sockets any more: {error}");
            }
        };
        let thread =
            thread::Builder::new().name("ring3-serve".into()).spawn(serve).map_err(failed)?;
        Ok(Serving { stop, thread: Some(thread) })
    }
}

/// A disk that is served beside its export. Dropping it parts with the clients, when what they have
/// in flight has ended.
pub(crate) struct Serving {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        // It has said what went wrong.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn announce(shared: ServedInfo, json: bool, ready: Option<Ready>) -> Result<(), Error> {
    let pid = std::process::id();
    say(shared.clone().words(pid, json))?;
    if let Some(Err(error)) = ready.map(|ready| ready.tell(&shared.words(pid, true), ANNOUNCE)) {
        tracing::warn!(%error, "nobody took the line of --ready-fd; it is served");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::attach::{Source, attach};
    use ring3_broker::client::RemoteDisk;
    use ring3_broker::region::SharedMemory;
    use ring3_class::block::{Disk, ForeignAccess, Queue, Request, open};
    use ring3_device::Deadline;
    use ring3_export::ublk;

    const SOON: Duration = Duration::from_secs(10);

    /// The disks of `uri`, and where a socket may be.
    fn attached(uri: &str) -> (Attached, tempfile::TempDir, PathBuf) {
        let source = Source::Device(Box::new(Claim::new(uri.parse().unwrap())));
        let attached = attach(&source, &ublk::Options::default(), SHARED_ARENA).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        (attached, folder, path)
    }

    fn bound(attached: &Attached, path: &std::path::Path) -> Result<BoundServer, Error> {
        BoundServer::new(
            &attached.disks,
            "sim".into(),
            vec![server::Access::new(path)],
            Duration::ZERO,
        )
    }

    #[test]
    fn a_disk_that_is_served_beside_its_other_use_has_the_same_bytes_in_the_same_memory() {
        let (attached, _folder, path) = attached("sim:nvme,size=8M");
        let serving = bound(&attached, &path).unwrap().serve().unwrap();
        let memory = SharedMemory::new(1 << 20).unwrap();
        let (here, there) = (&*attached.disks[0], RemoteDisk::connect(&path, 4 << 20).unwrap());
        here.register_region(memory.region()).unwrap();
        there.register_region(memory.region()).unwrap();
        memory.region().write(0, &[0x6b; 4096]).unwrap();
        let mut queues =
            [here, &there].map(|disk| open(disk, 4, ForeignAccess::default()).unwrap());
        let requests = [
            Request::write(1, 8, 8, memory.piece(0, 4096)),
            Request::read(2, 8, 8, memory.piece(8192, 4096)),
        ];
        for (queue, request) in queues.iter_mut().zip(requests) {
            assert_eq!(queue.execute(request, Deadline::after(SOON)).unwrap().result, Ok(()));
            assert_eq!((queue.stream_stats().mapped, queue.stream_stats().copied), (1, 0));
        }
        let mut bytes = [0; 4096];
        memory.region().read(8192, &mut bytes).unwrap();
        assert_eq!(bytes, [0x6b; 4096]);
        drop(serving);
        assert!(!path.exists());
    }

    #[test]
    fn a_disk_with_one_queue_and_one_of_several_disks_are_not_served_beside_their_export() {
        for (uri, says) in
            [("sim:ahci,size=8M", "has one"), ("sim:nvme,size=8M,namespaces=2", "2 disks")]
        {
            let (attached, _folder, path) = attached(uri);
            let error = bound(&attached, &path).err().unwrap().to_string();
            assert!(error.contains(says) && !path.exists(), "{error}");
        }
    }
}
