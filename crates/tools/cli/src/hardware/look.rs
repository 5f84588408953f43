//! A step's process that drives the device itself: what it is, and whether its data stay the same,
//! also while it is reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_class::block::Disk;
use ring3_device::Error;
use ring3_driver::Circumstances;
use ring3_driver::registry::Settings;
use ring3_host::open::{Attached, Claim, OpenedDevice, Requirements};
use ring3_spec::pci;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::kernel::hexadecimal;
use super::verify::Region;
use crate::blk::flow::{BUFFERS, DEPTH, Flow};
use crate::blk::target::Span;

/// What is looked at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Look {
    pub device: String,
    pub unprotected: bool,
    /// The namespace or the drive.
    pub part: Option<u32>,
    pub quirks: Vec<String>,
    /// What is read; nothing if there is none.
    pub regions: Vec<Region>,
    /// How long it is read again; once if 0.
    pub seconds: f64,
    /// How often the function is reset meanwhile.
    pub resets: u32,
}

/// What the process found, its last line.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Of each region, at the first read.
    pub digests: Vec<String>,
    pub passes: u64,
    pub bytes: u64,
    pub mismatches: u64,
    pub errors: u64,
    /// The first error, or the first region that changed.
    pub first: Option<String>,
    /// From each reset to the next read that was done.
    pub recovery_ms: Vec<f64>,
    /// Whether a pass that began after the last reset ended without error.
    #[serde(default)]
    pub whole_at_end: bool,
    /// Why the function was not reset.
    pub no_reset: Option<String>,
}

/// Bytes of the arena beside the buffers: queues and lists.
const ARENA: usize = 16 << 20;
/// Between two resets, and how long a device may take after one.
const PAUSE: Duration = Duration::from_millis(300);
const RECOVERY: Duration = Duration::from_secs(60);
/// PCI's subsystem ids. [PCI 6.2.4]
const SUBSYSTEM: u64 = 0x2c;

/// Does it; prints what the device is, a line each second, and what was found.
pub fn here(look: &Look) -> Result<()> {
    let attached = open(look)?;
    describe(&attached);
    if look.regions.is_empty() {
        return Ok(());
    }
    let [disk] = &attached.disks[..] else {
        bail!("it has {} disks: choose one with --namespace or --drive", attached.disks.len())
    };
    let found = watch(&**disk, attached.driven.as_ref(), look)?;
    outln!("{}", serde_json::to_string(&found)?);
    Ok(())
}

fn open(look: &Look) -> Result<Attached> {
    let quirks = Circumstances::wanting(look.quirks.clone());
    let claim = Claim {
        unprotected: look.unprotected,
        settings: Settings { part: look.part, quirks, ..Settings::default() },
        ..Claim::new(look.device.parse::<Uri>()?)
    };
    let arena = BUFFERS + ARENA;
    Ok(claim.open(&Requirements { queues: 1, arena, max_transfer: None, poll: None })?)
}

/// Prints what the device is, as far as its driver says.
fn describe(attached: &Attached) {
    let ids = |register| {
        let device = attached.driven.as_ref().map(OpenedDevice::device);
        device.map(|device| device.config_read(register, 4)).filter(|ids| *ids != u32::MAX)
    };
    let pair = |both: Option<u32>| both.map(|both| (both as u16, (both >> 16) as u16)).unzip();
    let (vendor, device) = pair(ids(pci::VENDOR_ID));
    let (subsystem_vendor, subsystem_device) = pair(ids(SUBSYSTEM).filter(|ids| *ids != 0));
    let disks: Vec<_> = attached.disks.iter().map(|disk| disk.info().capacity()).collect();
    outln!(
        "{}",
        json!({
            "vendor": vendor, "device": device, "class": ids(pci::REVISION).map(|class| class >> 8),
            "subsystem_vendor": subsystem_vendor, "subsystem_device": subsystem_device,
            "disks": disks, "cards": attached.nics.len(),
        })
    );
}

/// What reader and resetter share.
#[derive(Default)]
struct Shared {
    /// Reads that were done.
    reads: AtomicU64,
    is_over: AtomicBool,
}

fn watch(disk: &dyn Disk, device: Option<&OpenedDevice>, look: &Look) -> Result<Found> {
    let shared = Arc::new(Shared::default());
    let until = Instant::now() + Duration::from_secs_f64(look.seconds);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(disk, look, until, &shared));
        let reset = match look.resets {
            0 => Ok(Vec::new()),
            count => reset(device, count, &shared),
        };
        if look.resets > 0 {
            shared.is_over.store(true, Ordering::Release);
        }
        let found = reader.join().ok().context("the reader panicked")?;
        let mut found = found?;
        match reset {
            Ok(times) => found.recovery_ms = times,
            Err(Error::Unsupported(why)) => found.no_reset = Some(why),
            Err(error) => return Err(error.into()),
        }
        Ok(found)
    })
}

