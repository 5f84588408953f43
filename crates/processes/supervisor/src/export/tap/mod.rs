//! The network card of a device as an interface.
//!
//! # Shape
//! A TAP, whose descriptors are held here: it stays with its addresses, routes and carrier while
//! drivers come and go, each of which is given copies of them. The kernel keeps what its users send
//! meanwhile, as much as the interface's queue holds (`txqueuelen`). `watch` is the thread that
//! receives the settings that its users request.
//!
//! # Rights
//! All that needs CAP_NET_ADMIN is done here, and all that is an ioctl: a driver reads and writes
//! packets.

mod carrier;
mod watch;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring3_class::net::{FilterLimits, Info, Link, Mac, Offloads};
use ring3_control::drive::{Connect, DriverCommand, Offered, OfferedNic};
use ring3_control::status::{DiskStatus, InterfaceStatus};
use ring3_export::tap::{Error, Interface, InterfaceCounters, Netlink, RequestedSettings, Shape};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde::{Deserialize, Serialize};

use super::{CancelFlags, EventSender, Export, Refusal, ServeRequest, StatusSource};
use crate::manifest;
use carrier::Carrier;
use watch::{Watch, said};

/// The interface of one card.
pub struct Tap {
    wanted: manifest::ExportConfig,
    name: String,
    voice: EventSender,
    made: Option<Arc<Made>>,
    watch: Option<Watch>,
}

/// An interface that is there.
struct Made {
    interface: Interface,
    /// The card that it was made for.
    card: OfferedNic,
    state: Mutex<State>,
    /// Wakes the thread that watches it.
    raised: OwnedFd,
    /// The thread is to end.
    over: AtomicBool,
}

/// How long figures mean anything: one who cannot be asked any more counts nothing.
const FRESH: Duration = Duration::from_secs(4);

struct State {
    /// What it is called now, wherever it is.
    name: String,
    index: u32,
    settings: RequestedSettings,
    /// The driver knows them.
    told: bool,
    carrier: Carrier,
    figures: InterfaceCounters,
    /// When the figures were so.
    looked: Instant,
}

/// What another supervisor needs to go on with it.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// Names of the queues' descriptors.
    queues: Vec<String>,
}

