//! Where one request's time goes, after Figure 5 of Chubb 2004, and what a request takes: system
//! calls, context switches, interrupts.
//!
//! # Method
//! Requests one after the other, with our own time stamps before and after each and the kernel's
//! trace events between. Then the same events are counted under a load of 32 requests. Accesses to
//! the device's registers are counted by whoever emulates the device, from the opening of a window
//! to its end: see [`Event::Window`].

use std::path::Path;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;
use ring3_device::Deadline;
use serde::{Deserialize, Serialize};

use super::here::Way;
use super::{Event, Pace, Placement, Progress};
use crate::Error;
use crate::load::{Direct, File, FileOptions, Limit, Load, Target, run};
use crate::report::Measurement;
use crate::trace::event::Event as Happened;
use crate::trace::timeline::{EXPORT, KERNEL, POLLED, PROCESS, Recording, Step};
use crate::trace::{Tracing, now};
use crate::workload::Workload;

/// The loads: one that is cut into steps, and one that is only counted. The second is of sectors,
/// so that what the disk has saved up is enough for it.
pub const LOADS: [&str; 2] = ["randread-4k-qd1", "randread-512-qd32"];

/// A disk that takes two milliseconds for a page, so that whoever waits for it sleeps; the lab's
/// answers before anybody can.
pub const PACE: Pace = Pace { commands: 1_000_000, bytes: 2 << 20 };

/// The bytes of a tenth of a second, which the disk has saved up while it was idle, are spent by so
/// many pages.
const WARM_UP: u64 = 100;

/// So many sectors are less than it has saved up.
const SAVED_UP: u32 = 300;

/// The window of those who count outside is open for at least this long before and after the
/// requests.
const QUIET: Duration = Duration::from_millis(100);

/// The longest that a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Requests of each load.
    pub requests: u32,
}

impl Timeline {
    /// Records `load` by `way` and fills the numbers of `into` in.
    pub(super) fn measure(
        &self,
        way: &Way,
        load: Workload,
        placement: Placement,
        mut into: Measurement,
        progress: &mut Progress,
    ) -> Result<Measurement, Error> {
        let requests = if load.depth == 1 { self.requests } else { self.requests.min(SAVED_UP) };
        let polled = placement == Placement::ProcessPolled;
        let mut session = Session { way, load, requests, polled, progress };
        let (events, marks, tick) =
            if load.depth == 1 { session.one_by_one()? } else { session.all_at_once()? };
        let drivers = way.driver().map_or_else(own_threads, threads);
        let client = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let recording =
            Recording { events: &events, marks: &marks, client, drivers: &drivers, tick };
        if load.depth == 1 {
            let steps = script(placement);
            let (medians, complete) = recording.medians(steps);
            into.values
                .extend(medians.into_iter().map(|(metric, micros)| (metric.to_owned(), micros)));
            into = into.with("complete_percent", 100.0 * complete as f64 / f64::from(requests));
        }
        into.values.extend(
            recording
                .counts(requests as usize)
                .into_iter()
                .map(|(metric, count)| (metric.to_owned(), count)),
        );
        Ok(into)
    }
}

fn script(placement: Placement) -> &'static [Step] {
    match placement {
        Placement::Process | Placement::ProcessAdaptive => PROCESS,
        Placement::ProcessPolled => POLLED,
        Placement::Export
        | Placement::ExportFio
        | Placement::ExportBatch
        | Placement::ExportPolled
        | Placement::Hosted
        | Placement::Supervised
        | Placement::UblkNull
        | Placement::UblkNullPolled => EXPORT,
        _ => KERNEL,
    }
}

/// All threads of this process but the calling one: it drives the disk itself, with those that
/// share its interrupt.
fn own_threads() -> Vec<u32> {
    let client = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    threads(std::process::id()).into_iter().filter(|&thread| thread != client).collect()
}

fn threads(process: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect()
}

/// Events, marks of the requests, and nanoseconds of a tick.
type Recorded = (Vec<Happened>, Vec<Vec<u64>>, f64);

