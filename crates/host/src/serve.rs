//! A disk or a network card that several processes share, by sockets: device, driver, broker, and the signals that end it.

use std::os::fd::AsFd;
use std::time::Duration;

use ring3_broker::server::{self, card};
use ring3_class::net::Mac;
use ring3_control::drive::SHARED_ARENA;
use ring3_process::{Signals, log};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::open::{Attached, Claim, Driven, Requirements};
use crate::run::{ANNOUNCE, say};
use crate::{Ending, Error, Ready};

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
pub struct Shared {
    /// What it is called.
    pub name: String,
    /// Of it, an object.
    pub facts: Value,
    /// The paths of its sockets.
    pub sockets: Vec<String>,
    /// The device reaches clients' memory by itself.
    pub mapped: bool,
}

impl Shared {
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
        let Self { name, mut facts, sockets, mapped } = self;
        if json {
            if let Some(facts) = facts.as_object_mut() {
                facts.extend([("sockets".into(), json!(sockets)), ("mapped".into(), mapped.into()), ("pid".into(), pid.into())]);
            }
            return format!("{facts}\n");
        }
        let way = if mapped { "the device reaches clients' memory" } else { "clients' bytes are copied" };
        sockets.iter().map(|socket| format!("{name} is there for many: --device remote:{socket} ({way})\n")).collect()
    }
}

/// A server of either kind.
enum Server {
    Disk(server::Server),
    Card(card::Server),
}

/// Serves the one disk, or card, of `claim` until a signal ends it.
pub fn run(claim: &Claim, options: Options) -> Result<Ending, Error> {
    let signals = Signals::take().map_err(|source| Error::os("taking signals", source))?;
    raise_files();
    let needs = Requirements { queues: 1, arena: SHARED_ARENA, max_transfer: None, poll: Some(options.poll) };
    let mut attached = claim.open(&needs)?;
    let device = claim.device.to_string();
    let (server, shared) = bind(&mut attached, &device, &options)?;
    announce(shared, options.json, options.ready)?;
    let mut ending = Ending::Stopped;
    let removal = attached.driven.as_ref().map(Driven::device).and_then(|device| device.removal());
    let mut calls = vec![signals.as_fd()];
    calls.extend(removal.map(AsFd::as_fd));
    let asked = || {
        let wishes = signals.wishes();
        if wishes.stop || wishes.hang_up {
            return true;
        }
        let wanted_back = removal.is_some_and(|removal| removal.take().is_ok_and(|count| count > 0));
        if wanted_back {
            log::notice(format_args!("ring3: {device}: the system wants the device back; its clients lose it"));
            ending = Ending::Forced;
        }
        wanted_back
    };
    let ran = match server {
        Server::Disk(server) => server.run(&calls, asked),
        Server::Card(server) => server.run(&calls, asked),
    };
    ran.map_err(|source| Error::Device { device, source })?;
    Ok(ending)
}

/// Listens. What is served is the server's alone from now on, so that it goes with that.
fn bind(attached: &mut Attached, device: &str, options: &Options) -> Result<(Server, Shared), Error> {
    let failed = |source| Error::Device { device: device.into(), source };
    let (disks, nics) = (std::mem::take(&mut attached.disks), std::mem::take(&mut attached.nics));
    let &Options { ref shares, poll, copy, .. } = options;
    Ok(match shares {
        Shares::Disk { accesses, depth } => {
            let [disk] = &disks[..] else { return Err(Error::OneDisk { device: device.into(), count: disks.len() }) };
            let terms = server::Options { depth: *depth, poll, copy };
            let server = server::Server::bind(disk.clone(), accesses.clone(), terms).map_err(failed)?;
            let sockets = server.paths().map(|path| path.display().to_string()).collect();
            let (name, info) = (disk.name(), disk.info());
            let facts = Shared::disk(&name, info.capacity(), info.block_size);
            let mapped = server.is_mapped();
            (Server::Disk(server), Shared { name, facts, sockets, mapped })
        }
        Shares::Card { accesses } => {
            let [nic] = &nics[..] else { return Err(Error::NoNic { device: device.into() }) };
            let server = card::Server::bind(nic.clone(), accesses.clone(), card::Options { poll, copy }).map_err(failed)?;
            let (sockets, addresses): (Vec<_>, Vec<_>) =
                server.sockets().map(|(path, addresses)| (path.display().to_string(), addresses.to_vec())).unzip();
            let (name, info) = (nic.name(), nic.info());
            let facts = Shared::card(&name, &info.model, info.mac, &addresses);
            let mapped = server.is_mapped();
            (Server::Card(server), Shared { name, facts, sockets, mapped })
        }
    })
}

/// Lets this process open as many files as it may: a client takes three, and two for each of its queues. What it may not is an error when a client asks for it.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn announce(shared: Shared, json: bool, ready: Option<Ready>) -> Result<(), Error> {
    let pid = std::process::id();
    say(shared.clone().words(pid, json))?;
    if let Some(Err(error)) = ready.map(|ready| ready.tell(&shared.words(pid, true), ANNOUNCE)) {
        tracing::warn!(%error, "nobody was told that it is there; it is");
    }
    Ok(())
}
