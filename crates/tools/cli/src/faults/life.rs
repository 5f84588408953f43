//! One driver's process: its lease is standard input, its application standard output, its stats
//! segment descriptor 3.

use std::fs::File;
use std::io::{stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_backend::{Lease, attach, attach_running};
use ring3_class::block::Disk;
use ring3_control::drive::{DriverCommand, DriverMessage};
use ring3_decorator::Fault;
use ring3_decorator::plan::Plan;
use ring3_device::{Deadline, Device};
use ring3_driver::registry::{Driver, Offer, Opened, Settings};
use ring3_faults::mutate::{self, Victim};
use ring3_faults::{Kind, Packet, Spec, Verb, Wire, rules};
use ring3_host::drive::{Left, read_left};
use ring3_lease::Channel;
use ring3_stats::{Phase, Recorder, Segment};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::work::{DEPTH, Work};

/// How often a thread that waits shows that it lives.
const BEAT: Duration = Duration::from_millis(20);
/// The same of one without work.
const IDLE: Duration = Duration::from_millis(200);
/// How long the supervisor may take to take a report.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of memory that a driver may have beside what it has, when it gets no more while it starts.
const SPARE: u64 = 32 << 20;
/// The same, of descriptors.
const SPARE_DESCRIPTORS: u64 = 12;

/// What a life is told.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Orders {
    /// What will go wrong.
    pub spec: Spec,
    /// Where, for a fault of the code.
    pub code: Vec<u64>,
}

/// Drives the leased device until it is killed or cannot go on.
pub fn live(orders: Orders) -> Result<()> {
    let segment = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/fd/3")
        .context("taking the stats segment")?;
    let segment = Arc::new(Segment::open(segment.into()).context("mapping the stats segment")?);
    let recorder = recorder(&segment)?;
    let mut fault = Injection {
        orders: Some(orders),
        plan: Plan::default(),
        sockets: vec![copy(stdin())?],
        hog: Vec::new(),
    };
    fault.begin()?;
    let (opened, ..) = open(copy(stdin())?, None, &fault)?;
    let wire = Wire::from(copy(stdout())?);
    Service::new(disk(&opened)?, wire, recorder, 0)?.run(&mut fault)?;
    Ok(())
}

/// The same for ring3d, which says when over `control`; what happens at the start lies in the file
/// `orders`.
pub fn live_kept(control: OwnedFd, orders: &Path) -> Result<()> {
    let sockets = vec![copy(&control)?];
    let control =
        Channel::new(control, SEND_LIMIT, false).context("taking the supervisor's socket")?;
    let order = || -> Result<_> {
        let (order, fds) =
            control.receive::<DriverCommand>()?.context("the supervisor has gone")?;
        let mut fds = fds.into_iter();
        Ok((order, fds.next(), fds.next()))
    };
    let (prepare, segment, _) = order()?;
    let recorded = matches!(prepare, DriverCommand::Prepare(prepare) if prepare.adoptable);
    let segment = Arc::new(
        Segment::open(segment.context("no stats segment came")?)
            .context("mapping the stats segment")?,
    );
    let recorder = recorder(&segment)?;
    control.send(&DriverMessage::Standby, &[])?;
    let (drive, lease, left) = order()?;
    let left = left
        .filter(|_| matches!(drive, DriverCommand::Drive { adopt: true, .. }))
        .map(|file| read_left(Some(file)))
        .transpose()?;
    let lease = lease.context("no lease came")?;
    let taken = std::fs::read(orders).ok().filter(|_| std::fs::remove_file(orders).is_ok());
    let taken = taken
        .map(|text| serde_json::from_slice(&text))
        .transpose()
        .context("reading what will go wrong")?;
    let has_orders = u16::from(taken.is_some());
    let mut fault = Injection { orders: taken, plan: Plan::default(), sockets, hog: Vec::new() };
    fault.sockets.push(copy(&lease)?);
    fault.begin()?;
    let (opened, device, adopted) = open(lease, left, &fault)?;
    let disk = disk(&opened)?;
    control.send(
        &DriverMessage::Offers {
            disks: vec![ring3_host::drive::facts(disk)],
            nics: Vec::new(),
            refused: Vec::new(),
            adopted,
        },
        &[],
    )?;
    let (_, end, _) = order()?;
    let service =
        Service::new(disk, Wire::from(end.context("no application came")?), recorder, has_orders);
    control.send(&DriverMessage::Serving { disk: 0 }, &[])?;
    if recorded && let Ok(record) = Left::record(&*device, &*opened.controller) {
        control.send(&DriverMessage::Adoptable, &[record.as_fd()])?;
    }
    // Whatever it says next, it wants no driver any more.
    std::thread::Builder::new().spawn(move || {
        let stopped =
            matches!(control.receive::<DriverCommand>(), Ok(Some((DriverCommand::Stop, _))));
        let _ = control.send(&DriverMessage::Stopped, &[]);
        std::process::exit(i32::from(!stopped));
    })?;
    service?.run(&mut fault)?;
    Ok(())
}

fn recorder(segment: &Arc<Segment>) -> Result<Recorder> {
    let recorder = Recorder::new(segment, Some(0)).context("the stats segment has no queue")?;
    recorder.phase(Phase::Recovering);
    Ok(recorder)
}

