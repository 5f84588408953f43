//! What a driver reads of the one before it: the state that was saved, and the record of a driver
//! that was killed.
//!
//! The attacker is the last driver, a process that may have been taken over by its device: it
//! leaves any state of arena, controller and queue. The input changes values of a good one, and
//! memory of the driver that was killed; the next driver goes on by that.
//!
//! Promises: no panic; a state that cannot be is refused, or its requests end; time and memory are
//! bounded; a state that nobody has changed is taken, and every request of it ends well.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::disk::{self, User};
use crate::models::Modelled;
use crate::{Input, clock, memory};
use ring3_class::Saved;
use ring3_class::block::{Completion, detach};
use ring3_device::dma::{Arena, Dma, SavedArena};
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Access, Bar, Deadline, Decorator, Device, Error};
use ring3_driver::registry::{Driver, Settings};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const SHAPES: [&str; 9] = [
    "sim:nvme,size=4M",
    "sim:nvme,size=4M,block=4096",
    "sim:nvme,size=4M,vectors=0",
    "sim:ahci,size=4M,ports=1",
    "sim:ahci,size=4M,ports=1,ncq=off",
    "sim:virtio-blk,size=4M",
    "sim:virtio-blk,size=4M,packed=on",
    "sim:virtio-blk,size=4M,indirect=off",
    "sim:virtio-blk,size=4M,vectors=0,packed=on,indirect=off",
];
/// Bytes that the drivers allocate.
const MEMORY: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// Virtual time of one input.
const LONGEST: Duration = Duration::from_secs(3600);

/// All that the next driver reads.
#[derive(Serialize, Deserialize)]
struct Left {
    arena: SavedArena,
    controller: Saved,
    /// None of a driver that was killed.
    queue: Option<Saved>,
}

/// The device of a driver whose death is a flag: from then on nothing that it does reaches it.
struct Mortal {
    inner: Arc<dyn Device>,
    dead: Arc<AtomicBool>,
}

impl Mortal {
    fn alive(&self) -> Result<(), Error> {
        if self.dead.load(Ordering::SeqCst) { Err(Error::Gone) } else { Ok(()) }
    }
}

struct MortalBar {
    inner: Bar,
    dead: Arc<AtomicBool>,
}

impl Access for MortalBar {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        if self.dead.load(Ordering::SeqCst) { u64::MAX } else { self.inner.read(offset, width) }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        if !self.dead.load(Ordering::SeqCst) {
            self.inner.write(offset, width, value);
        }
    }
}

impl Decorator for Mortal {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.alive()?;
        self.inner.config_write(offset, width, value)
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let (inner, dead) = (self.inner.bar(index)?, self.dead.clone());
        Ok(Bar::new(Arc::new(MortalBar { inner, dead })))
    }

    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        self.alive()?;
        self.inner.irqs(kind, count)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.alive()?;
        self.inner.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), Error> {
        self.alive()?;
        self.inner.reset()
    }
}

/// The device as the next driver has it.
struct Successor {
    inner: Arc<dyn Device>,
    dma: Dma,
}

impl Decorator for Successor {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }
}

/// The values within `value`, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// Value `number` of those within `value`.
fn find<'v>(value: &'v mut Value, number: &mut usize) -> Option<&'v mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(all) => all.iter_mut().find_map(|value| find(value, number)),
        Value::Object(all) => all.values_mut().find_map(|value| find(value, number)),
        _ => None,
    }
}

fn change(value: &mut Value, input: &mut Input<'_>) {
    let mut number = usize::from(input.u16()) % count(value);
    let Some(found) = find(value, &mut number) else { return };
    match found {
        Value::Number(old) => {
            let old = old.as_u64().unwrap_or(0);
            *found = input.near(&[old, old, 0, 1 << 16, 1 << 32, u64::MAX]).into();
        }
        Value::Array(all) if !all.is_empty() => {
            let at = input.below(all.len());
            match input.u8() % 3 {
                0 => drop(all.remove(at)),
                1 => all.push(all[at].clone()),
                _ => all.swap(0, at),
            }
        }
        Value::Object(all) => {
            let name = all.keys().nth(input.below(all.len().max(1))).cloned();
            name.map(|name| all.remove(&name));
        }
        Value::Bool(old) => *old = !*old,
        other => *other = if input.u8() & 1 == 0 { Value::Null } else { u64::MAX.into() },
    }
}

