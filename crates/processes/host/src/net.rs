//! One driver process of a network card: device, driver, interface, and the signals that end it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ring3_class::net::Mac;
use ring3_export::tap::{self, Stats, TapExport, arena_bytes};
use ring3_export::vduse;
use ring3_process::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::open::{Attached, Claim, OpenedDevice, Requirements};
use crate::run::{LOOK, check_report, say};
use crate::{Error, ExitReason, Ready};

/// What a card becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetExportKind {
    /// A TAP.
    #[default]
    Tap,
    /// A virtio card, by the VDUSE device of that name, or of one that is free.
    Vduse(Option<String>),
}

/// How to run a card.
#[derive(Debug)]
pub struct Options {
    /// What it becomes.
    pub way: NetExportKind,
    /// How it is exported.
    pub tap: tap::Options,
    /// Say what is exported as JSON.
    pub json: bool,
    /// Told the same as JSON once the interface is there, then closed.
    pub ready: Option<Ready>,
    /// Where figures go, at the end and on SIGUSR1.
    pub stats: Option<PathBuf>,
}

/// An interface that is there.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// Its name.
    pub interface: String,
    /// By which the kernel names it.
    pub index: u32,
    /// The card, as the user named it.
    pub device: String,
    /// What the card is.
    pub model: String,
    /// Its address.
    pub mac: Mac,
    /// Most bytes of a packet without its Ethernet header.
    pub mtu: u32,
    /// Queues, and so threads.
    pub queues: usize,
    /// By which whoever comes after a death goes on with it, of a VDUSE device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether there is somebody at the other end of the wire.
    pub link: bool,
}

/// What `--stats` writes.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    exported: &'a Exported,
    /// Milliseconds from before the claim until the interface was there.
    ready_ms: f64,
    #[serde(flatten)]
    stats: Stats,
}

/// Drives the card of `claim` until a signal ends it.
pub fn run(claim: &Claim, options: Options) -> Result<ExitReason, Error> {
    let signals = Signals::take().map_err(|source| Error::os("taking signals", source))?;
    // What cannot go well is found before anything is changed.
    match options.way {
        NetExportKind::Tap => tap::Interface::check()?,
        NetExportKind::Vduse(_) => vduse::check().map_err(tap::Error::from)?,
    }
    options.stats.as_deref().map_or(Ok(()), check_report)?;
    let since = Instant::now();
    let queues = options.tap.queues;
    let needs = Requirements {
        queues,
        arena: arena_bytes(queues),
        max_transfer: None,
        poll: Some(options.tap.poll),
    };
    let Attached { nics, driven, .. } = claim.open(&needs)?;
    let device = claim.device.to_string();
    let [nic] = &nics[..] else { return Err(Error::NoNic { device }) };
    let (export, card) = match &options.way {
        NetExportKind::Tap => (TapExport::start(nic.clone(), &options.tap)?, None),
        NetExportKind::Vduse(name) => {
            let (export, card) = vduse::start_card(nic.clone(), name.as_deref(), &options.tap)?;
            (export, Some(card))
        }
    };
    let exported = Exported {
        interface: export.name().into(),
        index: export.index(),
        model: nic.info().model.clone(),
        mac: export.address(),
        mtu: export.mtu(),
        queues: export.queues(),
        name: card.as_ref().map(|card| card.name().into()),
        link: nic.link().is_ok_and(|link| link.up),
        device,
    };
    let ready_ms = since.elapsed().as_secs_f64() * 1e3;
    let host = Host { exported, ready_ms, stats: options.stats };
    host.announce(options.json, options.ready)?;
    let ending = host.serve(&export, driven.as_ref(), &signals);
    let reported = host.report(&export);
    // Its driver lets go of the card when the last of this process does.
    let stopped = export.stop();
    let ended = card.map_or(Ok(()), vduse::Card::end);
    drop((nics, driven));
    stopped?;
    ended?;
    ending.and_then(|ending| reported.map(|()| ending))
}

struct Host {
    exported: Exported,
    ready_ms: f64,
    stats: Option<PathBuf>,
}

impl Host {
    /// Says that the interface is there.
    fn announce(&self, json: bool, ready: Option<Ready>) -> Result<(), Error> {
        let Exported { interface, device, model, mac, link, .. } = &self.exported;
        let mut object = serde_json::to_string(&self.exported)
            .map_err(|error| Error::os("writing JSON", error))?;
        object.push('\n');
        let link = if *link { "link up" } else { "no link" };
        let text = format!(
            "{interface} is {device} ({model}, {mac}, {link}); set it up with: ip link set \
            {interface} up\n"
        );
        say(if json { object.clone() } else { text })?;
        if let Some(Err(error)) = ready.map(|ready| ready.tell(&object, crate::run::ANNOUNCE)) {
            tracing::warn!(%error, "nobody was told that the interface is there; it is");
        }
        Ok(())
    }

    /// Serves until a signal, the removal of the card, or the end of the export, which says itself
    /// why.
    fn serve(
        &self,
        export: &TapExport,
        driven: Option<&OpenedDevice>,
        signals: &Signals,
    ) -> Result<ExitReason, Error> {
        let device = driven.map(OpenedDevice::device);
        let mut looked = Instant::now();
        loop {
            let calls =
                device.iter().flat_map(|device| [device.removal(), device.bus_errors()]).flatten();
            let mut fds = vec![
                PollFd::new(signals, PollFlags::IN),
                PollFd::from_borrowed_fd(export.ended(), PollFlags::IN),
            ];
            fds.extend(calls.map(|irq| PollFd::new(irq, PollFlags::IN)));
            let timeout = Timespec::try_from(
                LOOK.saturating_sub(looked.elapsed()).max(Duration::from_millis(1)),
            )
            .ok();
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(source) => return Err(Error::os("waiting for signals", source)),
            }
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            if is_ready(&fds[1]) {
                return Ok(ExitReason::Removed);
            }
            if fds[2..].iter().any(is_ready) {
                return Ok(ExitReason::Forced);
            }
            if is_ready(&fds[0]) {
                let pending = signals.take_pending();
                if pending.stop || pending.hang_up {
                    return Ok(ExitReason::Stopped);
                }
                if let Some(Err(error)) = pending.report.then(|| self.report(export)) {
                    tracing::warn!(%error, "the report was not written");
                }
            }
            if looked.elapsed() >= LOOK {
                driven.iter().for_each(|driven| driven.log_events());
                looked = Instant::now();
            }
        }
    }

    /// Writes the figures, if the user wants some.
    fn report(&self, export: &TapExport) -> Result<(), Error> {
        let Some(path) = &self.stats else { return Ok(()) };
        let report =
            Report { exported: &self.exported, ready_ms: self.ready_ms, stats: export.stats() };
        let written = serde_json::to_vec_pretty(&report).map_err(io::Error::from);
        let written = written.and_then(|text| std::fs::write(path as &Path, text));
        written.map_err(|source| Error::os(format!("--stats {}", path.display()), source))
    }
}
