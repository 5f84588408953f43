//! The thread that clients of a device's disks speak to, and what it does with their memory:
//! registers it with the kernel for each disk, and tells the driver.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_broker::region::{self, Clients, Register};
use ring3_broker::server::Listener;
use ring3_control::drive::DriverCommand;
use ring3_export::ublk::{Control, MergeControl};
use rustix::event::{EventfdFlags, eventfd};

use super::super::{Done, EventSender};
use super::{BUSY, Client, ENDED, Key, LOOK, StoredRegion, Table};
use crate::manifest::Share;

/// How long a driver that serves may take to answer: it may have to pin 4 GiB.
const ANSWER: Duration = Duration::from_secs(30);
/// What of registering and forgetting is done at once, and how long each takes after that: each
/// keeps all users of the disk waiting for some ten milliseconds.
pub(super) const AT_ONCE: u32 = 128;
pub(super) const EACH: Duration = Duration::from_millis(500);
/// How long the thread may take to part with clients.
const PARTING: Duration = Duration::from_secs(40);

/// The thread that handles clients. Dropping it disconnects them, after the disks have gone; its
/// table is of no use then.
pub struct RegistrationServer {
    table: Arc<Table>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl RegistrationServer {
    /// Hears who comes to the socket of `share`, for the disks `/dev/ublkb{ids}`, and who has lent
    /// them what is in `table`, if another ring3d has left that.
    pub fn start(
        share: &Share,
        ids: &[u32],
        voice: EventSender,
        table: Arc<Table>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("hearing clients that lend memory: {error}");
        let listener = Listener::bind(&share.socket, share.rights().unwrap_or(0o600))
            .map_err(|error| error.to_string())?;
        let control = Control::open().map_err(|error| error.to_string())?;
        let before = |place| table.lock().merges.get(&place).cloned();
        let disks = (0..)
            .zip(ids)
            .map(|(place, &id)| (id, MergeControl::changed(id, before(place))))
            .collect();
        let registrar = Registrar {
            table: table.clone(),
            voice,
            control,
            disks,
            most: share.bytes(),
            pace: RegistrationRateLimit::new(Instant::now()),
        };
        let mut clients = Clients::new(listener, registrar);
        let nobodys = adopt_clients(&table, ids.len() as u16, &mut clients).map_err(failed)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let heard = stop.try_clone().map_err(failed)?;
        let work = move || {
            clients.revoke(nobodys);
            clients.serve(heard.as_fd());
        };
        let thread = thread::Builder::new().name("lent".into()).spawn(work).map_err(failed)?;
        Ok(Self { table, stop, thread: Some(thread) })
    }
}

impl Drop for RegistrationServer {
    fn drop(&mut self) {
        self.table.lock().ended = true;
        self.table.heard.notify_all();
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        // One that waits in the kernel for ever waits alone: the disks go without it.
        let since = Instant::now();
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && since.elapsed() < PARTING
        {
            thread::sleep(LOOK);
        }
        match self.thread.take() {
            Some(thread) if thread.is_finished() => drop(thread.join()),
            Some(_) => {
                tracing::error!(
                    "the kernel does not end what it does with clients' memory: their disk is not \
                    to be used again"
                )
            }
            None => {}
        }
        // Clients learn of it by the end of their sockets, of which no other one is left open.
        let mut lent = self.table.lock();
        lent.clients.clear();
        lent.regions.clear();
    }
}

/// Goes on with clients of another ring3d; what belongs to none of them, with what that had not
/// come to say.
fn adopt_clients(
    table: &Table,
    disks: u16,
    clients: &mut Clients<Registrar>,
) -> io::Result<Registered> {
    let lent = table.lock();
    let mut unknown: BTreeSet<Key> = lent.regions.keys().copied().collect();
    for Client { keys, socket } in lent.clients.values() {
        unknown.retain(|key| !keys.contains(key));
        clients.adopt(socket.try_clone()?, Registered(keys.clone()))?;
    }
    let lowest = |place| {
        (0..=u16::MAX)
            .find(|&index| !lent.regions.contains_key(&(place, index)))
            .map(|index| (place, index))
    };
    unknown.extend((0..disks).filter(|_| lent.adopted).filter_map(lowest));
    Ok(Registered(unknown.into_iter().collect()))
}

/// A client's memory, for each disk.
struct Registered(Vec<Key>);

/// Registers memory with all disks of a device.
struct Registrar {
    table: Arc<Table>,
    voice: EventSender,
    control: Control,
    /// Their numbers.
    disks: Vec<(u32, MergeControl)>,
    /// Bytes that all clients may register.
    most: u64,
    pace: RegistrationRateLimit,
}

impl Registrar {
    fn add(
        &mut self,
        place: u16,
        file: &Arc<OwnedFd>,
        memory: &ring3_device::dma::Region,
    ) -> Result<Key, String> {
        let Self { table, voice, control, disks, pace, .. } = self;
        let (id, merges) = &mut disks[usize::from(place)];
        pace.wait(table);
        // Whatever happens then, a driver that gets a request which lies there knows of it.
        let index = table.while_served((&*voice, *id), || {
            let index = control.register_memory(*id, memory).map_err(|error| error.to_string())?;
            let kept = StoredRegion {
                number: table.number(),
                bytes: memory.len() as u64,
                file: file.clone(),
            };
            table.lock().regions.insert((place, index), kept);
            Ok(index)
        })?;
        merges.stop();
        table.lock().merges.extend(merges.before().map(|before| (place, before.to_owned())));
        self.voice.say(Done::Keep);
        let told = self.table.tell(
            (&self.voice, ANSWER),
            DriverCommand::Region,
            (place, index),
            Some(file.as_fd()),
        );
        if let Err(reason) = told {
            self.forget((place, index));
            return Err(reason);
        }
        Ok((place, index))
    }

