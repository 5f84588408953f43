//! The disks of a device as `/dev/ublkbN`.

mod seen;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::block::{Discard, Info};
use ring3_control::drive::{DriverCommand, Offered, OfferedDisk, Serve};
use ring3_device::dma::SegmentRules;
use ring3_export::ublk::uapi::Parameters;
use ring3_export::ublk::{Control, Device, Error, Nodes, Recovery, Shape, await_users, limits};

use ring3_sandbox::Program;
use serde::{Deserialize, Serialize};

use super::ids::{ReservedIds, is_taken, is_there};
use super::lent::{RegistrationServer, Saved, Table};
use super::partitions::{Of, Watch};
use super::{CancelFlags, Done, EventSender, Export, Refusal, ServeRequest, StatusSource, links};
use crate::manifest;
use seen::{Disks, Seen};

/// How long the kernel may take to see that a server has died. 6.12 takes 30 s if that had every
/// tag of a queue.
const DEATH: Duration = Duration::from_secs(90);
/// Between two looks whether anybody still wants it.
const LOOK: Duration = Duration::from_millis(100);
/// How long a reader may take between two requests.
const READER_PAUSE: Duration = Duration::from_millis(500);
/// Bytes of a sector, in which the kernel counts.
const SECTOR: u64 = 512;

/// The disks of one device.
pub struct Ublk {
    wanted: manifest::ExportConfig,
    /// What its user calls the device, and its first disk.
    device: String,
    name: String,
    disks: Vec<Disk>,
    /// Numbers that manifests name.
    ids: ReservedIds,
    /// Disks that were taken from their users by force, who may have them open still.
    torn: Vec<(u32, Nodes)>,
    /// `ring3-driver`, which reads partition tables.
    program: Arc<Program>,
    voice: EventSender,
    /// Memory that clients have registered, and the server that handles them, while users have the
    /// disks.
    lent: Arc<Table>,
    lender: Option<RegistrationServer>,
}

struct Disk {
    device: Device,
    /// As its driver calls it.
    name: String,
    parameters: Parameters,
    shape: Shape,
    rotates: bool,
    bytes: u64,
    block: u32,
    /// What it is now, if its users do not know yet that it has more sectors.
    grown: Option<Parameters>,
    link: Option<PathBuf>,
    /// Since users have it.
    partitions: Option<Watch>,
}

impl Ublk {
    /// Of `device`, with no number that `ids` has for another one; `program` is the drivers'.
    pub fn new(device: &manifest::Device, ids: ReservedIds, program: Arc<Program>) -> Self {
        let (voice, lent, lender) = (EventSender::silent(), Arc::default(), None);
        let (name, link, wanted) =
            (device.name.clone(), device.link().to_owned(), device.export.clone());
        Self {
            wanted,
            device: name,
            name: link,
            disks: Vec::new(),
            ids,
            torn: Vec::new(),
            program,
            voice,
            lent,
            lender,
        }
    }

    /// Each disk has its name under `/dev/ring3`.
    fn link(&self, place: usize) -> String {
        if self.disks.len() == 1 {
            self.name.clone()
        } else {
            format!("{}-{}", self.name, place + 1)
        }
    }

    /// Has the kernel know the partitions of the disks that have users.
    fn watch(&mut self) {
        let names: Vec<_> = (0..self.disks.len()).map(|place| self.link(place)).collect();
        for (disk, name) in
            self.disks.iter_mut().zip(names).filter(|(disk, _)| disk.partitions.is_none())
        {
            let of = Of {
                id: disk.device.id(),
                name,
                bytes: disk.bytes,
                block: disk.block,
                program: self.program.clone(),
            };
            match Watch::start(of) {
                Ok(watch) => disk.partitions = Some(watch),
                Err(error) => tracing::warn!(
                    "partitions of {} are not looked for: {error}",
                    disk.device.name()
                ),
            }
        }
    }

