//! The disks of a device as `/dev/ublkbN`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use ring3_class::Deadline;
use ring3_class::block::{Discard, Info};
use ring3_control::drive::{DiskFacts, Offered, Order, Serve};
use ring3_control::status::DiskStatus;
use ring3_device::dma::SegmentRules;
use ring3_export::ublk::uapi::Parameters;
use ring3_export::ublk::{Control, Device, Error, Recovery, Scheduler, Shape, limits};

use ring3_sandbox::Program;
use serde::{Deserialize, Serialize};

use super::lent::{Lender, Saved, Table};
use super::partitions::{Of, Refused, Watch};
use super::{Export, Given, Look, Refusal, Vain, Voice, links};
use crate::manifest;

/// How long the kernel may take to see that a server has died. 6.12 takes 30 s if that had every tag of a queue.
const DEATH: Duration = Duration::from_secs(90);
/// Between two looks whether anybody still wants it.
const LOOK: Duration = Duration::from_millis(100);
/// How long the kernel may take to let a server hear that nothing more comes.
const HEAR: Duration = Duration::from_secs(5);
/// Bytes of a sector, in which the kernel counts.
const SECTOR: u64 = 512;

/// The disks of one device.
pub struct Ublk {
    wanted: manifest::Export,
    name: String,
    disks: Vec<Disk>,
    /// `ring3-driver`, which reads partition tables.
    program: Arc<Program>,
    voice: Voice,
    /// What clients have lent, and who hears them, since users have the disks.
    lent: Arc<Table>,
    lender: Option<Lender>,
}

struct Disk {
    device: Device,
    parameters: Parameters,
    shape: Shape,
    rotates: bool,
    bytes: u64,
    block: u32,
    link: Option<PathBuf>,
    /// Since users have it.
    partitions: Option<Watch>,
}

impl Ublk {
    /// Of `device`; `program` is the drivers'.
    pub fn new(device: &manifest::Device, program: Arc<Program>) -> Self {
        let (voice, lent, lender) = (Voice::silent(), Arc::default(), None);
        Self { wanted: device.export.clone(), name: device.link().to_owned(), disks: Vec::new(), program, voice, lent, lender }
    }

    /// Each disk has its name under `/dev/ring3`.
    fn link(&self, place: usize) -> String {
        if self.disks.len() == 1 { self.name.clone() } else { format!("{}-{}", self.name, place + 1) }
    }

    /// Has the kernel know the partitions of the disks that have users.
    fn watch(&mut self) {
        let names: Vec<_> = (0..self.disks.len()).map(|place| self.link(place)).collect();
        for (disk, name) in self.disks.iter_mut().zip(names).filter(|(disk, _)| disk.partitions.is_none()) {
            let of = Of { id: disk.device.id(), name, bytes: disk.bytes, block: disk.block, program: self.program.clone() };
            match Watch::start(of) {
                Ok(watch) => disk.partitions = Some(watch),
                Err(error) => tracing::warn!("partitions of {} are not looked for: {error}", disk.device.name()),
            }
        }
    }

    fn described(&self, facts: &DiskFacts, disks: usize) -> Result<(Shape, Parameters), String> {
        let info = info(facts);
        let page = rustix::param::page_size() as u32;
        let buffer = limits::buffer_bytes(&info, self.wanted.max_io_kib << 10, page);
        let parameters =
            limits::parameters(&info, buffer, page).map_err(|reason| format!("{} cannot be exported: {reason}", facts.name))?;
        let most = facts.max_queues / u16::try_from(disks).unwrap_or(u16::MAX).max(1);
        let queues = self.wanted.queues.min(most).min(crate::processors()).max(1);
        Ok((
            Shape {
                queues,
                depth: self.wanted.depth,
                buffer,
                recovery: Recovery::Reissue,
                shared_memory: self.wanted.share.is_some(),
                batches: false,
            },
            parameters,
        ))
    }

    fn try_create(&mut self, facts: &[DiskFacts], vain: &Vain) -> Result<(), String> {
        for (place, disk) in (0..).zip(facts) {
            let (shape, parameters) = self.described(disk, facts.len())?;
            let create = || {
                let id = self.wanted.id.map(|first| first + place);
                let mut device = Device::create(Control::open()?, id, shape)?;
                device.served_by(vain.dead.clone());
                device.set_parameters(parameters).map(|()| device)
            };
            let device = create().map_err(|error| error.to_string())?;
            let bytes = disk.blocks.saturating_mul(disk.block_size.into());
            let (rotates, block) = (disk.rotates, disk.block_size);
            self.disks.push(Disk { device, parameters, shape, rotates, bytes, block, link: None, partitions: None });
        }
        Ok(())
    }
}

