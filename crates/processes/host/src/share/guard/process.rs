//! The guard's process.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ring3_broker::region;
use ring3_broker::server::Listener;
use ring3_export::ublk;
use ring3_lease::Channel;
use ring3_process::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::PATIENCE;
use super::protocol::{Key, Order, Reply, VERSION};
use super::quiet::{Config, LOOK};

/// How long the kernel may take to end a device that nobody serves.
const ORPHANED: Duration = Duration::from_secs(10);
/// Why nothing can be done now.
const BUSY: &str = "the disk always has requests in flight, and memory is registered in a moment \
                    in which it has none: try again when it has less to do";
/// How often a region is tried to be taken back, ten seconds each: within what the exporting
/// process waits for the guard.
const TRIES: u32 = 10;
/// How often it is looked whether the devices that wait for the next server are still there.
const THERE: Duration = Duration::from_millis(500);

/// Is the guard of the process at the other end of standard input, until that has ended and its
/// device is quiet; then of the next one, if there is one to come.
pub fn run() -> ExitCode {
    let _signals = Signals::take();
    // Whoever serves a disk waits for it.
    drop(ring3_process::stay_in_memory());
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let channel = socket.and_then(|socket| Channel::new(socket, PATIENCE, false));
    let served = channel.and_then(|channel| GuardState::default().outlive(channel));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the guard of clients' memory");
            ExitCode::FAILURE
        }
    }
}

/// What it keeps.
#[derive(Default)]
struct GuardState {
    function: Option<String>,
    /// Where the next exporting process is heard, if the devices outlive this one.
    successors: Option<Listener>,
    devices: Vec<Device>,
    regions: Vec<Region>,
    clients: Vec<Client>,
    control: Option<ublk::Control>,
}

/// A ublk device.
struct Device {
    id: u32,
    /// Its folder's number in sysfs: another one with the same `id` has another.
    number: Option<u64>,
    /// `/dev/ublkcN`, while it is served.
    file: Option<OwnedFd>,
    merges: ublk::MergeControl,
}

/// Memory that is registered.
struct Region {
    key: Key,
    memory: OwnedFd,
}

/// A client that knows that its memory is registered.
struct Client {
    keys: Vec<Key>,
    socket: OwnedFd,
}

/// What is answered, with a descriptor beside it.
type Answer = Result<(Reply, Option<OwnedFd>), String>;

