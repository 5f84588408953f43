//! A device that a keeper of ring3d's holds, with all that ring3d does for one: standby, fence,
//! policy, health, protocol. Only what its users have is another thing: a socket in the place of
//! the kernel's block device.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use ring3_control::drive::{DriverCommand, Offered, Serve};
use ring3_control::status::{DeviceStatus, DiskStatus, State};
use ring3_faults::{Kind, Spec, Verb, Wire};
use ring3_model::fault::FaultPlan;
use ring3_sandbox::Program;
use ring3_supervisor::export::{CancelFlags, Export, Refusal, ServeRequest, StatusSource};
use ring3_supervisor::keeper::{self, Handle, KeeperCommand, KeeperOptions};
use ring3_supervisor::manifest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::bench::Place;
use super::life::Orders;
use super::work::DEPTH;
use crate::job::Job;

/// How long a driver may take to come, with all the tries that ring3d makes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of ring3d's log that are looked at.
const LINES: usize = 60;
const ROOM: usize = 64 << 10;
/// What a driver may do: hardly anything is given up here, since faults come faster than any
/// device's. No progress is seen after twice `recovery_ms`.
const TERMS: &str = "burst = 1000000\nwindow_s = 1\nbackoff_ms = 1\nbackoff_max_ms = \
                     50\ndeadline_s = 50\nheartbeat_ms = 1000\nrecovery_ms = 3000\nadopt = true";

/// The keeper, and the drivers that serve.
pub struct Kept {
    keeper: Handle,
    wires: Receiver<Wire>,
    /// The driver that waits for the next fault.
    wire: Option<Wire>,
    /// What the next driver takes with it.
    orders: PathBuf,
    in_flight: Arc<AtomicU64>,
    /// Deaths that were looked at.
    seen: u64,
}

/// What stands for the kernel's device.
struct Plug {
    wires: Sender<Wire>,
    next: Option<Wire>,
    plan: FaultPlan,
    in_flight: Arc<AtomicU64>,
}

impl Export for Plug {
    fn create(&mut self, _: &Offered, _: &CancelFlags) -> Result<(), Refusal> {
        Ok(())
    }

    fn recover(&mut self, _: &CancelFlags) -> Result<(), String> {
        self.plan.clear();
        Ok(())
    }

    fn serve(&mut self, _: &Offered) -> Result<Vec<ServeRequest>, String> {
        let (wire, end) = Wire::pair().map_err(|error| error.to_string())?;
        self.next = Some(wire);
        let serve = Serve {
            disk: 0,
            id: 0,
            queues: 1,
            depth: DEPTH,
            buffer: 4096,
            cpus: vec![vec![0]],
            encoded: true,
            batches: false,
        };
        Ok(vec![ServeRequest { place: 0, order: DriverCommand::Serve(serve), fds: vec![end] }])
    }

    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String> {
        let wire = self.next.take().ok_or("there is no driver")?;
        self.wires.send(wire).map_err(|error| error.to_string())?;
        Ok(Arc::new(Eye(self.in_flight.clone())))
    }

    fn stop(&mut self, _: bool) -> Result<(), Refusal> {
        Ok(())
    }
}

/// What an application has under way.
struct Eye(Arc<AtomicU64>);

impl StatusSource for Eye {
    fn in_flight(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn disks(&self) -> Vec<DiskStatus> {
        Vec::new()
    }
}

/// What became of a driver that was started for a fault.
pub enum Begun {
    /// It serves.
    Serves(Wire),
    /// It has died of the fault before, by what that was seen, and how long users waited.
    Died(Death),
}

/// The end of a driver, as ring3d has seen it.
#[derive(Debug)]
pub struct Death {
    pub by: &'static str,
    pub text: String,
    /// From its being seen until the next one served.
    pub outage: Option<Duration>,
}

impl Kept {
    /// Has ring3d keep `device`.
    pub fn new(device: &str, place: Place<'_>, plan: FaultPlan) -> Result<Self> {
        let name = place.name.to_lowercase();
        let text = format!(
            "[device.{name}]\nmatch = {{ device = {device:?} \
             }}\n[device.{name}.restart]\n{TERMS}\n[device.{name}.export]\ndepth = 16\n"
        );
        let device = manifest::parse(&text).map_err(|reason| anyhow!(reason))?.remove(0);
        let orders = place.file("orders");
        let words = Job::Kept { orders: orders.clone() }.words()?;
        let argv = ["ring3".to_owned()].into_iter().chain(words).map(CString::new);
        let argv = argv.collect::<Result<_, _>>()?;
        let program =
            Arc::new(Program::open(std::env::current_exe().context("finding this program")?)?);
        let (sender, wires) = channel();
        let in_flight = Arc::new(AtomicU64::new(0));
        let plug = Plug { wires: sender, next: None, plan, in_flight: in_flight.clone() };
        let setup =
            KeeperOptions { device, program, argv, unconfined: true, taken: Default::default() };
        let keeper =
            keeper::start(setup, Box::new(plug)).context("starting a keeper of ring3d's")?;
        Ok(Self { keeper, wires, wire: None, orders, in_flight, seen: 0 })
    }

