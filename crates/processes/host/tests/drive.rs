//! A driver process under a supervisor that this test plays: everything but the kernel's half of
//! the export.

use std::io::stdin;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ring3_backend::{Claim, OpenOptions, claim};
use ring3_control::drive::{DriverCommand, DriverMessage, OfferedDisk, Prepare, Serve, VERSION};
use ring3_lease::Channel;
use ring3_stats::{Phase, Segment};

/// The driver process is this test itself, once more, with this set.
const ROLE: &str = "RING3_TEST_DRIVE";

/// A start of a model takes milliseconds; a busy host has many times less of them.
const SOON: Duration = Duration::from_secs(60);

/// `test`, called `name`, or the driver process that it has started.
fn supervised(name: &'static str, test: impl FnOnce(&dyn Fn() -> Process)) {
    if std::env::var_os(ROLE).is_some() {
        let ended = ring3_host::drive::run(stdin().as_fd().try_clone_to_owned().unwrap());
        ended.inspect_err(|error| eprintln!("{error}")).unwrap();
        return;
    }
    test(&|| Process::start(name));
}

struct Process {
    child: Child,
    control: Option<Channel>,
    stats: Segment,
}

impl Process {
    fn start(name: &str) -> Self {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", name])
            .env(ROLE, "1")
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let control = Channel::new(ours, SOON, true).unwrap();
        Self {
            child: command.spawn().unwrap(),
            control: Some(control),
            stats: Segment::create(128).unwrap(),
        }
    }

    /// One that waits for a lease.
    fn standby(self) -> Self {
        self.order(&DriverCommand::Prepare(Box::new(prepare())), &[self.stats.as_fd()]);
        assert_eq!(self.report().0, DriverMessage::Standby);
        self
    }