impl Export for Ublk {
    fn speak(&mut self, voice: Voice) {
        self.voice = voice;
        // Users have the disks of another ring3d already, and clients have lent them memory.
        if !self.disks.is_empty() {
            self.hear_clients();
        }
    }

    fn go_on(&mut self) {
        self.lent.open();
    }

    fn hold_clients(&mut self) {
        self.lent.close(true);
    }

    fn hear_lent(&mut self, number: u64, refused: Option<String>) {
        self.lent.hear(number, refused);
    }

    fn create(&mut self, offered: &Offered, vain: &Vain) -> Result<(), String> {
        let created = self.try_create(&offered.disks, vain);
        if created.is_err() {
            self.disks.drain(..).for_each(|disk| drop(remove(disk, true)));
        }
        created
    }

    fn recover(&mut self, vain: &Vain) -> Result<(), String> {
        let deadline = Deadline::after(DEATH);
        self.lent.close(false);
        for disk in &mut self.disks {
            // One that another supervisor has made does not know it yet.
            disk.device.served_by(vain.dead.clone());
            loop {
                match disk.device.recover(deadline.sooner(Some(std::time::Instant::now() + LOOK))) {
                    Ok(()) => break,
                    Err(Error::Taken { .. }) if !deadline.expired() && !vain.is_given_up() => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, offered: &Offered) -> Result<Vec<Given>, String> {
        let facts = &offered.disks;
        if facts.len() != self.disks.len() {
            return Err(format!(
                "the device has {} disks now, and had {}: stop it, and start it anew",
                facts.len(),
                self.disks.len()
            ));
        }
        // What was registered at the last moment is known now: the kernel has given the disks back since.
        self.lent.close(true);
        let described = facts.iter().map(|disk| self.described(disk, facts.len())).collect::<Result<Vec<_>, _>>()?;
        let mut served = Vec::new();
        for ((place, disk), (shape, parameters)) in (0..).zip(&mut self.disks).zip(described) {
            if !disk.parameters.describe_the_same(parameters)
                || (shape.depth, shape.buffer) != (disk.shape.depth, disk.shape.buffer)
            {
                return Err(format!(
                    "disk {place} is another one than before, and is not given to the users of {}",
                    disk.device.name()
                ));
            }
            let Shape { queues, depth, buffer, .. } = disk.device.shape();
            let cpus = (0..queues)
                .map(|queue| disk.device.affinity(queue))
                .collect::<Result<_, _>>()
                .map_err(|error| error.to_string())?;
            let file = disk.device.take_file().and_then(Arc::into_inner).ok_or("its file is gone")?;
            if self.wanted.share.is_some() {
                // If it dies, what lies in clients' memory is not ended before its device is fenced.
                self.voice.keep_open(file.try_clone().map_err(|error| format!("duplicating a disk's file: {error}"))?.into());
            }
            // What it has to know before any request comes.
            served.extend(self.lent.given(place)?);
            let serve =
                Serve { disk: place, id: disk.device.id(), queues, depth, buffer, cpus, encoded: disk.device.features().encoded };
            served.push(Given { place, order: Order::Serve(serve), fds: vec![file.into()] });
        }
        Ok(served)
    }

    fn start(&mut self) -> Result<Arc<dyn Look>, String> {
        for place in 0..self.disks.len() {
            let name = self.link(place);
            let disk = &mut self.disks[place];
            if let Err(error) = links::announce(&name, &format!("ublkb{}", disk.device.id())) {
                tracing::warn!("udev does not hear the name of {name}: {error}");
            }
            disk.device.start(std::process::id()).map_err(|error| error.to_string())?;
            let (id, path) = (disk.device.id(), disk.device.path());
            if disk.link.is_none() {
                // A queue whose every tag is in flight when its server dies takes 6.12 half a minute to recover.
                Scheduler::None.set(&format!("ublkb{id}"), disk.rotates);
                limit_requests(id, disk.shape.depth);
            }
            match links::set(&name, &format!("ublkb{id}")) {
                Ok(link) => disk.link = Some(link),
                Err(error) => tracing::warn!("/dev/ring3/{name} could not be made: {error}; use {}", path.display()),
            }
        }
        self.watch();
        self.hear_clients();
        self.lent.open();
        Ok(self.seen())
    }

    fn quiesce(&mut self) -> Result<(), String> {
        for disk in self.disks.iter_mut().filter(|disk| disk.device.features().quiesce) {
            disk.device.quiesce(HEAR).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn adopt(
        &mut self,
        saved: &serde_json::Value,
        offered: &Offered,
        fds: &mut BTreeMap<String, OwnedFd>,
    ) -> Result<Arc<dyn Look>, String> {
        let facts = &offered.disks;
        let Kept { ids, lent } = Kept::of(saved)?;
        let lent = Table::adopt(lent, fds)?;
        if ids.len() != facts.len() {
            return Err(format!("there are {} numbers for {} disks", ids.len(), facts.len()));
        }
        let mut disks = Vec::new();
        for (id, facts) in ids.into_iter().zip(facts) {
            let found = Control::open().and_then(|control| Device::adopt(control, id));
            let mut device = found.map_err(|error| error.to_string())?;
            let parameters = device.parameters().map_err(|error| error.to_string())?;
            let (shape, bytes) = (device.shape(), facts.blocks.saturating_mul(facts.block_size.into()));
            let (rotates, block) = (facts.rotates, facts.block_size);
            disks.push(Disk { device, parameters, shape, rotates, bytes, block, link: None, partitions: None });
        }
        self.disks = disks;
        let name = |(place, disk): (usize, &Disk)| links::place(&self.link(place), &format!("ublkb{}", disk.device.id()));
        let links: Vec<_> = self.disks.iter().enumerate().map(name).collect();
        self.disks.iter_mut().zip(links).for_each(|(disk, link)| disk.link = link);
        self.watch();
        self.lent = Arc::new(lent);
        Ok(self.seen())
    }

    fn stop(&mut self, force: bool) -> Result<(), Refusal> {
        // Who reads a table uses the disk.
        self.disks.iter_mut().for_each(|disk| disk.partitions = None);
        let stopped = self.try_stop(force);
        self.watch();
        stopped
    }
}

impl Ublk {
    fn try_stop(&mut self, force: bool) -> Result<(), Refusal> {
        // All or none: a device without one of its disks is no use, and those who were asked first would be gone.
        if !force {
            for disk in &mut self.disks {
                disk.device.check_unused().map_err(|error| Refusal::Busy(error.to_string()))?;
            }
        }
        let mut failed = None;
        let names: Vec<_> = (0..self.disks.len()).map(|place| self.link(place)).collect();
        while let Some(disk) = self.disks.pop() {
            let (name, node) = (&names[self.disks.len()], format!("ublkb{}", disk.device.id()));
            match remove(disk, force) {
                Err((disk, error @ Error::Busy { .. })) => {
                    self.disks.push(*disk);
                    return Err(Refusal::Busy(error.to_string()));
                }
                Err((_, error)) => failed = Some(Refusal::Failed(error.to_string())),
                Ok(()) => {}
            }
            links::clear(name, &node);
        }
        // Clients hear that it has ended, after their requests have.
        (self.lender, self.lent) = (None, Arc::default());
        self.voice.let_go();
        failed.map_or(Ok(()), Err)
    }

    /// Hears who lends memory, if that is wanted and nobody does yet.
    fn hear_clients(&mut self) {
        let Some(share) = self.wanted.share.as_ref().filter(|_| self.lender.is_none()) else { return };
        let ids: Vec<_> = self.disks.iter().map(|disk| disk.device.id()).collect();
        match Lender::start(share, &ids, self.voice.clone(), self.lent.clone()) {
            Ok(lender) => self.lender = Some(lender),
            Err(why) => tracing::error!("export.share of {}: nobody can lend it memory: {why}", self.name),
        }
    }

    fn seen(&self) -> Arc<dyn Look> {
        Arc::new(Disks { disks: self.disks.iter().map(Seen::of).collect(), lent: self.lent.clone() })
    }
}

/// What the next ring3d is told.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The disks' numbers.
    ids: Vec<u32>,
    lent: Saved,
}

impl Kept {
    /// An older one has told numbers alone.
    fn of(saved: &serde_json::Value) -> Result<Self, String> {
        let kept = match saved {
            serde_json::Value::Array(_) => serde_json::from_value(saved.clone()).map(|ids| Self { ids, ..Self::default() }),
            _ => serde_json::from_value(saved.clone()),
        };
        kept.map_err(|error| error.to_string())
    }
}

/// Takes disks that another supervisor has [saved](Look::saved) from their users, whoever that is.
pub fn take_away(saved: &serde_json::Value) {
    for id in Kept::of(saved).unwrap_or_default().ids {
        // What it owns ends with it.
        match Control::open().and_then(|control| Device::adopt(control, id)) {
            Ok(mut device) => device.own(),
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// Takes a disk from its users, and gives its identity back.
fn remove(mut disk: Disk, force: bool) -> Result<(), (Box<Disk>, Error)> {
    match disk.device.stop(force) {
        Ok(()) => {
            disk.device.own();
            Ok(())
        }
        Err(error) => Err((Box::new(disk), error)),
    }
}

/// One fewer than the queue has tags.
fn limit_requests(id: u32, depth: u16) {
    let file = format!("/sys/block/ublkb{id}/queue/nr_requests");
    if let Err(error) = fs::write(&file, (depth.max(2) - 1).to_string()) {
        tracing::warn!("{file}: {error}; with every tag in flight, 6.12 recovers it in half a minute");
    }
}

fn info(facts: &DiskFacts) -> Info {
    Info {
        model: facts.model.clone(),
        serial: facts.serial.clone(),
        firmware: String::new(),
        block_size: facts.block_size,
        blocks: facts.blocks,
        max_transfer: facts.max_transfer,
        segments: SegmentRules::PAGES,
        optimal_io: facts.optimal_io,
        volatile_cache: facts.volatile_cache,
        fua: facts.fua,
        max_write_zeroes_blocks: facts.max_write_zeroes_blocks,
        discard: facts.discard.map(|(max_blocks, granularity)| Discard { max_blocks, granularity }),
        read_only: facts.read_only,
        rotates: facts.rotates,
    }
}

/// What sysfs shows of started disks.
struct Disks {
    disks: Vec<Seen>,
    lent: Arc<Table>,
}

struct Seen {
    id: u32,
    path: PathBuf,
    link: Option<PathBuf>,
    bytes: u64,
    refused: Refused,
    /// The kernel's count of requests, which is looked at every second and so stays open.
    in_flight: OnceLock<File>,
}

impl Seen {
    fn of(disk: &Disk) -> Self {
        let refused = disk.partitions.as_ref().map(Watch::refused).unwrap_or_default();
        Self {
            id: disk.device.id(),
            path: disk.device.path(),
            link: disk.link.clone(),
            bytes: disk.bytes,
            refused,
            in_flight: OnceLock::new(),
        }
    }

    fn file(&self, name: &str) -> String {
        format!("/sys/block/ublkb{}/{name}", self.id)
    }

    fn numbers(&self, name: &str) -> Vec<u64> {
        let text = fs::read_to_string(self.file(name)).unwrap_or_default();
        text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()
    }

    /// Reads and writes. [Linux, Documentation/ABI/stable/sysfs-block]
    fn in_flight(&self) -> u64 {
        if self.in_flight.get().is_none() {
            // What is not there yet is looked for again.
            let _ = File::open(self.file("inflight")).map(|file| self.in_flight.set(file));
        }
        let mut bytes = [0; 64];
        let len = self.in_flight.get().and_then(|file| file.read_at(&mut bytes, 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(&bytes[..len]).unwrap_or_default();
        text.split_whitespace().map(|word| word.parse().unwrap_or(0)).sum()
    }
}

impl Look for Disks {
    fn saved(&self) -> serde_json::Value {
        let ids: Vec<_> = self.disks.iter().map(|disk| disk.id).collect();
        match self.lent.saved() {
            none if none == Saved::default() => ids.into(),
            lent => serde_json::to_value(Kept { ids, lent }).unwrap_or_default(),
        }
    }

    fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        self.lent.descriptors()
    }

    fn in_flight(&self) -> u64 {
        self.disks.iter().map(Seen::in_flight).sum()
    }

    fn disks(&self) -> Vec<DiskStatus> {
        let status = |disk: &Seen| {
            // [Linux, Documentation/block/stat.rst]
            let stat = disk.numbers("stat");
            let get = |index: usize| stat.get(index).copied().unwrap_or(0);
            DiskStatus {
                path: disk.path.display().to_string(),
                link: disk.link.as_ref().map(|link| link.display().to_string()),
                bytes: disk.bytes,
                reads: get(0),
                writes: get(4),
                bytes_read: get(2) * SECTOR,
                bytes_written: get(6) * SECTOR,
                io_ms: get(3) + get(7),
                in_flight: get(8),
                errors: 0,
                partitions: links::partitions(&format!("ublkb{}", disk.id)),
                table: disk.refused.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            }
        };
        self.disks.iter().map(status).collect()
    }
}
