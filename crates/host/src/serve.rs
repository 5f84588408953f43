//! A disk or a network card that several processes share, by sockets: device, driver, broker, and the signals that end it.

use std::os::fd::AsFd;
use std::time::Duration;

use ring3_broker::server::{self, card};
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

/// What is served: what it is called, the rest of the JSON, its sockets, and whether the device reaches clients' memory.
struct Shared {
    name: String,
    facts: Value,
    sockets: Vec<String>,
    mapped: bool,
}

/// A server of either kind.
enum Server {
    Disk(server::Server),
    Card(card::Server),
}

/// Bytes of the arena beside rings: buffers to copy through, where clients' memory is not reached, and those that a card receives into.
const ARENA: usize = 48 << 20;

/// Serves the one disk, or card, of `claim` until a signal ends it.
pub fn run(claim: &Claim, options: Options) -> Result<Ending, Error> {
    let signals = Signals::take().map_err(|source| Error::os("taking signals", source))?;
    raise_files();
    let needs = Requirements { queues: 1, arena: ARENA, max_transfer: None, poll: Some(options.poll) };
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
            let facts = json!({ "disk": name, "bytes": info.capacity(), "block_size": info.block_size });
            let mapped = server.is_mapped();
            (Server::Disk(server), Shared { name, facts, sockets, mapped })
        }
        Shares::Card { accesses } => {
            let [nic] = &nics[..] else { return Err(Error::NoNic { device: device.into() }) };
            let server = card::Server::bind(nic.clone(), accesses.clone(), card::Options { poll, copy }).map_err(failed)?;
            let (sockets, addresses): (Vec<_>, Vec<_>) =
                server.sockets().map(|(path, addresses)| (path.display().to_string(), addresses.to_vec())).unzip();
            let (name, info) = (nic.name(), nic.info());
            let facts = json!({ "card": name, "model": info.model, "mac": info.mac, "addresses": addresses });
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
    let Shared { name, mut facts, sockets, mapped } = shared;
    let way = if mapped { "the device reaches clients' memory" } else { "clients' bytes are copied" };
    let line = |socket: &String| format!("{name} is there for many: --device remote:{socket} ({way})\n");
    let text = sockets.iter().map(line).collect();
    if let Some(facts) = facts.as_object_mut() {
        facts.extend([
            ("sockets".into(), json!(sockets)),
            ("mapped".into(), mapped.into()),
            ("pid".into(), std::process::id().into()),
        ]);
    }
    let object = format!("{facts}\n");
    say(if json { object.clone() } else { text })?;
    if let Some(Err(error)) = ready.map(|ready| ready.tell(&object, ANNOUNCE)) {
        tracing::warn!(%error, "nobody was told that it is there; it is");
    }
    Ok(())
}