    /// A driver to which `spec` happens: the one that serves, or the next one if it happens at the
    /// start.
    pub fn start(&mut self, orders: &Orders) -> Result<Begun> {
        let spec = &orders.spec;
        if spec.at.is_some() {
            return Ok(Begun::Serves(self.serving()?.0));
        }
        let (held, _) = self.serving()?;
        if spec.kind != Kind::Kill {
            std::fs::write(&self.orders, serde_json::to_vec(orders)?)
                .context("leaving a driver its orders")?;
        }
        let before = self.seen;
        self.kill()?;
        self.death(before)?;
        drop(held);
        if spec.kind == Kind::Kill {
            // Whoever is there then: the one that starts, or that serves already.
            std::thread::sleep(Duration::from_micros(spec.word(0) % 20_000));
            let before = self.seen;
            self.kill()?;
            return self.death(before).map(Begun::Died);
        }
        let (wire, has_orders) = self.serving()?;
        if has_orders {
            return Ok(Begun::Serves(wire));
        }
        self.wire = Some(wire);
        Ok(Begun::Died(self.describe()))
    }

    /// The way to a driver that serves, and whether it has taken orders.
    fn serving(&mut self) -> Result<(Wire, bool)> {
        if let Some(wire) = self.wire.take()
            && wire.receive() == Ok(None)
        {
            return Ok((wire, false));
        }
        let since = Instant::now();
        loop {
            let Ok(wire) = self.wires.recv_timeout(Duration::from_millis(100)) else {
                self.lost(since)?;
                continue;
            };
            let look = Timespec { tv_sec: 10, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&wire, PollFlags::IN)], Some(&look));
            match wire.receive() {
                // All deaths before this one's are counted, as ring3d has started it after them.
                Ok(Some(packet)) if packet.verb == Verb::Ready && wire.receive() == Ok(None) => {
                    self.seen = self.status().restarts;
                    return Ok((wire, packet.tag != 0));
                }
                // It was another driver's, which is dead.
                _ => self.lost(since)?,
            }
        }
    }

    /// Fails if there is no use in waiting for a driver.
    fn lost(&self, since: Instant) -> Result<()> {
        let status = self.status();
        match status.state {
            _ if self.keeper.has_ended() => panic!("a keeper of ring3d's has ended by itself"),
            State::Failed | State::Stopped => bail!("ring3d has given the device up"),
            _ if since.elapsed() > PATIENCE => {
                bail!("no driver serves, and ring3d says: {:?}", status.state)
            }
            _ => Ok(()),
        }
    }

    /// Ends the driver that ring3d has now, as anybody could.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.status().pid;
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        // One that is dead already needs none; and the number is not another's, as ring3d still
        // holds it.
        let sent =
            pidfd_open(pid, PidfdFlags::empty()).and_then(|pidfd| pidfd_send_signal(pidfd, signal));
        if self.status().pid == pid.as_raw_nonzero().get() as u32 {
            sent.or(Ok(()))
        } else {
            Ok(())
        }
    }

    /// How the driver after `before` deaths has ended, once ring3d serves users again.
    pub fn death(&mut self, before: u64) -> Result<Death> {
        let since = Instant::now();
        loop {
            let status = self.status();
            if status.restarts > before && status.state == State::Running {
                let death = self.describe();
                self.seen = status.restarts;
                return Ok(death);
            }
            self.lost(since)?;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Deaths that were looked at.
    pub fn deaths(&self) -> u64 {
        self.seen
    }

    fn describe(&self) -> Death {
        let status = self.status();
        let outage = status.outages.first();
        let cause = outage.map(|outage| outage.cause.clone()).unwrap_or_default();
        let end = status.last_end.clone().unwrap_or_default();
        let (by, said) = seen_by(&end, self.keeper.shared.journal().last(LINES, ROOM));
        let ms = outage.and_then(|outage| outage.total_ms);
        Death {
            by,
            text: format!("{cause}; {end}\n{said}"),
            outage: ms.map(|ms| Duration::from_secs_f64(ms / 1e3)),
        }
    }

    /// The last that ring3d has to say of it.
    pub fn said(&self) -> String {
        self.keeper.shared.journal().last(LINES, ROOM).join("\n")
    }

    fn status(&self) -> DeviceStatus {
        self.keeper.shared.now()
    }

    /// Tells ring3d what its users wait for.
    pub fn wait_for(&self, requests: u64) {
        self.in_flight.store(requests, Ordering::Relaxed);
    }
}

/// By what ring3d has seen the end of a driver of which it says `end`, and what of its log is about
/// that one.
pub fn seen_by(end: &str, log: Vec<String>) -> (&'static str, String) {
    // Only what this one has said, or what was said of it.
    let pid = end.split_whitespace().nth(1).unwrap_or("nobody");
    let (own, of) = (format!(" {pid}: "), format!("driver {pid} "));
    let said = log
        .into_iter()
        .filter(|line| line.contains(&own) || line.contains(&of))
        .collect::<Vec<_>>()
        .join("\n");
    let has = |text: &str| said.contains(text);
    let by = match () {
        () if has("none has ended") => "progress",
        () if has("taken for dead") => "heartbeat",
        () if has("breaks the protocol") || has("its lease has ended") => "protocol",
        () if has("a bug:") => "panic",
        () if end.contains("by signal") => "signal",
        () => "exit",
    };
    (by, said)
}

/// Whether `spec` is done by somebody else than the driver itself.
pub fn is_outer(spec: &Spec) -> Option<Signal> {
    match spec.kind {
        Kind::Kill => Some(Signal::KILL),
        Kind::Stop => Some(Signal::STOP),
        _ => None,
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.keeper.ask(KeeperCommand::End { force: true, answer: Box::new(drop) });
        let since = Instant::now();
        while !self.keeper.has_ended() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
