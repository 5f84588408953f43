//! What it says to its supervisor: lies, each by a process in the sandbox that a keeper has started
//! and that was honest until it served.

use std::ffi::CString;
use std::io::IoSlice;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_control::drive::{DriverCommand, DriverMessage, Offered, OfferedDisk, Serve};
use ring3_control::status::{DeviceStatus, DiskStatus, State};
use ring3_device::Device;
use ring3_lease::Channel;
use ring3_sandbox::Program;
use ring3_supervisor::export::{CancelFlags, Export, Refusal, ServeRequest, StatusSource};
use ring3_supervisor::keeper::{self, Handle, KeeperCommand, KeeperOptions};
use ring3_supervisor::manifest;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::child::confine;
use crate::guest::guest_tests;
use crate::is_child;

const PATIENCE: Duration = Duration::from_secs(60);

/// In the child: an honest driver of one disk, which serves.
struct Honest {
    control: Channel,
    _device: Arc<dyn Device>,
}

impl Honest {
    fn new() -> Self {
        let control = standby();
        let (_, fds) = control.receive::<DriverCommand>().unwrap().unwrap();
        let device = ring3_backend::attach(fds.into_iter().next().unwrap().into(), None).unwrap();
        let driver = Self { control, _device: device };
        driver.say(&offers(vec![disk()]));
        let (order, _) = driver.control.receive::<DriverCommand>().unwrap().unwrap();
        assert!(matches!(order, DriverCommand::Serve(_)), "{order:?}");
        driver.say(&DriverMessage::Serving { disk: 0 });
        // Users have it now.
        std::thread::sleep(Duration::from_millis(500));
        driver
    }

    fn say(&self, report: &DriverMessage) {
        let _ = self.control.send(report, &[]);
    }

    fn send(&self, packet: &[u8]) {
        let mut nothing = SendAncillaryBuffer::default();
        let _ = sendmsg(&self.control, &[IoSlice::new(packet)], &mut nothing, SendFlags::NOSIGNAL);
    }
}

/// In the child: confined, and told what it is to be.
fn standby() -> Channel {
    confine();
    // SAFETY: the keeper has started this process with it, and nobody else has taken it.
    let control = Channel::new(unsafe { OwnedFd::from_raw_fd(3) }, PATIENCE, false).unwrap();
    control.receive::<DriverCommand>().unwrap().unwrap();
    control.send(&DriverMessage::Standby, &[]).unwrap();
    control
}

/// In the child: what it has said was enough, or not.
fn wait() -> ! {
    std::thread::sleep(PATIENCE * 2);
    std::process::exit(0)
}

fn offers(disks: Vec<OfferedDisk>) -> DriverMessage {
    DriverMessage::Offers { disks, nics: Vec::new(), refused: Vec::new(), adopted: false }
}

fn disk() -> OfferedDisk {
    let (name, model, serial) = ("the disk".into(), "model".into(), "serial".into());
    let (block_size, blocks, max_queues, max_transfer, optimal_io) = (512, 1000, 1, 4096, 512);
    let (volatile_cache, fua, max_write_zeroes_blocks, discard) = (false, false, 0, None);
    let (read_only, rotates) = (false, false);
    OfferedDisk {
        name,
        model,
        serial,
        identity: String::new(),
        block_size,
        blocks,
        max_queues,
        max_transfer,
        optimal_io,
        boundary: 0,
        volatile_cache,
        fua,
        max_write_zeroes_blocks,
        discard,
        read_only,
        rotates,
    }
}

/// Disks that nobody has.
struct Nowhere;

impl Export for Nowhere {
    fn create(&mut self, _: &Offered, _: &CancelFlags) -> Result<(), Refusal> {
        Ok(())
    }

    fn recover(&mut self, _: &CancelFlags) -> Result<(), String> {
        Ok(())
    }

    fn serve(&mut self, offered: &Offered) -> Result<Vec<ServeRequest>, String> {
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
        let file = || memfd_create("disk", MemfdFlags::CLOEXEC).unwrap();
        let given = |place| ServeRequest {
            place,
            order: DriverCommand::Serve(serve(place)),
            fds: vec![file()],
        };
        Ok((0..offered.disks.len() as u16).map(given).collect())
    }

    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String> {
        Ok(Arc::new(Self))
    }

    fn stop(&mut self, _: bool) -> Result<(), Refusal> {
        Ok(())
    }
}

impl StatusSource for Nowhere {
    fn in_flight(&self) -> u64 {
        0
    }

    fn disks(&self) -> Vec<DiskStatus> {
        Vec::new()
    }
}

/// A keeper of a model's device, whose drivers are the test `name`.
fn keep(name: &str, more: &str) -> Handle {
    let text = format!(
        "[device.liar]\nmatch = \
        {{ device = \"sim:nvme,size=1M\" }}\n[device.liar.restart]\nbackoff_ms = 10\n{more}"
    );
    let device = manifest::parse(&text).unwrap().remove(0);
    let words = ["hostile", "--exact", name, "--ignored", "--nocapture", "--test-threads=1"];
    let argv = words.into_iter().map(|word| CString::new(word).unwrap()).collect();
    let program = Arc::new(Program::open(std::env::current_exe().unwrap()).unwrap());
    keeper::start(
        KeeperOptions { device, program, argv, unconfined: false, taken: Default::default() },
        Box::new(Nowhere),
    )
    .unwrap()
}

