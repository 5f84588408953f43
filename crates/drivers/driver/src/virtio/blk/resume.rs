//! Disks that are left to another process while they go, and taken up there.
//!
//! The device stays as it is (DRIVER_OK) and does not notice. Beside the selectors of features and
//! queues no register is written. The queues are handed over by the engine (`disk/saved.rs`).

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_class::Saved;
use ring3_device::dma::Claims;
use ring3_device::{Device, Error};
use ring3_spec::virtio::blk;

use super::super::transport::Transport;
use super::super::vectors::vectors;
use super::super::virtqueue::Virtqueue;
use super::device::{VirtioBlkShared, VirtqueueSlot};
use super::disk::{Disk, Options};
use super::driver::DRIVER;
use super::identity::{identify, queues};
use super::saved::{DISK, SavedDisk, SavedVirtqueueSlot};
use crate::disk::Losses;
use crate::disk::write_cache::{PowerCount, Record, SavedCache};
use crate::lifetime::{ControllerState, lock};

impl Disk {
    /// Leaves the disk, as it goes, to [`resume`](Self::resume). Its queues were detached or
    /// dropped before.
    pub fn detach(&self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        let mut seats = lock(&shared.seats);
        shared.lifetime.check()?;
        let name = shared.transport.device.name();
        let save = |seat: &VirtqueueSlot| {
            if seat.open && !seat.detached {
                return Err(Error::Busy(format!(
                    "{name}: a queue is open: detach it or drop it, then detach the disk"
                )));
            }
            // That of a queue which was detached before a reset waits for it there.
            let queue = seat.queue.as_ref().map(Virtqueue::save).transpose()?;
            Ok(SavedVirtqueueSlot { places: seat.places, queue, detached: Some(seat.detached) })
        };
        let state = SavedDisk {
            features: shared.features,
            options: shared.options,
            info: (*self.info).clone(),
            shape: shared.shape,
            vectors: shared.vectors.as_ref().map_or(0, |vectors| vectors.len() as u16),
            generation: shared.lifetime.generation(),
            cache_lost: shared.losses.last(),
            cache: shared.cache.as_deref().map(SavedCache::of),
            seats: seats.iter().map(save).collect::<Result<_, _>>()?,
        };
        let saved = Saved::new(DISK.0, DISK.1, &state)?;
        // From here on nothing fails.
        for seat in seats.iter_mut() {
            mem::take(&mut seat.queue).iter_mut().for_each(Virtqueue::release_to_successor);
        }
        shared.lifetime.detach();
        Ok(saved)
    }

    /// Goes on with the disk that was detached as `saved`, and which has gone since. It polls as
    /// long before it sleeps as `poll` says, or as before.
    ///
    /// What was saved is input: [`Error::Invalid`] if it cannot be of this disk. One that was reset
    /// meanwhile is found like any that is reset behind its driver's back.
    pub fn resume(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        DRIVER.check(&*device)?;
        let saved: SavedDisk = saved.read(DISK.0, DISK.1)?;
        let transport = Transport::find(device, blk::CONFIG_LEAST, saved.options.layout)?;
        let name = transport.device.name().to_owned();
        let invalid = |what: &str| Error::Invalid(format!("{name}: {what}: open the disk anew"));
        let SavedDisk { features, options, info, shape, generation, .. } = saved;
        if !transport.offers(features)
            || shape.entries < 4
            || !shape.entries.is_power_of_two()
            || options.timeout.is_zero()
        {
            return Err(invalid("the saved state is of another disk"));
        }
        let goes = !transport.is_reset();
        if goes && transport.negotiated_features() != features {
            return Err(invalid("the disk has agreed to other features than the saved ones"));
        }
        let (mut now, shape_now) =
            identify(&transport, features, shape.entries, options.max_transfer)?;
        now.serial.clone_from(&info.serial);
        if (&now, shape_now) != (&info, shape) || saved.cache.is_some() != info.volatile_cache {
            return Err(invalid("the saved state is of another disk"));
        }
        if saved.cache.as_ref().is_some_and(|cache| !cache.is_possible()) {
            return Err(invalid("the saved state has a cache that cannot have been"));
        }
        let (most, has) = (usize::from(queues(&transport, features)), saved.seats.len());
        if !(1..=most).contains(&has) {
            return Err(invalid(&format!(
                "the saved state has {has} queues, and the disk has {most}"
            )));
        }
        let numbered = || (0..).zip(&saved.seats);
        if goes && !numbered().all(|(number, seat)| transport.has_queue(number, &seat.places)) {
            return Err(invalid("the disk goes with other virtqueues than the saved ones"));
        }
        let vectors =
            vectors(&*transport.device, options.interrupts, 2, (has as u16).saturating_add(1))?;
        let count = vectors.as_ref().map_or(0, Vec::len);
        if count != usize::from(saved.vectors) {
            return Err(invalid(&format!("it has {count} interrupts, and had {}", saved.vectors)));
        }
        let lifetime = ControllerState::resume(transport.device.name(), generation)?;
        let mut claims = Claims::new(transport.device.dma().arena());
        let mut seat = |(number, saved): (u16, &SavedVirtqueueSlot)| {
            let resume = |queue| {
                Virtqueue::resume(queue, &mut claims, transport.doorbell(number)?, features)
            };
            let queue = saved.queue.as_ref().map(resume).transpose()?;
            let detached = saved.detached.unwrap_or(queue.is_none());
            Ok::<_, Error>(VirtqueueSlot { queue, places: saved.places, open: detached, detached })
        };
        let seats = numbered().map(&mut seat).collect::<Result<Vec<_>, _>>()?;
        if seats
            .iter()
            .any(|seat| seat.queue.as_ref().is_some_and(|queue| queue.places() != seat.places))
        {
            return Err(invalid("the saved state has another virtqueue than the disk"));
        }
        claims.commit();
        let record = Record::find(transport.device.dma().arena().persistent_words(), &name, 0);
        let shared = VirtioBlkShared {
            lifetime,
            transport,
            options: Options { poll: poll.unwrap_or(options.poll), ..options },
            shape,
            info: Arc::new(info.clone()),
            seen: Mutex::new((info.block_size, info.blocks)),
            cache: saved.cache.as_ref().map(|cache| Arc::new(cache.resume(record))),
            losses: Losses::resume(saved.cache_lost, PowerCount::UNKNOWN),
            features,
            vectors,
            seats: Mutex::new(seats),
        };
        Ok(Self { info: Arc::new(info), shared: Arc::new(shared) })
    }
}
