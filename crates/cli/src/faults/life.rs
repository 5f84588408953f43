//! One driver's process: its lease is standard input, its application standard output, its stats segment descriptor 3.

use std::fs::File;
use std::io::{stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_backend::{Lease, attach};
use ring3_class::block::{Completion, Data, Disk, Queue, Request};
use ring3_decorator::Fault;
use ring3_decorator::plan::Plan;
use ring3_device::Deadline;
use ring3_device::dma::DmaBuffer;
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_faults::{Kind, Packet, Spec, Verb, Wire, mutate};
use ring3_stats::{Phase, Recorder, Segment};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Requests in flight.
pub const DEPTH: u16 = 8;
/// How often a thread that waits shows that it lives.
const BEAT: Duration = Duration::from_millis(20);
/// Bytes of memory that a driver may have beside what it has, when it gets no more while it starts.
const SPARE: u64 = 32 << 20;
/// The same, of descriptors.
const SPARE_DESCRIPTORS: u64 = 12;

/// What a life is told.
#[derive(Serialize, Deserialize)]
pub struct Orders {
    /// What will go wrong.
    pub spec: Spec,
    /// Where, for a fault of the code.
    pub code: Vec<u64>,
}

/// Drives the leased device until it is killed or cannot go on.
pub fn live(orders: &str) -> Result<ExitCode> {
    let orders: Orders = serde_json::from_str(orders).context("reading what will go wrong")?;
    let segment = File::options().read(true).write(true).open("/proc/self/fd/3").context("taking the stats segment")?;
    let segment = Arc::new(Segment::open(segment.into()).context("mapping the stats segment")?);
    let recorder = Recorder::new(&segment, Some(0)).context("the stats segment has no queue")?;
    recorder.phase(Phase::Recovering);
    let mut fault = Injection { orders, plan: Plan::default(), lease: copy(stdin())?, hog: Vec::new() };
    if fault.orders.spec.at.is_none() {
        fault.inject()?;
    }
    let mut device = attach(Lease::from(copy(stdin())?), None)?;
    if fault.orders.spec.kind == Kind::Registers {
        device = Arc::new(Fault::new(device, fault.plan.clone()));
    }
    // As short a way as there is from the start to the first request: nothing is polled for.
    let settings = Settings { poll: Some(Duration::ZERO), ..Settings::default() };
    let opened = Driver::open(device, None, &settings)?;
    let Some(Offer::Disk(disk)) = opened.offers.first() else { bail!("it has no disk that can be used") };
    Service::new(&**disk, Wire::from(copy(stdout())?), recorder)?.run(&mut fault)?;
    Ok(ExitCode::SUCCESS)
}

fn copy(fd: impl AsFd) -> Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned().context("copying a descriptor")
}

/// What goes wrong with this process.
struct Injection {
    orders: Orders,
    plan: Plan,
    lease: OwnedFd,
    hog: Vec<Vec<u8>>,
}

impl Injection {
    fn inject(&mut self) -> Result<()> {
        let spec = &self.orders.spec;
        let early = spec.at.is_none();
        match spec.kind {
            Kind::Kill if early => {
                let moment = Duration::from_micros(spec.word(0) % 20_000);
                std::thread::Builder::new().spawn(move || {
                    std::thread::sleep(moment);
                    let _ = mutate::signal(Signal::KILL);
                })?;
            }
            Kind::Kill => mutate::signal(Signal::KILL)?,
            Kind::Stop => mutate::signal(Signal::STOP)?,
            Kind::Memory => mutate::memory(spec)?,
            Kind::Code => mutate::code(spec, &self.orders.code)?,
            Kind::Registers => self.plan.add(&registers(spec))?,
            // That is its holder's business.
            Kind::Device => {}
            Kind::NoMemory => self.hog = mutate::no_memory(if early { spec.word(0) % SPARE } else { 0 })?,
            Kind::NoDescriptors => mutate::no_descriptors(if early { spec.word(0) % SPARE_DESCRIPTORS } else { 0 })?,
            Kind::Protocol => {
                for packet in mutate::lies(spec) {
                    // An end that is closed takes no more lies.
                    let _ = rustix::net::send(&self.lease, &packet, rustix::net::SendFlags::NOSIGNAL);
                }
            }
        }
        Ok(())
    }
}

/// A rule for registers, in the words of `ring3_decorator::plan`.
fn registers(spec: &Spec) -> String {
    let (bit, nth) = (1u64 << (spec.word(1) % 32), 1 + spec.word(2) % 8);
    match spec.word(0) % 8 {
        0 => format!("set/{bit:#x}:read:{nth}:1"),
        1 => format!("clear/{bit:#x}:read:{nth}:1"),
        2 => format!("set/{bit:#x}:read:{nth}:all"),
        3 => format!("clear/{bit:#x}:read:{nth}:all"),
        4 => format!("drop:read:{nth}:1"),
        5 => format!("value/0x0:read:{nth}:1"),
        6 => format!("drop:read:{nth}:all"),
        _ => format!("remove:any:{nth}"),
    }
}