    fn described(&self, facts: &OfferedDisk, disks: usize) -> Result<(Shape, Parameters), String> {
        let info = info(facts);
        let page = rustix::param::page_size() as u32;
        let buffer = limits::buffer_bytes(&info, self.wanted.max_io_kib << 10, page);
        let parameters = limits::parameters(&info, buffer, page)
            .map_err(|reason| format!("{} cannot be exported: {reason}", facts.name))?;
        let most = facts.max_queues / u16::try_from(disks).unwrap_or(u16::MAX).max(1);
        let queues = self.wanted.queues.min(most).min(crate::processors()).max(1);
        Ok((
            Shape {
                queues,
                depth: self.wanted.depth,
                buffer,
                recovery: Recovery::Reissue,
                shared_memory: self.wanted.share.is_some(),
                // The kernel refuses batches of one, and there is nothing to gather.
                batches: self.wanted.batch && self.wanted.depth > 1,
            },
            parameters,
        ))
    }

    fn try_create(&mut self, facts: &[OfferedDisk], vain: &CancelFlags) -> Result<(), Refusal> {
        for (place, disk) in (0..).zip(facts) {
            let (shape, parameters) = self.described(disk, facts.len()).map_err(Refusal::Failed)?;
            let mut device = self.identity(place, shape)?;
            device.served_by(vain.dead.clone());
            device
                .set_parameters(parameters)
                .map_err(|error| Refusal::Failed(error.to_string()))?;
            let bytes = disk.blocks.saturating_mul(disk.block_size.into());
            let (rotates, block) = (disk.rotates, disk.block_size);
            self.disks.push(Disk {
                device,
                name: disk.name.clone(),
                parameters,
                shape,
                rotates,
                bytes,
                block,
                grown: None,
                link: None,
                partitions: None,
            });
        }
        Ok(())
    }
}

impl Ublk {
    /// A device of the kernel's for the disk at `place`. [`Refusal::Busy`] if the number that its
    /// manifest names is somebody else's.
    fn identity(&self, place: u16, shape: Shape) -> Result<Device, Refusal> {
        let mut taken = None;
        for id in self.ids.choices(&self.device, place, is_there) {
            match Control::open().and_then(|control| Device::create(control, id, shape)) {
                Err(error) if is_taken(&error) => taken = Some((id, error)),
                device => return device.map_err(|error| Refusal::Failed(error.to_string())),
            }
        }
        Err(match taken {
            Some((Some(id), error)) => Refusal::Busy(self.explain(id, &error)),
            _ => Refusal::Failed(
                "the kernel has no number left for a disk: ring3 ublk list shows who has them"
                    .into(),
            ),
        })
    }

    /// Who has the number `id`, which `error` says is taken.
    fn explain(&self, id: u32, error: &Error) -> String {
        let torn = self.torn.iter().filter(|(torn, _)| *torn == id);
        let users: Vec<_> =
            torn.flat_map(|(_, nodes)| nodes.users()).map(|user| user.to_string()).collect();
        let who = match (users.is_empty(), error) {
            (false, _) => format!(
                "it was taken away by force, and {} has it open still: end that",
                users.join(", ")
            ),
            (true, Error::Taken { pid, .. }) if *pid > 0 => {
                format!("process {pid} serves it: stop that")
            }
            (true, Error::Recovering { .. }) => {
                format!("it waits for a server: ring3 ublk delete {id} gives it up")
            }
            (true, Error::Foreign { .. }) => {
                format!("another program has made it: ring3 ublk delete {id} deletes it")
            }
            (true, _) => "somebody sets it up or leaves it: ring3 ublk list".into(),
        };
        format!(
            "export.id = {id} cannot be had, as /dev/ublkb{id} is there: {who}, or name another \
            export.id, or none"
        )
    }
}

impl Export for Ublk {
    fn speak(&mut self, voice: EventSender) {
        self.voice = voice;
        // Users have the disks of another ring3d already, and clients have lent them memory.
        if !self.disks.is_empty()
            && let Err(why) = self.accept_clients()
        {
            tracing::error!("{why}");
        }
    }

