//! All devices together: from the manifest to the end.

mod reload;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_control::admin::{Command, Reply};
use ring3_control::status::DeviceStatus;
use ring3_sandbox::Program;

use crate::admin::{AdminServer, Request};
use crate::export::tap::Tap;
use crate::export::ublk::Ublk;
use crate::export::{Export, ReservedIds};
use crate::faults::Faults;
use crate::half;
use crate::hosted;
use crate::keeper::{
    self, Handle, KeeperCommand, KeeperOptions, PublishedState, Records, StatePersistence, Taken,
};
use crate::manifest::{self, Device, Kind, ManifestEntry, User, UserHalf};
use crate::notify::Notifier;
use crate::sleep;
use crate::store::Store;

use reload::Reloading;

/// Bytes of an answer that lines may take.
const ROOM: usize = 60_000;

/// The keepers, and what they have in common.
pub struct Supervisor {
    config: PathBuf,
    program: Arc<Program>,
    taken: Taken,
    /// Numbers of disks that manifests name.
    ids: ReservedIds,
    /// Users of devices whose manifests name none.
    users: BTreeMap<String, User>,
    /// What survives this process.
    store: Arc<Store>,
    seen: DeviceOverview,
    keepers: Vec<(Handle, ManifestEntry)>,
    /// Devices that are being stopped for good, and what came of it.
    ending: BTreeSet<String>,
    /// Devices that follow those of the same names.
    coming: Vec<ManifestEntry>,
    /// A reload whose end somebody waits for.
    reloading: Option<Reloading>,
    ended: (Sender<Ended>, Receiver<Ended>),
}

/// What is known of all devices, for any thread.
#[derive(Clone)]
pub struct DeviceOverview {
    shared: Arc<Mutex<Vec<Arc<PublishedState>>>>,
    faults: Faults,
}

impl DeviceOverview {
    /// All of it.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        let shared = self.lock().clone();
        let status = |shared: Arc<PublishedState>| {
            let status = shared.now();
            let iommu_faults =
                status.device.strip_prefix("vfio:").map_or(0, |address| self.faults.of(address));
            DeviceStatus { iommu_faults, ..status }
        };
        shared.into_iter().map(status).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<PublishedState>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A keeper's answer to being asked to end.
struct Ended {
    name: String,
    reply: Reply,
}

impl Supervisor {
    /// Starts a keeper for each device of `config`, with drivers of `program`; it goes on with what
    /// `records` have of it. What survives, `store` keeps.
    pub fn start(
        config: &Path,
        program: Arc<Program>,
        store: Arc<Store>,
        mut records: Records,
    ) -> anyhow::Result<Self> {
        let mut supervisor = Self::empty(config.to_owned(), program, store);
        let all = manifest::read(config)?;
        // Before anybody looks for a class: these are somebody's.
        all.iter().for_each(|wanted| supervisor.reserve(wanted));
        for wanted in all {
            supervisor.keep(wanted, &mut records)?;
        }
        keeper::abandon(records, &supervisor.store);
        Ok(supervisor)
    }

    /// Starts a keeper for `device` alone, which no manifest names, with drivers of `program`; what
    /// it offers becomes `export`, or as its kind says. Nothing of it survives this process.
    pub fn of(
        device: Device,
        program: Arc<Program>,
        export: Option<Box<dyn Export>>,
    ) -> io::Result<Self> {
        let (store, mut records, _) = Store::open(Notifier::silent(), Vec::new());
        let mut supervisor = Self::empty(PathBuf::new(), program, Arc::new(store));
        let wanted = ManifestEntry::Device(Box::new(device.clone()));
        supervisor.reserve(&wanted);
        supervisor.keep_device(device, &mut records, export)?;
        Ok(supervisor)
    }

    fn empty(config: PathBuf, program: Arc<Program>, store: Arc<Store>) -> Self {
        let seen = DeviceOverview { shared: Arc::default(), faults: Faults::watch() };
        let (keepers, ending, ended) = (Vec::new(), BTreeSet::new(), channel());
        let (ids, users) = (ReservedIds::default(), BTreeMap::new());
        Self {
            config,
            program,
            taken: Taken::default(),
            ids,
            users,
            store,
            seen,
            keepers,
            ending,
            coming: Vec::new(),
            reloading: None,
            ended,
        }
    }

    fn reserve(&self, wanted: &ManifestEntry) {
        let Some(device) = wanted.device() else { return };
        self.ids.set(&device.name, device.export.id);
        if let manifest::Match::Address(address) = &device.r#match {
            self.taken.set(&device.name, address.parse().ok());
        }
    }

