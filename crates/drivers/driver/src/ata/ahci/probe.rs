//! What is at the ports: nothing, a disk, or something that is refused with the reason.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_device::dma::SegmentRules;
use ring3_device::{Deadline, Device, Error, found as fence};
use ring3_spec::ata::{Identify, Signature};

use super::super::cache::Cache;
use super::super::identity::Limits;
use super::super::quirks::{BROKEN_LOG_DIRECTORY, SLOW_LINK};
use super::super::{Identity, Level, Options};
use super::controller::DiskPort;
use super::hba::Hba;
use super::lists::{Lists, MAX_REGIONS};
use super::port::{NOTICE, NOTICE_AGAIN, Port};
use super::recovery::OWN;
use super::saved::SavedPort;
use crate::disk::write_cache::{PowerCount, WriteCache};

/// Most bytes of one request: what one region can hold.
const MAX_TRANSFER: u32 = ring3_spec::ahci::MAX_REGION_BYTES;

/// What came of looking at all ports.
#[derive(Default)]
pub(super) struct Found {
    pub(super) seats: Vec<DiskPort>,
    pub(super) refused: Vec<(String, Error)>,
    /// Ports without a disk that the device may still use.
    pub(super) others: Vec<Port>,
}

impl Found {
    /// Gives the memory of all ports up, because the device may still write to it.
    pub(super) fn abandon(&mut self) {
        let seated = self.seats.iter_mut().filter_map(|seat| seat.port());
        seated.chain(&mut self.others).for_each(|port| port.abandon());
    }
}

/// Looks at all ports of `hba`, which was reset. What is wrong with one drive is no failure.
pub(super) fn all(
    device: &dyn Device,
    hba: &Hba,
    options: &Options,
    found: &mut Found,
) -> Result<(), Error> {
    let (mut started, kept) = (Vec::new(), device.dma().arena().persistent_words());
    let has_run_on = fence::Found::read(kept.as_ref()) == fence::Found::Running;
    for index in hba.ports() {
        let lists = Lists::new(device.dma().arena(), 1, hba.limit())?;
        found.others.push(Port::new(hba.bar(), index, lists, 0)?);
        let Some(port) = found.others.last_mut() else { continue };
        port.begin();
        let since = hba.link_deadline();
        if hba.capabilities.staggered() == 1
            && port.has_drive(since, notice(hba, index)).unwrap_or(false)
        {
            // The power supply starts one motor at a time. [AHCI 10.9]
            let _ = port.signature(Deadline::after(options.ready_timeout));
        }
        started.push(since);
    }
    for (mut port, since) in std::mem::take(&mut found.others).into_iter().zip(started) {
        let disk = examine(device, hba, options, &mut port, since);
        match disk {
            Ok(Some(Disk { identity, level, power })) => {
                if identity.cache {
                    let whose = (identity.serial.as_str(), port.index().into());
                    let cache = WriteCache::open(kept.clone(), whose, power, has_run_on);
                    port.cache = Cache::new(cache, power);
                }
                found.seats.push(seat(port, identity, level, options));
            }
            other => {
                if let Err(error) = other {
                    found.refused.push((format!("port {}", port.index()), error));
                }
                // A link that came up here is no news to the fence.
                port.clear();
                if port.close().is_err() {
                    found.others.push(port);
                }
            }
        }
    }
    // What the fence has found is in the records.
    kept.iter().for_each(fence::Found::forget);
    Ok(())
}

fn notice(hba: &Hba, index: u8) -> Duration {
    if hba.was_empty(index) { NOTICE_AGAIN } else { NOTICE }
}

/// A drive that can be a disk.
struct Disk {
    identity: Identity,
    /// How it can be driven, at best.
    level: Level,
    /// How often it was powered on; known only if that matters.
    power: PowerCount,
}

