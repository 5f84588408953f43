//! Keepers of a model's device, with processes as drivers that behave, or do not. What the disks
//! become is a note in a list: no kernel device is there.
//!
//! The drivers' program is this test itself, with the words that the keeper gives it.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring3_control::admin::Reply;
use ring3_control::drive::{DriverCommand, DriverMessage, Offered, OfferedDisk, Serve};
use ring3_control::status::{DeviceStatus, DiskStatus, State};
use ring3_device::Device;
use ring3_device::dma::PersistentWords;
use ring3_lease::Channel;
use ring3_sandbox::Program;
use ring3_stats::{Operation, Phase, Recorder, Segment};
use ring3_supervisor::export::{CancelFlags, Export, Refusal, ServeRequest, StatusSource};
use ring3_supervisor::keeper::{self, Handle, KeeperCommand, KeeperOptions};
use ring3_supervisor::manifest;
use ring3_supervisor::policy::Sleep;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes on the busiest host.
const PATIENCE: Duration = Duration::from_secs(60);

/// A driver process, if a keeper has started this.
#[test]
fn driver_process() {
    let Some(manner) =
        std::env::args().find_map(|word| word.strip_prefix("manner=").map(str::to_owned))
    else {
        return;
    };
    if manner == "exits" {
        std::process::exit(3);
    }
    // SAFETY: the keeper has started this process with it, and nobody else has taken it.
    let control = Channel::new(unsafe { OwnedFd::from_raw_fd(3) }, PATIENCE, false).unwrap();
    println!("a driver that {manner}");
    drive(&control, &manner);
    std::process::exit(0);
}

/// What a driver does, as far as its keeper sees it; the first life of one that is not well
/// differs.
fn drive(control: &Channel, manner: &str) -> Option<()> {
    let next = || control.receive::<DriverCommand>().ok().flatten();
    let say = |report: &DriverMessage| control.send(report, &[]).ok();
    let (_, fds) = next()?;
    let segment = Arc::new(Segment::open(fds.into_iter().next()?).ok()?);
    let recorder = Recorder::new(&segment, Some(0))?;
    if manner == "lies at once" {
        say(&DriverMessage::Serving { disk: 7 })?;
    }
    say(&DriverMessage::Standby)?;
    let (order, fds) = next()?;
    let adopted = matches!(order, DriverCommand::Drive { adopt: true, .. }) && fds.len() == 2;
    let lease = fds.into_iter().next()?;
    if manner == "dies when it drives" {
        std::process::abort();
    }
    let device = ring3_backend::attach(lease.into(), None).ok()?;
    let disks = match manner {
        "offers many" => vec![disk(); 17],
        "comes back as another disk" if came_before(&*device) => {
            vec![OfferedDisk { identity: "the second".into(), ..disk() }]
        }
        "comes back larger and with a second disk" if came_before(&*device) => {
            vec![OfferedDisk { blocks: 2000, ..disk() }, disk()]
        }
        _ => vec![disk()],
    };
    say(&DriverMessage::Offers {
        disks,
        nics: Vec::new(),
        refused: Vec::new(),
        adopted: adopted && manner == "records",
    })?;
    loop {
        let (order, _) = next()?;
        match order {
            DriverCommand::Serve(Serve { disk, .. }) => {
                say(&DriverMessage::Serving { disk })?;
                recorder.started(5, Operation::Write, 4711, 8);
                recorder.phase(if manner == "stands still" { Phase::Working } else { Phase::Idle });
                match manner {
                    "talks garbage" => drop(rustix::net::send(
                        control,
                        b"{garbage",
                        rustix::net::SendFlags::NOSIGNAL,
                    )),
                    "says what makes no sense" => drop(say(&DriverMessage::Standby)),
                    "tells of a link" => drop(say(&linked())),
                    "records" | "records what it cannot adopt" => record(control, 1)?,
                    "records twice" => record(control, 2)?,
                    // No signal but SIGKILL comes to it from outside: it is the first of its
                    // namespace.
                    "records and aborts" => {
                        record(control, 1)?;
                        std::thread::sleep(Duration::from_secs(1));
                        std::process::abort();
                    }
                    "records nothing" => drop(say(&DriverMessage::Adoptable)),
                    "floods" => {
                        while say(&DriverMessage::Event { text: "x".repeat(100) }).is_some() {}
                    }
                    "closes its socket" => {
                        control.close();
                        std::thread::sleep(PATIENCE);
                    }
                    _ => {}
                }
            }
            DriverCommand::Leave if manner.starts_with("leaves") => {
                let file = rustix::fs::memfd_create("saved", MemfdFlags::CLOEXEC).ok()?;
                let kept = Some(device).filter(|_| manner == "leaves with its lease");
                control.send(&DriverMessage::Left, &[file.as_fd()]).ok()?;
                std::thread::sleep(PATIENCE);
                drop(kept);
                return Some(());
            }
            DriverCommand::Stop | DriverCommand::Rest if manner != "does not rest" => {
                say(&DriverMessage::Stopped)?;
                drop(device);
                return Some(());
            }
            DriverCommand::Rest => std::thread::sleep(PATIENCE),
            _ => return None,
        }
    }
}

