//! QEMU's own NVMe driver, from the distribution's packages: in the process of its own generator
//! (`qemu-img bench`), and exported to the kernel (qemu-storage-daemon over VDUSE).
//!
//! # The load of qemu-img
//! It has one pattern: one request after the other at a fixed step. A random load is one of a step
//! that is odd in requests and passes the whole disk, which no device and no layer takes for a
//! sequence; there is nothing behind the lab's disk that would mind. It says how long its requests
//! took in milliseconds, so that a run is no shorter than [`SHORTEST`].
//!
//! There is no page cache between it and the device whatever cache it is told; told to have none,
//! it has the controller's write cache turned off in a way that QEMU's model of one refuses.
//!
//! # What is counted
//! A run's start and end are a process's and a device's, and not a request's. Instructions and
//! processor time are what a long run has more than a short one, over the requests that it has
//! more.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::Export;
use super::kernel::without_scheduler;
use crate::Error;
use crate::cpu::Soaker;
use crate::measure::Method;
use crate::report::Measurement;
use crate::workload::{Mix, Order, Workload};

/// What is missing without it.
pub(super) const WANTED: &str =
    "qemu-img and qemu-storage-daemon, and a device by VFIO (--device vfio:ADDRESS)";

/// The VDUSE device that it makes.
const NAME: &str = "r3qemu";

/// How long it may take to show that.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of a run that is timed: it is told in milliseconds.
const SHORTEST: Duration = Duration::from_millis(200);

/// Requests of the short run.
const FEW: u64 = 500;

/// QEMU's programs and what they are to drive.
pub struct Qemu {
    /// A root folder to which the programs are confined, with all that they need; `None` for those
    /// of this machine.
    pub root: Option<PathBuf>,
    /// The function's address.
    pub device: String,
    /// Puts a VDUSE device that is served on the bus, and gives the path of its disk; `None` if its
    /// server has not set it up yet.
    pub attach: fn(&str) -> Result<Option<PathBuf>, Error>,
    /// Takes it from the bus.
    pub detach: fn(&str) -> Result<(), Error>,
}

impl Qemu {
    /// qemu-storage-daemon with the disk, on the vDPA bus.
    pub(super) fn export(&self) -> Result<Export, Error> {
        let (program, arguments) = self.words("qemu-storage-daemon", storage_daemon(&self.device));
        let (attach, detach) = (self.attach, self.detach);
        let ready = |child: &mut Child, what: &str| {
            let disk = attached(child, what, attach)?;
            without_scheduler(&disk)?;
            Ok(disk)
        };
        Export::on_a_bus(&program, &arguments, ready, Box::new(move || detach(NAME)))
    }

    /// Measures `load` under qemu-img.
    pub(super) fn measure(
        &self,
        load: Workload,
        method: &Method,
        into: Measurement,
    ) -> Result<Measurement, Error> {
        let short = self.run(load, FEW, method)?;
        let each = short.requesting.as_secs_f64().max(1e-3) / FEW as f64;
        let wanted = method.time.max(SHORTEST).as_secs_f64();
        let long = self.run(load, FEW + (wanted / each) as u64, method)?;
        Ok(numbers(load, &short, &long, method.soaker_step.is_some(), into))
    }

    fn run(&self, load: Workload, count: u64, method: &Method) -> Result<Run, Error> {
        let (program, arguments) = self.words("qemu-img", bench(&self.device, load, count)?);
        let soaker = method.soaker_step.map(|step| Soaker::start(method.cpus, step));
        let (start, steps, before) =
            (Instant::now(), soaker.as_ref().map_or(0, Soaker::count), children());
        // QEMU's driver waits for its device without an end.
        let output = Command::new("timeout")
            .arg(LONGEST.as_secs().to_string())
            .arg(&program)
            .args(&arguments)
            .output();
        let output = output
            .map_err(|error| Error::os(format!("starting timeout {}", program.display()), error))?;
        let (elapsed, cpu) = (start.elapsed(), children().saturating_sub(before));
        let busy =
            soaker.as_ref().map_or(cpu, |soaker| soaker.busy(elapsed, soaker.count() - steps));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match requesting(&said).filter(|_| output.status.success()) {
            Some(requesting) => Ok(Run { count, requesting, busy }),
            None => {
                let why = match start.elapsed() >= LONGEST {
                    true => format!(
                        "ended after {} s: the device does not answer it, or the host is too busy",
                        LONGEST.as_secs()
                    )
                    .into(),
                    false => String::from_utf8_lossy(&output.stderr),
                };
                Err(Error::format(
                    format!("qemu-img {}", arguments.join(" ")),
                    format!("{said} {}", why.trim()).trim(),
                ))
            }
        }
    }