#[track_caller]
fn until(keeper: &Handle, what: &str, is_so: impl Fn(&DeviceStatus) -> bool) {
    let since = Instant::now();
    while !is_so(&keeper.shared.now()) {
        assert!(
            since.elapsed() < PATIENCE,
            "not {what}: {:#?}\n{}",
            keeper.shared.now(),
            log(keeper)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn log(keeper: &Handle) -> String {
    keeper.shared.journal().last(2000, 1 << 20).join("\n")
}

/// Drivers of the test `name` are ended for `why`, each is followed by another, and the keeper
/// lives.
#[track_caller]
fn assert_ended(name: &str, why: &str) {
    let keeper = keep(name, "burst = 1000");
    until(&keeper, "replaced", |status| status.restarts >= 2);
    let log = log(&keeper);
    assert!(log.matches(why).count() >= 2, "{why:?} is not there twice:\n{log}");
    assert!(log.contains("was ended by signal 9"), "{log}");
    // It answers, and it ends when it is told to.
    keeper.ask(KeeperCommand::End { force: true, answer: Box::new(drop) });
    let since = Instant::now();
    while !keeper.has_ended() {
        assert!(since.elapsed() < PATIENCE, "the keeper does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A test for each lie of a driver that serves.
macro_rules! lies {
    ($($name:ident: $why:literal, |$driver:ident| $lie:expr;)*) => {
        guest_tests! {$(
            fn $name() {
                if is_child() {
                    let $driver = Honest::new();
                    $lie;
                    wait();
                }
                assert_ended(concat!("control::", stringify!($name)), $why);
            }
        )*}
    };
}

lies! {
    a_driver_that_talks_garbage_to_its_supervisor_is_ended: "breaks the protocol", |driver| {
        driver.send(b"{\"offers\":{\"disks\":[{\"blocks\":-1");
    };
    a_driver_that_nests_its_words_too_deep_is_ended: "breaks the protocol", |driver| {
        driver.send("[".repeat(60_000).as_bytes());
    };
    a_driver_that_says_a_word_that_nobody_knows_is_ended: "breaks the protocol", |driver| {
        driver.send(b"{\"grant\":{\"root\":true}}");
    };
    a_driver_that_sends_too_long_a_packet_is_ended: "breaks the protocol", |driver| {
        driver.send(&vec![b' '; (64 << 10) + 1]);
    };
    a_driver_that_sends_an_empty_packet_is_ended: "has closed its socket", |driver| {
        driver.send(b"");
    };
    a_driver_that_sends_descriptors_beside_a_right_word_is_ended:
    "it says Event now, with 100 descriptors",
    |driver| {
        let fds = vec![driver.control.as_fd(); 100];
        let _ = driver.control.send(&DriverMessage::Event { text: "look".into() }, &fds);
    };
    a_driver_that_offers_its_disks_twice_is_ended: "it says Offers now", |driver| {
        driver.say(&offers(vec![OfferedDisk { blocks: 1 << 40, ..disk() }]));
    };
    a_driver_that_serves_a_disk_that_it_was_not_given_is_ended: "it says Serving now", |driver| {
        driver.say(&DriverMessage::Serving { disk: 1 });
    };
    a_driver_that_leaves_its_device_unasked_is_ended: "it says Left now, with 1 descriptors",
    |driver| {
        let file = memfd_create("saved", MemfdFlags::CLOEXEC).unwrap();
        let _ = driver.control.send(&DriverMessage::Left, &[file.as_fd()]);
    };
    a_driver_that_stops_its_device_unasked_is_ended: "it says Stopped now", |driver| {
        driver.say(&DriverMessage::Stopped);
    };
    a_driver_that_would_be_the_next_one_again_is_ended: "it says Standby now", |driver| {
        driver.say(&DriverMessage::Standby);
    };
    a_driver_that_floods_its_supervisor_is_ended: "more than 100 messages in a second", |driver| {
        while driver.control.send(&DriverMessage::Event { text: "x".repeat(100) }, &[]).is_ok() {}
    };
}

guest_tests! {
    fn a_driver_that_offers_more_disks_than_there_can_be_is_ended() {
        if is_child() {
            let control = standby();
            let (_, fds) = control.receive::<DriverCommand>().unwrap().unwrap();
            let _device =
                ring3_backend::attach(fds.into_iter().next().unwrap().into(), None).unwrap();
            let small = || {
                OfferedDisk {
                    name: String::new(), model: String::new(), serial: String::new(), ..disk()
                }
            };
            let _ = control.send(&offers((0..129).map(|_| small()).collect()), &[]);
            wait();
        }
        assert_ended(
            "control::a_driver_that_offers_more_disks_than_there_can_be_is_ended",
            "it offers 129 disks",
        );
    }

    fn a_driver_that_writes_without_end_neither_fills_memory_nor_keeps_its_supervisor_from_working() {
        if is_child() {
            let driver = Honest::new();
            std::thread::spawn(move || loop {
                // SAFETY: the bytes are a constant.
                unsafe { libc::write(1, c"nonsense without end\n".as_ptr().cast(), 21) };
            });
            if let Ok(Some((DriverCommand::Stop, _))) = driver.control.receive::<DriverCommand>() {
                driver.say(&DriverMessage::Stopped);
            }
            std::process::exit(0);
        }
        let keeper = keep(
            "control::a_driver_that_writes_without_end_neither_fills_memory_nor_keeps_its_supervisor_from_working",
            "",
        );
        until(&keeper, "running", |status| status.state == State::Running);
        std::thread::sleep(Duration::from_secs(3));
        let (tell, reply) = std::sync::mpsc::channel();
        keeper.ask(KeeperCommand::Stop {
            force: false, answer: Box::new(move |reply| drop(tell.send(reply))),
        });
        assert_eq!(reply.recv_timeout(PATIENCE).unwrap(), ring3_control::admin::Reply::Done);
        assert!(log(&keeper).len() < 1 << 20);
    }
}
