//! A driver of ring3d's, to which things happen.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_bench::kill::now;
use ring3_control::status::DeviceStatus;
use ring3_faults::mutate::{self, Victim};
use ring3_faults::{Kind, Spec};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
    pidfd_send_signal,
};

use super::super::kept::seen_by;
use super::super::life::Orders;
use crate::bench::restart::Supervised;

/// A fault is done within so many milliseconds of load, and one of a driver that starts within so
/// many after that.
const LOAD_MS: u64 = 300;
const START_MS: u64 = 60;
/// A driver that goes on for so long has taken no notice, and is killed.
const AFTER: Duration = Duration::from_secs(1);
/// Users whose requests end within this time are served.
const SERVED: Duration = Duration::from_millis(300);
/// Longer than it takes ring3d to see any driver that hangs.
const LONGEST: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// The supervisor's socket in a driver's process.
const CONTROL: i32 = 3;
/// What a driver may have beside what it has, when it gets no more while it starts.
const SPARE: u64 = 32 << 20;
const SPARE_DESCRIPTORS: u64 = 12;

/// What became of it.
pub struct Fate {
    /// By what ring3d has seen its end; `None` if it had to be killed.
    pub by: Option<&'static str>,
    /// Where the users' outage is looked for, in nanoseconds of the clock that all share.
    pub since: u64,
}

/// Lets what is in `orders` happen to the driver of `device`, and waits for the next one.
pub fn inject(device: &mut Supervised, orders: &Orders) -> Result<Fate> {
    let spec = &orders.spec;
    let (before, life) = alive(device, spec)?;
    std::thread::sleep(Duration::from_millis(spec.word(10) % LOAD_MS));
    let pid = victim(&before, spec);
    if spec.at.is_none() {
        // If it has died by itself, its standby starts all the same.
        let _ = device.kill(&before);
        std::thread::sleep(Duration::from_millis(spec.word(11) % START_MS));
    }
    let mut since = now();
    let done = injure(Pid::from_raw(pid as i32).context("the device has no driver")?, orders);
    let died = watch(device, &life)?;
    if !died {
        since = now();
        // One that has died since needs none.
        let _ = pidfd_send_signal(&life, Signal::KILL);
    }
    replaced(device, pid, before.restarts + before.upgrades + 1)?;
    // What cannot be done to a process that has died meanwhile was too late for it.
    done.or_else(|error| if died { Ok(()) } else { Err(error) })?;
    Ok(Fate { by: died.then(|| by(device, pid)).transpose()?, since })
}

/// To which process of the device it happens: the standby is the one that starts.
fn victim(status: &DeviceStatus, spec: &Spec) -> u32 {
    if spec.at.is_none() { status.standby } else { status.pid }
}

/// The device while that process is there: ring3d may not have seen the end of one that is gone.
fn alive(device: &mut Supervised, spec: &Spec) -> Result<(DeviceStatus, OwnedFd)> {
    let began = Instant::now();
    loop {
        let status = device.ready(0)?;
        let pid =
            Pid::from_raw(victim(&status, spec) as i32).context("the device has no driver")?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(life) => return Ok((status, life)),
            Err(error) if began.elapsed() > LONGEST => return Err(error.into()),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Until the device is served by another driver than `pid`, after `ends` ends of drivers, and has a
/// standby.
fn replaced(device: &mut Supervised, pid: u32, ends: u64) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < LONGEST {
        let status = device.ready(ends)?;
        if ![status.pid, status.standby].contains(&pid) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    bail!("ring3d has not seen the end of driver {pid}")
}

/// Does it.
fn injure(pid: Pid, Orders { spec, code }: &Orders) -> Result<()> {
    let (victim, early) = (Victim::other(pid), spec.at.is_none());
    match spec.kind {
        Kind::Kill => kill_process(pid, Signal::KILL)?,
        Kind::Stop => kill_process(pid, Signal::STOP)?,
        Kind::Memory => mutate::memory(victim, spec)?,
        Kind::Code => mutate::code(victim, spec, code)?,
        Kind::NoMemory => mutate::no_memory(victim, if early { spec.word(0) % SPARE } else { 0 })?,
        Kind::NoDescriptors => mutate::no_descriptors(
            victim,
            if early { spec.word(0) % SPARE_DESCRIPTORS } else { 0 },
        )?,
        Kind::Protocol => {
            let (socket, is_lease) = socket(pid, spec)?;
            mutate::lie(&socket, spec, is_lease);
        }
        Kind::Registers | Kind::Dma | Kind::Device => {}
    }
    Ok(())
}

/// One of the sockets to ring3d, and whether it is the lease's.
fn socket(pid: Pid, spec: &Spec) -> Result<(OwnedFd, bool)> {
    let folder = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        let is_socket = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        sockets
            .extend(entry.file_name().to_string_lossy().parse::<i32>().ok().filter(|_| is_socket));
    }
    sockets.sort_unstable();
    let chosen = *sockets
        .get(
            spec.word(4999).checked_rem(sockets.len() as u64).context("the driver has no socket")?
                as usize,
        )
        .context("no socket")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok((pidfd_getfd(&pidfd, chosen, PidfdGetfdFlags::empty())?, chosen != CONTROL))
}

/// Whether the driver with `life` ends; false if that of `device` serves its users as if nothing
/// had been, or nobody sees that it does not.
fn watch(device: &mut Supervised, life: &OwnedFd) -> Result<bool> {
    let began = Instant::now();
    let mut last = (0, began);
    while began.elapsed() < LONGEST {
        if poll(&mut [PollFd::new(life, PollFlags::IN)], Some(&LOOK.try_into()?))? > 0 {
            return Ok(true);
        }
        let served = device.status()?.disks.iter().map(|disk| disk.reads + disk.writes).sum();
        if served != last.0 {
            last = (served, Instant::now());
        }
        if began.elapsed() > AFTER && last.1.elapsed() < SERVED {
            return Ok(false);
        }
    }
    Ok(false)
}

/// By what ring3d has seen the end of `device`'s driver `pid`. What it says of the last driver is
/// about another one if that was a standby yet.
fn by(device: &mut Supervised, pid: u32) -> Result<&'static str> {
    let end = device.status()?.last_end.unwrap_or_default();
    let is_its = end.split_whitespace().nth(1) == Some(pid.to_string().as_str());
    Ok(if is_its { seen_by(&end, device.log()?).0 } else { "standby" })
}

/// Whether the last driver of `device` has ended because it did not move, as it seems to when the
/// host stands still.
pub fn stood_still(device: &mut Supervised) -> Result<bool> {
    let end = device.status()?.last_end.unwrap_or_default();
    Ok(["heartbeat", "progress"].contains(&seen_by(&end, device.log()?).0))
}
