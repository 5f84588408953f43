//! What a disk and its queues share: the device, its life, and the virtqueues that nobody has.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ring3_class::block::{Info, Operation};
use ring3_device::found::Found;
use ring3_device::irq::Irq;
use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::text::Printable;
use ring3_spec::virtio::ring::WRITE;
use ring3_spec::virtio::{NO_VECTOR, blk};

use super::super::saved::SavedQueueAddresses;
use super::super::transport::Transport;
use super::super::virtqueue::{Piece, Virtqueue};
use super::disk::Options;
use super::identity::{Shape, WANTED, identify};
use crate::disk::write_cache::{PowerCount, WriteCache};
use crate::disk::{Condition, Controller, Losses};
use crate::lifetime::{ControllerState, StopFailed, lock, stop_function};

/// A disk that does not say in this time what it is called is not called anything.
const NAMING: Duration = Duration::from_secs(2);

/// Shared by a disk and its queues. A queue's thread looks at the generation alone.
pub(super) struct VirtioBlkShared {
    pub(super) transport: Transport,
    pub(super) options: Options,
    pub(super) lifetime: ControllerState,
    pub(super) shape: Shape,
    /// What the disk was when it was opened, by which another one is told apart.
    pub(super) info: Arc<Info>,
    /// Bytes of a block and blocks that it had when it was looked at last.
    pub(super) seen: Mutex<(u32, u64)>,
    /// `None` without a volatile cache.
    pub(super) cache: Option<Arc<WriteCache>>,
    pub(super) losses: Losses,
    pub(super) features: u64,
    /// Vector 0 for the configuration, then one for each queue.
    pub(super) vectors: Option<Vec<Arc<Irq>>>,
    pub(super) seats: Mutex<Vec<VirtqueueSlot>>,
}

/// A virtqueue's place.
#[derive(Default)]
pub(super) struct VirtqueueSlot {
    /// The virtqueue, until its owner takes it.
    pub(super) queue: Option<Virtqueue>,
    /// Where the device has it.
    pub(super) places: SavedQueueAddresses,
    /// It has an owner.
    pub(super) open: bool,
    /// Its owner has left it to who resumes it.
    pub(super) detached: bool,
}

impl VirtioBlkShared {
    pub(super) fn new(
        (transport, features): (Transport, u64),
        options: Options,
        (shape, mut info): (Shape, Info),
        (vectors, queues): (Option<Vec<Arc<Irq>>>, u16),
    ) -> Result<Self, Error> {
        let (lifetime, kept) = (
            ControllerState::new(transport.device.name()),
            transport.device.dma().arena().persistent_words(),
        );
        // A disk does not say whether it has lost its power. It has a name of its own only when it
        // is asked, and that of its function before.
        let has_run_on = Found::read(kept.as_ref()) == Found::Running;
        let open = || {
            WriteCache::open(
                kept.clone(),
                (transport.device.name(), 0),
                PowerCount::UNKNOWN,
                has_run_on,
            )
        };
        let cache = info.volatile_cache.then(|| Arc::new(open()));
        let mut shared = Self {
            lifetime,
            transport,
            options,
            shape,
            info: Arc::new(info.clone()),
            seen: Mutex::new((info.block_size, info.blocks)),
            cache,
            losses: Losses::default(),
            features,
            vectors,
            seats: Mutex::new((0..queues).map(|_| VirtqueueSlot::default()).collect()),
        };
        shared.make_queues(&mut lock(&shared.seats))?;
        // What the fence has found is in the record.
        kept.iter().for_each(Found::forget);
        info.serial = shared.name()?;
        shared.info = Arc::new(info);
        Ok(shared)
    }

    /// From a device that was reset to one that goes, with all of its virtqueues. [virtio 3.1.1]
    fn make_queues(&self, seats: &mut [VirtqueueSlot]) -> Result<(), Error> {
        self.transport.device.set_bus_master(true)?;
        let features = self.transport.negotiate(WANTED)?;
        if features != self.features {
            return Err(Error::Protocol(format!(
                "its features have become {features:#x}, and were {:#x}",
                self.features
            )));
        }
        let vector = |number| if self.vectors.is_some() { number } else { NO_VECTOR };
        self.transport.signal_config(vector(0))?;
        for (number, seat) in (0..).zip(seats) {
            let made = self.transport.make_queue(
                number,
                self.shape.entries,
                vector(number + 1),
                features,
            )?;
            seat.places = made.places();
            seat.queue = Some(made);
        }
        self.transport.set_driver_ok();
        Ok(())
    }

