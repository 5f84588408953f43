//! A device that this process drives, with its disks and cards.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::Saved;
use ring3_class::block::{Disk, Queue, detach};
use ring3_class::net::Link;
use ring3_control::drive::{
    Connect, DriverMessage, InterfaceSettings, OfferedDisk, Region, SHARED_ARENA, Serve, Share,
};
use ring3_device::{Deadline, Device};
use ring3_driver::registry::{Controller, Driver, Offer, Opened, Settings};
use ring3_export::tap;
use ring3_export::ublk::features::Commands;
use ring3_export::ublk::{self, Layout, OnFailure, QueueThreadOptions, Queues, Threads};
use ring3_spec::pci::BAR_COUNT;
use ring3_stats::Recorder;

use super::card::Card;
use super::left::{InheritedState, Left, SavedDiskQueues};
use super::lent::Lent;
use super::share::{Offered, Sharing};
use super::standby::Standby;
use crate::Error;
use crate::attach::EXPECTED;

/// Most disks of a device.
const MAX_DISKS: usize = 128;

/// How long requests may take to end before a device is left to another process. Whoever waits for
/// them waits as long.
const LEAVE: Duration = Duration::from_secs(5);

/// A driven device. Its drop ends its driver, then gives the device back; the disks' threads have
/// ended then.
pub struct ServedDevice {
    sharing: Option<Sharing>,
    disks: Vec<ServedDisk>,
    cards: Vec<Card>,
    refused: Vec<String>,
    adopted: bool,
    controller: Box<dyn Controller>,
    device: Arc<dyn Device>,
    standby: Standby,
    began: Instant,
}

/// A disk, and what it was served by when it was left.
struct ServedDisk {
    disk: Arc<dyn Disk>,
    saved: Vec<Saved>,
    /// What its queues were made for.
    prepared: Prepared,
    threads: Option<Threads>,
    /// N of the `/dev/ublkcN` that was given to it.
    id: Option<u32>,
    /// Clients' memory.
    lent: Lent,
}

/// Queues, their tags, and the bytes of a tag's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Prepared {
    queues: u16,
    depth: u16,
    buffer: u32,
}

impl ServedDevice {
    /// Opens the device of `lease`, or goes on with it as it was `left`.
    pub fn start(standby: Standby, lease: OwnedFd, left: InheritedState) -> Result<Self, Error> {
        let began = Instant::now();
        let device = match &left {
            InheritedState::Nothing => ring3_backend::attach(lease.into(), None),
            InheritedState::Left(left) => ring3_backend::attach(lease.into(), Some(&left.arena)),
            InheritedState::Killed(left) => {
                ring3_backend::attach_running(lease.into(), &left.arena)
            }
        };
        let device = device
            .map_err(|source| Error::Device { device: "the leased device".into(), source })?;
        let failed = |source| Error::Device { device: device.name().into(), source };
        let mut adopted = false;
        let opened = match &left {
            InheritedState::Nothing => open(&device, &standby),
            InheritedState::Left(left) => {
                Driver::resume(device.clone(), &settings(&standby, EXPECTED), &left.controller)
            }
            InheritedState::Killed(left) => {
                match left.adopt(&device, &settings(&standby, EXPECTED)) {
                    Some(opened) => {
                        adopted = true;
                        Ok(opened)
                    }
                    None => open(&device, &standby),
                }
            }
        }
        .map_err(failed)?;
        let disks = match left {
            InheritedState::Nothing => Vec::new(),
            InheritedState::Left(left) | InheritedState::Killed(left) => left.disks,
        };
        Ok(Self { adopted, began, ..Self::of(standby, device, opened, disks)? })
    }

    /// `device`, as it was `opened`, with what the last driver has left of its disks.
    pub fn of(
        standby: Standby,
        device: Arc<dyn Device>,
        opened: Opened,
        left: Vec<SavedDiskQueues>,
    ) -> Result<Self, Error> {
        let Opened { offers, refused, controller } = opened;
        let mut saved = left.into_iter();
        let (mut disks, mut cards) = (Vec::new(), Vec::new());
        for offer in offers {
            let disk = match offer {
                Offer::Disk(disk) => disk,
                Offer::Nic(nic) => {
                    cards.push(Card::new(nic));
                    continue;
                }
            };
            let saved = match saved.next() {
                Some(SavedDiskQueues { name, queues }) if name == disk.name() => queues,
                None => Vec::new(),
                Some(SavedDiskQueues { name, .. }) => {
                    return Err(Error::protocol(format!(
                        "what was saved is of {name}, and {} is there",
                        disk.name()
                    )));
                }
            };
            disks.push(ServedDisk {
                disk,
                saved,
                prepared: Prepared::default(),
                threads: None,
                id: None,
                lent: Lent::default(),
            });
        }
        Ok(Self {
            sharing: None,
            disks,
            cards,
            refused,
            adopted: false,
            controller,
            device,
            standby,
            began: Instant::now(),
        })
    }

