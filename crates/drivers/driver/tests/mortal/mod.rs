//! A device whose driver is killed at one of its accesses to a register.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ring3_device::{Access, Bar, Decorator, Device, Error};

/// The view that a driver has until it dies: from then on nothing of it reaches the device, and
/// what it writes to memory is undone by [`bury`](Mortal::bury).
pub struct Mortal {
    inner: Arc<dyn Device>,
    fate: Arc<Fate>,
}

struct Fate {
    device: Arc<dyn Device>,
    /// Accesses so far, and how many there are before the last.
    count: AtomicU64,
    limit: AtomicU64,
    /// The memory at the death.
    memory: Mutex<Option<Vec<Vec<u8>>>>,
}

impl Mortal {
    /// Lives until it is [doomed](Self::doom).
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        let fate = Fate {
            device: device.clone(),
            count: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            memory: Mutex::new(None),
        };
        Arc::new(Self { inner: device, fate: Arc::new(fate) })
    }

    /// It dies after so many accesses from now on, before the next one.
    pub fn doom(&self, accesses: u64) {
        self.fate.limit.store(self.fate.count.load(Ordering::SeqCst) + accesses, Ordering::SeqCst);
    }

    /// Whether it has died; the memory is as it was then.
    pub fn bury(&self) -> bool {
        let memory = self.fate.memory.lock().unwrap().take();
        let regions = self.inner.dma().arena().regions();
        memory
            .map(|memory| {
                regions
                    .zip(memory)
                    .for_each(|(placed, bytes)| placed.region.write(0, &bytes).unwrap())
            })
            .is_some()
    }
}

impl Fate {
    fn is_dead(&self) -> bool {
        if self.count.fetch_add(1, Ordering::SeqCst) < self.limit.load(Ordering::SeqCst) {
            return false;
        }
        self.memory.lock().unwrap().get_or_insert_with(|| {
            let bytes = |placed: &ring3_device::dma::Placed| {
                let mut bytes = vec![0; placed.region.len()];
                placed.region.read(0, &mut bytes).unwrap();
                bytes
            };
            self.device.dma().arena().regions().map(bytes).collect()
        });
        true
    }
}

impl Decorator for Mortal {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        Ok(Bar::new(Arc::new(MortalBar { bar: self.inner.bar(index)?, fate: self.fate.clone() })))
    }
    fn reset(&self) -> Result<(), Error> {
        if self.fate.is_dead() { Err(Error::Gone) } else { self.inner.reset() }
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        if self.fate.is_dead() { Err(Error::Gone) } else { self.inner.set_bus_master(on) }
    }
}

struct MortalBar {
    bar: Bar,
    fate: Arc<Fate>,
}

impl Access for MortalBar {
    fn len(&self) -> u64 {
        self.bar.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        if self.fate.is_dead() { u64::MAX } else { self.bar.read(offset, width) }
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        if !self.fate.is_dead() {
            self.bar.write(offset, width, value);
        }
    }
}