    /// How many queues there are.
    pub(super) fn queues(&self) -> u16 {
        lock(&self.seats).len() as u16
    }

    /// The interrupt of queue `number`.
    pub(super) fn irq(&self, number: u16) -> Option<Arc<Irq>> {
        self.vectors.as_ref()?.get(usize::from(number) + 1).cloned()
    }

    /// A queue that nobody has: its number, its virtqueue and the generation of that.
    pub(super) fn take_seat(&self) -> Result<(u16, Virtqueue, u32), Error> {
        let mut seats = lock(&self.seats);
        self.lifetime.check()?;
        let (count, name) = (seats.len(), self.transport.device.name());
        let free = (0..).zip(seats.iter_mut()).find(|(_, seat)| !seat.open);
        let Some((number, seat)) = free else {
            return Err(Error::Busy(format!(
                "all {count} queues of {name} are open: close one, or open the device with more"
            )));
        };
        let Some(queue) = seat.queue.take() else {
            return Err(Error::Fatal(format!(
                "{name}: queue {number} is lost; open the device again"
            )));
        };
        seat.open = true;
        Ok((number, queue, self.lifetime.generation()))
    }

    /// Gives queue `number` back, with its virtqueue if that is of the present generation and the
    /// device has nothing of it.
    pub(super) fn give_seat_back(&self, number: u16, queue: Option<Virtqueue>, generation: u32) {
        let mut seats = lock(&self.seats);
        if let Some(seat) = seats.get_mut(usize::from(number)) {
            seat.open = false;
            if generation == self.lifetime.generation() && queue.is_some() {
                seat.queue = queue;
            }
        }
    }

    /// What the disk says of itself, if that is new: its size, or its blocks'. [virtio 5.2.5.1]
    pub(super) fn changed(&self) -> Result<Option<Info>, Error> {
        // While it is reset it says nothing.
        let _seats = lock(&self.seats);
        self.lifetime.check()?;
        let (now, _) = identify(
            &self.transport,
            self.features,
            self.shape.entries,
            self.options.max_transfer,
        )?;
        let size = (now.block_size, now.blocks);
        let seen = std::mem::replace(&mut *lock(&self.seen), size);
        Ok((size != seen).then_some(now))
    }

    /// What the disk is called, which is asked before anybody has its first queue; nothing if it
    /// does not say. [virtio 5.2.6]
    fn name(&self) -> Result<String, Error> {
        let (number, mut queue, generation) = self.take_seat()?;
        let asked = self.ask_name(&mut queue);
        let answered = !matches!(asked, Err(Error::Timeout { .. } | Error::Protocol(_)));
        self.give_seat_back(number, answered.then_some(queue), generation);
        if !answered {
            self.reset(generation, "it did not say what it is called")?;
        }
        Ok(asked.unwrap_or_default())
    }

    fn ask_name(&self, queue: &mut Virtqueue) -> Result<String, Error> {
        let memory = self.transport.device.dma().arena().alloc(64, 64)?;
        let mut header = blk::Header::zeroed();
        header.set_kind(blk::GET_ID);
        memory.write(0, &header.0)?;
        memory.write(48, &[0xff])?;
        let at = memory.iova();
        let pieces = [(at, 16, 0), (at + 16, blk::ID_LEN as u32, WRITE), (at + 48, 1, WRITE)];
        for ((address, len, flags), number) in pieces.into_iter().zip(0..) {
            queue.put(0, number, Piece { address, len, flags }, (number < 2).then_some(number + 1));
        }
        queue.want_interrupts(false);
        queue.offer(0);
        queue.publish();
        let answer = poll_until(Deadline::after(NAMING), "the disk's name", || queue.take());
        if answer.is_err() {
            // It may still answer, until it is reset. That follows; but who knows whether it
            // succeeds.
            let mut memory = memory;
            memory.abandon();
            return answer.map(|_| String::new());
        }
        let (mut name, mut status) = ([0; blk::ID_LEN], [0]);
        memory.read(16, &mut name)?;
        memory.read(48, &mut status)?;
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        Ok(if status == [blk::OK] { Printable(&name[..len]).to_string() } else { String::new() })
    }
}