/// Whether a driver has been there before, by a word of the device's that outlives drivers.
fn came_before(device: &dyn Device) -> bool {
    let (kept, last) =
        (device.dma().arena().persistent_words().unwrap(), PersistentWords::WORDS - 1);
    let before = kept.load(last);
    kept.store(last, 1);
    before == 1
}

/// Says by what its device could be adopted.
fn record(control: &Channel, times: usize) -> Option<()> {
    let file = rustix::fs::memfd_create("record", MemfdFlags::CLOEXEC).ok()?;
    (0..times).try_for_each(|_| control.send(&DriverMessage::Adoptable, &[file.as_fd()]).ok())
}

/// A card's link is there.
fn linked() -> DriverMessage {
    DriverMessage::Link { nic: 0, up: true, speed: Some(1000), full_duplex: Some(true) }
}

fn disk() -> OfferedDisk {
    OfferedDisk {
        name: "the disk".into(),
        model: "model".into(),
        serial: "serial".into(),
        identity: "the first".into(),
        block_size: 512,
        blocks: 1000,
        max_queues: 1,
        max_transfer: 4096,
        optimal_io: 512,
        boundary: 0,
        volatile_cache: false,
        fua: false,
        max_write_zeroes_blocks: 0,
        discard: None,
        read_only: false,
        rotates: false,
    }
}

/// What the disks become: a list of what was done with them.
#[derive(Clone, Default)]
struct Notes {
    done: Arc<Mutex<Vec<&'static str>>>,
    used: Arc<AtomicBool>,
    /// Somebody has the number that it is to have.
    taken: Arc<AtomicBool>,
    in_flight: Arc<AtomicU64>,
}

impl Notes {
    fn note(&self, what: &'static str) {
        self.done.lock().unwrap().push(what);
    }

    fn count(&self, what: &str) -> usize {
        self.done.lock().unwrap().iter().filter(|done| **done == what).count()
    }
}

impl Export for Notes {
    fn create(&mut self, _: &Offered, _: &CancelFlags) -> Result<(), Refusal> {
        if self.taken.load(Ordering::Relaxed) {
            return Err(Refusal::Busy("md0 has the old one open".into()));
        }
        self.note("create");
        Ok(())
    }

    fn recover(&mut self, _: &CancelFlags) -> Result<(), String> {
        self.note("recover");
        Ok(())
    }

    fn serve(&mut self, offered: &Offered) -> Result<Vec<ServeRequest>, String> {
        self.note("serve");
        let serve = |disk| Serve {
            disk,
            id: 0,
            queues: 1,
            depth: 1,
            buffer: 4096,
            cpus: vec![vec![0]],
            encoded: true,
            batches: false,
        };
        let file = || rustix::fs::memfd_create("disk", MemfdFlags::CLOEXEC).unwrap();
        let given = |place| ServeRequest {
            place,
            order: DriverCommand::Serve(serve(place)),
            fds: vec![file()],
        };
        Ok((0..offered.disks.len() as u16).map(given).collect())
    }

    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String> {
        self.note("start");
        Ok(Arc::new(self.clone()))
    }

    fn stop(&mut self, force: bool) -> Result<(), Refusal> {
        if self.used.load(Ordering::Relaxed) && !force {
            return Err(Refusal::Busy("somebody uses it".into()));
        }
        self.note("stop");
        Ok(())
    }
}

impl StatusSource for Notes {
    fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn disks(&self) -> Vec<DiskStatus> {
        Vec::new()
    }
}

struct Bed {
    keeper: Handle,
    notes: Notes,
}