/// The disk at `port`, or `None` if there is nothing. The port takes commands afterwards.
fn examine(
    device: &dyn Device,
    hba: &Hba,
    options: &Options,
    port: &mut Port,
    since: Deadline,
) -> Result<Option<Disk>, Error> {
    if !has_drive(device, hba, port, since)? {
        return Ok(None);
    }
    kind(port.signature(Deadline::after(options.ready_timeout))?)?;
    port.start()?;
    let data = port.identify(options.timeout)?;
    let identity = Identity::behind(device, &data, options)?;
    if !identity.dma {
        return Err(Error::Unsupported("it has no DMA, or none that works (broken-dma)".into()));
    }
    if identity.quirks.has(SLOW_LINK) && port.link_speed()? > 1 {
        port.limit_speed(1);
        restart_drive(hba, port, options)?;
        if port.link_speed()? > 1 {
            return Err(Error::Unsupported(
                "its link must be kept at 1.5 Gbit/s, and the controller does not do that: attach \
                 it to a port that is no faster (quirk slow-link)"
                    .into(),
            ));
        }
    }
    let power = if identity.cache && !identity.quirks.has(BROKEN_LOG_DIRECTORY) {
        power_count(device, hba, port, &data, options)?
    } else {
        PowerCount::UNKNOWN
    };
    let queued = hba.capabilities.queued() == 1
        && identity.queue_depth > 0
        && options.level == Level::Queued;
    // Tables for all commands now that it is worth it; the port is stopped for that.
    port.stop()?;
    let depth = if queued { identity.queue_depth } else { u16::from(hba.slots()) };
    let slots = depth
        .min(hba.slots().into())
        .min(options.max_depth)
        .clamp(1, ring3_spec::ahci::SLOTS.into());
    port.resize(device.dma().arena(), slots as u8)?;
    port.start()?;
    Ok(Some(Disk { identity, level: if queued { Level::Queued } else { Level::Dma }, power }))
}

/// Whether there is a drive at `port`, whose link was started at `since`. A link that is stuck is
/// freed first.
fn has_drive(
    device: &dyn Device,
    hba: &Hba,
    port: &mut Port,
    since: Deadline,
) -> Result<bool, Error> {
    let noticed = port.has_drive(since, notice(hba, port.index()));
    if !matches!(noticed, Err(Error::Timeout { .. })) || !hba.free_link(device, port.index())? {
        return noticed;
    }
    port.comreset();
    port.has_drive(hba.link_deadline(), NOTICE)
}

/// How often the drive at `port` was powered on. One that does not answer is reset, and is one that
/// does not say.
fn power_count(
    device: &dyn Device,
    hba: &Hba,
    port: &mut Port,
    data: &Identify,
    options: &Options,
) -> Result<PowerCount, Error> {
    let error = match port.first_power_count(data, OWN.min(options.timeout)) {
        Ok(power) => return Ok(power),
        Err(error) => error,
    };
    let (name, index) = (device.name(), port.index());
    tracing::warn!("{name} port {index}: {error}; resetting the drive, which is not asked again");
    restart_drive(hba, port, options)?;
    Ok(PowerCount::UNKNOWN)
}

/// Resets the drive at `port` over its link; the port takes commands afterwards.
fn restart_drive(hba: &Hba, port: &mut Port, options: &Options) -> Result<(), Error> {
    port.begin_link_reset();
    if !port.has_drive(hba.link_deadline(), NOTICE)? {
        return Err(Error::Gone);
    }
    port.end_link_reset()?;
    kind(port.signature(Deadline::after(options.ready_timeout))?)?;
    port.start()
}

/// Refuses what is no disk.
fn kind(signature: Signature) -> Result<(), Error> {
    let what = match signature {
        Signature::Ata => return Ok(()),
        Signature::Atapi => "a packet drive (ATAPI: CD, DVD or tape); disks only are driven".into(),
        Signature::PortMultiplier => {
            "a port multiplier, and its drives cannot be reached; attach them to ports of their own"
                .into()
        }
        Signature::Enclosure => "an enclosure's management, not a disk".into(),
        Signature::Unknown(raw) => format!("a device of unknown kind (signature {raw:#010x})"),
    };
    Err(Error::Unsupported(format!("it is {what}")))
}

fn seat(port: Port, identity: Identity, level: Level, options: &Options) -> DiskPort {
    let max_transfer = options.max_transfer.unwrap_or(MAX_TRANSFER).min(MAX_TRANSFER);
    let segments = SegmentRules { align: 2, boundary: 2, max: MAX_REGIONS as u32 };
    let info = identity.info(Limits { max_transfer, segments, level, lowest: Level::Dma });
    let (used, power_lost, ready_since) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicU32::new(0));
    DiskPort {
        index: port.index(),
        info: Arc::new(info),
        identity,
        level,
        used,
        power_lost,
        ready_since,
        detached: AtomicBool::new(false),
        place: Some(SavedPort::of(&port)),
        port: Mutex::new(Some(port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_disk_is_refused_by_its_kind() {
        for (signature, word) in [
            (Signature::Atapi, "ATAPI"),
            (Signature::PortMultiplier, "port multiplier"),
            (Signature::Enclosure, "enclosure"),
            (Signature::Unknown(0x1234), "0x00001234"),
        ] {
            let error = kind(signature).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