    /// Where the process shows what it does.
    pub fn recorder(&self) -> Arc<Recorder> {
        self.standby.recorder.clone()
    }

    /// What the supervisor is told of the device.
    pub fn offers(&self) -> DriverMessage {
        let spare = u16::from(self.standby.beside);
        let disks = self.disks.iter().map(|served| facts(&*served.disk));
        let disks = disks
            .map(|disk| OfferedDisk { max_queues: disk.max_queues.saturating_sub(spare), ..disk })
            .collect();
        let nics = self.cards.iter().map(Card::facts).collect();
        DriverMessage::Offers { disks, nics, refused: self.refused.clone(), adopted: self.adopted }
    }

    /// By what another process can adopt the device if this one is killed, once all disks are
    /// served, and if it is wanted; `None` if that cannot be.
    pub fn record(&self) -> Option<OwnedFd> {
        let unready = self.disks.iter().any(|served| served.id.is_none());
        // Of a card nothing is in flight that would be worth it.
        if !self.standby.adoptable || unready || !self.cards.is_empty() {
            return None;
        }
        let record = Left::record(&*self.device, &*self.controller);
        record
            .inspect_err(|why| {
                tracing::debug!("if this process is killed, its device is fenced: {why}")
            })
            .ok()
    }

    /// Makes what the disks will most likely be served by, so that only the kernel's side is
    /// missing.
    pub fn prepare(&mut self) -> Result<(), Error> {
        if self.standby.shared {
            return Ok(());
        }
        let (wanted, count) = (self.standby.wanted, self.disks.len().max(1) as u16);
        let resumed = self.disks.iter().any(|served| !served.saved.is_empty());
        let page = rustix::param::page_size() as u32;
        let mut first = 0;
        for place in 0..self.disks.len() {
            let disk = &self.disks[place].disk;
            let most = disk.max_queues().saturating_sub(u16::from(self.standby.beside));
            let queues = wanted.queues.min(most / count).max(1);
            let buffer = ublk::limits::buffer_bytes(disk.info(), wanted.max_bytes, page);
            self.seat(place, first, Prepared { queues, depth: wanted.depth, buffer })?;
            first += queues;
        }
        if resumed {
            // What the last process had and this one has no use for.
            self.device.dma().arena().release();
        }
        Ok(())
    }

    /// Gives rings back that nobody will ask for: after the start, of which that would be a part.
    pub fn trim(&self) {
        let waits = if self.standby.shared {
            self.sharing.is_none()
        } else {
            self.cards.iter().any(|card| !card.is_served())
        };
        if waits {
            return;
        }
        let spare = self
            .disks
            .iter()
            .filter(|served| served.id.is_none())
            .map(|served| usize::from(served.prepared.queues));
        self.standby.rings.trim(spare.sum());
    }

    /// Gives disk `place` queues and threads, with the statistics from queue `first` on.
    fn seat(&mut self, place: usize, first: u16, prepared: Prepared) -> Result<(), Error> {
        let Prepared { queues: count, depth, buffer } = prepared;
        let (segment, poll, rings) =
            (self.standby.segment.clone(), self.standby.wanted.poll, self.standby.rings.clone());
        let served = &mut self.disks[place];
        if let Some(mut threads) = served.threads.take() {
            drop(threads.join()?);
        }
        let disk = &*served.disk;
        let mut queues = Queues::resume(disk, &std::mem::take(&mut served.saved), count, depth)?;
        queues.allocate(disk, depth, buffer)?;
        if self.standby.lent {
            served.lent.share_with(&mut queues);
        }
        let manner = QueueThreadOptions {
            segment,
            first,
            poll,
            idle_poll: Duration::ZERO,
            on_failure: OnFailure::Keep,
            started: self.began,
            rings,
        };
        served.threads = Some(Threads::prepare(queues, &manner)?);
        served.prepared = prepared;
        Ok(())
    }