impl Controller for VirtioBlkShared {
    type State = Vec<VirtqueueSlot>;
    const STARTS: u32 = 2;

    fn lock(&self) -> MutexGuard<'_, Vec<VirtqueueSlot>> {
        lock(&self.seats)
    }

    #[inline]
    fn lifetime(&self) -> &ControllerState {
        &self.lifetime
    }

    #[inline]
    fn losses(&self) -> Option<&Losses> {
        Some(&self.losses)
    }

    fn name(&self) -> &str {
        self.transport.device.name()
    }

    fn timeout(&self, _: Operation) -> Duration {
        self.options.timeout
    }

    fn poll(&self) -> Duration {
        self.options.poll
    }

    fn condition(&self, _: &Vec<VirtqueueSlot>) -> Condition {
        if self.transport.is_reset() { Condition::Disturbed } else { Condition::Running }
    }

    fn stop(&self, _: &mut Vec<VirtqueueSlot>) -> Result<(), StopFailed> {
        self.transport.reset().or_else(|error| stop_function(&*self.transport.device, error))
    }

    fn start(&self, seats: &mut Vec<VirtqueueSlot>) -> Result<(), Error> {
        self.make_queues(seats)
    }

    fn caches(&self) -> Vec<(String, Arc<WriteCache>)> {
        let named =
            |cache: &Arc<WriteCache>| (self.transport.device.name().to_owned(), cache.clone());
        self.cache.iter().map(named).collect()
    }

    /// Fails if what has come back is another disk: what is in flight is repeated next, writes too.
    fn revalidate(&self, seats: &mut Vec<VirtqueueSlot>) -> Result<(), Error> {
        let (info, _) = identify(
            &self.transport,
            self.features,
            self.shape.entries,
            self.options.max_transfer,
        )?;
        let another =
            |what: String| Err(Error::Fatal(format!("another disk has come back: {what}")));
        let before = &self.info;
        if info.block_size != before.block_size || info.blocks < before.blocks {
            let (now, then) = ((info.blocks, info.block_size), (before.blocks, before.block_size));
            return another(format!(
                "{} blocks of {} bytes, and it had {} of {}",
                now.0, now.1, then.0, then.1
            ));
        }
        if info.volatile_cache && !before.volatile_cache {
            return another(
                "its write cache is on and was off, so that its users do not flush it".into(),
            );
        }
        let queue = seats
            .first_mut()
            .and_then(|seat| seat.queue.as_mut())
            .filter(|_| !before.serial.is_empty());
        let name = queue.map_or(Ok(before.serial.clone()), |queue| self.ask_name(queue))?;
        if name.is_empty() && !before.serial.is_empty() {
            return Err(Error::Protocol(format!(
                "it does not say what it is called, and was {:?}",
                before.serial
            )));
        }
        if name != before.serial {
            return another(format!("it is called {name:?}, and was {:?}", before.serial));
        }
        if info.blocks > before.blocks {
            tracing::warn!(
                "{}: it has grown to {} blocks",
                self.transport.device.name(),
                info.blocks
            );
        }
        Ok(())
    }
}

impl Drop for VirtioBlkShared {
    fn drop(&mut self) {
        let quiesced = if self.lifetime.check().is_ok() {
            if self.transport.check().is_ok() {
                // Its cache keeps what it has.
                self.transport
                    .device
                    .dma()
                    .arena()
                    .persistent_words()
                    .iter()
                    .for_each(|kept| Found::Running.record(kept));
            }
            let stopped = Controller::stop(self, &mut lock(&self.seats));
            self.lifetime.close();
            self.lifetime.shut_down(&stopped);
            self.lifetime.is_quiesced()
        } else {
            self.lifetime.is_quiesced()
        };
        if !quiesced {
            lock(&self.seats)
                .iter_mut()
                .filter_map(|seat| seat.queue.as_mut())
                .for_each(Virtqueue::abandon);
        }
    }
}