    fn keep(&mut self, wanted: ManifestEntry, records: &mut Records) -> io::Result<()> {
        match wanted {
            ManifestEntry::Device(device) => self.keep_device(*device, records, None),
            ManifestEntry::UserHalf(half) => {
                let user = half.user.map_or_else(|| self.own_user(&half.name), Ok)?;
                let keeper =
                    half::start(UserHalf { user: Some(user), ..half.clone() }, &self.program)?;
                self.add(keeper, ManifestEntry::UserHalf(half));
                Ok(())
            }
        }
    }

    /// Whose the drivers of `name` are if nobody says so.
    fn own_user(&mut self, name: &str) -> io::Result<User> {
        if let Some(user) = self.users.get(name) {
            return Ok(*user);
        }
        let taken = |number| {
            self.users.values().any(|other| other.user == number) || User::is_somebody(number)
        };
        let user = User::own(name, taken).ok_or_else(|| {
            io::Error::other("no user is left for its drivers: write user = \"...\"")
        })?;
        self.users.insert(name.to_owned(), user);
        Ok(user)
    }

    fn add(&mut self, keeper: Handle, wanted: ManifestEntry) {
        self.seen.lock().push(keeper.shared.clone());
        self.keepers.push((keeper, wanted));
    }

    fn keep_device(
        &mut self,
        mut device: Device,
        records: &mut Records,
        export: Option<Box<dyn Export>>,
    ) -> io::Result<()> {
        keeper::keep_shape(&mut device, records);
        let (program, argv) = match device.hosted() {
            Some(driver) => hosted::program(&self.program, driver)?,
            None => {
                let words = ["@ring3-driver", "drive", &device.name].into_iter().map(CString::new);
                (self.program.clone(), words.collect::<Result<_, _>>().map_err(io::Error::other)?)
            }
        };
        let taken = self.taken.clone();
        let mut export: Box<dyn Export> = match (export, device.export.kind) {
            (Some(export), _) => export,
            (None, Kind::Ublk) => {
                Box::new(Ublk::new(&device, self.ids.clone(), self.program.clone()))
            }
            (None, Kind::Tap) => Box::new(Tap::new(&device)),
            (None, Kind::SharedDisk | Kind::SharedCard) => {
                return Err(io::Error::other("nobody has said who shares it"));
            }
        };
        let adopted = keeper::adopt(&device, records, &mut *export);
        let survival = StatePersistence::new(&self.store, &device.name);
        let user = device.user.map_or_else(|| self.own_user(&device.name), Ok)?;
        let setup = KeeperOptions {
            device: Device { user: Some(user), ..device.clone() },
            program,
            argv,
            unconfined: false,
            taken,
        };
        let keeper = keeper::go_on(setup, export, survival, adopted)?;
        self.add(keeper, ManifestEntry::Device(Box::new(device)));
        Ok(())
    }

