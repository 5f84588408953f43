//! Memory that clients lend the disks of a device, in which their requests need no copy.
//!
//! # Shape
//! A thread hears [`Clients`]. What one lends is registered with the kernel, told to the driver,
//! and then answered; backwards when it is taken back. The [`Table`] is what is lent: a driver that
//! follows another one is told of all of it before it gets any request, and clients notice nothing.
//!
//! # Waiting
//! The kernel registers and forgets when what is in flight has ended, with a lock held that the
//! next driver's start needs. That is for the driver to do, so nothing is registered or forgotten
//! unless one serves, and is not about to leave ([`Table::open`], [`Table::close`]); and it is for
//! neither the keeper nor the thread that gives the kernel other orders. What the driver is to do
//! is said again until a driver has done it, whichever that is.
//!
//! # When ring3d dies
//! Table and clients' sockets are kept with the rest: the next ring3d goes on with both. One index
//! may be the kernel's alone then, of memory that was about to be registered: the lowest that the
//! table does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_broker::region::{self, Clients, Register};
use ring3_broker::server::Listener;
use ring3_control::drive::{Order, Region};
use ring3_export::ublk::{Control, Lull, Merges};
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{Done, Given, Voice};
use crate::manifest::Share;

/// When an order is said again that no driver has answered.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a driver that serves may take to answer: it may have to pin 4 GiB.
const ANSWER: Duration = Duration::from_secs(30);
/// Between two orders: a driver may say so much in a second, and what clients do is not its fault.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two looks whether a driver is known to be dead.
const LOOK: Duration = Duration::from_millis(20);
/// Why nothing can be done now.
const BUSY: &str = "the disk always has requests in flight, and memory is registered in a moment in which it has none: try again when it has less to do";
/// What of registering and forgetting is done at once, and how long each takes after that: each
/// keeps all users of the disk waiting for some ten milliseconds.
const AT_ONCE: u32 = 128;
const EACH: Duration = Duration::from_millis(500);
/// How long the thread may take to part with clients.
const PARTING: Duration = Duration::from_secs(40);
/// Why nothing can be done any more.
const ENDED: &str = "the disk is taken away";

/// Where a region is: the disk's place, and the kernel's index.
type Key = (u16, u16);

/// What is lent.
#[derive(Default)]
pub struct Table {
    lent: Mutex<Lent>,
    heard: Condvar,
}

#[derive(Default)]
struct Lent {
    regions: BTreeMap<Key, Kept>,
    clients: BTreeMap<u64, Client>,
    /// How the kernel merged requests of the disks before there were any regions.
    merges: BTreeMap<u16, String>,
    /// The last order's number, and those of descriptors: never the same again, whichever ring3d
    /// counts.
    last: u64,
    /// What the driver has said of the order that is waited for.
    answer: Option<(u64, Option<String>)>,
    /// Another ring3d has left it.
    adopted: bool,
    /// A driver serves.
    open: bool,
    /// The kernel does something that waits for it.
    busy: bool,
    ended: bool,
}

/// A region, as it is kept.
struct Kept {
    number: u64,
    bytes: u64,
    file: Arc<OwnedFd>,
}

/// Who has heard that its memory is lent.
struct Client {
    keys: Vec<Key>,
    socket: OwnedFd,
}

/// What the next ring3d is told, descriptors beside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Place, index, number and bytes of each.
    regions: Vec<(u16, u16, u64, u64)>,
    /// Number and regions of each.
    clients: Vec<(u64, Vec<Key>)>,
    /// As [`Merges`] has found it, of each disk that has any.
    merges: Vec<(u16, String)>,
}

impl Table {
    /// What a driver is told of the disk at `place` before it is served.
    pub fn given(&self, place: u16) -> Result<Vec<Given>, String> {
        let lent = self.lock();
        let given = |(&(disk, index), kept): (&Key, &Kept)| {
            let file = kept
                .file
                .try_clone()
                .map_err(|error| format!("duplicating clients' memory: {error}"))?;
            Ok(Given {
                place,
                order: Order::Region(Region { disk, index, number: 0 }),
                fds: vec![file],
            })
        };
        lent.regions.range((place, 0)..=(place, u16::MAX)).map(given).collect()
    }