    /// Serves the kernel's device `file` as `serve` says: every queue waits for requests then.
    pub fn serve(&mut self, serve: Serve, file: OwnedFd) -> Result<(), Error> {
        let Serve { disk, id, queues, depth, buffer, cpus, encoded, batches } = serve;
        let place = usize::from(disk);
        let Some(served) = self.disks.get(place).filter(|served| served.id.is_none()) else {
            return Err(Error::protocol(format!("disk {disk} is not there, or is served already")));
        };
        let wanted = Prepared { queues, depth, buffer };
        let most = ublk::limits::buffer_bytes(
            served.disk.info(),
            u32::MAX,
            rustix::param::page_size() as u32,
        );
        let fits = (1..=self.standby.wanted.queues.max(served.prepared.queues)).contains(&queues)
            && (1..=ublk::uapi::MAX_QUEUE_DEPTH).contains(&depth)
            && (1..=most).contains(&buffer)
            && cpus.len() == usize::from(queues);
        if !fits {
            return Err(Error::protocol(format!(
                "disk {disk} cannot be served as {wanted:?} with {} sets of CPUs",
                cpus.len()
            )));
        }
        if served.prepared != wanted {
            let first = self.disks[..place].iter().map(|served| served.prepared.queues).sum();
            self.seat(place, first, wanted)?;
        }
        let served = &mut self.disks[place];
        served.id = Some(id);
        let threads =
            served.threads.as_mut().ok_or_else(|| Error::protocol("nothing is prepared"))?;
        Ok(threads.serve(
            Arc::new(File::from(file)),
            Layout { id, cpus, commands: Commands::of(batches, encoded) },
        )?)
    }

    /// Registers a client's `file` for requests of a disk.
    pub fn register_region(
        &mut self,
        Region { disk, index, .. }: Region,
        file: OwnedFd,
    ) -> Result<(), Error> {
        let device = self.device.name().to_owned();
        let served = self.registered_disk(disk)?;
        served
            .lent
            .insert(&*served.disk, index, file)
            .map_err(|source| Error::Device { device, source })
    }

    /// Unregisters a client's memory: the device does not reach it any more when this returns.
    pub fn forget(&mut self, Region { disk, index, .. }: Region) -> Result<(), Error> {
        let device = self.device.name().to_owned();
        self.registered_disk(disk)?
            .lent
            .remove(index)
            .map_err(|source| Error::Device { device, source })
    }

    fn registered_disk(&mut self, disk: u16) -> Result<&mut ServedDisk, Error> {
        let lent = self.standby.lent;
        let served = self.disks.get_mut(usize::from(disk)).filter(|_| lent);
        served.ok_or_else(|| {
            Error::protocol(format!(
                "disk {disk} is not there, or has nothing to do with clients' memory"
            ))
        })
    }

    /// Moves packets between a card and the `queues` of its interface.
    pub fn connect(&mut self, connect: Connect, queues: Vec<OwnedFd>) -> Result<(), Error> {
        let place = connect.nic;
        let card = self
            .cards
            .get_mut(usize::from(place))
            .ok_or_else(|| Error::protocol(format!("card {place} is not there")))?;
        card.connect(&self.standby, connect, queues)
    }

    /// Shares the one disk or card with who comes to `sockets`; what the supervisor is told of
    /// that.
    pub fn share(&mut self, share: &Share, sockets: Vec<OwnedFd>) -> Result<DriverMessage, Error> {
        let count = if share.card { self.cards.len() } else { self.disks.len() };
        if !(self.standby.shared || self.standby.beside) || self.sharing.is_some() {
            return Err(Error::protocol("it is not to be shared, or is already"));
        }
        let device = || self.device.name().to_owned();
        if self.standby.beside && self.disks.iter().any(|served| served.disk.max_queues() < 2) {
            return Err(Error::NoSpareQueue { device: device() });
        }
        let offered = match (share.card, &self.disks[..], &self.cards[..]) {
            (false, [served], _) => Offered::Disk(served.disk.clone()),
            (true, _, [card]) => Offered::Card(card.nic()),
            (false, ..) => return Err(Error::OneDisk { device: device(), count }),
            (true, ..) => return Err(Error::NoNic { device: device() }),
        };
        let (sharing, report) = Sharing::start(offered, share, sockets, &self.standby)?;
        self.sharing = Some(sharing);
        Ok(report)
    }