    /// What is known of all devices.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        self.seen.devices()
    }

    /// What is known of the one device that this was [started for](Self::of).
    pub fn published(&self) -> Option<Arc<PublishedState>> {
        self.keepers.first().map(|(keeper, _)| keeper.shared.clone())
    }

    /// The same for other threads.
    pub fn seen(&self) -> DeviceOverview {
        self.seen.clone()
    }

    fn keepers(&self) -> impl Iterator<Item = &Handle> {
        self.keepers.iter().map(|(keeper, _)| keeper)
    }

    /// Has every keeper check whether its device has appeared or disappeared.
    pub fn rescan(&self) {
        self.keepers().for_each(|keeper| keeper.ask(KeeperCommand::Rescan));
    }

    /// Hands all devices over to the next ring3d, with their drivers and users. The error says why
    /// that ring3d could not continue with them.
    pub fn hand_over_all(&self) -> Result<(), String> {
        let all = manifest::read(&self.config).map_err(|error| error.to_string())?;
        let is_named = |name: &str| all.iter().any(|wanted| wanted.name() == name);
        if let Some((keeper, _)) = self.keepers.iter().find(|(keeper, _)| !is_named(&keeper.name)) {
            return Err(format!(
                "no manifest names {} any more, which is kept: ring3 reload first, or put it back",
                keeper.name
            ));
        }
        self.keepers.iter().for_each(|(keeper, _)| keeper.ask(KeeperCommand::Leave));
        Ok(())
    }

    /// Handles a user's command; the reply is sent from here, or by the keeper later.
    pub fn handle_command(&mut self, server: &mut AdminServer, Request { command, from }: Request) {
        let reply = match &command {
            Command::Hello { .. } => Reply::Refused("once is enough".into()),
            Command::Status => Reply::Status(self.devices()),
            Command::Metrics => Reply::Text(crate::metrics::text(&self.devices())),
            Command::Reload => {
                let answer = Box::new(server.later(from));
                return self.reload(answer);
            }
            Command::Sleep { driven } => {
                return sleep::all(self.keepers(), *driven, server.later(from));
            }
            Command::Wake => {
                self.keepers().for_each(|keeper| keeper.ask(KeeperCommand::Wake));
                Reply::Done
            }
            Command::Logs { name, .. }
            | Command::Restart { name }
            | Command::Stop { name, .. }
            | Command::Upgrade { name, .. } => {
                let Some((keeper, _)) =
                    self.keepers.iter().find(|(keeper, _)| keeper.name == *name)
                else {
                    let known: Vec<_> =
                        self.keepers.iter().map(|(keeper, _)| &*keeper.name).collect();
                    return server.answer(
                        from,
                        &Reply::Refused(format!(
                            "there is no device {name}; there are: {}",
                            known.join(", ")
                        )),
                    );
                };
                let answer = Box::new(server.later(from));
                match command {
                    Command::Logs { lines, .. } => {
                        Reply::Logs(keeper.shared.journal().last(lines as usize, ROOM))
                    }
                    Command::Restart { .. } => return keeper.ask(KeeperCommand::Restart(answer)),
                    Command::Stop { force, .. } => {
                        return keeper.ask(KeeperCommand::Stop { force, answer });
                    }
                    Command::Upgrade { program, .. } => {
                        return keeper.ask(KeeperCommand::Upgrade { program, answer });
                    }
                    _ => return,
                }
            }
        };
        server.answer(from, &reply);
    }

    /// Starts what comes in the place of what has ended. The error of the last that could not be
    /// started.
    fn follow(&mut self) -> Option<String> {
        let is_waiting = |wanted: &ManifestEntry| {
            self.keepers.iter().any(|(keeper, _)| keeper.name == wanted.name())
        };
        let (waiting, coming) = std::mem::take(&mut self.coming).into_iter().partition(is_waiting);
        self.coming = waiting;
        let start = |wanted: ManifestEntry| {
            self.reserve(&wanted);
            self.keep(wanted, &mut Records::new())
                .err()
                .map(|error| format!("a keeper could not be started: {error}"))
        };
        Vec::into_iter(coming).filter_map(start).last()
    }

    fn end_one(&mut self, name: &str, force: bool) {
        let Some((keeper, _)) = self.keepers.iter().find(|(keeper, _)| keeper.name == name) else {
            return;
        };
        let (tell, name) = (self.ended.0.clone(), name.to_owned());
        self.ending.insert(name.clone());
        keeper.ask(KeeperCommand::End {
            force,
            answer: Box::new(move |reply| drop(tell.send(Ended { name, reply }))),
        });
    }

    /// Forces the stop of all devices that are being stopped: neither their users nor what their
    /// drivers still do is waited for.
    pub fn force_stop_all(&self) {
        self.keepers
            .iter()
            .filter(|(keeper, _)| self.ending.contains(&keeper.name))
            .for_each(|(keeper, _)| keeper.ask(KeeperCommand::ForceStop));
    }

    /// Asks all that are not being asked already to end.
    pub fn end(&mut self, force: bool) {
        let names: Vec<_> = self
            .keepers
            .iter()
            .map(|(keeper, _)| keeper.name.clone())
            .filter(|name| !self.ending.contains(name))
            .collect();
        names.iter().for_each(|name| self.end_one(name, force));
    }

    /// Takes leave of keepers that have ended. What was refused since the last call, with the
    /// reason.
    pub fn reap(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        while let Ok(Ended { name, reply }) = self.ended.1.try_recv() {
            self.ending.remove(&name);
            let by_reload = self
                .reloading
                .as_mut()
                .and_then(|reload| reload.waits.remove(&name).then_some(reload));
            let Reply::Refused(why) = reply else { continue };
            self.coming.retain(|wanted| wanted.name() != name);
            match by_reload {
                Some(reload) => reload.goes_on.push(format!(
                    "{name} is in no manifest any more, and goes on: {why}; stop what uses it, and \
                    ring3 reload again"
                )),
                None => refused.push(why),
            }
        }
        let (taken, ids, seen) = (&self.taken, &self.ids, &self.seen);
        self.keepers.retain(|(keeper, _)| {
            if keeper.has_ended() {
                taken.set(&keeper.name, None);
                ids.set(&keeper.name, None);
                seen.lock().retain(|shared| !Arc::ptr_eq(shared, &keeper.shared));
            }
            !keeper.has_ended()
        });
        refused.extend(self.follow());
        self.end_reload();
        refused
    }

    /// Whether no device is left.
    pub fn is_empty(&self) -> bool {
        self.keepers.is_empty()
    }

    /// Whether an end is being waited for.
    pub fn is_ending(&self) -> bool {
        !self.ending.is_empty() || !self.coming.is_empty() || self.reloading.is_some()
    }
}