    /// A program and its arguments, below the root if there is one.
    fn words(&self, name: &str, arguments: Vec<String>) -> (PathBuf, Vec<String>) {
        match &self.root {
            None => (name.into(), arguments),
            Some(root) => {
                let before = [root.display().to_string(), format!("/usr/bin/{name}")];
                ("chroot".into(), before.into_iter().chain(arguments).collect())
            }
        }
    }
}

/// How long a run of qemu-img may take.
const LONGEST: Duration = Duration::from_secs(60);

/// One run of qemu-img.
#[derive(Debug, PartialEq)]
struct Run {
    count: u64,
    /// From the first request to the last.
    requesting: Duration,
    /// Instructions of the machine as nanoseconds, or processor time of the process.
    busy: Duration,
}

fn numbers(
    load: Workload,
    short: &Run,
    long: &Run,
    instructions: bool,
    into: Measurement,
) -> Measurement {
    let more = long.count.saturating_sub(short.count).max(1) as f64;
    let time = long.requesting.saturating_sub(short.requesting).as_secs_f64().max(1e-9);
    let busy = long.busy.saturating_sub(short.busy).as_secs_f64();
    let (iops, mib) = (more / time, f64::from(load.bytes) / f64::from(1 << 20));
    let into = into.with("iops", iops).with("mib_s", iops * mib).with("errors", 0.0);
    match instructions {
        true => into.with("instructions_per_op", busy * 1e9 / more),
        false => {
            into.with("cpu_us_per_op", busy * 1e6 / more).with("cpu_percent", 100.0 * busy / time)
        }
    }
}