    /// Whether the kernel has a device of it beside what clients share.
    pub fn is_beside(&self) -> bool {
        self.standby.beside
    }

    /// What is wanted of a card's interface now.
    pub fn wish(&self, nic: u16, settings: InterfaceSettings) -> Result<(), Error> {
        let card = self
            .cards
            .get(usize::from(nic))
            .ok_or_else(|| Error::protocol(format!("card {nic} is not there")))?;
        card.wish(settings);
        Ok(())
    }

    /// The links of cards that have changed since the last call.
    pub fn links(&mut self) -> Vec<DriverMessage> {
        let link = |(nic, card): (u16, &mut Card)| {
            card.take_link().map(|Link { up, speed, full_duplex }| DriverMessage::Link {
                nic,
                up,
                speed,
                full_duplex,
            })
        };
        (0..).zip(&mut self.cards).filter_map(link).collect()
    }

    /// When a link may be told of that cannot be now.
    pub fn due(&self) -> Option<Instant> {
        self.cards.iter().filter_map(Card::due).min()
    }

    /// Whether any disk or card is served.
    pub fn serves(&self) -> bool {
        if self.cards.iter().any(Card::is_served) {
            return true;
        }
        self.disks.iter().any(|served| {
            served.id.is_some() && served.threads.as_ref().is_some_and(Threads::is_serving)
        })
    }

    /// Each becomes readable when a thread of a disk or a card has ended, or a link has changed.
    pub fn events_of_threads(&self) -> Vec<BorrowedFd<'_>> {
        let disks =
            self.disks.iter().filter_map(|served| served.threads.as_ref()).map(Threads::ended);
        disks
            .chain(self.cards.iter().flat_map(Card::events))
            .chain(self.sharing.iter().map(Sharing::ended))
            .collect()
    }

    /// Fails if a queue has, or the bus has reported an error of the device.
    pub fn check(&mut self) -> Result<(), Error> {
        if self.device.bus_errors().is_some_and(|errors| errors.take().is_ok_and(|count| count > 0))
        {
            return Err(Error::Bus { device: self.device.name().into() });
        }
        self.cards.iter_mut().try_for_each(Card::check)?;
        self.sharing.as_mut().map_or(Ok(()), Sharing::check)?;
        let mut threads = self.disks.iter_mut().filter_map(|served| served.threads.as_mut());
        threads.find_map(Threads::take_ended).map_or(Ok(()), |error| Err(error.into()))
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Whether some of its registers are reached without its holder.
    pub fn is_mapped(&self) -> bool {
        (0..BAR_COUNT).any(|index| self.device.bar(index).is_ok_and(|bar| bar.mapped_len() > 0))
    }

    /// What the device has reported since the last call.
    pub fn events(&self) -> Vec<String> {
        self.controller
            .poll_events()
            .unwrap_or_else(|error| vec![format!("it does not say how it is: {error}")])
    }

    /// Has every further request of users end with an error: their disks are taken away.
    pub fn refuse(&self) {
        self.disks.iter().filter_map(|served| served.threads.as_ref()).for_each(Threads::refuse);
    }

    /// Completes the requests in flight, and detaches from the running device; its lease ends, too.
    /// The returned file holds the state that the next process needs.
    pub fn detach(mut self) -> Result<OwnedFd, Error> {
        if let Some(card) = self.cards.first() {
            let source = ring3_device::Error::Unsupported(
                "a card is stopped and started for the next driver".into(),
            );
            return Err(Error::Device { device: card.facts().name, source });
        }
        if self.sharing.is_some() {
            let source = ring3_device::Error::Unsupported(
                "what clients share is stopped and started for the next driver".into(),
            );
            return Err(Error::Device { device: self.device.name().into(), source });
        }
        let deadline = Deadline::after(LEAVE);
        let device = self.device.clone();
        let failed = |source| Error::Device { device: device.name().into(), source };
        // All at once, so that the times in which they drain are one.
        self.disks
            .iter()
            .filter_map(|served| served.threads.as_ref())
            .for_each(|threads| threads.quiesce(deadline));
        let mut disks = Vec::new();
        for served in &mut self.disks {
            let class =
                served.threads.as_mut().map(Threads::take_back).transpose()?.unwrap_or_default();
            let save = |mut queue: Box<dyn Queue>| detach(&mut *queue, &mut Vec::new(), deadline);
            let queues = class.into_iter().map(save).collect::<Result<_, _>>().map_err(failed)?;
            // The kernel gives what was not ended to the next process, which is told of the same
            // memory.
            served.lent.clear().map_err(failed)?;
            disks.push(SavedDiskQueues { name: served.disk.name(), queues });
        }
        let controller = self.controller.detach().map_err(failed)?;
        Left::new(self.device.dma().arena().save(), controller, disks).write()
    }

    /// [`stop`](Self::stop)s it while the kernel keeps its devices: requests in flight complete,
    /// and no new ones are started.
    pub fn suspend(&mut self) -> Result<(), Error> {
        let deadline = Deadline::after(LEAVE);
        self.disks
            .iter()
            .filter_map(|served| served.threads.as_ref())
            .for_each(|threads| threads.quiesce(deadline));
        self.stop()
    }

    /// Takes the disks' threads back, whose devices the kernel has no more, and has each disk empty
    /// its cache.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.sharing.take().map_or(Ok(()), |mut sharing| sharing.stop())?;
        std::mem::take(&mut self.cards).iter_mut().try_for_each(Card::stop)?;
        for ServedDisk { disk, threads, id, .. } in &mut self.disks {
            let Some(threads) = threads else { continue };
            let (queues, device) =
                (threads.join()?, format!("/dev/ublkb{}", id.unwrap_or_default()));
            ublk::flush(queues).map_err(|reason| ublk::Error::Flush {
                device,
                disk: disk.name(),
                reason,
            })?;
        }
        self.disks.clear();
        Ok(())
    }
}

