//! One fault: a driver's life from its start to its end, and what its application and its supervisor see.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Result;
use ring3_faults::{Found, Kind, Packet, Spec, Verb};
use ring3_stats::Phase;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::bench::{Bench, Life};
use super::life::Orders;

/// A driver without a heartbeat for so long hangs.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A driver that beats, has requests and ends none for so long makes no progress.
const PROGRESS: Duration = Duration::from_secs(4);
/// A driver starts within this time.
const START: Duration = Duration::from_secs(20);
/// Requests that end after a fault that nobody has seen, before its driver is killed.
const AFTER: u32 = 32;
/// Between two looks at the heartbeat.
const LOOK: i64 = 5_000_000;

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// By what first.
    pub by: Option<&'static str>,
    /// The driver worked before the fault was injected, and all that it had to hold was read.
    pub checked: bool,
    /// It was injected.
    pub injected: bool,
    /// Wrong blocks that the drivers before have left.
    pub inherited: u64,
    /// Wrong blocks after the fault.
    pub wrong: u64,
    /// From the last end under the driver before to the first of this one.
    pub outage: Option<Duration>,
    /// How its process ended, and what it said.
    pub end: String,
}

/// A life that goes on.
struct Trial<'a> {
    bench: &'a mut Bench,
    spec: Spec,
    life: Life,
    seen: Seen,
    size: Option<usize>,
    /// Requests of the load that were sent, and ends since the fault.
    sent: u32,
    after: u32,
    /// When it was last seen to go on, and when to beat.
    progress: Instant,
    beat: (u64, Instant),
    /// When a request was last seen to end.
    last_end: Option<Instant>,
    complaints: usize,
}

/// Lets `spec` happen to a new driver of `bench`, and fences it.
pub fn run(bench: &mut Bench, spec: Spec, code: Vec<u64>) -> Result<Seen> {
    let life = bench.start(&Orders { spec, code })?;
    let now = Instant::now();
    bench.application.begin();
    let complaints = (bench.complaints)();
    let seen = Seen { injected: spec.at.is_none(), ..Seen::default() };
    let (progress, beat) = (now, (0, now));
    let mut trial = Trial { bench, spec, life, seen, size: None, sent: 0, after: 0, progress, beat, last_end: None, complaints };
    let end = trial.watch();
    let status = trial.life.kill()?;
    let Trial { bench, seen: mut found, last_end, .. } = trial;
    let ended = end?;
    let said = bench.said();
    if ended {
        let by = by_end(status, &said);
        found.by = Some(found.by.unwrap_or(by));
    }
    found.end = format!("{status}: {}", said.trim());
    bench.last_end = last_end.or(bench.last_end);
    bench.fence()?;
    Ok(found)
}

/// What the end of a process shows.
fn by_end(status: ExitStatus, said: &str) -> &'static str {
    match status.code() {
        _ if said.contains("its lease has ended") => "protocol",
        _ if said.contains("a bug:") => "panic",
        None if status.signal().is_some() => "signal",
        _ => "exit",
    }
}

impl Trial<'_> {
    /// Until the driver has ended by itself (true), or must be killed.
    fn watch(&mut self) -> Result<bool> {
        loop {
            let look = Timespec { tv_sec: 0, tv_nsec: LOOK };
            match poll(&mut [PollFd::new(&self.life.wire, PollFlags::IN)], Some(&look)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            loop {
                match self.life.wire.receive() {
                    Ok(Some(packet)) => self.take(&packet),
                    Ok(None) => break,
                    Err(_) => return self.life.ended().map(|_| true),
                }
            }
            if self.after >= AFTER {
                return Ok(false);
            }
            if !self.feed() {
                return self.life.ended().map(|_| true);
            }
            if let Some(by) = self.overdue() {
                self.seen.by = self.seen.by.or(Some(by));
                return Ok(false);
            }
        }
    }

    fn take(&mut self, packet: &Packet) {
        let now = Instant::now();
        self.progress = now;
        if packet.verb == Verb::Ready {
            // What a driver with changed memory says it is, is not what a disk is.
            self.size = Some(packet.block as usize).filter(|size| [512, 4096].contains(size));
            return;
        }
        self.last_end = Some(now);
        if self.seen.outage.is_none() {
            self.seen.outage = self.bench.last_end.take().map(|last| now - last);
        }
        let before = !self.seen.injected || !self.seen.checked;
        match self.bench.application.end(packet) {
            Found::Right => {}
            Found::Wrong if before => self.seen.inherited += 1,
            Found::Wrong => {
                self.seen.wrong += 1;
                self.note("stamp");
            }
            Found::Failed | Found::Stray => self.note("error"),
        }
        self.after += u32::from(self.seen.injected && self.seen.checked);
        if self.seen.injected && (self.bench.complaints)() > self.complaints {
            self.note("device");
        }
    }

    fn note(&mut self, by: &'static str) {
        self.seen.by = self.seen.by.or(Some(by));
    }

    /// Asks for more; false if nobody is there.
    fn feed(&mut self) -> bool {
        let Some(size) = self.size else { return true };
        loop {
            self.seen.checked |= self.bench.application.is_checked();
            let load = self.seen.checked;
            if load && !self.seen.injected && self.spec.at == Some(self.sent) {
                self.seen.injected = true;
                if self.spec.kind == Kind::Device {
                    self.bench.lie(&self.spec);
                }
                let inject = Packet { verb: Verb::Ready, tag: 0, block: 0, data: Vec::new() };
                if self.life.wire.send(&inject).is_err() {
                    return false;
                }
            }
            let Some(packet) = self.bench.application.next(size) else { return true };
            self.sent += u32::from(load);
            if self.life.wire.send(&packet).is_err() {
                return false;
            }
        }
    }

    /// Why it must be killed.
    fn overdue(&mut self) -> Option<&'static str> {
        let (now, counters) = (Instant::now(), self.life.segment.counters(Some(0)));
        if counters.beat != self.beat.0 || counters.phase == Phase::Recovering {
            self.beat = (counters.beat, now);
        }
        let idle = now - self.progress;
        match self.size {
            None => (idle > START).then_some("start"),
            Some(_) if now - self.beat.1 > HEARTBEAT => Some("heartbeat"),
            Some(_) => (idle > PROGRESS).then_some("progress"),
        }
    }
}