impl Made {
    fn new(interface: Interface, card: OfferedNic, netlink: &Netlink) -> Result<Self, Error> {
        let failed = |cause| Error::Os { what: format!("{}: its state", interface.name()), cause };
        // One that was moved is found by who watches it.
        let settings = netlink.requested_settings(interface.index()).unwrap_or_default();
        let figures = netlink.figures(interface.index()).unwrap_or_default();
        let carrier = Carrier::new(figures.carrier);
        let (name, index) = (interface.name().to_owned(), interface.index());
        let state = Mutex::new(State {
            name,
            index,
            settings,
            told: false,
            carrier,
            figures,
            looked: Instant::now(),
        });
        let raised = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        Ok(Self { interface, card, state, raised, over: AtomicBool::new(false) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raise(&self) {
        let _ = rustix::io::write(&self.raised, &1u64.to_ne_bytes());
    }

    /// Tells the kernel how the link is, if that is new.
    fn set_carrier(&self) -> Result<(), Error> {
        let mut state = self.state();
        match state.carrier.judge(Instant::now()) {
            // Whoever has deleted it needs no carrier.
            Some(up) => self
                .interface
                .set_carrier(up)
                .or_else(|error| self.interface.present().map_or(Ok(()), |_| Err(error))),
            None => Ok(()),
        }
    }

    /// By which its queues are kept: another interface's have other names.
    fn names(&self) -> Vec<String> {
        let index = self.interface.index();
        self.interface
            .queues()
            .enumerate()
            .map(|(queue, _)| format!("tap.{index}.{queue}"))
            .collect()
    }
}

impl Tap {
    /// Of `device`.
    pub fn new(device: &manifest::Device) -> Self {
        let name = device.interface().to_owned();
        Self {
            wanted: device.export.clone(),
            name,
            voice: EventSender::silent(),
            made: None,
            watch: None,
        }
    }

    /// Makes the interface for `card`.
    fn make(&self, card: &OfferedNic) -> Result<Made, Error> {
        let queues = self.wanted.queues.min(card.max_queues).min(crate::processors()).max(1);
        let (least, most) = card.mtu;
        if let Some(mtu) = self.wanted.mtu.filter(|mtu| !(least..=most).contains(mtu)) {
            let reason = format!("export.mtu = {mtu}: the card takes {least} to {most}");
            return Err(Error::Card { card: card.name.clone(), reason });
        }
        let owner = self.wanted.owner.map(|owner| owner.user);
        let interface = Interface::open(&Shape {
            name: Some(self.name.clone()),
            queues,
            owner,
            persist: false,
        })?;
        let netlink = netlink()?;
        interface.set_up(&netlink, &info(card), self.wanted.mtu)?;
        Made::new(interface, card.clone(), &netlink)
    }

    fn take(&mut self, made: Made) -> Result<(), String> {
        let made = Arc::new(made);
        self.watch = None;
        self.watch = Some(
            Watch::start(made.clone(), self.voice.clone())
                .map_err(|error| format!("{}: watching it: {error}", self.name))?,
        );
        self.made = Some(made);
        Ok(())
    }

    fn made(&self) -> Result<&Arc<Made>, String> {
        self.made.as_ref().ok_or_else(|| format!("{} is not there", self.name))
    }
}

impl Export for Tap {
    fn speak(&mut self, voice: EventSender) {
        self.voice = voice;
        // One that was adopted has been watched by nobody so far.
        if let Some(made) = &self.made {
            let watch = Watch::start(made.clone(), self.voice.clone());
            self.watch = watch
                .inspect_err(|error| tracing::warn!("{}: watching it: {error}", self.name))
                .ok();
        }
    }

    fn create(&mut self, offered: &Offered, _: &CancelFlags) -> Result<(), Refusal> {
        let card = only(offered)?;
        let made = self.make(card).map_err(|error| error.to_string())?;
        self.take(made).map_err(Refusal::Failed)
    }

    fn recover(&mut self, _: &CancelFlags) -> Result<(), String> {
        let made = self.made()?.clone();
        made.state().carrier.ends();
        match made.interface.present() {
            // A new one, without addresses: somebody has wanted it so.
            Err(Error::Deleted(name)) => {
                tracing::warn!("{name} was deleted, and is made anew for its card");
                let anew = self.make(&made.card).map_err(|error| error.to_string())?;
                self.take(anew)
            }
            _ => Ok(()),
        }
    }

    fn serve(&mut self, offered: &Offered) -> Result<Vec<ServeRequest>, String> {
        let (card, made) = (only(offered)?, self.made()?);
        if *card != (OfferedNic { name: card.name.clone(), ..made.card.clone() }) {
            return Err(format!(
                "{} is another card than before, and is not given to the users of {}",
                card.name, self.name
            ));
        }
        let fds: std::io::Result<Vec<_>> =
            made.interface.queues().map(|queue| queue.try_clone_to_owned()).collect();
        let mut state = made.state();
        state.carrier.begins(Instant::now());
        let connect =
            Connect { nic: 0, interface: state.name.clone(), settings: said(&state.settings) };
        let fds = fds.map_err(|error| format!("{}: {error}", self.name))?;
        Ok(vec![ServeRequest { place: 0, order: DriverCommand::Connect(connect), fds }])
    }

    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String> {
        let made = self.made()?.clone();
        // What has changed since it was given is told again.
        made.state().told = false;
        made.raise();
        Ok(made)
    }

    fn handle_link(&mut self, _: u16, link: &Link) {
        let Some(made) = &self.made else { return };
        // A link that is gone may be negotiated anew by a driver that has just begun.
        if link.up {
            made.interface.set_speed(link);
        }
        made.state().carrier.set_link(link.up);
        if let Err(error) = made.set_carrier() {
            tracing::warn!("{error}");
        }
        // What is not told yet has its time.
        made.raise();
    }

    fn adopt(
        &mut self,
        saved: &serde_json::Value,
        offered: &Offered,
        fds: &mut BTreeMap<String, OwnedFd>,
    ) -> Result<Arc<dyn StatusSource>, String> {
        let saved: Saved =
            serde_json::from_value(saved.clone()).map_err(|error| error.to_string())?;
        let queues: Option<Vec<_>> = saved.queues.iter().map(|name| fds.remove(name)).collect();
        let queues = queues.ok_or("its descriptors were not kept")?;
        let adopt = || {
            Made::new(
                Interface::adopt(queues)?,
                only(offered).map_err(Error::Name)?.clone(),
                &netlink()?,
            )
        };
        let made = Arc::new(adopt().map_err(|error| error.to_string())?);
        self.made = Some(made.clone());
        Ok(made)
    }

    fn stop(&mut self, force: bool) -> Result<(), Refusal> {
        let Some(made) = &self.made else { return Ok(()) };
        let state = made.state();
        let is_there = made.interface.present().is_ok();
        if is_there && state.settings.up && !force {
            return Err(Refusal::Busy(format!("it is up (ip link set {} down)", state.name)));
        }
        drop(state);
        // It goes with the last of its descriptors, which is the driver's.
        let _ = made.interface.set_carrier(false);
        (self.watch, self.made) = (None, None);
        Ok(())
    }
}

fn netlink() -> Result<Netlink, Error> {
    Netlink::new().map_err(|cause| Error::Os {
        what: "asking the kernel for interfaces (rtnetlink)".into(),
        cause,
    })
}

/// The one card that a device must have.
fn only(offered: &Offered) -> Result<&OfferedNic, String> {
    match &offered.nics[..] {
        [card] => Ok(card),
        cards => Err(format!("it offers {} network cards, and an interface is one's", cards.len())),
    }
}

impl StatusSource for Made {
    fn in_flight(&self) -> u64 {
        let state = self.state();
        if !state.settings.up || !state.carrier.up {
            return 0;
        }
        let mut fds: Vec<_> = self
            .interface
            .queues()
            .map(|queue| PollFd::from_borrowed_fd(queue, PollFlags::IN))
            .collect();
        let _ = poll(&mut fds, Some(&Timespec::default()));
        fds.iter().filter(|fd| fd.revents().contains(PollFlags::IN)).count() as u64
    }

    /// Packets that the driver has taken.
    fn ended(&self) -> Option<u64> {
        let state = self.state();
        (state.looked.elapsed() < FRESH).then_some(state.figures.tx_packets)
    }

    fn saved(&self) -> serde_json::Value {
        serde_json::to_value(Saved { queues: self.names() }).unwrap_or_default()
    }

    fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        let queues = self.interface.queues().map(|queue| queue.try_clone_to_owned());
        self.names()
            .into_iter()
            .zip(queues)
            .filter_map(|(name, queue)| Some((name, queue.ok()?)))
            .collect()
    }

    fn disks(&self) -> Vec<DiskStatus> {
        Vec::new()
    }

    fn interfaces(&self) -> Vec<InterfaceStatus> {
        let state = self.state();
        let InterfaceCounters {
            rx_packets,
            rx_bytes,
            rx_dropped,
            tx_packets,
            tx_bytes,
            tx_dropped,
            ..
        } = state.figures;
        vec![InterfaceStatus {
            name: state.name.clone(),
            index: state.index,
            mac: state.settings.address.to_string(),
            mtu: state.settings.mtu,
            queues: self.interface.queues().count() as u16,
            up: state.settings.up,
            carrier: state.carrier.up,
            rx_packets,
            rx_bytes,
            rx_dropped,
            tx_packets,
            tx_bytes,
            tx_dropped,
            // Its driver counts them.
            rx_missed: 0,
            rx_errors: 0,
            tx_lost: 0,
        }]
    }
}

/// What of a card an interface is made by.
fn info(card: &OfferedNic) -> Info {
    let (tso4, tso6, uso) = card.cuts;
    Info {
        model: card.model.clone(),
        mac: Mac(card.mac),
        mtu: card.mtu,
        max_queues: card.max_queues,
        max_depth: (0, 0),
        headroom: 0,
        max_pieces: 1,
        receives_pieces: false,
        max_segmented: card.max_segmented,
        counts_missed: false,
        offloads: Offloads {
            tx_checksum: card.tx_checksum,
            tso4,
            tso6,
            uso,
            ..Offloads::default()
        },
        filters: FilterLimits::default(),
        shared: false,
    }
}
