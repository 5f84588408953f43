//! A claim that survives its holder.
//!
//! # Shape
//! [`Claim::on_change`] hands out a [`SavedClaim`] whenever there is another one: descriptors,
//! which somebody keeps who does not die with the holder, and facts about them. [`Claim::adopt`]
//! makes the claim of it in another process. The device and its driver notice nothing: a request of
//! the driver waits in the lease until somebody answers it.
//!
//! # Order
//! What a driver asks for is saved before it is answered, and a mapping before it is made. A holder
//! that died between taking a request and answering it has left `turn` raised: what the driver
//! waits for would never come, so its lease is ended, and it is to be fenced like one that has
//! died.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use ring3_device::dma::{Arena, Pages, Region, SavedArena};
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Device, Error};
use ring3_lease::{Channel, Memory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::desk::{DriverGrants, EnabledInterrupts, LeaseServer};
use super::maps::{Files, Mapping};
use super::{Claim, SEND_LIMIT, Serving, State};
use crate::vfio::{Place, Vfio, Windows};

/// The form of [`Facts`]. Fields are only ever added, each with a default.
const VERSION: u32 = 1;
/// Of how many files the mappings beside the arena may be that are saved: each is a descriptor that
/// somebody keeps.
const MAX_KEPT: usize = 64;

/// What another process needs to go on with a claim.
#[derive(Debug)]
pub struct SavedClaim {
    /// About the descriptors.
    pub facts: Value,
    /// Each by a name, which means the same object as long as the claim lives.
    pub fds: Vec<(String, OwnedFd)>,
}

/// Who is told of what is saved, or why it cannot be.
pub(super) type OnChange = Box<dyn Fn(Result<SavedClaim, Error>) + Send + Sync>;

#[derive(Serialize, Deserialize)]
struct Facts {
    version: u32,
    name: String,
    place: Option<Place>,
    below: u64,
    arena: Vec<Memory>,
    mapped: Vec<(u64, Memory)>,
    /// Which mappings are of the file of another one, by whose number the descriptor is kept.
    #[serde(default)]
    files: BTreeMap<u64, u64>,
    irqs: Option<Interrupts>,
    lease: Option<u64>,
    quiet: bool,
    serial: u64,
    /// The driver has said the first word; whoever does not say so is not given what comes with the
    /// answer.
    #[serde(default = "yes")]
    agreed: bool,
}

fn yes() -> bool {
    true
}

#[derive(Serialize, Deserialize)]
struct Interrupts {
    serial: u64,
    kind: IrqKind,
    count: u16,
}

/// Descriptors by their names, each of which is there once.
struct Descriptors {
    name: String,
    fds: BTreeMap<String, OwnedFd>,
}

impl Claim {
    /// Tells `changed` now, and at each change before a driver can know of it, what another process
    /// needs to [`adopt`](Self::adopt) the claim. It must not use the claim. Only the first call
    /// counts.
    pub fn on_change(&self, changed: impl Fn(Result<SavedClaim, Error>) + Send + Sync + 'static) {
        if self.desk.changed.set(Box::new(changed)).is_ok() {
            self.desk.notify(&self.desk.asked());
        }
    }

    /// What another process needs to [`adopt`](Self::adopt) the claim as it is now.
    /// [`Error::Unsupported`] where a claim cannot outlive its holder.
    pub fn save(&self) -> Result<SavedClaim, Error> {
        let asked = self.desk.asked();
        self.desk.check_durable(&asked)?;
        self.desk.save(&asked)
    }

    /// Goes on with a claim that another process has saved, and does not have any more. The driver
    /// of its lease goes on, too, [if that is still out](Self::is_leased).
    pub fn adopt(saved: SavedClaim) -> Result<Self, Error> {
        let facts = Facts::read(saved.facts)?;
        let mut fds =
            Descriptors { name: facts.name.clone(), fds: saved.fds.into_iter().collect() };
        let Some(place) = &facts.place else {
            return Err(Error::Unsupported(format!(
                "{}: its claim has ended with its holder; claim it anew",
                facts.name
            )));
        };
        let regions = facts
            .arena
            .iter()
            .enumerate()
            .map(|(number, memory)| fds.region(&format!("arena.{number}"), memory));
        let regions = regions.collect::<Result<Vec<_>, _>>()?;
        let arena = Arena::adopt(
            regions,
            &SavedArena::fresh(facts.arena.iter().map(|memory| (memory.iova, memory.len)))
                .with_persistent_words(),
        )?;
        let enabled = facts.irqs.as_ref().map(|irqs| irqs.kind);
        let device = Vfio::adopt(place, arena, facts.below, enabled, &mut |name| fds.take(name))?;
        let windows = device.windows()?;
        Self::over(Arc::new(device), Some(windows), facts, fds)
    }

    /// The claim of `device` with what its drivers have asked for.
    fn over(
        device: Arc<dyn Device>,
        windows: Option<Windows>,
        facts: Facts,
        mut fds: Descriptors,
    ) -> Result<Self, Error> {
        let turn = fds.take("turn")?;
        let interrupted = is_raised(&turn);
        let irqs = facts.irqs.map(|irqs| fds.irqs(irqs, windows.as_ref())).transpose()?;
        let (mut files, mut kept) = (Files::default(), BTreeMap::new());
        let mapping = |(serial, memory): &(u64, Memory)| {
            let keeper = *facts.files.get(serial).unwrap_or(serial);
            let file = match kept.get(&keeper) {
                Some(file) => Arc::clone(file),
                None => {
                    let file = fds.file(&format!("map.{keeper}"), &mut files)?;
                    kept.insert(keeper, Arc::clone(&file));
                    file
                }
            };
            let pages = fds.part(file, memory)?;
            Ok((memory.iova, Mapping { serial: *serial, pages, doubtful: interrupted }))
        };
        let mapped = facts.mapped.iter().map(mapping).collect::<Result<_, Error>>()?;
        let lease = facts
            .lease
            .map(|serial| fds.take(&format!("lease.{serial}")).map(|fd| (serial, fd)))
            .transpose()?;
        let asked = DriverGrants {
            irqs,
            mapped,
            files,
            lease: None,
            quiet: facts.quiet && lease.is_none(),
            serial: facts.serial,
            agreed: facts.agreed,
            // The last holder may have held them back, and not lived to say so.
            held: true,
        };
        let desk = Arc::new(LeaseServer::with(device, windows, facts.below, asked, turn)?);
        // A storm is seen anew; a driver that waits for one interrupt does not wait for that.
        desk.hold_interrupts(&mut desk.asked(), false)?;
        let state = if desk.asked().quiet { State::Quiet } else { State::Unfenced };
        let claim = Self { state: Mutex::new(state), desk };
        if let Some((serial, socket)) = lease {
            let failed =
                |error| Error::os(format!("{}: going on with a lease", claim.name()), error);
            let channel = Arc::new(Channel::new(socket, SEND_LIMIT, false).map_err(failed)?);
            if interrupted {
                channel.close();
            } else {
                claim.desk.asked().lease = Some((serial, Arc::clone(&channel)));
                *claim.state() =
                    State::Leased(Serving::start(&claim.desk, channel).map_err(failed)?);
            }
        }
        Ok(claim)
    }

    /// Whether a driver has it.
    pub fn is_leased(&self) -> bool {
        matches!(&*self.state(), State::Leased(serving) if !serving.has_left())
    }

    /// Detaches this holder from the device, for the process that [adopts](Self::adopt) it:
    /// requests of a driver are not answered here any more, and dropping this value leaves the
    /// device as it is.
    pub fn detach_holder(&self) {
        let mut state = self.state();
        if let State::Leased(serving) = &mut *state {
            serving.stop_serving();
        }
        *state = State::Left;
        // Whose drop would give the function up.
        std::mem::forget(Arc::clone(&self.desk));
    }
}

#[cfg(test)]
impl Claim {
    pub(super) fn save_model(&self) -> SavedClaim {
        self.desk.save(&self.desk.asked()).unwrap()
    }

    pub(super) fn over_model(device: Arc<dyn Device>, saved: SavedClaim) -> Result<Self, Error> {
        let facts = Facts::read(saved.facts)?;
        let fds = Descriptors { name: facts.name.clone(), fds: saved.fds.into_iter().collect() };
        Self::over(device, None, facts, fds)
    }
}

impl DriverGrants {
    /// The first mapping of each file, by the file's descriptor here: the descriptor is kept under
    /// its number. [`Files`] gives a file one descriptor, so that two descriptors are two files.
    fn kept_by(&self) -> BTreeMap<RawFd, u64> {
        let mut kept_by = BTreeMap::new();
        for Mapping { serial, pages, .. } in self.mapped.values() {
            if let Some((file, _)) = pages.file() {
                let first = kept_by.entry(file.as_raw_fd()).or_insert(*serial);
                *first = (*first).min(*serial);
            }
        }
        kept_by
    }
}

impl LeaseServer {
    /// Passes the new state to the owner's [`OnChange`].
    pub(super) fn notify(&self, asked: &DriverGrants) {
        if let Some(changed) = self.changed.get() {
            changed(self.check_durable(asked).and_then(|()| self.save(asked)));
        }
    }

    fn check_durable(&self, asked: &DriverGrants) -> Result<(), Error> {
        let name = self.device.name();
        if self.windows.is_none() {
            return Err(Error::Unsupported(format!(
                "{name}: a claim of this backend ends with its holder; its driver is restarted then"
            )));
        }
        if asked.kept_by().len() > MAX_KEPT {
            return Err(Error::Unsupported(format!(
                "{name}: its driver has mapped parts of more than {MAX_KEPT} files, so its claim \
                ends with its holder"
            )));
        }
        Ok(())
    }

    fn save(&self, asked: &DriverGrants) -> Result<SavedClaim, Error> {
        let mut fds = Vec::new();
        let mut keep = |name: String, fd: &dyn AsFd| {
            let fd = fd
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| Error::os("copying a descriptor", error))?;
            fds.push((name, fd));
            Ok::<_, Error>(())
        };
        for (name, fd) in self.windows.iter().flat_map(Windows::descriptors) {
            keep(name.into(), &fd)?;
        }
        let events = [("removal", self.device.removal()), ("errors", self.device.bus_errors())];
        for (name, irq) in events.into_iter().filter_map(|(name, irq)| Some((name, irq?))) {
            keep(name.into(), irq)?;
        }
        keep("turn".into(), &self.turn)?;
        let no_file = || Error::Unsupported("memory that is no file".into());
        let mut arena = Vec::new();
        for (number, placed) in self.device.dma().arena().regions().enumerate() {
            let pages = placed.region.pages()?;
            let (file, offset) = pages.file().ok_or_else(no_file)?;
            keep(format!("arena.{number}"), &file)?;
            arena.push(Memory { iova: placed.iova, offset, len: pages.len() as u64 });
        }
        let (kept_by, mut files) = (asked.kept_by(), BTreeMap::new());
        let mut mapped = Vec::with_capacity(asked.mapped.len());
        for (&iova, Mapping { serial, pages, .. }) in &asked.mapped {
            let (file, offset) = pages.file().ok_or_else(no_file)?;
            match kept_by.get(&file.as_raw_fd()) {
                Some(keeper) if keeper != serial => drop(files.insert(*serial, *keeper)),
                _ => keep(format!("map.{serial}"), &file)?,
            }
            mapped.push((*serial, Memory { iova, offset, len: pages.len() as u64 }));
        }
        if let Some(EnabledInterrupts { serial, irqs, .. }) = &asked.irqs {
            irqs.iter()
                .enumerate()
                .try_for_each(|(vector, irq)| keep(format!("irq.{serial}.{vector}"), irq))?;
        }
        if let Some((serial, channel)) = &asked.lease {
            keep(format!("lease.{serial}"), &**channel)?;
        }
        let facts = Facts {
            version: VERSION,
            name: self.device.name().to_owned(),
            place: self.windows.as_ref().map(Windows::place),
            below: self.below,
            arena,
            mapped,
            files,
            irqs: asked.irqs.as_ref().map(Interrupts::of),
            lease: asked.lease.as_ref().map(|(serial, _)| *serial),
            quiet: asked.quiet,
            agreed: asked.agreed,
            serial: asked.serial,
        };
        let facts = serde_json::to_value(&facts)
            .map_err(|error| Error::Invalid(format!("saving a claim: {error}")))?;
        Ok(SavedClaim { facts, fds })
    }
}

