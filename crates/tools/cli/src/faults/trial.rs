//! One fault: a driver's life from its start to its end, and what its application and its
//! supervisor see.

use std::time::{Duration, Instant};

use anyhow::Result;
use ring3_faults::{Found, Kind, Packet, Verb, Wire};
use ring3_stats::Phase;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::bench::{Bench, Keep};
use super::holder::{Life, by_end};
use super::kept::{Begun, Death, is_outer};
use super::life::Orders;

/// A driver without a heartbeat for so long hangs.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A driver that beats, has requests and ends none for so long makes no progress.
const PROGRESS: Duration = Duration::from_secs(4);
/// A driver starts within this time.
const START: Duration = Duration::from_secs(20);
/// ring3d sees a driver that hangs long before.
const KEPT: Duration = Duration::from_secs(60);
/// Requests that end after a fault that nobody has seen, before its driver is killed.
const AFTER: u32 = 24;
/// Bytes of a block of the disks here.
const BLOCK: usize = 512;
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
    /// Beside these, blocks that may be wrong since the last fault that may make some.
    pub stale: u64,
    /// Wrong blocks after the fault.
    pub wrong: u64,
    /// One of those.
    pub evidence: String,
    /// The driver has ended by itself, under ring3d.
    pub died: bool,
    /// For how long users waited for a driver: for this one, or after this one where ring3d follows
    /// it at once.
    pub outage: Option<Duration>,
    /// How its process ended, and what it said.
    pub end: String,
}

/// A life that goes on.
struct Trial<'a> {
    bench: &'a mut Bench,
    orders: &'a Orders,
    wire: Wire,
    /// Its process, unless ring3d has that.
    life: Option<Life>,
    /// How many of ring3d's had died before.
    deaths: u64,
    seen: Seen,
    size: Option<usize>,
    /// Requests of the load that were sent, and ends since the fault.
    sent: u32,
    after: u32,
    /// When it was started, last seen to go on, and when to beat.
    began: Instant,
    progress: Instant,
    beat: (u64, Instant),
    /// When a request was last seen to end.
    last_end: Option<Instant>,
    violations: usize,
}

/// Lets what is in `orders` happen to a driver of `bench`, and sees to it that the device is free
/// for the next one.
pub fn run(bench: &mut Bench, orders: &Orders) -> Result<Seen> {
    let began = Instant::now();
    let (wire, life) = match &mut bench.keep {
        Keep::Own(holder) => holder.start(orders).map(|(life, wire)| (wire, Some(life)))?,
        Keep::Ring3d(kept) => match kept.start(orders)? {
            Begun::Serves(wire) => (wire, None),
            Begun::Died(Death { by, text, outage }) => {
                return Ok(Seen {
                    injected: true,
                    by: Some(by),
                    end: text,
                    outage,
                    ..Seen::default()
                });
            }
        },
    };
    let deaths = match &bench.keep {
        Keep::Own(_) => 0,
        Keep::Ring3d(kept) => kept.deaths(),
    };
    bench.application.begin();
    let violations = (bench.violations)();
    let seen = Seen { injected: orders.spec.at.is_none(), ..Seen::default() };
    // ring3d has made sure already.
    let size = life.is_none().then_some(BLOCK);
    let (now, sent, after, last_end) = (Instant::now(), 0, 0, None);
    let (progress, beat) = (now, (0, now));
    let mut trial = Trial {
        bench,
        orders,
        wire,
        life,
        deaths,
        seen,
        size,
        sent,
        after,
        began,
        progress,
        beat,
        last_end,
        violations,
    };
    let ended = trial.watch();
    trial.end(ended)
}