/// Processor time of children that have ended and were waited for. [getrusage(2)]
fn children() -> Duration {
    // SAFETY: plain integers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the structure that it is given; of a failure, zeroes are left.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// An I/O thread, as everybody has one who wants speed: the main loop does not poll.
fn storage_daemon(device: &str) -> Vec<String> {
    let words = [
        "--object".into(),
        "iothread,id=io".into(),
        "--blockdev".into(),
        format!("driver=nvme,device={device},namespace=1,node-name=disk"),
        "--export".into(),
        format!(
            "type=vduse-blk,id=out,node-name=disk,name={NAME},writable=on,num-queues=1,iothread=io"
        ),
    ];
    words.to_vec()
}

fn bench(device: &str, load: Workload, count: u64) -> Result<Vec<String>, Error> {
    if load.mix == Mix::Both || load.rate.is_some() {
        return Err(Error::Invalid(format!(
            "{load}: qemu-img bench reads or writes, as fast as it can; leave qemu-img out"
        )));
    }
    // Odd, so that it comes to each place of a disk of a power of two before it comes to one again.
    let step = if load.order == Order::Random {
        u64::from(load.bytes) * 12_289
    } else {
        u64::from(load.bytes)
    };
    let words = [
        "bench".into(),
        "-c".into(),
        count.to_string(),
        "-d".into(),
        load.depth.to_string(),
        "-s".into(),
        load.bytes.to_string(),
        "-S".into(),
        step.to_string(),
    ];
    let write = (load.mix == Mix::Write).then(|| "-w".to_owned());
    let image = ["--image-opts".to_owned(), format!("driver=nvme,device={device},namespace=1")];
    Ok(words.into_iter().chain(write).chain(image).collect())
}

/// What qemu-img says at its end: `Run completed in 0.123 seconds.`
fn requesting(said: &str) -> Option<Duration> {
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Run completed in "))?;
    let seconds: f64 = line.strip_suffix(" seconds.")?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The disk, once the daemon serves its device: that is there before its queues are.
fn attached(
    child: &mut Child,
    what: &str,
    attach: fn(&str) -> Result<Option<PathBuf>, Error>,
) -> Result<PathBuf, Error> {
    let (device, start) = (Path::new("/dev/vduse").join(NAME), Instant::now());
    loop {
        if device.exists()
            && let Some(disk) = attach(NAME)?
        {
            return Ok(disk);
        }
        if let Ok(Some(status)) = child.try_wait() {
            return Err(Error::format(
                what,
                format!("it ended ({status}) without a device; its own words are above"),
            ));
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::format(
                what,
                format!("{} did not appear, or is not set up", device.display()),
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(load: &str) -> String {
        bench("0000:00:05.0", load.parse().unwrap(), 700).unwrap().join(" ")
    }

    #[test]
    fn a_load_is_said_in_qemus_words() {
        let image = "--image-opts driver=nvme,device=0000:00:05.0,namespace=1";
        assert_eq!(
            words("seqread-128k-qd8"),
            format!("bench -c 700 -d 8 -s 131072 -S 131072 {image}")
        );
        assert_eq!(
            words("randwrite-4k-qd32"),
            format!("bench -c 700 -d 32 -s 4096 -S 50335744 -w {image}")
        );
    }

    #[test]
    fn what_qemu_cannot_do_is_refused_by_name() {
        for load in ["randrw-4k-qd8", "randread-4k-qd32-at1000"] {
            let error = bench("0000:00:05.0", load.parse().unwrap(), 1).unwrap_err().to_string();
            assert!(error.contains(load) && error.contains("leave qemu-img out"), "{error}");
        }
    }

    #[test]
    fn only_a_run_that_is_complete_has_a_time() {
        let said = "Sending 500 read requests, 4096 bytes each, 32 in parallel\n\
                    Run completed in 0.125 seconds.\n";
        assert_eq!(requesting(said), Some(Duration::from_millis(125)));
        for said in [
            "",
            "Sending 500 read requests",
            "Run completed in no seconds.",
            "Run completed in -1 seconds.",
        ] {
            assert_eq!(requesting(said), None, "{said}");
        }
    }

    #[test]
    fn start_and_end_of_its_process_are_in_no_request() {
        let run = |count, requesting, busy| Run {
            count,
            requesting: Duration::from_millis(requesting),
            busy: Duration::from_millis(busy),
        };
        let load: Workload = "randread-4k-qd32".parse().unwrap();
        // 40 ms for the process, and 20 us for each request.
        let of = |instructions| {
            numbers(
                load,
                &run(500, 10, 50),
                &run(10_500, 210, 250),
                instructions,
                Measurement::new(1, load, "qemu-img"),
            )
        };
        assert_eq!(
            (of(true).values["iops"].round(), of(true).values["instructions_per_op"].round()),
            (50_000.0, 20_000.0)
        );
        assert_eq!(
            (of(false).values["cpu_us_per_op"].round(), of(false).values["cpu_percent"].round()),
            (20.0, 100.0)
        );
    }

    #[test]
    fn programs_of_a_root_are_started_below_it_and_those_of_the_machine_by_their_names() {
        let attach = |_: &str| Err(Error::Invalid(String::new()));
        let of = |root: Option<&str>| {
            let qemu =
                Qemu { root: root.map(Into::into), device: "d".into(), attach, detach: |_| Ok(()) };
            qemu.words("qemu-img", vec!["bench".into()])
        };
        assert_eq!(of(None), ("qemu-img".into(), vec!["bench".into()]));
        assert_eq!(
            of(Some("/rivals")),
            ("chroot".into(), ["/rivals", "/usr/bin/qemu-img", "bench"].map(Into::into).to_vec())
        );
    }
}