/// Does what the application asks for.
struct Service {
    wire: Wire,
    recorder: Recorder,
    queue: Box<dyn Queue>,
    free: Vec<DmaBuffer>,
    bytes: Vec<u8>,
    blocks: u64,
    /// By tag, the block and whether it is written.
    busy: Vec<Option<(u64, bool)>>,
}

impl Service {
    fn new(disk: &dyn Disk, wire: Wire, recorder: Recorder) -> Result<Self> {
        let size = disk.info().block_size as usize;
        let queue = disk.open_queue(DEPTH)?;
        let free = (0..DEPTH).map(|_| disk.dma().arena().alloc_pages(size)).collect::<Result<_, _>>()?;
        wire.send(&Packet { verb: Verb::Ready, tag: 0, block: size as u64, data: Vec::new() })?;
        Ok(Self {
            wire,
            recorder,
            queue,
            free,
            bytes: vec![0; size],
            blocks: disk.info().blocks,
            busy: vec![None; usize::from(DEPTH)],
        })
    }

    /// Until the application goes.
    fn run(&mut self, fault: &mut Injection) -> Result<()> {
        let mut due = None;
        loop {
            self.recorder.beat();
            while let Some(packet) = self.wire.receive()? {
                match packet.verb {
                    Verb::Ready => fault.inject()?,
                    _ => self.start(&packet)?,
                }
            }
            self.queue.ring();
            while let Some(done) = self.queue.reap_one()? {
                self.finish(done)?;
            }
            let now = Instant::now();
            if due.is_none_or(|due| due <= now) {
                self.recorder.phase(Phase::Recovering);
                due = self.queue.tick(now)?;
            }
            self.recorder.phase(Phase::Waiting);
            self.sleep(due)?;
            self.recorder.phase(Phase::Working);
        }
    }

    /// Until there is something to do, or it is time to show that it lives.
    fn sleep(&mut self, due: Option<Instant>) -> Result<()> {
        if self.queue.in_flight() > 0 {
            self.queue.wait(Deadline::after(BEAT).sooner(due))?;
            return Ok(());
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: BEAT.as_nanos() as i64 };
        match poll(&mut [PollFd::new(&self.wire, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn start(&mut self, packet: &Packet) -> Result<()> {
        let Some(place) = self.busy.get_mut(usize::from(packet.tag)).filter(|place| place.is_none()) else {
            bail!("the application asks for what is under way");
        };
        let write = packet.verb == Verb::Write;
        if packet.block >= self.blocks || write && packet.data.len() != self.bytes.len() {
            bail!("the application asks for what the disk does not have");
        }
        let Some(buffer) = self.free.pop() else { bail!("more requests than buffers") };
        let (token, block) = (packet.tag.into(), packet.block);
        let (operation, request) = if write {
            buffer.write(0, &packet.data)?;
            (ring3_stats::Operation::Write, Request::write(token, block, 1, buffer))
        } else {
            (ring3_stats::Operation::Read, Request::read(token, block, 1, buffer))
        };
        *place = Some((block, write));
        self.recorder.started(packet.tag, operation, block, 1);
        match self.queue.submit(request) {
            Ok(()) => Ok(()),
            Err(rejected) => bail!("block {block} is not taken: {:?}", rejected.error),
        }
    }

    fn finish(&mut self, done: Completion) -> Result<()> {
        let Completion { token, result, data } = done;
        let tag = u16::try_from(token).unwrap_or(u16::MAX);
        let Some((block, write)) = self.busy.get_mut(usize::from(tag)).and_then(Option::take) else {
            bail!("the driver ends what nobody asked for");
        };
        self.recorder.ended(tag, result.err().map_or(0, |error| error.errno() as u16), self.bytes.len() as u32);
        let mut packet = Packet { verb: if write { Verb::Write } else { Verb::Read }, tag, block, data: Vec::new() };
        let Data::Buffer(buffer) = data else { bail!("a request came back without its buffer") };
        match result {
            Err(_) => packet.verb = Verb::Failed,
            Ok(()) if !write => {
                buffer.read(0, &mut self.bytes)?;
                packet.data.clone_from(&self.bytes);
            }
            Ok(()) => {}
        }
        self.free.push(buffer);
        Ok(self.wire.send(&packet)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_for_registers_is_one() {
        for index in 0..200 {
            let rule = registers(&Spec::of(3, index, Some(Kind::Registers)));
            assert!(rule.parse::<Plan>().is_ok(), "{rule}");
        }
    }
}