/// Drives `device` until its driver leaves, or is killed; what it leaves, and which of its requests
/// have not ended.
fn leave(
    device: &Arc<dyn Device>,
    settings: &Settings,
    input: &mut Input<'_>,
    kill: bool,
) -> Option<(Left, BTreeSet<u64>)> {
    let dead = Arc::new(AtomicBool::new(false));
    let mortal = Arc::new(Mortal { inner: device.clone(), dead: dead.clone() });
    let mut opened = Driver::open(mortal, None, settings).expect("a good device is refused");
    let record = match kill {
        // Not every driver can adopt a device.
        true => Some(opened.controller.record().ok()?),
        false => None,
    };
    let arena = device.dma().arena();
    let disk = disk::of(&opened).expect("a good device has no disk");
    let mut user = User::new(disk).expect("a good disk has no queue");
    let before = arena.save();
    user.begin(input);
    if let Some(controller) = record {
        dead.store(true, Ordering::SeqCst);
        return Some((Left { arena: before, controller, queue: None }, user.owed()));
    }
    let mut ended: Vec<Completion> = Vec::new();
    let queue = detach(user.queue_mut(), &mut ended, Deadline::after(PATIENCE));
    let queue = queue.expect("a good queue is not detached");
    let mut owed = user.owed();
    owed.retain(|token| ended.iter().all(|end| end.token != *token));
    drop(user);
    let controller = opened.controller.detach().expect("a good controller is not detached");
    Some((Left { arena: arena.save(), controller, queue: Some(queue) }, owed))
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (shape, flags) = (input.choose(&SHAPES), input.u8());
    let kill = flags & 1 != 0;
    let settings = Settings { poll: Some(Duration::ZERO), ..Settings::default() };
    clock::run(|| {
        let began = clock::elapsed();
        let (device, ..) = Modelled::open(shape).parts();
        let Some((left, owed)) = leave(&device, &settings, &mut input, kill) else { return };
        let changes = input.below(5);
        let mut value = serde_json::to_value(&left).unwrap();
        (0..changes).for_each(|_| change(&mut value, &mut input));
        if kill && flags & 2 != 0 {
            for _ in 0..input.below(4) {
                let (taken, start) = (&left.arena.regions[0].taken, left.arena.regions[0].iova);
                let range = &taken[input.below(taken.len())];
                let at = start + range.offset + u64::from(input.u16()) % range.len.min(4096);
                device.dma().write(at, &[input.u8()]).unwrap();
            }
        }
        let doubtful = changes > 0 || kill;
        let Ok(left) = serde_json::from_value::<Left>(value) else {
            assert!(changes > 0, "a good state cannot be read");
            return;
        };
        memory::bounded(MEMORY, || {
            if let Err(error) = go_on(device, &left, &settings, owed, &mut input, doubtful) {
                // A device whose driver was killed in the middle of a command is not adopted.
                assert!(doubtful, "{shape}: {error}");
            }
        });
        let took = clock::elapsed() - began;
        assert!(took < LONGEST, "the driver has taken {took:?}");
    });
}

/// The next driver, with what is `left` of the last one.
fn go_on(
    device: Arc<dyn Device>,
    left: &Left,
    settings: &Settings,
    owed: BTreeSet<u64>,
    input: &mut Input<'_>,
    doubtful: bool,
) -> Result<(), Error> {
    let regions = device.dma().arena().regions().map(|placed| placed.region.clone()).collect();
    let dma = Dma::new(Arena::adopt(regions, &left.arena)?, device.dma().iommu().clone());
    let successor: Arc<dyn Device> = Arc::new(Successor { inner: device, dma });
    let opened = match left.queue {
        Some(_) => Driver::resume(successor, settings, &left.controller)?,
        None => {
            let opened = Driver::adopt(successor.clone(), settings, &left.controller)?;
            successor.dma().arena().release();
            opened
        }
    };
    let Some(disk) = disk::of(&opened) else { return Ok(()) };
    let mut user = match &left.queue {
        Some(queue) => User::over(disk, disk.resume_queue(queue)?, owed, doubtful),
        None => User::new(disk)?,
    };
    user.act(input, &*opened.controller);
    assert!(doubtful || user.ends().failed == 0, "a request of a good state fails");
    Ok(())
}