    fn order(&self, order: &DriverCommand, fds: &[BorrowedFd<'_>]) {
        self.control.as_ref().unwrap().send(order, fds).unwrap();
    }

    fn report(&self) -> (DriverMessage, Vec<OwnedFd>) {
        self.control.as_ref().unwrap().receive().unwrap().expect("a report")
    }

    fn drive(&self, claim: &Claim) -> Vec<OfferedDisk> {
        self.order(
            &DriverCommand::Drive { resume: false, adopt: false },
            &[OwnedFd::from(claim.lease().unwrap()).as_fd()],
        );
        self.offers()
    }

    fn offers(&self) -> Vec<OfferedDisk> {
        match self.report().0 {
            DriverMessage::Offers { disks, .. } => disks,
            other => panic!("{other:?}"),
        }
    }

    /// The state of the driver, which has left its device.
    fn left(self) -> OwnedFd {
        self.order(&DriverCommand::Leave, &[]);
        let (report, mut fds) = self.report();
        assert_eq!((report, fds.len()), (DriverMessage::Left, 1));
        self.succeeded();
        fds.remove(0)
    }

    fn stopped(self) {
        self.order(&DriverCommand::Stop, &[]);
        assert_eq!(self.report().0, DriverMessage::Stopped);
        self.succeeded();
    }

    /// Why it failed, and whether the device is gone; it has ended with an error.
    fn failed(mut self) -> (String, bool) {
        let (report, _) = self.report();
        let DriverMessage::Failed { error, gone } = report else { panic!("{report:?}") };
        assert!(!self.child.wait().unwrap().success());
        (error, gone)
    }

    fn succeeded(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn prepare() -> Prepare {
    let (family, part, interrupts, user, group) = (None, None, "auto".into(), None, None);
    Prepare {
        user,
        group,
        adoptable: false,
        unconfined: true,
        shared: false,
        beside: false,
        batch: false,
        lent: false,
        engine: None,
        version: VERSION,
        name: "disk".into(),
        family,
        part,
        interrupts,
        throttle: None,
        quirks: Vec::new(),
        host_memory: None,
        power_latency_ms: None,
        queues: 2,
        depth: 64,
        max_bytes: 1 << 18,
        poll_us: 10,
    }
}

fn serve(disk: u16) -> Serve {
    Serve {
        disk,
        id: 0,
        queues: 2,
        depth: 64,
        buffer: 1 << 16,
        cpus: vec![vec![0], vec![0]],
        encoded: true,
        batches: false,
    }
}

fn claimed(uri: &str, arena: usize) -> Claim {
    claim(&uri.parse().unwrap(), OpenOptions { arena, ..OpenOptions::default() }).unwrap()
}

fn null() -> std::fs::File {
    std::fs::File::open("/dev/null").unwrap()
}

#[test]
fn what_a_device_offers_is_told_and_a_stop_ends_it() {
    supervised("what_a_device_offers_is_told_and_a_stop_ends_it", |start| {
        for (uri, name) in [
            ("sim:nvme,size=64M", "namespace 1"),
            ("sim:ahci,size=64M", "port 0"),
            ("sim:ide,size=64M", "primary master"),
        ] {
            let (process, claim) = (start().standby(), claimed(uri, 64 << 20));
            let disks = process.drive(&claim);
            assert!(disks[0].name.ends_with(name), "{disks:?}");
            assert_eq!(disks[0].blocks * u64::from(disks[0].block_size), 64 << 20);
            process.stopped();
        }
    });
}

#[test]
fn a_device_that_was_left_is_resumed_by_the_next_process() {
    supervised("a_device_that_was_left_is_resumed_by_the_next_process", |start| {
        // The second arena grows by the lease: it has no room for three disks.
        for (uri, arena) in [
            ("sim:ahci,size=64M,disks=2", 80 << 20),
            ("sim:nvme,size=64M,namespaces=3,queues=16", 8 << 20),
            // The controller has memory for itself all the time.
            ("sim:nvme,size=64M,namespaces=3,queues=16,hmb=16M", 8 << 20),
        ] {
            let claim = claimed(uri, arena);
            let mut process = start().standby();
            let disks = process.drive(&claim);
            for _ in 0..3 {
                let saved = process.left();
                process = start().standby();
                let lease = OwnedFd::from(claim.hand_over().unwrap());
                process.order(
                    &DriverCommand::Drive { resume: true, adopt: false },
                    &[lease.as_fd(), saved.as_fd()],
                );
                assert_eq!(process.offers(), disks);
            }
            process.stopped();
        }
    });
}

#[test]
fn what_was_saved_of_one_device_is_refused_for_another() {
    supervised("what_was_saved_of_one_device_is_refused_for_another", |start| {
        let (one, other) =
            (claimed("sim:nvme,size=64M", 64 << 20), claimed("sim:ahci,size=64M", 64 << 20));
        let process = start().standby();
        process.drive(&one);
        let saved = process.left();
        let process = start().standby();
        let lease = OwnedFd::from(other.lease().unwrap());
        process.order(
            &DriverCommand::Drive { resume: true, adopt: false },
            &[lease.as_fd(), saved.as_fd()],
        );
        let (error, gone) = process.failed();
        assert!(error.contains("nvme controller") && !gone, "{error}");
    });
}

#[test]
fn a_driver_that_cannot_leave_its_device_says_so() {
    supervised("a_driver_that_cannot_leave_its_device_says_so", |start| {
        let (process, claim) = (start().standby(), claimed("sim:ide,size=64M", 64 << 20));
        process.drive(&claim);
        process.order(&DriverCommand::Leave, &[]);
        assert!(process.failed().0.contains("cannot"));
    });
}

#[test]
fn a_driver_that_was_killed_is_followed_by_one_that_opens_the_device_anew() {
    supervised("a_driver_that_was_killed_is_followed_by_one_that_opens_the_device_anew", |start| {
        for uri in ["sim:nvme,size=64M", "sim:nvme,size=64M,hmb=16M"] {
            let claim = claimed(uri, 64 << 20);
            let first = start().standby();
            let disks = first.drive(&claim);
            drop(first);
            claim.quiesce(None).unwrap();
            assert_eq!(start().standby().drive(&claim), disks);
        }
    });
}

#[test]
fn a_device_without_a_driver_is_reported_with_its_name() {
    supervised("a_device_without_a_driver_is_reported_with_its_name", |start| {
        let (process, claim) = (start().standby(), claimed("sim:edu", 1 << 20));
        process.order(
            &DriverCommand::Drive { resume: false, adopt: false },
            &[OwnedFd::from(claim.lease().unwrap()).as_fd()],
        );
        let (error, gone) = process.failed();
        assert!(error.contains("sim:edu") && !gone, "{error}");
    });
}

#[test]
fn orders_in_a_wrong_order_end_the_process_with_an_error() {
    supervised("orders_in_a_wrong_order_end_the_process_with_an_error", |start| {
        for order in [
            DriverCommand::Drive { resume: false, adopt: false },
            DriverCommand::Serve(serve(0)),
            DriverCommand::Leave,
            DriverCommand::Stop,
        ] {
            let process = start();
            process.order(&order, &[]);
            assert!(process.failed().0.contains("makes no sense now"), "{order:?}");
        }
        let claim = claimed("sim:nvme,size=64M", 64 << 20);
        for order in [
            DriverCommand::Drive { resume: false, adopt: false },
            DriverCommand::Prepare(Box::new(prepare())),
        ] {
            let process = start().standby();
            process.drive(&claim);
            process.order(&order, &[]);
            assert!(process.failed().0.contains("makes no sense now"), "{order:?}");
            claim.quiesce(None).unwrap();
        }
    });
}

#[test]
fn what_is_missing_or_something_else_beside_an_order_is_an_error() {
    supervised("what_is_missing_or_something_else_beside_an_order_is_an_error", |start| {
        let file = null();
        let process = start();
        process.order(
            &DriverCommand::Prepare(Box::new(Prepare { version: 9, ..prepare() })),
            &[process.stats.as_fd()],
        );
        assert!(process.failed().0.contains("version 9"));
        let process = start();
        process.order(&DriverCommand::Prepare(Box::new(prepare())), &[file.as_fd()]);
        assert!(process.failed().0.contains("stats segment"));
        for (resume, fds, reason) in [
            (false, vec![], "no lease came"),
            (false, vec![file.as_fd()], "no lease of a device"),
            (true, vec![file.as_fd()], "nothing saved came"),
            (true, vec![file.as_fd(); 2], "what the last driver has saved"),
        ] {
            let process = start().standby();
            process.order(&DriverCommand::Drive { resume, adopt: false }, &fds);
            let (error, _) = process.failed();
            assert!(error.contains(reason), "{error}");
        }
    });
}

#[test]
fn a_disk_that_cannot_be_served_so_is_an_error() {
    supervised("a_disk_that_cannot_be_served_so_is_an_error", |start| {
        let (claim, file) = (claimed("sim:nvme,size=64M", 64 << 20), null());
        for (serve, reason) in [
            (serve(7), "disk 7"),
            (Serve { queues: 0, cpus: vec![], ..serve(0) }, "cannot be served"),
            (Serve { cpus: vec![], ..serve(0) }, "cannot be served"),
            (Serve { depth: 0, ..serve(0) }, "cannot be served"),
            (Serve { buffer: u32::MAX, ..serve(0) }, "cannot be served"),
            (serve(0), "mapping the requests"),
        ] {
            let process = start().standby();
            process.drive(&claim);
            process.order(&DriverCommand::Serve(serve), &[file.as_fd()]);
            let (error, _) = process.failed();
            assert!(error.contains(reason), "{error}");
            claim.quiesce(None).unwrap();
        }
    });
}

#[test]
fn a_process_that_serves_nothing_ends_when_its_supervisor_does() {
    supervised("a_process_that_serves_nothing_ends_when_its_supervisor_does", |start| {
        let claim = claimed("sim:nvme,size=64M", 64 << 20);
        let driving = start().standby();
        driving.drive(&claim);
        for mut process in [start(), start().standby(), driving] {
            process.control = None;
            process.succeeded();
        }
    });
}

#[test]
fn a_process_that_waits_shows_that_it_is_idle() {
    supervised("a_process_that_waits_shows_that_it_is_idle", |start| {
        let (process, claim) = (start().standby(), claimed("sim:nvme,size=64M", 64 << 20));
        process.drive(&claim);
        // Its queues are made after the offers.
        let is_idle = || process.stats.counters(None).phase == Phase::Idle;
        let since = Instant::now();
        while !is_idle() && since.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_idle());
    });
}