    /// A driver serves.
    pub fn open(&self) {
        self.lock().open = true;
        self.heard.notify_all();
    }

    /// It serves no more, or will not; if `wait`, when this returns nothing waits for it.
    pub fn close(&self, wait: bool) {
        let mut lent = self.lock();
        lent.open = false;
        while wait && lent.busy {
            lent = self.heard.wait(lent).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Does `work` while a driver serves, in a moment in which nothing is in flight: should the
    /// driver die while the kernel does it, neither waits for the other. [`BUSY`] if there is no
    /// such moment.
    fn while_served<T>(
        &self,
        (voice, id): (&Voice, u32),
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let mut lent = self.lock();
        while !lent.open || voice.is_dead() {
            if lent.ended {
                return Err(ENDED.into());
            }
            lent = self.heard.wait_timeout(lent, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(lent);
        let lull = Lull::of(id, &|| voice.is_dead() || !self.lock().open);
        lent = self.lock();
        if !lent.open || voice.is_dead() {
            drop((lent, lull));
            return self.while_served((voice, id), work);
        }
        if lull.is_none() {
            return Err(BUSY.into());
        }
        lent.busy = true;
        drop(lent);
        let done = work();
        self.lock().busy = false;
        self.heard.notify_all();
        done
    }

    /// Has a driver do something, whichever serves then. One that serves, and does not answer, is
    /// not waited for without an end.
    fn tell(
        &self,
        (voice, limit): (&Voice, Duration),
        order: fn(Region) -> Order,
        (disk, index): Key,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), String> {
        let number = self.number();
        thread::sleep(PAUSE);
        let mut lent = self.lock();
        let mut waited = Duration::ZERO;
        loop {
            if lent.ended {
                return Err(ENDED.into());
            }
            if waited >= limit {
                return Err(format!("the driver has not answered within {} s", limit.as_secs()));
            }
            let serves = lent.open && !voice.is_dead();
            let since = Instant::now();
            let fds = file
                .map(|file| file.try_clone_to_owned())
                .transpose()
                .map_err(|error| error.to_string())?;
            voice
                .say(Done::Order(order(Region { disk, index, number }), fds.into_iter().collect()));
            let waits = |lent: &mut Lent| {
                !lent.ended && lent.answer.as_ref().is_none_or(|(answered, _)| *answered != number)
            };
            lent = self
                .heard
                .wait_timeout_while(lent, AGAIN, waits)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            match lent.answer.take_if(|(answered, _)| *answered == number) {
                Some((_, None)) => return Ok(()),
                Some((_, Some(reason))) => return Err(reason),
                None if serves => waited += since.elapsed(),
                None => {}
            }
        }
    }

    /// The driver has done order `number`, or says why not.
    pub fn hear(&self, number: u64, refused: Option<String>) {
        self.lock().answer = Some((number, refused));
        self.heard.notify_all();
    }

    /// For the next ring3d.
    pub fn saved(&self) -> Saved {
        let lent = self.lock();
        let regions = lent
            .regions
            .iter()
            .map(|(&(place, index), kept)| (place, index, kept.number, kept.bytes))
            .collect();
        let clients =
            lent.clients.iter().map(|(&number, client)| (number, client.keys.clone())).collect();
        let merges = lent.merges.iter().map(|(&place, before)| (place, before.clone())).collect();
        Saved { regions, clients, merges }
    }

    /// The same, by names.
    pub fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        let lent = self.lock();
        let regions =
            lent.regions.values().map(|kept| (format!("lent.{}", kept.number), kept.file.as_fd()));
        let clients = lent
            .clients
            .iter()
            .map(|(number, client)| (format!("lender.{number}"), client.socket.as_fd()));
        regions
            .chain(clients)
            .filter_map(|(name, fd)| Some((name, fd.try_clone_to_owned().ok()?)))
            .collect()
    }

    /// What was saved, with its descriptors among `fds`. Without those of a region nobody can go
    /// on.
    pub fn adopt(saved: Saved, fds: &mut BTreeMap<String, OwnedFd>) -> Result<Self, String> {
        let mut lent = Lent { adopted: true, ..Lent::default() };
        for (place, index, number, bytes) in saved.regions {
            let file = fds
                .remove(&format!("lent.{number}"))
                .ok_or("memory that a client has lent was not kept")?;
            lent.regions.insert((place, index), Kept { number, bytes, file: file.into() });
        }
        for (number, keys) in saved.clients {
            // One that was not kept hears that its connection has ended.
            let Some(socket) = fds.remove(&format!("lender.{number}")) else { continue };
            lent.clients.insert(number, Client { keys, socket });
        }
        lent.merges = saved.merges.into_iter().collect();
        Ok(Self { lent: Mutex::new(lent), heard: Condvar::new() })
    }

    fn number(&self) -> u64 {
        let mut lent = self.lock();
        lent.last = since_boot().max(lent.last + 1);
        lent.last
    }

    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that hears clients. Dropping it parts with them, after the disks have gone; its table
/// is of no use then.
pub struct Lender {
    table: Arc<Table>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Lender {
    /// Hears who comes to the socket of `share`, for the disks `/dev/ublkb{ids}`, and who has lent
    /// them what is in `table`, if another ring3d has left that.
    pub fn start(
        share: &Share,
        ids: &[u32],
        voice: Voice,
        table: Arc<Table>,
    ) -> Result<Self, String> {
        let failed = |error: io::Error| format!("hearing clients that lend memory: {error}");
        let listener = Listener::bind(&share.socket, share.rights().unwrap_or(0o600))
            .map_err(|error| error.to_string())?;
        let control = Control::open().map_err(|error| error.to_string())?;
        let before = |place| table.lock().merges.get(&place).cloned();
        let disks =
            (0..).zip(ids).map(|(place, &id)| (id, Merges::changed(id, before(place)))).collect();
        let registrar = Registrar {
            table: table.clone(),
            voice,
            control,
            disks,
            most: share.bytes(),
            pace: Pace::new(Instant::now()),
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

impl Drop for Lender {
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
        // Clients hear of it by the end of their sockets, of which no other one is left open.
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

/// Nanoseconds, by a clock that nobody sets back: what is kept, and drivers, last as long as the
/// machine runs.
fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// A client's memory, for each disk.
struct Registered(Vec<Key>);

/// Registers memory with all disks of a device.
struct Registrar {
    table: Arc<Table>,
    voice: Voice,
    control: Control,
    /// Their numbers.
    disks: Vec<(u32, Merges)>,
    /// Bytes that all clients may lend.
    most: u64,
    pace: Pace,
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
            let kept =
                Kept { number: table.number(), bytes: memory.len() as u64, file: file.clone() };
            table.lock().regions.insert((place, index), kept);
            Ok(index)
        })?;
        merges.stop();
        table.lock().merges.extend(merges.before().map(|before| (place, before.to_owned())));
        self.voice.say(Done::Keep);
        let told = self.table.tell(
            (&self.voice, ANSWER),
            Order::Region,
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
        if let Err(reason) = self.table.tell((&self.voice, ANSWER), Order::Forget, key, None) {
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
struct Pace {
    /// When what was done so far is paid for.
    paid: Instant,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { paid: now }
    }

    /// From when on there may be one more.
    fn next(&mut self, now: Instant) -> Instant {
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
    matches!(error, ring3_export::ublk::Error::Command { cause, .. } if cause.kind() == io::ErrorKind::NotFound)
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

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// No disk has it.
    const NOBODYS: u32 = u32::MAX;

    fn file() -> OwnedFd {
        memfd_create("client", MemfdFlags::CLOEXEC).unwrap()
    }

    fn kept(number: u64) -> Kept {
        Kept { number, bytes: 4096, file: Arc::new(file()) }
    }

    fn table() -> Table {
        let table = Table::default();
        table.lock().regions.extend([((0, 3), kept(10)), ((1, 0), kept(11))]);
        table.lock().merges.insert(0, "0".into());
        table.lock().clients.insert(12, Client { keys: vec![(0, 3), (1, 0)], socket: file() });
        table
    }

    #[test]
    fn a_driver_is_told_of_all_that_lies_in_its_disk_and_of_nothing_else() {
        let given = table().given(1).unwrap();
        let orders: Vec<_> =
            given.iter().map(|given| (given.place, given.order.clone(), given.fds.len())).collect();
        assert_eq!(orders, [(1, Order::Region(Region { disk: 1, index: 0, number: 0 }), 1)]);
    }

    #[test]
    fn the_next_ring3d_goes_on_with_what_was_lent_and_by_whom() {
        let before = table();
        let mut fds: BTreeMap<_, _> = before.descriptors().into_iter().collect();
        assert_eq!(fds.keys().collect::<Vec<_>>(), ["lender.12", "lent.10", "lent.11"]);
        let after = Table::adopt(before.saved(), &mut fds).unwrap();
        assert_eq!(after.saved(), before.saved());
        assert!(fds.is_empty());
    }

    #[test]
    fn without_the_memory_of_a_client_nobody_goes_on_and_without_its_socket_it_has_gone() {
        let before = table();
        let descriptors = || before.descriptors().into_iter().collect::<BTreeMap<_, _>>();
        let without = |name: &str| {
            let mut fds = descriptors();
            fds.remove(name);
            Table::adopt(before.saved(), &mut fds)
        };
        assert!(without("lent.10").is_err());
        assert!(without("lender.12").unwrap().lock().clients.is_empty());
    }

    #[test]
    fn the_kernel_is_asked_for_nothing_while_no_driver_serves() {
        let (table, voice) = (Arc::new(table()), Voice::silent());
        let theirs = table.clone();
        let thread =
            thread::spawn(move || theirs.while_served((&voice, NOBODYS), || Ok(Instant::now())));
        thread::sleep(LOOK * 3);
        let opened = Instant::now();
        table.open();
        assert!(thread.join().unwrap().unwrap() >= opened);
    }

    #[test]
    fn a_driver_is_not_told_to_leave_while_the_kernel_waits_for_it() {
        let (table, voice) = (Arc::new(table()), Voice::silent());
        table.open();
        let (began, begun) = std::sync::mpsc::channel();
        let theirs = table.clone();
        let work = move || {
            began.send(()).unwrap();
            thread::sleep(LOOK * 3);
            Ok(Instant::now())
        };
        let thread = thread::spawn(move || theirs.while_served((&voice, NOBODYS), work));
        begun.recv().unwrap();
        table.close(true);
        let closed = Instant::now();
        assert!(thread.join().unwrap().unwrap() <= closed);
    }

    #[test]
    fn who_waits_for_a_driver_that_never_comes_hears_that_the_disk_is_taken_away() {
        let (table, voice) = (table(), Voice::silent());
        table.lock().ended = true;
        assert_eq!(table.while_served((&voice, NOBODYS), || Ok(())).unwrap_err(), ENDED);
    }

    #[test]
    fn a_client_that_lends_without_end_keeps_the_disk_waiting_twice_a_second_and_no_more_often() {
        let start = Instant::now();
        let (mut pace, mut now) = (Pace::new(start), start);
        for _ in 0..AT_ONCE {
            assert_eq!(pace.next(now), now);
        }
        for _ in 0..10 {
            let due = pace.next(now);
            assert!(due >= now + EACH / 2 && due <= now + EACH, "{:?}", due - now);
            now = due;
        }
    }

    #[test]
    fn numbers_are_never_given_twice_by_this_ring3d_or_the_next() {
        let before = table();
        let numbers: BTreeSet<_> = (0..1000).map(|_| before.number()).collect();
        assert_eq!(numbers.len(), 1000);
        let after = Table::adopt(Saved::default(), &mut BTreeMap::new()).unwrap();
        // Whatever the clock on the wall says meanwhile.
        assert!(
            after.number() > *numbers.last().unwrap() && after.number() < since_boot() + 1_000_000
        );
    }

    #[test]
    fn a_driver_that_serves_and_does_not_answer_is_not_waited_for_for_ever() {
        let table = Arc::new(table());
        let tell =
            |table: &Table| table.tell((&Voice::silent(), AGAIN / 2), Order::Forget, (0, 3), None);
        table.open();
        assert!(tell(&table).unwrap_err().contains("not answered"));
        // For one that is to come it is waited until the disk is taken away.
        table.close(false);
        let theirs = table.clone();
        let waits = thread::spawn(move || tell(&theirs));
        thread::sleep(AGAIN * 3);
        assert!(!waits.is_finished());
        table.lock().ended = true;
        table.heard.notify_all();
        assert_eq!(waits.join().unwrap().unwrap_err(), ENDED);
    }
}