impl Trial<'_> {
    /// Fences a life that has ended by itself (true), or is to be ended.
    fn end(self, ended: Result<bool>) -> Result<Seen> {
        let Trial { bench, wire, life, deaths, seen: mut found, last_end, .. } = self;
        let (now, since) = (Instant::now(), last_end.map(|last| last.elapsed()));
        let (by, died) = match (&mut bench.keep, life) {
            (Keep::Own(holder), Some(mut life)) => {
                let status = life.end(!matches!(ended, Ok(true)))?;
                let said = holder.said();
                found.end = format!("{status}: {}", said.trim());
                bench.plan.clear();
                let died = ended?;
                holder.fence()?;
                bench.waited = since.map(|since| since + now.elapsed()).or(bench.waited);
                (by_end(status, &said), died)
            }
            (Keep::Ring3d(kept), _) => {
                let died = ended?;
                // ring3d starts the next driver at once, to which the device must not lie.
                bench.plan.clear();
                if !died {
                    kept.kill()?;
                }
                kept.wait_for(0);
                drop(wire);
                let death = kept.death(deaths)?;
                found.died = died;
                found.outage = death.outage.map(|outage| outage + since.unwrap_or_default());
                found.end = death.text;
                (death.by, died)
            }
            (Keep::Own(_), None) => return ended.map(|_| found),
        };
        if died {
            found.by = Some(found.by.unwrap_or(by));
        }
        Ok(found)
    }

    /// Until the driver has ended by itself (true), or must be killed.
    fn watch(&mut self) -> Result<bool> {
        loop {
            let look = Timespec { tv_sec: 0, tv_nsec: LOOK };
            match poll(&mut [PollFd::new(&self.wire, PollFlags::IN)], Some(&look)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            loop {
                match self.wire.receive() {
                    Ok(Some(packet)) => self.take(&packet),
                    Ok(None) => break,
                    Err(_) => return Ok(true),
                }
            }
            if self.after >= AFTER {
                return Ok(false);
            }
            if !self.feed()? {
                return Ok(true);
            }
            if let Some(by) = self.overdue() {
                self.note(by);
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
        if let Some(waited) = self.bench.waited.take() {
            self.seen.outage = Some(waited + (now - self.began));
        }
        let before = !self.seen.injected || !self.seen.checked;
        let found = self.bench.application.end(packet);
        if found == Found::Wrong {
            self.seen.evidence = std::mem::take(&mut self.bench.application.evidence);
        }
        match found {
            Found::Right => {}
            Found::Stale => self.seen.stale += 1,
            Found::Wrong if before => self.seen.inherited += 1,
            Found::Wrong => {
                self.seen.wrong += 1;
                self.note("stamp");
            }
            Found::Failed | Found::Stray => self.note("error"),
        }
        self.after += u32::from(self.seen.injected && self.seen.checked);
        if self.seen.injected && (self.bench.violations)() > self.violations {
            self.note("device");
        }
    }

    /// Lets it happen; false if nobody is there.
    fn inject(&mut self) -> Result<bool> {
        let spec = &self.orders.spec;
        if spec.kind == Kind::Device {
            self.bench.lie(spec)?;
        }
        let mut data = Vec::new();
        if let Keep::Ring3d(kept) = &self.bench.keep {
            if let Some(signal) = is_outer(spec) {
                return kept.signal(signal).map(|()| true);
            }
            data = serde_json::to_vec(self.orders)?;
        }
        Ok(self.wire.send(&Packet { verb: Verb::Ready, tag: 0, block: 0, data }).is_ok())
    }

    fn note(&mut self, by: &'static str) {
        self.seen.by = self.seen.by.or(Some(by));
    }

    /// Asks for more; false if nobody is there.
    fn feed(&mut self) -> Result<bool> {
        let Some(size) = self.size else { return Ok(true) };
        loop {
            self.seen.checked |= self.bench.application.is_checked();
            let load = self.seen.checked;
            if load && !self.seen.injected && self.orders.spec.at == Some(self.sent) {
                self.seen.injected = true;
                if !self.inject()? {
                    return Ok(false);
                }
            }
            let Some(packet) = self.bench.application.next(size) else { return Ok(true) };
            self.sent += u32::from(load);
            if self.wire.send(&packet).is_err() {
                return Ok(false);
            }
        }
    }

    /// Why it must be killed, if nobody else looks.
    fn overdue(&mut self) -> Option<&'static str> {
        let now = Instant::now();
        let idle = now - self.progress;
        let Some(life) = &self.life else {
            if let Keep::Ring3d(kept) = &self.bench.keep {
                kept.wait_for(u64::from(!self.bench.application.is_idle()));
            }
            return (idle > KEPT).then_some("never");
        };
        let counters = life.segment.counters(Some(0));
        if counters.beat != self.beat.0 || counters.phase == Phase::Recovering {
            self.beat = (counters.beat, now);
        }
        match self.size {
            None => (idle > START).then_some("start"),
            Some(_) if now - self.beat.1 > HEARTBEAT => Some("heartbeat"),
            Some(_) => (idle > PROGRESS).then_some("progress"),
        }
    }
}
