//! A disk that several processes share, by sockets: device, driver, broker, and the signals that end it.

use std::os::fd::AsFd;
use std::time::Duration;

use ring3_broker::server::{Access, Options as Terms, Server};
use ring3_process::{Signals, log};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::open::{Attached, Claim, Driven, Requirements};
use crate::run::{ANNOUNCE, say};
use crate::{Ending, Error, Ready};

/// How to share a disk.
#[derive(Debug)]
pub struct Options {
    /// Where, and on which terms.
    pub accesses: Vec<Access>,
    /// Requests of all clients together in the disk's hands.
    pub depth: u16,
    /// How long to poll before sleeping, as long as that pays.
    pub poll: Duration,
    /// Copy, also where the device could reach clients' memory.
    pub copy: bool,
    /// Say what is served as JSON.
    pub json: bool,
    /// Told the same as JSON once the sockets are there, then closed.
    pub ready: Option<Ready>,
}

/// What is served.
#[derive(Serialize)]
struct Shared {
    disk: String,
    bytes: u64,
    block_size: u32,
    sockets: Vec<String>,
    /// The device reaches clients' memory; otherwise it is copied.
    mapped: bool,
    pid: u32,
}

/// Bytes of the arena beside rings: buffers to copy through, where clients' memory is not reached.
const ARENA: usize = 48 << 20;

/// Serves the one disk of `claim` until a signal ends it.
pub fn run(claim: &Claim, options: Options) -> Result<Ending, Error> {
    let signals = Signals::take().map_err(|source| Error::os("taking signals", source))?;
    raise_files();
    let needs = Requirements { queues: 1, arena: ARENA, max_transfer: None, poll: Some(options.poll) };
    let Attached { disks, driven, .. } = claim.open(&needs)?;
    let device = claim.device.to_string();
    let [disk] = &disks[..] else { return Err(Error::OneDisk { device, count: disks.len() }) };
    let failed = |source| Error::Device { device: device.clone(), source };
    let terms = Terms { depth: options.depth, poll: options.poll, copy: options.copy };
    let server = Server::bind(disk.clone(), options.accesses, terms).map_err(failed)?;
    let shared = Shared {
        disk: disk.name(),
        bytes: disk.info().capacity(),
        block_size: disk.info().block_size,
        sockets: server.paths().map(|path| path.display().to_string()).collect(),
        mapped: server.is_mapped(),
        pid: std::process::id(),
    };
    announce(&shared, options.json, options.ready)?;
    let mut ending = Ending::Stopped;
    let removal = driven.as_ref().map(Driven::device).and_then(|device| device.removal());
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
    server.run(&calls, asked).map_err(failed)?;
    Ok(ending)
}

/// Lets this process open as many files as it may: a client takes three, and two for each of its queues. What it may not is an error when a client asks for it.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn announce(shared: &Shared, json: bool, ready: Option<Ready>) -> Result<(), Error> {
    let mut object = serde_json::to_string(shared).map_err(|error| Error::os("writing JSON", error))?;
    object.push('\n');
    let way = if shared.mapped { "the device reaches clients' memory" } else { "clients' bytes are copied" };
    let line = |socket: &String| format!("{} is there for many: --device remote:{socket} ({way})\n", shared.disk);
    say(if json { object.clone() } else { shared.sockets.iter().map(line).collect() })?;
    if let Some(Err(error)) = ready.map(|ready| ready.tell(&object, ANNOUNCE)) {
        tracing::warn!(%error, "nobody was told that the disk is there; it is");
    }
    Ok(())
}