struct Session<'a, 'b, 'c> {
    way: &'a Way<'a>,
    load: Workload,
    requests: u32,
    polled: bool,
    progress: &'b mut Progress<'c>,
}

impl Session<'_, '_, '_> {
    /// One request after the other, with marks.
    fn one_by_one(&mut self) -> Result<Recorded, Error> {
        let mut reader: Reader = match self.way {
            Way::Path(path, _) => by_read(path, self.load.bytes)?,
            Way::Disk(disk) => by_queue(*disk, self.load.bytes, self.polled)?,
            Way::Passthrough(_) | Way::Qemu(_) => return Err(Way::no_figure()),
        };
        let (requests, mut marks) =
            (u64::from(self.requests), Vec::with_capacity(self.requests as usize));
        let (events, tick) = self.record(WARM_UP + requests, &mut || {
            (0..WARM_UP).try_for_each(|place| reader(place).map(drop))?;
            (0..requests).try_for_each(|place| reader(place).map(|times| marks.push(times)))
        })?;
        Ok((events, marks, tick))
    }

    /// Many in flight, with marks at the ends alone.
    fn all_at_once(&mut self) -> Result<Recorded, Error> {
        let (load, requests) = (self.load, u64::from(self.requests));
        let mut target: Box<dyn Target> = match self.way {
            Way::Path(path, _) => Box::new(File::open(
                path,
                load.depth,
                load.bytes,
                FileOptions { write: false, direct: true },
            )?),
            Way::Disk(disk) => {
                Box::new(Direct::open(*disk, load.depth, load.bytes)?.polling(self.polled))
            }
            Way::Passthrough(_) | Way::Qemu(_) => return Err(Way::no_figure()),
        };
        let mut marks = Vec::with_capacity(2);
        let (events, tick) = self.record(requests, &mut || {
            marks.push(now()?);
            run(&mut *target, &Load::new(load, Limit::Count(requests)), &mut || {})?;
            marks.push(now()?);
            Ok(())
        })?;
        Ok((events, vec![marks], tick))
    }

    /// Does `work` with events on, in a window of `requests`.
    fn record(
        &mut self,
        requests: u64,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(Vec<Happened>, f64), Error> {
        (self.progress)(&Event::Window { requests: None });
        let tracing = Tracing::start()?;
        std::thread::sleep(QUIET);
        let (start, ticks) = (Instant::now(), now()?);
        work()?;
        let (elapsed, ticks) = (start.elapsed(), now()? - ticks);
        let events = tracing.stop()?;
        std::thread::sleep(QUIET);
        (self.progress)(&Event::Window { requests: Some(requests) });
        std::thread::sleep(QUIET);
        Ok((events, elapsed.as_nanos() as f64 / ticks.max(1) as f64))
    }
}

/// Does one read at a place and gives its marks.
type Reader = Box<dyn FnMut(u64) -> Result<Vec<u64>, Error>>;

/// Reads by read(): marks before and after it.
fn by_read(path: &Path, bytes: u32) -> Result<Reader, Error> {
    let mut target = crate::load::Pread::open(path, bytes, true)?;
    Ok(Box::new(move |place| {
        target.queue(0, false, place * u64::from(bytes), bytes)?;
        let start = now()?;
        target.proceed()?;
        Ok(vec![start, now()?])
    }))
}

/// Reads by the class: marks before it, after the doorbell, and when the data are there.
fn by_queue(disk: &dyn Disk, bytes: u32, polled: bool) -> Result<Reader, Error> {
    let mut target = Direct::open(disk, 1, bytes)?.polling(polled);
    Ok(Box::new(move |place| {
        let start = now()?;
        target.queue(0, false, place * u64::from(bytes), bytes)?;
        target.ring();
        let rung = now()?;
        let deadline = Deadline::after(PATIENCE);
        while target.finished()?.is_none() {
            if deadline.expired() {
                return Err(Error::Stuck { requests: 1, seconds: PATIENCE.as_secs() });
            }
            // Each request's patience is its own, so that no wait is cut in two by the end of
            // another's.
            target.proceed_until(Instant::now() + PATIENCE)?;
        }
        Ok(vec![start, rung, now()?])
    }))
}