/// The device of `lease`, whose registers may go wrong; it may have been `left` by a driver that
/// was killed, and whether it was adopted then.
fn open(
    lease: OwnedFd,
    left: Option<Left>,
    fault: &Injection,
) -> Result<(Opened, Arc<dyn Device>, bool)> {
    let device = match &left {
        Some(left) => attach_running(Lease::from(lease), &left.arena)?,
        None => attach(Lease::from(lease), None)?,
    };
    let device: Arc<dyn Device> = Arc::new(Fault::new(device, fault.plan.clone()));
    // As short a way as there is from the start to the first request: nothing is polled for.
    let settings = Settings { poll: Some(Duration::ZERO), ..Settings::default() };
    match left.and_then(|left| left.adopt(&device, &settings)) {
        Some(opened) => Ok((opened, device, true)),
        None => Ok((Driver::open(device.clone(), None, &settings)?, device, false)),
    }
}

fn disk(opened: &Opened) -> Result<&dyn Disk> {
    match opened.offers.first() {
        Some(Offer::Disk(disk)) => Ok(&**disk),
        Some(Offer::Nic(_)) | None => bail!("it has no disk that can be used"),
    }
}

fn copy(fd: impl AsFd) -> Result<OwnedFd> {
    fd.as_fd().try_clone_to_owned().context("copying a descriptor")
}

/// What goes wrong with this process.
struct Injection {
    /// `None` while nobody has said.
    orders: Option<Orders>,
    plan: Plan,
    /// To who holds the device, and over which lies are told.
    sockets: Vec<OwnedFd>,
    hog: Vec<Vec<u8>>,
}

impl Injection {
    /// What happens at the start.
    fn begin(&mut self) -> Result<()> {
        if self.orders.as_ref().is_some_and(|orders| orders.spec.at.is_none()) {
            self.inject()
        } else {
            Ok(())
        }
    }

    fn inject(&mut self) -> Result<()> {
        let Some(orders) = &self.orders else { return Ok(()) };
        let spec = &orders.spec;
        let (early, victim) = (spec.at.is_none(), Victim::own());
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
            Kind::Memory => mutate::memory(victim, spec)?,
            Kind::Code => mutate::code(victim, spec, &orders.code)?,
            Kind::Registers | Kind::Dma => self.plan.add(&rules::registers(spec, 8))?,
            // That is its holder's business.
            Kind::Device => {}
            Kind::NoMemory if early => mutate::no_memory(victim, spec.word(0) % SPARE)?,
            Kind::NoMemory => {
                mutate::no_memory(victim, 0)?;
                self.hog = mutate::hog();
            }
            Kind::NoDescriptors => mutate::no_descriptors(
                victim,
                if early { spec.word(0) % SPARE_DESCRIPTORS } else { 0 },
            )?,
            Kind::Protocol => {
                let place = spec.word(4999) as usize % self.sockets.len();
                mutate::lie(&self.sockets[place], spec, place + 1 == self.sockets.len());
            }
        }
        Ok(())
    }
}

/// Does what the application asks for.
struct Service {
    wire: Wire,
    recorder: Recorder,
    work: Work,
}

impl Service {
    /// Says that it is there, and with it whether it `has_orders`.
    fn new(disk: &dyn Disk, wire: Wire, recorder: Recorder, has_orders: u16) -> Result<Self> {
        let work = Work::new(disk, DEPTH)?;
        wire.send(&Packet {
            verb: Verb::Ready,
            tag: has_orders,
            block: work.block_size() as u64,
            data: Vec::new(),
        })?;
        Ok(Self { wire, recorder, work })
    }

    /// Until the application goes.
    fn run(&mut self, fault: &mut Injection) -> Result<()> {
        let mut due = None;
        loop {
            self.recorder.beat();
            while let Some(packet) = self.wire.receive()? {
                match packet.verb {
                    Verb::Ready => {
                        if !packet.data.is_empty() {
                            fault.orders = serde_json::from_slice(&packet.data)
                                .context("reading what will go wrong")?;
                        }
                        fault.inject()?;
                    }
                    _ => self.start(&packet)?,
                }
            }
            self.work.queue.ring();
            while let Some(done) = self.work.queue.reap_one()? {
                let (packet, errno) = self.work.finish(done)?;
                self.recorder.ended(packet.tag, errno, self.work.block_size() as u32);
                self.wire.send(&packet)?;
            }
            let now = Instant::now();
            if due.is_none_or(|due| due <= now) {
                self.recorder.phase(Phase::Recovering);
                due = self.work.queue.tick(now)?;
            }
            self.recorder.phase(Phase::Waiting);
            self.sleep(due)?;
            self.recorder.phase(Phase::Working);
        }
    }

    fn start(&mut self, packet: &Packet) -> Result<()> {
        let operation = match packet.verb {
            Verb::Write => ring3_stats::Operation::Write,
            _ => ring3_stats::Operation::Read,
        };
        self.recorder.started(packet.tag, operation, packet.block, 1);
        self.work.start(packet)
    }

    /// Until there is something to do, or it is time to show that it lives.
    fn sleep(&mut self, due: Option<Instant>) -> Result<()> {
        if self.work.queue.in_flight() > 0 {
            self.work.queue.wait(Deadline::after(BEAT).sooner(due))?;
            return Ok(());
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: IDLE.as_nanos() as i64 };
        match poll(&mut [PollFd::new(&self.wire, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