/// A keeper of `sim:nvme`, on these terms.
fn bed(manner: &str, terms: &str) -> Bed {
    let text = format!(
        "[device.disk]\nmatch = \
        {{ device = \"sim:nvme,size=1M\" }}\n[device.disk.restart]\nbackoff_ms = 10\nheartbeat_ms \
        = 1000\n{terms}"
    );
    let device = manifest::parse(&text).unwrap().remove(0);
    let manner = format!("manner={manner}");
    let words = ["keeper", "driver_process", "--exact", "--nocapture", "--test-threads=1", &manner];
    let argv = words.into_iter().map(|word| CString::new(word).unwrap()).collect();
    let program = Arc::new(Program::open(std::env::current_exe().unwrap()).unwrap());
    let notes = Notes::default();
    let setup =
        KeeperOptions { device, program, argv, unconfined: true, taken: Default::default() };
    Bed { keeper: keeper::start(setup, Box::new(notes.clone())).unwrap(), notes }
}

impl Bed {
    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&DeviceStatus) -> bool) -> DeviceStatus {
        let since = Instant::now();
        loop {
            let status = self.keeper.shared.now();
            if is_so(&status) {
                return status;
            }
            assert!(since.elapsed() < PATIENCE, "not {what}: {status:#?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Served, and the next one waits.
    #[track_caller]
    fn ready(&self) -> DeviceStatus {
        self.until("ready", |status| status.state == State::Running && status.standby != 0)
    }

    #[track_caller]
    fn replaced(&self, times: u64) -> DeviceStatus {
        self.until("replaced", |status| {
            status.state == State::Running && status.restarts >= times && status.standby != 0
        })
    }

    fn log(&self) -> String {
        self.keeper.shared.journal().last(2000, 1 << 20).join("\n")
    }

    fn ask(&self, ask: impl FnOnce(keeper::Answer) -> KeeperCommand) -> Reply {
        let (tell, reply) = channel();
        self.keeper.ask(ask(Box::new(move |reply| drop(tell.send(reply)))));
        reply.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer\n{}", self.log()))
    }

    fn stop(&self, force: bool) -> Reply {
        self.ask(|answer| KeeperCommand::Stop { force, answer })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.keeper.ask(KeeperCommand::End { force: true, answer: Box::new(drop) });
        let since = Instant::now();
        while !self.keeper.has_ended() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Stops the process, and waits until none of its threads runs: on a busy machine one does for a
/// while.
#[track_caller]
fn halt(pid: u32) {
    signal(pid, Signal::STOP);
    let stands = |thread: &std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
    };
    let since = Instant::now();
    while !std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .all(|thread| stands(&thread.unwrap()))
    {
        assert!(since.elapsed() < PATIENCE, "{pid} does not stand still");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signals_of(mut pids: VecDeque<u32>) {
    while let Some(pid) = pids.pop_front() {
        signal(pid, Signal::KILL);
    }
}

#[test]
fn a_driver_that_is_killed_is_fenced_and_replaced_by_the_one_that_waits() {
    let bed = bed("works", "");
    let before = bed.ready();
    signal(before.pid, Signal::KILL);
    let after = bed.replaced(1);
    assert_eq!(after.pid, before.standby);
    let outage = &after.outages[0];
    assert!(
        outage.total_ms.is_some_and(|ms| ms >= outage.fence_ms)
            && outage.cause.contains("SIGKILL")
            && !outage.reset,
        "{outage:?}"
    );
    assert_eq!(
        (bed.notes.count("create"), bed.notes.count("recover"), bed.notes.count("start")),
        (1, 1, 2)
    );
    let log = bed.log();
    assert!(log.contains("Write block 4711 + 8") && log.contains("a driver that works"), "{log}");
}

#[test]
fn from_a_driver_that_is_killed_the_next_one_adopts_the_device_or_stops_it_itself_and_the_log_says_which()
 {
    for (manner, adopted, says) in [
        ("records", true, "has adopted the device: it was not stopped"),
        (
            "records what it cannot adopt",
            false,
            "could not adopt the device, and has stopped and started it",
        ),
    ] {
        let bed = bed(manner, "burst = 100\nadopt = true");
        for times in 1..4 {
            signal(bed.ready().pid, Signal::KILL);
            let after = bed.replaced(times);
            assert_eq!(
                (after.outages[0].adopted, after.outages[0].fence_ms),
                (adopted, 0.0),
                "{:?}",
                after.outages[0]
            );
        }
        assert_eq!(bed.log().matches(says).count(), 3);
    }
}

#[test]
fn a_driver_that_dies_of_its_own_fault_or_has_recorded_nothing_or_whose_manifest_says_so_is_fenced()
{
    for (manner, terms) in
        [("records and aborts", "adopt = true"), ("works", "adopt = true"), ("works", "")]
    {
        let bed = bed(manner, terms);
        let before = bed.ready();
        if manner == "works" {
            signal(before.pid, Signal::KILL);
        }
        let after = bed.replaced(before.restarts + 1);
        assert!(
            !after.outages[0].adopted && after.outages[0].fence_ms > 0.0,
            "{manner} {terms} {:?}",
            after.outages[0]
        );
    }
}

#[test]
fn a_record_that_nobody_asked_for_or_that_comes_twice_or_without_a_file_breaks_the_protocol() {
    for (manner, terms) in
        [("records", ""), ("records twice", "adopt = true"), ("records nothing", "adopt = true")]
    {
        let bed = bed(manner, terms);
        bed.until("ended", |status| status.restarts > 0);
        assert!(
            bed.log().contains("breaks the protocol, and is ended: it says Adoptable now"),
            "{}",
            bed.log()
        );
    }
}

#[test]
fn two_kills_in_a_row_and_the_death_of_the_standby_are_survived() {
    let bed = bed("works", "burst = 100");
    for _ in 0..5 {
        let status = bed.ready();
        let killed = [status.pid, status.standby];
        signals_of(killed.into());
        // The standby may have become the driver before it was killed.
        let is_another = |now: &DeviceStatus| {
            now.standby != 0 && ![now.pid, now.standby].iter().any(|pid| killed.contains(pid))
        };
        bed.until("replaced", |now| now.state == State::Running && is_another(now));
    }
    let standby = bed.ready();
    signal(standby.standby, Signal::KILL);
    let after =
        bed.until("a new standby", |status| ![0, standby.standby].contains(&status.standby));
    assert_eq!(
        (after.pid, after.restarts),
        (standby.pid, standby.restarts),
        "the driver does not notice"
    );
}

#[test]
fn an_idle_driver_that_was_stopped_is_replaced_once_the_kernel_has_requests_for_it() {
    let bed = bed("works", "");
    let before = bed.ready();
    halt(before.pid);
    std::thread::sleep(Duration::from_millis(3000));
    assert_eq!(bed.keeper.shared.now().pid, before.pid, "nothing is wanted of it");
    bed.notes.in_flight.store(3, Ordering::Relaxed);
    bed.until("replaced", |status| status.restarts == 1);
    bed.notes.in_flight.store(0, Ordering::Relaxed);
    assert!(bed.log().contains("3 requests wait in the kernel"), "{}", bed.log());
}

#[test]
fn a_driver_that_stands_still_is_killed_and_named() {
    let bed = bed("stands still", "burst = 1\ndeadline_s = 1");
    bed.until("given up", |status| status.state == State::Failed);
    assert!(bed.log().contains("has not moved for"), "{}", bed.log());
}

#[test]
fn who_breaks_the_protocol_is_killed_and_named() {
    for manner in
        ["talks garbage", "says what makes no sense", "tells of a link", "floods", "lies at once"]
    {
        let bed = bed(manner, "burst = 1\ndeadline_s = 1");
        bed.until("given up", |status| status.state == State::Failed);
        assert!(bed.log().contains("breaks the protocol, and is ended"), "{manner}: {}", bed.log());
    }
}

#[test]
fn a_driver_that_closes_its_socket_is_replaced() {
    let bed = bed("closes its socket", "burst = 1\ndeadline_s = 1");
    bed.until("given up", |status| status.state == State::Failed);
    assert!(bed.log().contains("SIGKILL"), "{}", bed.log());
}

#[test]
fn a_program_that_exits_at_its_start_is_given_up_and_the_log_says_how() {
    for (manner, how) in
        [("exits", "ended with exit code 3"), ("dies when it drives", "was ended by signal")]
    {
        let bed = bed(manner, "burst = 2");
        bed.until("given up", |status| status.state == State::Failed);
        assert!(bed.log().contains(how), "{manner}: {}", bed.log());
        assert_eq!((bed.notes.count("start"), bed.keeper.shared.now().standby), (0, 0));
    }
}

#[test]
fn a_driver_that_dies_too_often_is_given_up_at_the_deadline_and_a_user_may_try_again() {
    let bed = bed("works", "burst = 1\ndeadline_s = 2");
    signal(bed.ready().pid, Signal::KILL);
    signal(bed.replaced(1).pid, Signal::KILL);
    let died = Instant::now();
    bed.until("backing off", |status| status.state == State::BackingOff);
    bed.until("given up", |status| status.state == State::Failed);
    assert!(died.elapsed() > Duration::from_millis(1900));
    assert_eq!(bed.notes.count("stop"), 1, "users have got errors");
    assert_eq!(bed.keeper.shared.now().outages[0].total_ms, None);
    assert_eq!(bed.ask(KeeperCommand::Restart), Reply::Done);
    assert_eq!((bed.ready().state, bed.notes.count("create")), (State::Running, 2));
}

#[test]
fn a_user_restarts_and_stops_a_device_and_is_told_who_uses_it() {
    let bed = bed("works", "");
    let before = bed.ready();
    assert_eq!(bed.ask(KeeperCommand::Restart), Reply::Done);
    assert_ne!(bed.ready().pid, before.pid);
    bed.notes.used.store(true, Ordering::Relaxed);
    assert!(matches!(
        bed.stop(false),
        Reply::Refused(why) if why.contains("somebody uses it") && why.contains("--force"),
    ));
    assert_eq!(bed.ready().state, State::Running);
    assert_eq!(bed.stop(true), Reply::Done);
    let stopped = bed.keeper.shared.now();
    assert_eq!((stopped.state, stopped.pid, stopped.standby), (State::Stopped, 0, 0));
    assert_eq!(bed.ask(KeeperCommand::Restart), Reply::Done);
    assert_eq!(bed.ready().state, State::Running);
}

#[test]
fn a_driver_that_says_that_it_has_left_and_keeps_its_lease_is_replaced_once_it_has_ended() {
    let bed = bed("leaves with its lease", "");
    let before = bed.ready();
    let upgraded = bed.ask(|answer| KeeperCommand::Upgrade { program: None, answer });
    assert!(matches!(upgraded, Reply::Upgraded { .. }), "{upgraded:?}\n{}", bed.log());
    let after = bed.ready();
    assert!((after.upgrades, after.restarts) == (1, 0) && after.pid != before.pid, "{}", bed.log());
}

#[test]
fn a_program_is_replaced_without_a_fence_and_one_that_does_not_do_goes_back() {
    let bed = bed("leaves", "");
    let before = bed.ready();
    let upgraded = bed.ask(|answer| KeeperCommand::Upgrade { program: None, answer });
    assert!(
        matches!(upgraded, Reply::Upgraded { stall_ms } if stall_ms > 0.0),
        "{upgraded:?}\n{}",
        bed.log()
    );
    let after = bed.ready();
    assert_eq!((after.upgrades, after.restarts), (1, 0));
    assert_ne!(after.pid, before.pid);
    let wrong =
        bed.ask(|answer| KeeperCommand::Upgrade { program: Some("/bin/true".into()), answer });
    assert!(matches!(wrong, Reply::Refused(why) if why.contains("old one drives")));
    assert_eq!(bed.ready().pid, after.pid, "it was not touched");
    let nothing = bed
        .ask(|answer| KeeperCommand::Upgrade { program: Some("/no/such/program".into()), answer });
    assert!(matches!(nothing, Reply::Refused(why) if why.contains("/no/such/program")));
}

#[test]
fn an_upgrade_whose_old_driver_is_killed_meanwhile_says_that_the_new_one_drives() {
    let bed = bed("works", "");
    let (tell, reply) = channel();
    let before = bed.ready();
    bed.keeper.ask(KeeperCommand::Upgrade {
        program: None,
        answer: Box::new(move |reply| drop(tell.send(reply))),
    });
    signal(before.pid, Signal::KILL);
    let reply = reply.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(reply, Reply::Upgraded { .. }), "{reply:?}\n{}", bed.log());
    assert_eq!(bed.ready().upgrades, 1);
}

#[test]
fn a_driver_that_does_not_hear_that_it_is_to_stop_ends_once_somebody_insists() {
    let bed = bed("works", "");
    halt(bed.ready().pid);
    let (tell, reply) = channel();
    bed.keeper.ask(KeeperCommand::End {
        force: false,
        answer: Box::new(move |reply| drop(tell.send(reply))),
    });
    bed.until("stopping", |status| status.state == State::Stopping);
    assert!(reply.recv_timeout(Duration::from_millis(500)).is_err(), "its driver has time");
    bed.keeper.ask(KeeperCommand::ForceStop);
    assert_eq!(reply.recv_timeout(PATIENCE), Ok(Reply::Done), "{}", bed.log());
    bed.until("ended", |_| bed.keeper.has_ended());
}

#[test]
fn a_driver_that_offers_more_disks_than_it_may_have_is_ended_and_named() {
    let bed = bed("offers many", "burst = 1\ndeadline_s = 1");
    bed.until("given up", |status| status.state == State::Failed);
    assert!(bed.log().contains("offers 17 disks, and limits.disks allows 16"), "{}", bed.log());
}

#[test]
fn a_disk_that_is_another_one_after_its_driver_has_died_is_not_given_to_users() {
    let bed = bed("comes back as another disk", "burst = 1\ndeadline_s = 1");
    signal(bed.ready().pid, Signal::KILL);
    bed.until("given up", |status| status.state == State::Failed);
    assert_eq!(bed.notes.count("serve"), 1, "the first driver's");
    assert!(bed.log().contains("it is \"the second\", and was \"the first\""), "{}", bed.log());
}

#[test]
fn a_disk_that_is_larger_and_no_longer_alone_after_its_driver_has_died_goes_on() {
    let bed = bed("comes back larger and with a second disk", "");
    signal(bed.ready().pid, Signal::KILL);
    bed.replaced(1);
    assert!(bed.log().contains("is new: ring3 stop disk and ring3 restart disk"), "{}", bed.log());
}

#[test]
fn what_somebody_else_has_ends_the_start_and_who_asked_is_told_by_whom() {
    let bed = bed("works", "");
    bed.ready();
    assert_eq!(bed.stop(true), Reply::Done);
    bed.notes.taken.store(true, Ordering::Relaxed);
    let before = bed.keeper.shared.now().restarts;
    let reply = bed.ask(KeeperCommand::Restart);
    assert!(
        matches!(&reply, Reply::Refused(why) if why.contains("md0 has the old one open")),
        "{reply:?}"
    );
    let status = bed.until("given up", |status| status.state == State::Failed);
    assert_eq!(status.restarts, before, "no driver after the other");
    bed.notes.taken.store(false, Ordering::Relaxed);
    assert_eq!(bed.ask(KeeperCommand::Restart), Reply::Done);
}

#[test]
fn before_the_machine_sleeps_a_driver_stops_its_device_which_is_no_death_and_the_disk_is_there_when_it_wakes()
 {
    let bed = bed("works", "");
    let before = bed.ready();
    assert_eq!(
        bed.ask(|answer| KeeperCommand::Sleep { sleep: Sleep::Stopped, answer }),
        Reply::Done
    );
    let asleep = bed.until("asleep", |status| status.state == State::Sleeping);
    assert_eq!((asleep.pid, asleep.standby), (0, before.standby));
    assert!(
        matches!(bed.ask(KeeperCommand::Restart), Reply::Refused(why) if why.contains("ring3 wake"))
    );
    bed.keeper.ask(KeeperCommand::Wake);
    let after = bed.ready();
    assert_eq!((after.pid, after.restarts, bed.notes.count("stop")), (before.standby, 0, 0));
    assert_eq!(
        (bed.notes.count("create"), bed.notes.count("recover"), bed.notes.count("start")),
        (1, 1, 2)
    );
}

#[test]
fn a_driver_that_does_not_stop_its_device_before_the_machine_sleeps_is_killed_for_it() {
    let bed = bed("does not rest", "");
    bed.ready();
    assert_eq!(
        bed.ask(|answer| KeeperCommand::Sleep { sleep: Sleep::Stopped, answer }),
        Reply::Done
    );
    assert_eq!(bed.until("asleep", |status| status.state == State::Sleeping).pid, 0);
}

#[test]
fn a_driver_that_drove_through_a_hibernation_is_replaced_and_its_device_fenced() {
    let bed = bed("works", "");
    let before = bed.ready();
    assert_eq!(
        bed.ask(|answer| KeeperCommand::Sleep { sleep: Sleep::Driven, answer }),
        Reply::Done
    );
    assert_eq!(bed.keeper.shared.now().pid, before.pid);
    bed.keeper.ask(KeeperCommand::Wake);
    bed.until("replaced", |status| status.state == State::Running && status.pid == before.standby);
}