impl Facts {
    fn read(facts: Value) -> Result<Self, Error> {
        let facts: Self = serde_json::from_value(facts)
            .map_err(|error| Error::Invalid(format!("this is no saved claim: {error}")))?;
        match facts.version {
            VERSION => Ok(facts),
            other => Err(Error::Unsupported(format!(
                "{}: a claim of version {other}, and {VERSION} is known",
                facts.name
            ))),
        }
    }
}

impl Interrupts {
    fn of(enabled: &EnabledInterrupts) -> Self {
        Self { serial: enabled.serial, kind: enabled.kind, count: enabled.irqs.len() as u16 }
    }
}

impl Descriptors {
    fn take(&mut self, name: &str) -> Result<OwnedFd, Error> {
        let fd = self.fds.remove(name);
        fd.ok_or_else(|| {
            Error::Invalid(format!(
                "{}: the descriptor \"{name}\" of its saved claim is missing",
                self.name
            ))
        })
    }

    fn region(&mut self, name: &str, memory: &Memory) -> Result<Arc<Region>, Error> {
        let len = usize::try_from(memory.len)
            .map_err(|_| Error::Invalid(format!("{}: a region of {memory:?}", self.name)))?;
        Ok(Arc::new(Region::part_of(self.take(name)?, memory.offset, len)?))
    }

