//! Guests that run tests, many each, and what they say of them.

use std::collections::HashMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ring3_lab::{Backing, Cache, Device, Disk, Event, Guest, Size};
use tempfile::NamedTempFile;

use super::results::{Record, Results};
use super::stream::{Stream, Told};
use super::suite::{Devices, Placement, Suite, Verdict};
use crate::bench::guest::with_this_program;
use crate::bench::ring3d::{RING3D, with_supervisor};

const MACHINE: &str = include_str!("machine.sh");
const DISKS: &str = include_str!("disks.sh");
const CARDS: &str = include_str!("cards.sh");
const SUITE: &str = include_str!("suite.sh");

/// Guests in a row that may end without a result, before the first test or in the same one.
const FUTILE: u32 = 2;
/// What a guest may take beside its tests.
const BESIDE: Duration = Duration::from_secs(240);
const MEMORY_MIB: u32 = 2048;

/// Tests of one suite with the driver in one place.
pub struct Round<'a> {
    pub suite: Suite,
    pub placement: Placement,
    /// Seconds of a test.
    pub limit: u32,
    pub kernel: &'a str,
    /// Bytes of the disks, where it is run on disks: two equal ones, and one of half that size.
    pub size: u64,
}

impl Round<'_> {
    /// Runs those of `tests` that have no result, in one guest, and in another when that ends
    /// before them. `told` gets each result.
    pub fn run(
        &self,
        cache: &Cache,
        tests: &[String],
        results: &mut Results,
        told: &mut dyn FnMut(&Record),
    ) -> Result<()> {
        let mut deaths: HashMap<String, u32> = HashMap::new();
        let mut futile = 0;
        loop {
            let left = results.missing(self.suite, self.placement, tests);
            if left.is_empty() {
                return Ok(());
            }
            let before = results.records().len();
            let (stream, why) = self.boot(cache, &left, results, told)?;
            let other = stream.other.clone();
            results.note(self.suite, self.placement, &format!("{other}{why}\n"))?;
            if let Some((test, output)) = stream.unfinished() {
                let deaths = deaths.entry(test.clone()).or_default();
                *deaths += 1;
                if *deaths >= FUTILE {
                    let record = self.record(&test, Verdict::Died);
                    told(&record);
                    results.add(record, &format!("{output}\n{why}\n"))?;
                }
                futile = 0;
            } else if results.records().len() == before {
                futile += 1;
                if futile >= FUTILE {
                    bail!("the guest runs no test: {why}\n{other}");
                }
            }
        }
    }

    fn record(&self, test: &str, verdict: Verdict) -> Record {
        Record {
            suite: self.suite,
            placement: self.placement,
            test: test.into(),
            verdict,
            seconds: 0.0,
            kills: 0,
            errors: 0,
            kernel: self.kernel.into(),
        }
    }

    /// One guest, until its end: what it has said, and why it ended.
    fn boot(
        &self,
        cache: &Cache,
        tests: &[String],
        results: &mut Results,
        told: &mut dyn FnMut(&Record),
    ) -> Result<(Stream, String)> {
        let list = kept(&(tests.join("\n") + "\n"))?;
        let script = kept(&format!("{}\n{SUITE}", self.suite.script()))?;
        let guest = self.guest(cache, tests.len())?;
        let guest =
            guest.file("/suites/tests", list.path()).file("/suites/suite.sh", script.path());
        let (mut stream, mut kept) = (Stream::default(), Ok(()));
        let ended = guest.run(cache, &mut |event| {
            let Event::Line(line) = event else { return };
            let Some(Told { test, exit, seconds, kills, errors, output }) = stream.line(line)
            else {
                return;
            };
            let verdict = self.suite.verdict(exit, &output);
            let record = Record { seconds, kills, errors, ..self.record(&test, verdict) };
            told(&record);
            if kept.is_ok() {
                kept = results.add(record, &output);
            }
        });
        kept?;
        let why = match ended {
            Ok(outcome) => format!("exit code {}\n{}", outcome.exit, outcome.messages),
            Err(error) => error.to_string(),
        };
        Ok((stream, why))
    }

    fn guest(&self, cache: &Cache, tests: usize) -> Result<Guest> {
        let image = cache.path(format!("{}/root.img", self.suite.part()));
        ensure!(!image.to_string_lossy().contains(','), "a comma in {}", image.display());
        let root = Device::new("root", "virtio-blk-pci").option("drive", "suites");
        let name = format!("suites-{}-{}", self.suite.name(), self.placement.name());
        let guest = Guest {
            kernel: self.kernel.into(),
            memory_mib: MEMORY_MIB,
            // Whole again for each guest: what tests leave in their root is gone.
            qemu_arguments: vec![
                "-drive".into(),
                format!("if=none,id=suites,format=raw,snapshot=on,file={}", image.display()),
            ],
            kernel_arguments: vec!["log_buf_len=4M".into()],
            // Tests that were run would be run again.
            retries: 0,
            time_limit: BESIDE + Duration::from_secs(u64::from(self.limit)) * tests as u32,
            ..Guest::new(&name)
        };
        let guest = self.with_devices(with_supervisor(with_this_program(guest)?)?).device(root);
        let guest = guest.module("virtio_blk").module("ext4");
        let variables = [
            ("SUITE", self.suite.name().to_string()),
            ("PLACEMENT", self.placement.name().to_string()),
            ("LIMIT", self.limit.to_string()),
        ];
        let guest =
            variables.iter().fold(guest, |guest, (name, value)| guest.variable(name, value));
        let devices = match self.suite.devices() {
            Devices::Disks => DISKS,
            Devices::Cards => CARDS,
        };
        Ok(guest.step("tests", &format!("{RING3D}{devices}{MACHINE}")))
    }

    /// Adds what is tested, and its drivers.
    fn with_devices(&self, guest: Guest) -> Guest {
        let is_kernel = self.placement.is_kernel();
        let under_test = |device: Device| match is_kernel {
            true => device,
            false => device.bound("vfio-pci"),
        };
        let with = |guest: Guest, modules: &[&str]| {
            modules.iter().fold(guest, |guest, module| guest.module(module))
        };
        match self.suite.devices() {
            Devices::Disks => {
                let space = |size| Disk::new(Size(size), Backing::Memory);
                let disk = Device {
                    namespaces: vec![space(self.size), space(self.size), space(self.size / 2)],
                    ..Device::new("disk", "nvme")
                };
                let modules: &[&str] =
                    if is_kernel { &["nvme poll_queues=1"] } else { &["ublk_drv", "vfio-pci"] };
                with(guest.device(under_test(disk)), modules)
            }
            Devices::Cards => {
                let card = |id: &str, wire: u32| {
                    let wire = serde_json::json!({ "type": "hubport", "hubid": wire });
                    Device { netdev: Some(wire), ..Device::new(id, "e1000e") }
                };
                let guest = guest
                    .device(under_test(card("near0", 0)))
                    .device(under_test(card("near1", 1)))
                    .device(card("far0", 0))
                    .device(card("far1", 1));
                with(guest, &["e1000e", "vfio-pci", "tun", "vhost_net"])
            }
        }
    }
}

/// `text` as a file.
fn kept(text: &str) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new().context("creating a file for the guest")?;
    file.write_all(text.as_bytes()).context("writing a file for the guest")?;
    Ok(file)
}