    fn go_on(&mut self) {
        self.lent.open();
    }

    fn hold_clients(&mut self) {
        self.lent.close(true);
    }

    fn handle_registration(&mut self, number: u64, refused: Option<String>) {
        self.lent.handle_answer(number, refused);
    }

    fn create(&mut self, offered: &Offered, vain: &CancelFlags) -> Result<(), Refusal> {
        let created = self.try_create(&offered.disks, vain);
        if created.is_err() {
            self.disks.drain(..).for_each(|disk| drop(remove(disk, true)));
        }
        created
    }

    fn recover(&mut self, vain: &CancelFlags) -> Result<(), String> {
        let deadline = Deadline::after(DEATH);
        self.lent.close(false);
        for disk in &mut self.disks {
            // One that another supervisor has made does not know it yet.
            disk.device.served_by(vain.dead.clone());
            loop {
                match disk.device.recover(deadline.sooner(Some(Instant::now() + LOOK))) {
                    Ok(()) => break,
                    Err(Error::Taken { .. }) if !deadline.expired() && !vain.is_given_up() => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, offered: &Offered) -> Result<Vec<ServeRequest>, String> {
        // The keeper has compared them with those that users have; more may have come behind.
        let facts =
            offered.disks.get(..self.disks.len()).ok_or("disks are missing that users have")?;
        // What was registered at the last moment is known now: the kernel has given the disks back
        // since.
        self.lent.close(true);
        let described = facts
            .iter()
            .map(|disk| self.described(disk, facts.len()))
            .collect::<Result<Vec<_>, _>>()?;
        let mut served = Vec::new();
        for ((place, disk), (shape, parameters)) in (0..).zip(&mut self.disks).zip(described) {
            disk.grown = disk.parameters.has_grown_to(parameters).then_some(parameters);
            if (disk.grown.is_none() && !disk.parameters.describe_the_same(parameters))
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
            let file =
                disk.device.take_file().and_then(Arc::into_inner).ok_or("its file is gone")?;
            if self.wanted.share.is_some() {
                // If it dies, what lies in clients' memory is not ended before its device is
                // fenced.
                self.voice.keep_open(
                    file.try_clone()
                        .map_err(|error| format!("duplicating a disk's file: {error}"))?
                        .into(),
                );
            }
            // What it has to know before any request comes.
            served.extend(self.lent.given(place)?);
            let serve = Serve {
                disk: place,
                id: disk.device.id(),
                queues,
                depth,
                buffer,
                cpus,
                encoded: disk.device.features().encoded,
                batches: disk.device.shape().batches,
            };
            served.push(ServeRequest {
                place,
                order: DriverCommand::Serve(serve),
                fds: vec![file.into()],
            });
        }
        Ok(served)
    }

    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String> {
        for place in 0..self.disks.len() {
            let name = self.link(place);
            let disk = &mut self.disks[place];
            let announced = links::announce(&name, &format!("ublkb{}", disk.device.id()));
            if let Err(error) = &announced {
                tracing::warn!("udev does not hear the name of {name}: {error}");
            }
            disk.device.start(std::process::id()).map_err(|error| error.to_string())?;
            let (id, path) = (disk.device.id(), disk.device.path());
            if disk.link.is_none() {
                // A queue whose every tag is in flight when its server dies takes 6.12 half a
                // minute to recover.
                self.wanted.scheduler.set(&format!("ublkb{id}"), disk.rotates);
                limit_requests(id, disk.shape.depth);
            }
            disk.grow();
            let linked = match announced {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
                _ => links::set(&name, &format!("ublkb{id}")),
            };
            match linked {
                Ok(link) => disk.link = Some(link),
                Err(error) => tracing::warn!(
                    "/dev/ring3/{name} could not be made: {error}; use {}",
                    path.display()
                ),
            }
        }
        self.watch();
        self.accept_clients()?;
        self.lent.open();
        Ok(self.seen())
    }

    fn adopt(
        &mut self,
        saved: &serde_json::Value,
        offered: &Offered,
        fds: &mut BTreeMap<String, OwnedFd>,
    ) -> Result<Arc<dyn StatusSource>, String> {
        let facts = &offered.disks;
        let SavedExport { ids, lent } = SavedExport::of(saved)?;
        let lent = Table::adopt(lent, fds)?;
        if ids.len() != facts.len() {
            return Err(format!("there are {} numbers for {} disks", ids.len(), facts.len()));
        }
        let mut disks = Vec::new();
        for (id, facts) in ids.into_iter().zip(facts) {
            let found = Control::open().and_then(|control| Device::adopt(control, id));
            let mut device = found.map_err(|error| error.to_string())?;
            let parameters = device.parameters().map_err(|error| error.to_string())?;
            let (shape, bytes) = (device.shape(), parameters.dev_sectors.saturating_mul(SECTOR));
            let (rotates, block) = (facts.rotates, facts.block_size);
            disks.push(Disk {
                device,
                name: facts.name.clone(),
                parameters,
                shape,
                rotates,
                bytes,
                block,
                grown: None,
                link: None,
                partitions: None,
            });
        }
        self.disks = disks;
        let name = |(place, disk): (usize, &Disk)| {
            links::place(&self.link(place), &format!("ublkb{}", disk.device.id()))
        };
        let links: Vec<_> = self.disks.iter().enumerate().map(name).collect();
        self.disks.iter_mut().zip(links).for_each(|(disk, link)| disk.link = link);
        self.watch();
        self.lent = Arc::new(lent);
        Ok(self.seen())
    }

    fn stop(&mut self, force: bool) -> Result<(), Refusal> {
        // Who reads a table uses the disk.
        self.disks.iter_mut().for_each(|disk| disk.partitions = None);
        if force {
            self.refuse_users();
        }
        let stopped = self.try_stop(force);
        self.watch();
        stopped
    }
}

impl Disk {
    /// Tells its users if it has grown. One that cannot be told of keeps its size, and nothing is
    /// lost.
    fn grow(&mut self) {
        let Some(parameters) = self.grown.take() else { return };
        let (name, bytes) = (self.device.name(), parameters.dev_sectors.saturating_mul(SECTOR));
        match self.device.resize(parameters.dev_sectors) {
            Ok(true) => {
                tracing::info!("{name} has grown to {bytes} bytes");
                // Those who look at its table have to know its size.
                (self.parameters, self.bytes, self.partitions) = (parameters, bytes, None);
            }
            Ok(false) => {
                let next = "stop it and restart it when nobody uses it";
                tracing::warn!(
                    "{name} has grown to {bytes} bytes; ublk can say so from Linux 6.16 on: {next}"
                );
            }
            Err(error) => {
                tracing::warn!("{name} has grown to {bytes} bytes, and keeps its size: {error}")
            }
        }
    }
}

impl Ublk {
    /// Has users get errors before the disks go, because what follows reads as the end of the disk:
    /// from the driver, or, if there is none any more, from the kernel, where whoever reads waits.
    fn refuse_users(&self) {
        let began = Instant::now();
        if !self.voice.is_dead() {
            self.voice.say(Done::Order(DriverCommand::Refuse, Vec::new()));
        }
        let is_over = || self.voice.is_dead() && began.elapsed() >= READER_PAUSE;
        let is_used = |disk: &Disk| disk.device.check_unused().is_err();
        await_users(Some(began), || !is_over() && self.disks.iter().any(is_used));
    }

    fn try_stop(&mut self, force: bool) -> Result<(), Refusal> {
        // All or none: a device without one of its disks is no use, and those who were asked first
        // would be gone.
        if !force {
            for disk in &mut self.disks {
                disk.device.check_unused().map_err(|error| Refusal::Busy(in_use(error)))?;
            }
        }
        let mut failed = None;
        let names: Vec<_> = (0..self.disks.len()).map(|place| self.link(place)).collect();
        while let Some(disk) = self.disks.pop() {
            let (name, node) = (&names[self.disks.len()], format!("ublkb{}", disk.device.id()));
            let (id, nodes) = (disk.device.id(), force.then(|| Nodes::of(&node)));
            match remove(disk, force) {
                Err((disk, error @ Error::Busy { .. })) => {
                    self.disks.push(*disk);
                    return Err(Refusal::Busy(in_use(error)));
                }
                Err((_, error)) => failed = Some(Refusal::Failed(error.to_string())),
                Ok(()) => {}
            }
            self.torn.retain(|(torn, _)| *torn != id);
            self.torn.extend(nodes.map(|nodes| (id, nodes)));
            links::clear(name, &node);
        }
        // Clients are disconnected after their requests have completed.
        (self.lender, self.lent) = (None, Arc::default());
        self.voice.close_retained();
        failed.map_or(Ok(()), Err)
    }

    /// Begins to accept clients that register memory, if that is wanted and nobody does yet.
    fn accept_clients(&mut self) -> Result<(), String> {
        let Some(share) = self.wanted.share.as_ref().filter(|_| self.lender.is_none()) else {
            return Ok(());
        };
        let ids: Vec<_> = self.disks.iter().map(|disk| disk.device.id()).collect();
        let lender = RegistrationServer::start(share, &ids, self.voice.clone(), self.lent.clone())
            .map_err(|why| format!("export.share of {}: {why}", self.name))?;
        self.lender = Some(lender);
        Ok(())
    }

    fn seen(&self) -> Arc<dyn StatusSource> {
        Arc::new(Disks {
            disks: self.disks.iter().map(Seen::of).collect(),
            lent: self.lent.clone(),
        })
    }
}

/// What the next ring3d is told.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SavedExport {
    /// The disks' numbers.
    ids: Vec<u32>,
    lent: Saved,
}

impl SavedExport {
    /// An older one has told numbers alone.
    fn of(saved: &serde_json::Value) -> Result<Self, String> {
        let kept = match saved {
            serde_json::Value::Array(_) => {
                serde_json::from_value(saved.clone()).map(|ids| Self { ids, ..Self::default() })
            }
            _ => serde_json::from_value(saved.clone()),
        };
        kept.map_err(|error| error.to_string())
    }
}

/// Takes disks that another supervisor has [saved](StatusSource::saved) from their users, whoever
/// that is.
pub fn take_away(saved: &serde_json::Value) {
    for id in SavedExport::of(saved).unwrap_or_default().ids {
        // What it owns ends with it.
        match Control::open().and_then(|control| Device::adopt(control, id)) {
            Ok(mut device) => {
                links::forget(&format!("ublkb{id}"));
                device.own();
            }
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// Who uses a disk, in words.
fn in_use(error: Error) -> String {
    let Error::Busy { device, users } = error else { return error.to_string() };
    let users: Vec<_> = users.iter().map(ToString::to_string).collect();
    let users =
        if users.is_empty() { "somebody in another namespace".into() } else { users.join(", ") };
    format!("{device} is in use by {users}: unmount or close it first")
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
        tracing::warn!(
            "{file}: {error}; with every tag in flight, 6.12 recovers it in half a minute"
        );
    }
}

fn info(facts: &OfferedDisk) -> Info {
    Info {
        model: facts.model.clone(),
        serial: facts.serial.clone(),
        firmware: String::new(),
        block_size: facts.block_size,
        blocks: facts.blocks,
        max_transfer: facts.max_transfer,
        segments: SegmentRules::PAGES,
        optimal_io: facts.optimal_io,
        boundary: facts.boundary,
        volatile_cache: facts.volatile_cache,
        fua: facts.fua,
        max_write_zeroes_blocks: facts.max_write_zeroes_blocks,
        discard: facts.discard.map(|(max_blocks, granularity)| Discard { max_blocks, granularity }),
        read_only: facts.read_only,
        rotates: facts.rotates,
    }
}