impl GuardState {
    /// Guards one exporting process after the other, until one has ended in good order, or nothing
    /// is left that another could go on with.
    fn outlive(mut self, mut channel: Channel) -> io::Result<()> {
        while !self.serve(&channel) {
            drop(channel);
            close(&mut self.devices, self.function.as_deref());
            let Some(successors) = &self.successors else {
                let ids: Vec<u32> = self.devices.iter().map(|device| device.id).collect();
                return delete(&ids);
            };
            match await_successor(successors, &mut self.devices)? {
                Some(next) => channel = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Obeys one exporting process until that ends; true if it has done so in good order.
    fn serve(&mut self, channel: &Channel) -> bool {
        while let Ok(Some((order, fds))) = channel.receive::<Order>() {
            let released = order == Order::Release;
            let (reply, fd) = self
                .obey(channel, order, fds)
                .unwrap_or_else(|reason| (Reply::Failed { reason }, None));
            let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
            let sent = channel.send(&reply, &fds);
            if released {
                return true;
            }
            if sent.is_err() {
                break;
            }
        }
        false
    }

    fn obey(&mut self, channel: &Channel, order: Order, mut fds: Vec<OwnedFd>) -> Answer {
        let mut fd = || fds.pop().ok_or("no descriptor".to_owned());
        let reply = match order {
            Order::Watch { function, successors } => {
                self.function = function;
                let bound = successors.map(|path| Listener::bind(&path, 0o600)).transpose();
                self.successors = bound.map_err(|error| explain(error.to_string()))?;
                Reply::Done
            }
            Order::TakeOver { version, .. } if version != VERSION => {
                return Err(
                    "its guard is of another release of ring3: go on with that release, or `ring3 \
                     ublk delete` it"
                        .into(),
                );
            }
            Order::TakeOver { function, .. } => {
                self.function = function;
                Reply::TakenOver { ids: self.devices.iter().map(|device| device.id).collect() }
            }
            Order::Region { place } => return self.region(place),
            Order::Client { place } => return self.client(place),
            Order::Hold { id } => self.hold(id, fd()?)?,
            Order::Register { id, bytes } => self.register(channel, id, (fd()?, bytes))?,
            Order::Keep { keys } => {
                let socket = fd()?;
                if self.successors.is_some() {
                    self.clients.push(Client { keys, socket });
                }
                Reply::Done
            }
            Order::Forget { key } => self.forget(channel, key)?,
            Order::Release => Reply::Done,
        };
        Ok((reply, None))
    }

    fn hold(&mut self, id: u32, file: OwnedFd) -> Result<Reply, String> {
        match self.devices.iter_mut().find(|device| device.id == id) {
            Some(device) => device.file = Some(file),
            None => self.devices.push(Device {
                id,
                number: number(id),
                file: Some(file),
                merges: ublk::MergeControl::of(id),
            }),
        }
        // Opened now: there may be none left later.
        control(&mut self.control)?;
        Ok(Reply::Done)
    }

    fn register(
        &mut self,
        channel: &Channel,
        id: u32,
        (memory, bytes): (OwnedFd, u64),
    ) -> Result<Reply, String> {
        let region = region::check(&memory, bytes).map_err(|error| error.to_string())?;
        let index = self.command(channel, id, |control| control.register_memory(id, &region))?;
        self.regions.push(Region { key: Key { id, index }, memory });
        self.devices
            .iter_mut()
            .filter(|device| device.id == id)
            .for_each(|device| device.merges.stop());
        Ok(Reply::Registered { index })
    }

    fn forget(&mut self, channel: &Channel, key: Key) -> Result<Reply, String> {
        // If the exporting process dies meanwhile, its client shall hear of that.
        self.clients.retain(|client| !client.keys.contains(&key));
        // It stays the device's until then.
        let mut tries = 0;
        while let Err(reason) =
            self.command(channel, key.id, |control| control.unregister_memory(key.id, key.index))
        {
            tries += 1;
            if reason != BUSY || tries == TRIES || has_ended(channel) {
                return Err(reason);
            }
        }
        self.regions.retain(|region| region.key != key);
        if !self.regions.iter().any(|region| region.key.id == key.id) {
            self.devices
                .iter_mut()
                .filter(|device| device.id == key.id)
                .for_each(|device| device.merges.restore());
        }
        Ok(Reply::Done)
    }

    fn region(&self, place: usize) -> Answer {
        let Some(region) = self.regions.get(place) else { return Ok((Reply::Done, None)) };
        let memory = region.memory.try_clone().map_err(|error| error.to_string())?;
        Ok((Reply::Region { key: region.key }, Some(memory)))
    }

    fn client(&self, place: usize) -> Answer {
        let Some(client) = self.clients.get(place) else { return Ok((Reply::Done, None)) };
        let socket = client.socket.try_clone().map_err(|error| error.to_string())?;
        Ok((Reply::Client { keys: client.keys.clone() }, Some(socket)))
    }

    /// Gives a command that waits for what is in flight, which the process at the other end of
    /// `channel` has to end. Should that die meanwhile, the kernel gets its requests back as soon
    /// as the device is quiet, and what has become of the command is awaited all the same: memory
    /// that is registered and that nobody knows of would be the next server's error.
    fn command<T: Send>(
        &mut self,
        channel: &Channel,
        id: u32,
        work: impl FnOnce(&mut ublk::Control) -> Result<T, ublk::Error> + Send,
    ) -> Result<T, String> {
        let control = control(&mut self.control)?;
        let (outlives, gone) = (self.successors.is_some(), AtomicBool::new(false));
        let work = || {
            let frozen =
                outlives.then(|| ublk::FrozenQueue::of(id, &|| gone.load(Ordering::Acquire)));
            // What waits for a dead server waits for the next one, which would wait for the
            // command.
            match (gone.load(Ordering::Acquire), &frozen) {
                (true, _) => Err("its server has died".to_owned()),
                (false, Some(None)) => Err(BUSY.to_owned()),
                (false, _) => work(control).map_err(|error| error.to_string()),
            }
        };
        let (devices, function) = (&mut self.devices, self.function.as_deref());
        thread::scope(|scope| {
            let given = scope.spawn(work);
            while !given.is_finished() {
                if has_ended(channel) {
                    gone.store(true, Ordering::Release);
                    close(devices, function);
                    break;
                }
            }
            given.join().map_err(|_| "its command panicked: a defect of ring3".to_owned())?
        })
    }
}

fn control(control: &mut Option<ublk::Control>) -> Result<&mut ublk::Control, String> {
    if control.is_none() {
        *control = Some(ublk::Control::open().map_err(|error| error.to_string())?);
    }
    control.as_mut().ok_or_else(|| "no control".into())
}

/// Whether the process at the other end has gone, within a moment.
fn has_ended(channel: &Channel) -> bool {
    let timeout = Timespec::try_from(LOOK).ok();
    let mut fds = [PollFd::new(channel, PollFlags::RDHUP)];
    let _ = poll(&mut fds, timeout.as_ref());
    fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
}

/// Closes what it keeps open, when nothing is written to clients' memory any more: then the kernel
/// ends a dead server's requests, or takes them back for the next.
fn close(devices: &mut [Device], function: Option<&str>) {
    if devices.iter().all(|device| device.file.is_none()) {
        return;
    }
    if let Some(function) = function {
        Config::of(function).await_quiet();
    }
    devices.iter_mut().for_each(|device| device.file = None);
}

/// The next exporting process; `None` if no device is there any more that it could go on with.
fn await_successor(
    successors: &Listener,
    devices: &mut Vec<Device>,
) -> io::Result<Option<Channel>> {
    // One that was never started waits for nobody.
    let _ = ublk::identities::delete(&[]);
    loop {
        devices.retain(|device| device.number.is_some() && device.number == number(device.id));
        if devices.is_empty() {
            return Ok(None);
        }
        let _ = poll(
            &mut [PollFd::new(successors, PollFlags::IN)],
            Timespec::try_from(THERE).ok().as_ref(),
        );
        if let Some((socket, who)) = successors.accept().map_err(io::Error::other)? {
            tracing::info!("{who} goes on with the disks");
            return Channel::new(socket, PATIENCE, false).map(Some);
        }
    }
}

/// See [`Device::number`].
fn number(id: u32) -> Option<u64> {
    fs::metadata(format!("/sys/class/ublk-char/ublkc{id}")).ok().map(|folder| folder.ino())
}

/// Gives back what nobody serves any more, and with that clients' pages, which the kernel pins as
/// long as the device is there. One that another process has begun to serve meanwhile stays.
fn delete(ids: &[u32]) -> io::Result<()> {
    let since = Instant::now();
    let mut left = ids.to_vec();
    while !left.is_empty() && since.elapsed() < ORPHANED {
        // As every start does: who looked before whether it is one would have it open for a moment.
        let deleted = ublk::identities::delete(&[]).map_err(io::Error::other)?;
        left.retain(|id| !deleted.contains(id) && number(*id).is_some());
        thread::sleep(LOOK * 10);
    }
    Ok(())
}

/// What listens where a guard would is most often another one.
fn explain(reason: String) -> String {
    if reason.contains("somebody listens there") {
        format!(
            "{reason}: a guard of disks that wait for the next server (`ring3 ublk list`): \
            --recover one, or `ring3 ublk delete` it"
        )
    } else {
        reason
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::share::guard::Guard;

    fn file() -> OwnedFd {
        memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    /// A device that is not there: it is served, and nobody has it open.
    fn device(id: u32) -> Device {
        Device { id, number: None, file: None, merges: ublk::MergeControl::of(id) }
    }

    /// The two ends of what is said to `held`, of which the other one is a thread's that ends with
    /// what it returns.
    fn guarded(mut held: GuardState) -> (Channel, thread::JoinHandle<bool>) {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::new(theirs, PATIENCE, false).unwrap();
        (Channel::new(ours, PATIENCE, true).unwrap(), thread::spawn(move || held.serve(&theirs)))
    }

    fn ask(channel: &Channel, order: &Order) -> Reply {
        channel.send(order, &[]).unwrap();
        channel.receive().unwrap().unwrap().0
    }

    #[test]
    fn what_a_dead_process_has_left_comes_to_the_next_one_with_its_names() {
        let keys = [Key { id: 3, index: 0 }, Key { id: 4, index: 0 }, Key { id: 3, index: 7 }];
        let memories = keys.map(|_| file());
        let numbers = memories.each_ref().map(inode);
        let regions =
            keys.into_iter().zip(memories).map(|(key, memory)| Region { key, memory }).collect();
        let clients = vec![Client { keys: keys[..2].to_vec(), socket: file() }];
        let held = GuardState {
            regions,
            clients,
            devices: vec![device(3), device(4)],
            ..GuardState::default()
        };
        let (channel, thread) = guarded(held);
        let left = Guard { channel, child: None }.left().unwrap();
        assert_eq!(left.regions.iter().map(|(key, _)| *key).collect::<Vec<_>>(), keys);
        assert_eq!(left.regions.iter().map(|(_, fd)| inode(fd)).collect::<Vec<_>>(), numbers);
        assert_eq!(left.clients.iter().map(|(keys, _)| keys.len()).collect::<Vec<_>>(), [2]);
        assert!(!thread.join().unwrap(), "it was not released");
    }

    #[test]
    fn a_process_of_another_release_takes_nothing_over_and_another_one_may() {
        let (channel, thread) =
            guarded(GuardState { devices: vec![device(3)], ..GuardState::default() });
        let refused = ask(&channel, &Order::TakeOver { version: VERSION + 1, function: None });
        assert!(matches!(refused, Reply::Failed { reason } if reason.contains("another release")));
        assert_eq!(
            ask(&channel, &Order::TakeOver { version: VERSION, function: None }),
            Reply::TakenOver { ids: vec![3] }
        );
        assert_eq!(ask(&channel, &Order::Release), Reply::Done);
        assert!(thread.join().unwrap());
    }

    #[test]
    fn who_finds_a_guard_where_its_own_would_listen_is_told_what_that_waits_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("share.guard");
        let _there = Listener::bind(&path, 0o600).unwrap();
        let (channel, thread) = guarded(GuardState::default());
        let refused = ask(&channel, &Order::Watch { function: None, successors: Some(path) });
        assert!(matches!(refused, Reply::Failed { reason } if reason.contains("--recover one")));
        drop(channel);
        thread.join().unwrap();
    }

    #[test]
    fn sockets_of_clients_are_kept_only_if_a_next_process_may_come() {
        let folder = tempfile::tempdir().unwrap();
        let there = || Listener::bind(&folder.path().join("share.guard"), 0o600).unwrap();
        for (successors, kept) in [(None, 0), (Some(there()), 1)] {
            let (channel, thread) = guarded(GuardState { successors, ..GuardState::default() });
            let guard = Guard { channel, child: None };
            guard.keep(vec![Key { id: 3, index: 0 }], file().as_fd()).unwrap();
            assert_eq!(guard.left().unwrap().clients.len(), kept);
            drop(guard);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_guard_ends_with_devices_that_are_there_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("share.guard");
        let held = GuardState {
            successors: Some(Listener::bind(&path, 0o600).unwrap()),
            devices: vec![device(ublk::MAX_ID + 1)],
            ..GuardState::default()
        };
        let (ours, theirs) = Channel::pair().unwrap();
        drop(ours);
        held.outlive(Channel::new(theirs, PATIENCE, false).unwrap()).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_takes_over_where_nobody_keeps_anything_is_told_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            Guard::take_over(&folder.path().join("share.guard"), None, 3).map(drop).unwrap_err();
        assert!(error.contains("`ring3 ublk delete 3`"), "{error}");
    }
}