    fn forget(&mut self, key: Key) {
        let (place, index) = key;
        // If ring3d dies meanwhile, its client shall hear of that.
        self.table.lock().clients.retain(|_, client| !client.keys.contains(&key));
        self.voice.say(Done::Keep);
        let Self { table, voice, control, disks, pace, .. } = self;
        let id = disks[usize::from(place)].0;
        pace.wait(table);
        let forgotten = loop {
            let forgotten =
                table.while_served((&*voice, id), || match control.unregister_memory(id, index) {
                    Err(error) if !is_unknown(&error) => Err(error.to_string()),
                    _ => {
                        table.lock().regions.remove(&key);
                        Ok(())
                    }
                });
            // It stays the device's until then.
            if forgotten.as_ref().err().is_none_or(|reason| reason != BUSY) {
                break forgotten;
            }
        };
        match forgotten {
            Err(reason) if reason == ENDED => return,
            Err(reason) => {
                return tracing::error!(
                    "/dev/ublkb{id}: a client's memory stays the device's: {reason}"
                );
            }
            Ok(()) => self.voice.say(Done::Keep),
        }
        if let Err(reason) =
            self.table.tell((&self.voice, ANSWER), DriverCommand::Forget, key, None)
        {
            tracing::warn!(
                "/dev/ublkb{id}: a client's memory stays mapped for the device until its driver \
                ends: {reason}"
            );
        }
        if self.table.lock().regions.range((place, 0)..=(place, u16::MAX)).next().is_none() {
            self.disks[usize::from(place)].1.restore();
            self.table.lock().merges.remove(&place);
            self.voice.say(Done::Keep);
        }
    }
}

/// How often memory is registered and forgotten: the whole disk waits each time, and clients say
/// when.
pub(super) struct RegistrationRateLimit {
    /// When what was done so far is paid for.
    paid: Instant,
}

impl RegistrationRateLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { paid: now }
    }

    /// From when on there may be one more.
    pub(super) fn next(&mut self, now: Instant) -> Instant {
        self.paid = self.paid.max(now) + EACH;
        now.max(self.paid.checked_sub(EACH * AT_ONCE).unwrap_or(now))
    }

    /// Waits for that, or until the disk is taken away.
    fn wait(&mut self, table: &Table) {
        let due = self.next(Instant::now());
        while Instant::now() < due && !table.lock().ended {
            thread::sleep(LOOK);
        }
    }
}

fn is_unknown(error: &ring3_export::ublk::Error) -> bool {
    matches!(
        error,
        ring3_export::ublk::Error::Command { cause, .. } if cause.kind() == io::ErrorKind::NotFound,
    )
}

impl Register for Registrar {
    type Shared = Registered;

    fn names(&self) -> Vec<String> {
        self.disks.iter().map(|(id, _)| format!("/dev/ublkb{id}")).collect()
    }

    fn register(&mut self, fd: &OwnedFd, bytes: u64) -> Result<Registered, String> {
        let lent: u64 = self
            .table
            .lock()
            .regions
            .iter()
            .filter(|((place, _), _)| *place == 0)
            .map(|(_, kept)| kept.bytes)
            .sum();
        if lent.saturating_add(bytes) > self.most {
            let (most, lent) = (self.most >> 20, lent >> 20);
            return Err(format!(
                "clients may lend {most} MiB, and {lent} MiB are lent: allow more (memory_mib), or \
                lend less"
            ));
        }
        let memory = region::check(fd, bytes).map_err(|error| error.to_string())?;
        let file = Arc::new(fd.try_clone().map_err(|error| error.to_string())?);
        let mut registered = Registered(Vec::new());
        for place in 0..self.disks.len() as u16 {
            match self.add(place, &file, &memory) {
                Ok(key) => registered.0.push(key),
                Err(reason) => {
                    self.revoke(registered);
                    return Err(reason);
                }
            }
        }
        Ok(registered)
    }

    fn keep(&mut self, Registered(keys): &Registered, client: BorrowedFd<'_>) {
        let Ok(socket) = client.try_clone_to_owned() else { return };
        let number = self.table.number();
        self.table.lock().clients.insert(number, Client { keys: keys.clone(), socket });
        self.voice.say(Done::Keep);
    }

    fn revoke(&mut self, Registered(keys): Registered) {
        keys.into_iter().for_each(|key| self.forget(key));
    }
}
