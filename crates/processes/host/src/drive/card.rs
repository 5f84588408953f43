//! A network card that this process drives, and the interface that another one holds for it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::net::{Link, Mac, Nic};
use ring3_control::drive::{Connect, InterfaceSettings, OfferedNic};
use ring3_export::tap::{self, Interface, Relay, TapExport, TapThreadOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::standby::Standby;
use crate::Error;

/// Between two words about the link: of one that flaps faster, the supervisor hears how it is then.
const FLAP: Duration = Duration::from_millis(50);

/// A card, served or not.
pub struct Card {
    nic: Arc<dyn Nic>,
    served: Option<ConnectedCard>,
    /// When the supervisor may be told of the link again.
    next: Instant,
}

struct ConnectedCard {
    export: Option<TapExport>,
    relay: Relay,
}

impl Card {
    /// One that is not served yet.
    pub fn new(nic: Arc<dyn Nic>) -> Self {
        Self { nic, served: None, next: Instant::now() }
    }

    /// The card.
    pub fn nic(&self) -> Arc<dyn Nic> {
        self.nic.clone()
    }

    /// What the supervisor is told of it.
    pub fn facts(&self) -> OfferedNic {
        let (info, offloads) = (self.nic.info(), self.nic.info().offloads);
        OfferedNic {
            name: self.nic.name(),
            model: info.model.clone(),
            mac: info.mac.0,
            mtu: info.mtu,
            max_queues: info.max_queues,
            max_segmented: info.max_segmented,
            tx_checksum: offloads.tx_checksum,
            cuts: (offloads.tso4, offloads.tso6, offloads.uso),
        }
    }

    /// Moves packets between it and the interface whose `queues` these are, until the card or this
    /// process ends.
    pub fn connect(
        &mut self,
        standby: &Standby,
        connect: Connect,
        queues: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let Connect { nic, interface, settings } = connect;
        let most = usize::from(self.nic.info().max_queues.clamp(1, standby.wanted.queues.max(1)));
        if self.served.is_some() || !(1..=most).contains(&queues.len()) {
            let reason =
                format!("card {nic} is served already, or cannot be by {} queues", queues.len());
            return Err(Error::protocol(reason));
        }
        let relay = Relay::new(wanted(settings))
            .map_err(|error| Error::os("the way to the supervisor", error))?;
        let (poll, rings, segment) =
            (standby.wanted.poll, standby.rings.clone(), standby.segment.clone());
        let interface = Arc::new(Interface::of(interface, 0, queues));
        let manner =
            TapThreadOptions { poll, engine: standby.engine.clone(), joins: true, rings, segment };
        let export =
            Some(TapExport::over((self.nic.clone(), interface), Box::new(relay.clone()), &manner)?);
        self.served = Some(ConnectedCard { export, relay });
        Ok(())
    }

    /// What the supervisor says of its interface. Of one that is not served it is said again when
    /// it is.
    pub fn wish(&self, settings: InterfaceSettings) {
        if let Some(served) = &self.served {
            served.relay.apply_settings(wanted(settings));
        }
    }

    /// Whether it moves packets.
    pub fn is_served(&self) -> bool {
        self.served.is_some()
    }

    /// Readable when its service has ended, or when the supervisor is to be told of the link.
    pub fn events(&self) -> Vec<BorrowedFd<'_>> {
        let Some(ConnectedCard { export, relay }) = &self.served else { return Vec::new() };
        let linked = (Instant::now() >= self.next).then(|| relay.linked());
        export.iter().map(TapExport::ended).chain(linked).collect()
    }

    /// When there may be something of the link to be told, and now there is not, because it flaps.
    pub fn due(&self) -> Option<Instant> {
        self.served.is_some().then_some(self.next).filter(|&next| Instant::now() < next)
    }

    /// How the link is, if the supervisor has not been told.
    pub fn take_link(&mut self) -> Option<Link> {
        let served = self.served.as_ref().filter(|_| Instant::now() >= self.next)?;
        let link = served.relay.take_link()?;
        self.next = Instant::now() + FLAP;
        Some(link)
    }

    /// Why its service has ended, if it has.
    pub fn check(&mut self) -> Result<(), Error> {
        let Some(ConnectedCard { export, .. }) = &mut self.served else { return Ok(()) };
        let over = |export: &TapExport| {
            let mut fds = [PollFd::from_borrowed_fd(export.ended(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        };
        match export.take_if(|export| over(export)) {
            Some(export) => Ok(export.stop()?),
            None => Ok(()),
        }
    }

    /// Stops it.
    pub fn stop(&mut self) -> Result<(), Error> {
        let export = self.served.take().and_then(|served| served.export);
        Ok(export.map_or(Ok(()), TapExport::stop)?)
    }
}

fn wanted(settings: InterfaceSettings) -> tap::RequestedSettings {
    let InterfaceSettings { address, mtu, unicast, groups, promiscuous } = settings;
    let macs = |addresses: Vec<[u8; 6]>| addresses.into_iter().map(Mac).collect();
    let all_groups = groups.is_none();
    let (unicast, groups) = (macs(unicast), groups.map(macs).unwrap_or_default());
    tap::RequestedSettings {
        address: Mac(address),
        mtu,
        up: true,
        promiscuous,
        all_groups,
        unicast,
        groups,
    }
}