    /// One of `files`.
    fn file(&mut self, name: &str, files: &mut Files) -> Result<Arc<OwnedFd>, Error> {
        let file = files.one(self.take(name)?)?;
        file.ok_or_else(|| Error::Invalid(format!("{}: mappings of too many files", self.name)))
    }

    /// Pages of it.
    fn part(&self, file: Arc<OwnedFd>, memory: &Memory) -> Result<Pages, Error> {
        let wrong = |_| Error::Invalid(format!("{}: a mapping of {memory:?}", self.name));
        let len = usize::try_from(memory.len).map_err(wrong)?;
        Arc::new(Region::part_of_shared(file, memory.offset, len)?).pages()
    }

    fn irqs(
        &mut self,
        Interrupts { serial, kind, count }: Interrupts,
        windows: Option<&Windows>,
    ) -> Result<EnabledInterrupts, Error> {
        let fds = (0..count)
            .map(|vector| self.take(&format!("irq.{serial}.{vector}")))
            .collect::<Result<Vec<_>, _>>()?;
        let irqs = match windows {
            Some(windows) => windows.adopt_irqs(kind, fds)?,
            None => fds
                .into_iter()
                .zip(0..)
                .map(|(fd, vector)| Irq::new(fd, kind, vector, None))
                .collect(),
        };
        Ok(EnabledInterrupts { serial, kind, irqs })
    }
}

fn is_raised(event: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|_| !fds[0].revents().is_empty())
}