/// What the driver is told of its users, of which there are `disks`.
fn settings(standby: &Standby, disks: usize) -> Settings {
    let queues = usize::from(standby.wanted.queues) * disks + usize::from(standby.beside);
    let queues = queues.min(u16::MAX.into()) as u16;
    Settings { queues, poll: Some(standby.wanted.poll), ..standby.settings.clone() }
}

/// Opens `device`, with room for exports of all its disks, which only the opened device counts.
fn open(device: &Arc<dyn Device>, standby: &Standby) -> Result<Opened, ring3_device::Error> {
    let open = |disks| Driver::open(device.clone(), standby.family, &settings(standby, disks));
    // What a driver has it grow by is the device's alone.
    let arena = device.dma().arena().len();
    let mut opened = open(EXPECTED)?;
    let is_disk = |offer: &&Offer| matches!(offer, Offer::Disk(_));
    let disks = opened.offers.iter().filter(is_disk).count();
    let needed = match opened.offers.len() - disks {
        _ if standby.shared => SHARED_ARENA,
        0 if standby.beside => standby.wanted.arena_bytes(disks) + SHARED_ARENA,
        0 => standby.wanted.arena_bytes(disks),
        cards => cards * tap::arena_bytes(standby.wanted.queues),
    };
    let missing = needed.saturating_sub(arena);
    if missing > 0 {
        device.dma().grow(missing)?;
    }
    if disks > EXPECTED && !standby.shared {
        drop(opened);
        opened = open(disks)?;
    }
    if opened.offers.len() > MAX_DISKS {
        let left_out = opened.offers.split_off(MAX_DISKS).len();
        opened.refused.push(format!("{left_out} disks beyond the first {MAX_DISKS} are left out"));
    }
    Ok(opened)
}

/// What a supervisor is told of `disk`.
pub fn facts(disk: &dyn Disk) -> OfferedDisk {
    let info = disk.info();
    OfferedDisk {
        name: disk.name(),
        model: info.model.clone(),
        serial: info.serial.clone(),
        identity: disk.identity(),
        block_size: info.block_size,
        blocks: info.blocks,
        max_queues: disk.max_queues(),
        max_transfer: info.max_transfer,
        optimal_io: info.optimal_io,
        boundary: info.boundary,
        volatile_cache: info.volatile_cache,
        fua: info.fua,
        max_write_zeroes_blocks: info.max_write_zeroes_blocks,
        discard: info.discard.map(|discard| (discard.max_blocks, discard.granularity)),
        read_only: info.read_only,
        rotates: info.rotates,
    }
}
