//! fio beside our own generator: a second opinion that everyone knows.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::Error;
use crate::load::generic_device;
use crate::measure::Method;
use crate::report::Measurement;
use crate::workload::{Mix, Order, Workload};

/// Whether there is an fio in the search path.
pub fn present() -> bool {
    Command::new("fio")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// By which way fio reaches a disk.
#[derive(Clone, Copy, Debug)]
pub enum Engine<'a> {
    /// Reads and writes of a block device.
    Block(&'a Path),
    /// The same, with the kernel polling the device.
    Polled(&'a Path),
    /// NVMe commands for the disk that has this block device.
    Passthrough(&'a Path),
}

/// Runs `workload` under fio (io_uring, O_DIRECT, one job) as `method` says, and fills its numbers
/// in. As with our own generator, throughput is taken without a clock read for each request;
/// latency, where one request is in flight, in a pass of its own.
pub fn measure(
    engine: Engine,
    workload: Workload,
    method: &Method,
    into: Measurement,
) -> Result<Measurement, Error> {
    let into = pass(engine, workload, (method.time, method.seed, false), into)?;
    match method.latency && workload.depth == 1 {
        true => {
            let timed = pass(
                engine,
                workload,
                (method.time / 3, method.seed, true),
                Measurement::new(0, "", ""),
            )?;
            let latency =
                timed.values.into_iter().filter(|(metric, _)| metric.starts_with("latency"));
            Ok(latency.fold(into, |into, (metric, value)| into.with(&metric, value)))
        }
        false => Ok(into),
    }
}

/// Time, seed, and whether latency is taken.
type Pass = (Duration, u64, bool);

fn pass(
    engine: Engine,
    workload: Workload,
    pass: Pass,
    into: Measurement,
) -> Result<Measurement, Error> {
    let output = Command::new("fio").args(arguments(engine, workload, pass)).output();
    let output = output.map_err(|error| Error::os("starting fio", error))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Error::format(format!("fio, {engine:?}"), why.trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text, workload, into).map_err(|why| Error::format("fio's output", why))
}

/// What makes fio as fast as it can be without burning a processor more: registered file and
/// buffers, plain reads and writes, and as many requests by one system call as there are.
const BEST: [&str; 4] =
    ["--fixedbufs=1", "--registerfiles=1", "--nonvectored=1", "--iodepth_batch_complete_min=1"];

fn arguments(engine: Engine, workload: Workload, (time, seed, latency): Pass) -> Vec<String> {
    let order = if workload.order == Order::Random { "rand" } else { "" };
    let mix = match workload.mix {
        Mix::Read => "read",
        Mix::Write => "write",
        Mix::Both => "rw",
    };
    // The processor's own counter would be calibrated against a clock that a guest without KVM
    // cannot keep up with.
    let always = [
        "--name=ring3",
        "--clocksource=clock_gettime",
        "--thread",
        "--time_based",
        "--norandommap",
        "--output-format=json",
    ];
    let (path, way): (_, &[&str]) = match engine {
        Engine::Block(path) => (path.to_owned(), &["--ioengine=io_uring", "--direct=1"]),
        Engine::Polled(path) => {
            (path.to_owned(), &["--ioengine=io_uring", "--direct=1", "--hipri=1"])
        }
        Engine::Passthrough(path) => {
            (generic_device(path), &["--ioengine=io_uring_cmd", "--cmd_type=nvme"])
        }
    };
    let timed: &[&str] = if latency {
        &["--lat_percentiles=1", "--clat_percentiles=0"]
    } else {
        &["--gtod_reduce=1"]
    };
    let fixed = [&always[..], way, &BEST, timed].concat();
    let mut arguments: Vec<String> = fixed.into_iter().map(Into::into).collect();
    arguments.push(format!("--filename={}", path.display()));
    arguments.push(format!("--rw={order}{mix}"));
    arguments.push(format!("--bs={}", workload.bytes));
    arguments.push(format!("--iodepth={}", workload.depth));
    arguments.push(format!("--iodepth_batch_submit={}", workload.depth));
    arguments.push(format!("--iodepth_batch_complete_max={}", workload.depth));
    arguments.push(format!("--runtime={}ms", time.as_millis().max(1)));
    arguments.push(format!("--randseed={seed}"));
    arguments.extend(workload.rate.map(|rate| format!("--rate_iops={rate}")));
    arguments
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i64,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    iops: f64,
    total_ios: u64,
    #[serde(default)]
    lat_ns: Nanos,
}

#[derive(Default, Deserialize)]
struct Nanos {
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

fn parse(text: &str, workload: Workload, into: Measurement) -> Result<Measurement, String> {
    // fio prints warnings before the object.
    let start = text.find('{').ok_or("no JSON")?;
    let output: Output = serde_json::from_str(&text[start..]).map_err(|error| error.to_string())?;
    let job = output.jobs.first().ok_or("no job")?;
    let iops = job.read.iops + job.write.iops;
    let operations = (job.read.total_ios + job.write.total_ios).max(1) as f64;
    let cpu = job.usr_cpu + job.sys_cpu;
    let mut into = into
        .with("iops", iops)
        .with("mib_s", iops * f64::from(workload.bytes) / f64::from(1 << 20))
        .with("cpu_percent", cpu)
        .with("cpu_us_per_op", if iops > 0.0 { cpu * 1e4 / iops } else { 0.0 })
        .with("switches_per_op", job.ctx as f64 / operations)
        .with("errors", f64::from(u8::from(job.error != 0)));
    let direction = if workload.mix == Mix::Write { &job.write } else { &job.read };
    for (name, key) in [("latency_us_p50", "50.000000"), ("latency_us_p99", "99.000000")] {
        if let Some(nanos) = direction.lat_ns.percentile.get(key) {
            into = into.with(name, nanos / 1000.0);
        }
    }
    Ok(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"fio: a warning
        { "fio version": "fio-3.33",
        "jobs": [ { "error": 0, "usr_cpu": 10.0, "sys_cpu": 30.0, "ctx": 500,
          "read": { "iops": 20000.0, "total_ios": 1000,
            "lat_ns": { "percentile": { "50.000000": 40000, "99.000000": 90000 } } },
          "write": { "iops": 0.0, "total_ios": 0, "lat_ns": { "min": 0 } } } ] }"#;

    #[test]
    fn the_numbers_of_fio_are_in_the_schemas_units() {
        let workload: Workload = "randread-4k-qd1".parse().unwrap();
        let values =
            parse(OUTPUT, workload, Measurement::new(1, workload, "kernel-fio")).unwrap().values;
        assert_eq!(values["iops"], 20000.0);
        assert_eq!(values["mib_s"], 78.125);
        assert_eq!(values["latency_us_p99"], 90.0);
        assert_eq!(values["cpu_us_per_op"], 20.0);
        assert_eq!(values["switches_per_op"], 0.5);
    }

    #[test]
    fn output_that_is_not_fios_is_an_error() {
        let workload: Workload = "randread-4k-qd1".parse().unwrap();
        for text in ["", "{}", "{\"jobs\": []}"] {
            assert!(parse(text, workload, Measurement::new(1, workload, "kernel-fio")).is_err());
        }
    }

    fn words(engine: Engine, latency: bool) -> Vec<String> {
        arguments(
            engine,
            "seqread-128k-qd8".parse().unwrap(),
            (Duration::from_millis(500), 3, latency),
        )
    }

    #[test]
    fn a_workload_is_said_in_fios_words() {
        let arguments = words(Engine::Block(Path::new("/dev/x")), false);
        for word in [
            "--rw=read",
            "--bs=131072",
            "--iodepth=8",
            "--runtime=500ms",
            "--filename=/dev/x",
            "--randseed=3",
        ] {
            assert!(arguments.iter().any(|argument| argument == word), "{word}");
        }
    }

    #[test]
    fn fio_has_what_our_own_generator_has() {
        let arguments = words(Engine::Block(Path::new("/dev/nvme0n1")), false);
        for word in [
            "--fixedbufs=1",
            "--registerfiles=1",
            "--nonvectored=1",
            "--iodepth_batch_submit=8",
            "--iodepth_batch_complete_max=8",
            "--gtod_reduce=1",
        ] {
            assert!(arguments.iter().any(|argument| argument == word), "{word}");
        }
        assert!(
            !words(Engine::Block(Path::new("/dev/nvme0n1")), true)
                .contains(&"--gtod_reduce=1".to_owned())
        );
    }

    #[test]
    fn only_a_disk_that_is_to_be_polled_is_polled() {
        let polled = |engine| words(engine, false).contains(&"--hipri=1".to_owned());
        assert!(
            polled(Engine::Polled(Path::new("/dev/nvme0n1")))
                && !polled(Engine::Block(Path::new("/dev/nvme0n1")))
        );
    }

    #[test]
    fn commands_past_the_block_layer_go_to_the_character_device() {
        let arguments = words(Engine::Passthrough(Path::new("/dev/nvme0n1")), false);
        for word in ["--ioengine=io_uring_cmd", "--cmd_type=nvme", "--filename=/dev/ng0n1"] {
            assert!(arguments.iter().any(|argument| argument == word), "{word}");
        }
    }
}
