//! The thread of an interface that hears what its users want, tells the driver, and tells the
//! kernel how the link is.
//!
//! It follows its interface into the network namespace to which somebody has moved it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_class::net::Mac;
use ring3_control::drive::{DriverCommand, InterfaceSettings};
use ring3_export::tap::{self, Changes, Error, InterfaceCounters, NamespaceSockets, Netlink};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Made;
use crate::export::{Done, EventSender};

/// What no kernel tells is asked for this often.
const LOOK: Duration = Duration::from_secs(1);
/// Addresses of either kind that a driver is told; of more it is told that all are wanted.
const MOST: usize = 512;

/// The thread, which ends with this value.
pub struct Watch {
    made: Arc<Made>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Begins with a look.
    pub fn start(made: Arc<Made>, voice: EventSender) -> std::io::Result<Self> {
        made.over.store(false, Ordering::Release);
        let its = made.clone();
        let watch = move || {
            let watched = Watching::new(&its, voice).and_then(|mut watching| watching.watch());
            if let Err(error) = watched {
                tracing::warn!("{error}; what its users change does not reach its driver");
            }
        };
        let thread = Some(std::thread::Builder::new().name("interface".into()).spawn(watch)?);
        Ok(Self { made, thread })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.made.over.store(true, Ordering::Release);
        self.made.raise();
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Watching<'a> {
    made: &'a Made,
    voice: EventSender,
    netlink: Netlink,
    changes: Changes,
    /// It is where this process cannot follow, which was said.
    lost: bool,
}

impl<'a> Watching<'a> {
    fn new(made: &'a Made, voice: EventSender) -> Result<Self, Error> {
        let opened = Netlink::new().and_then(|netlink| Ok((netlink, Changes::new()?)));
        let failed = |cause| Error::Os {
            what: format!("{}: asking the kernel (rtnetlink)", made.interface.name()),
            cause,
        };
        let (netlink, changes) = opened.map_err(failed)?;
        Ok(Self { made, voice, netlink, changes, lost: false })
    }

    fn watch(&mut self) -> Result<(), Error> {
        while !self.made.over.load(Ordering::Acquire) {
            self.poll()?;
            let due = self.made.state().carrier.due();
            let next =
                due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()).min(LOOK));
            let mut fds = [
                PollFd::new(&self.changes, PollFlags::IN),
                PollFd::new(&self.made.raised, PollFlags::IN),
            ];
            let _ = poll(&mut fds, Timespec::try_from(next).ok().as_ref());
            self.changes.drain();
            let _ = rustix::io::read(&self.made.raised, &mut [0; 8]);
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<(), Error> {
        self.made.set_carrier()?;
        let index = self.made.state().index;
        let looked = self
            .netlink
            .requested_settings(index)
            .and_then(|settings| Ok((settings, self.netlink.figures(index)?)));
        match looked {
            Ok((settings, figures)) => self.take(settings, figures),
            // Deleted, or moved: the one is the driver's end, which the next look after its
            // recovery finds mended.
            Err(error) if error.raw_os_error() == Some(ENODEV) => self.follow(),
            Err(error) => tracing::warn!(
                "{}: asking the kernel for its state: {error}",
                self.made.state().name
            ),
        }
        Ok(())
    }

    /// Goes to where the interface is now. Where it cannot, its users are not heard until it can.
    fn follow(&mut self) {
        match NamespaceSockets::of(&self.made.interface) {
            Ok(NamespaceSockets { name, index, netlink, changes }) => {
                (self.netlink, self.changes, self.lost) = (netlink, changes, false);
                let mut state = self.made.state();
                (state.index, state.name) = (index, name);
                drop(state);
                // What has changed meanwhile is seen now.
                self.made.raise();
            }
            Err(Error::Deleted(_)) => {}
            Err(error) if !std::mem::replace(&mut self.lost, true) => {
                tracing::warn!("{error}; what its users change there does not reach its driver");
            }
            Err(_) => {}
        }
    }

    fn take(&self, mut settings: tap::RequestedSettings, figures: InterfaceCounters) {
        let mut state = self.made.state();
        (state.figures, state.looked) = (figures, Instant::now());
        let (least, most) = self.made.card.mtu;
        if !(least..=most).contains(&settings.mtu) {
            let (name, stays) = (&state.name, state.settings.mtu);
            tracing::warn!(
                "{name}: an MTU of {} is not the card's, which takes {least} to {most}: it stays \
                at {stays}",
                settings.mtu
            );
            if let Err(error) = self.netlink.set_mtu(state.index, stays) {
                tracing::warn!(
                    %error, "{name}: its MTU cannot be set back: longer packets are lost",
                );
            }
            settings.mtu = stays;
        }
        if state.told && settings == state.settings {
            return;
        }
        (state.told, state.settings) = (true, settings);
        let settings = said(&state.settings);
        drop(state);
        self.voice.say(Done::Order(DriverCommand::Wish { nic: 0, settings }, Vec::new()));
    }
}

const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();

/// As a driver is told.
pub fn said(settings: &tap::RequestedSettings) -> InterfaceSettings {
    let macs = |addresses: &[Mac]| addresses.iter().map(|mac| mac.0).collect();
    let (many, all_groups) =
        (settings.unicast.len() > MOST, settings.all_groups || settings.groups.len() > MOST);
    InterfaceSettings {
        address: settings.address.0,
        mtu: settings.mtu,
        unicast: if many { Vec::new() } else { macs(&settings.unicast) },
        groups: (!all_groups).then(|| macs(&settings.groups)),
        promiscuous: settings.promiscuous || many,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_addresses_than_a_message_holds_are_all_there_are() {
        let addresses = |count: usize| {
            (0..count).map(|number| Mac([2, 0, 0, 0, (number >> 8) as u8, number as u8])).collect()
        };
        let few = said(&tap::RequestedSettings {
            unicast: addresses(3),
            groups: addresses(MOST),
            ..tap::RequestedSettings::default()
        });
        assert_eq!(
            (few.unicast.len(), few.groups.map(|groups| groups.len()), few.promiscuous),
            (3, Some(MOST), false)
        );
        let many = said(&tap::RequestedSettings {
            unicast: addresses(MOST + 1),
            groups: addresses(MOST + 1),
            ..tap::RequestedSettings::default()
        });
        assert_eq!((many.unicast.len(), many.groups, many.promiscuous), (0, None, true));
    }
}