/// Resets the function under the driver, `count` times, and waits each time until more reads were
/// done than may have been in flight.
fn reset(device: Option<&OpenedDevice>, count: u32, shared: &Shared) -> Result<Vec<f64>, Error> {
    let device = device.ok_or_else(|| Error::Unsupported("it is no device of ours".into()))?;
    let mut times = Vec::new();
    for _ in 0..count {
        std::thread::sleep(PAUSE);
        let since = Instant::now();
        device.device().reset()?;
        // Counted from here on: all that were in flight may have been done before the reset.
        let before = shared.reads.load(Ordering::Acquire);
        while shared.reads.load(Ordering::Acquire) <= before + u64::from(DEPTH) {
            if since.elapsed() > RECOVERY || shared.is_over.load(Ordering::Acquire) {
                let seconds = since.elapsed().as_secs();
                return Err(Error::Protocol(format!(
                    "nothing was read in {seconds} s after reset {}",
                    times.len() + 1
                )));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        times.push(since.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Reads all regions until it is over, and once more after the last reset.
fn read(disk: &dyn Disk, look: &Look, until: Instant, shared: &Shared) -> Result<Found> {
    let mut found = Found::default();
    let mut told = Instant::now();
    let mut flow = Flow::new(disk)?;
    loop {
        // What is over now was over before this pass began.
        let is_last = look.resets > 0 && shared.is_over.load(Ordering::Acquire);
        let mut whole = true;
        for (index, region) in look.regions.iter().enumerate() {
            let read = digest(&mut flow, disk, *region, shared);
            match (read, found.digests.get(index)) {
                (Ok(digest), None) => found.digests.push(digest),
                (Ok(digest), Some(first)) if digest == *first => {}
                (Ok(_), Some(_)) => {
                    found.mismatches += 1;
                    let changed =
                        format!("what is read from byte {} on has changed", region.offset);
                    found.first.get_or_insert(changed);
                }
                (Err(error), known) => {
                    let is_first = known.is_none();
                    whole = false;
                    found.errors += 1;
                    found.first.get_or_insert(format!("{error:#}"));
                    if is_first || found.errors > 100 {
                        shared.is_over.store(true, Ordering::Release);
                        return Ok(found);
                    }
                    // First its queue, which may be the only one.
                    drop(flow);
                    flow = Flow::new(disk)?;
                }
            }
            found.bytes += region.bytes;
        }
        found.passes += u64::from(whole);
        let over = match look.resets {
            0 => Instant::now() >= until,
            _ => is_last,
        };
        if over {
            found.whole_at_end = whole;
            return Ok(found);
        }
        if told.elapsed() > Duration::from_secs(1) {
            told = Instant::now();
            outln!("{}", json!({ "passes": found.passes, "bytes": found.bytes }));
            if !crate::output::flush() {
                bail!("nobody listens any more");
            }
        }
    }
}

fn digest(flow: &mut Flow, disk: &dyn Disk, region: Region, shared: &Shared) -> Result<String> {
    let size = u64::from(disk.info().block_size);
    let span = Span { lba: region.offset / size, blocks: region.bytes / size };
    let mut sum = Sha256::new();
    let sink = |piece: &[u8]| {
        sum.update(piece);
        Ok(())
    };
    let mut count = |_| {
        shared.reads.fetch_add(1, Ordering::AcqRel);
    };
    flow.read(span, sink, &mut count)?;
    Ok(hexadecimal(&sum.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::verify::regions;

    /// What is read of a model with this fault, whose last reset is over.
    fn found(fault: &str) -> Found {
        let look = Look {
            device: format!("sim:nvme,size=1M,fault={fault}"),
            unprotected: false,
            part: None,
            quirks: Vec::new(),
            regions: regions(1 << 20, 8, 4096),
            seconds: 0.0,
            resets: 1,
        };
        let attached = open(&look).unwrap();
        let shared = Shared { is_over: true.into(), ..Shared::default() };
        read(&*attached.disks[0], &look, Instant::now(), &shared).unwrap()
    }

    #[test]
    fn a_device_is_well_after_the_last_reset_if_one_whole_pass_has_no_error() {
        let well = found("status/0x4281:read:100:all");
        assert!(well.whole_at_end && well.errors == 0, "{well:?}");
        let dead = found("status/0x4281:read:3:all");
        assert!(!dead.whole_at_end && dead.errors > 0, "{dead:?}");
    }
}
