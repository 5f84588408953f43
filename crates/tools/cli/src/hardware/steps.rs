//! The steps of a test.

use std::time::Duration;

use anyhow::{Context, Result};
use ring3_pci::{Host, examine};
use ring3_spec::{ahci, ide, nvme};
use serde_json::Value;

use super::kernel;
use super::look::{Found, Look};
use super::place::{self, Bound};
use super::program::Answer;
use super::recording;
use super::report::{Kind, Measured, Verdict};
use super::test::{End, Test};
use super::verify::{Region, regions};
use crate::job::Job;
use crate::leave::or_end;

/// Loads that only read, and how long a step may take beside its own time.
pub(super) const READS: [&str; 3] = ["randread-4k-qd1", "randread-4k-qd32", "seqread-128k-qd8"];
pub(super) const GRACE: Duration = Duration::from_secs(300);
/// Arena that doctor asks for.
const ARENA: u64 = 64 << 20;

/// What the steps know of each other.
#[derive(Default)]
pub(super) struct Known {
    pub(super) class: Option<u32>,
    pub(super) capacity: u64,
    pub(super) disks: usize,
    pub(super) regions: Vec<Region>,
    /// What the kernel's driver read of them before.
    pub(super) before: Vec<String>,
    /// What ring3's driver read of them.
    pub(super) ours: Vec<String>,
    pub(super) starts: bool,
}

impl Test {
    /// All of them; each says how it ended, and none ends the others.
    pub fn run_steps(&mut self) -> Result<()> {
        let mut known = Known::default();
        self.step("doctor", Self::doctor)?;
        self.step("kernel before", |test| test.kernel_before(&mut known))?;
        let bound = self.step("bind", Self::bind)?;
        let not_bound = || Ok(End::Skipped("ring3 does not have the device".into()));
        self.step("identity", |test| match bound {
            Verdict::Failed => not_bound(),
            _ => test.identity(&mut known),
        })?;
        self.step("recording", |test| match bound {
            Verdict::Failed => not_bound(),
            _ => test.record(&known),
        })?;
        type Work = fn(&mut Test, &mut Known) -> Result<End>;
        let steps: [(&str, Work); 8] = [
            ("same data", Self::same_data),
            ("conformance", Self::conformance),
            ("performance", Self::performance),
            ("kill", Self::kill),
            ("reset", Self::reset),
            ("verify", Self::verify),
            ("recorded reads", Self::record_reads),
            ("temperature", Self::temperature),
        ];
        for (name, work) in steps {
            self.step(name, |test| match known.starts {
                true => work(test, &mut known),
                false => Ok(End::Skipped("the driver does not start".into())),
            })?;
        }
        self.step("give back", Self::give_back)?;
        self.step("kernel after", |test| test.kernel_after(&known))?;
        self.finish()
    }

    fn doctor(&mut self) -> Result<End> {
        let Some(function) = &self.place.function else {
            return Ok(End::Skipped("it is no PCI function of this machine".into()));
        };
        let way = self.way().context("no way")?;
        let checks = examine(&Host::this(), function.address, way, ARENA);
        self.report.doctor = checks.iter().map(crate::doctor::json).collect();
        // What bind does itself.
        let ours = ["not-bound", "no-module"];
        let stands: Vec<_> = (checks.iter())
            .filter_map(|check| check.found.as_ref().err())
            .filter(|blocked| !ours.contains(&blocked.obstacle.name()))
            .map(ring3_pci::Blocked::problem)
            .collect();
        Ok(match &stands[..] {
            [] => End::Passed(format!("{} checks, nothing stands in the way", checks.len())),
            stands => End::Failed(stands.join("; ")),
        })
    }

    fn way(&self) -> Option<ring3_pci::PassthroughDriver> {
        Some(or_end(self.place.bound.as_ref()?.with(|bound| bound.way)))
    }

    fn kernel_before(&mut self, known: &mut Known) -> Result<End> {
        let Some(function) = self.place.function.as_ref().filter(|_| self.has_kernel()) else {
            return Ok(End::Skipped("no driver of the kernel has it".into()));
        };
        if !is_disk(function.class) {
            return Ok(End::Skipped("cards of the kernel are not measured: it takes two".into()));
        }
        let disk = match kernel::disk(function.address, self.part) {
            Ok(disk) => disk,
            Err(why) => return Ok(End::Skipped(crate::explain(&why))),
        };
        known.regions = self.regions(disk.bytes);
        known.before = disk.digests(&known.regions)?;
        let path = disk.path.display().to_string();
        self.measure(&path, Measured::KernelBefore, &READS)
    }

    fn has_kernel(&self) -> bool {
        self.place.kernel_driver().is_some()
    }

    /// Whether commands that know neither several disks nor quirks may drive the device.
    pub(super) fn is_plain(&self) -> bool {
        self.part.is_none() && self.args.quirks.names().is_empty()
    }

    fn regions(&self, capacity: u64) -> Vec<Region> {
        let (count, bytes) = self.depth.regions;
        regions(capacity, count, bytes)
    }

    fn bind(&mut self) -> Result<End> {
        let Some(bound) = &self.place.bound else {
            return Ok(End::Skipped("it is no PCI function of this machine".into()));
        };
        let way = self.way().context("no way")?;
        Ok(match or_end(bound.with(Bound::take))? {
            Some(before) => End::Passed(format!("{before} -> {way}")),
            None if or_end(bound.with(|bound| bound.is_ours())) => {
                End::Passed(format!("no driver -> {way}"))
            }
            None => End::Passed(format!("{way} has it already, and keeps it")),
        })
    }

    /// `ring3 WORDS --device DEVICE`, with what the user says of the device.
    pub(super) fn words(&self, words: &str) -> Vec<String> {
        let mut all: Vec<String> = words.split(' ').map(str::to_owned).collect();
        all.extend(["--device".into(), self.place.uri.clone()]);
        all.extend(self.args.protection.words().split_whitespace().map(str::to_owned));
        all
    }

    /// The same with the chosen disk and the user's quirks.
    fn words_of_disk(&self, words: &str) -> Vec<String> {
        let mut all = self.words(words);
        for quirk in self.args.quirks.names() {
            all.extend(["--quirk".into(), quirk.clone()]);
        }
        if let Some(part) = self.part {
            all.extend([self.args.part_option().into(), part.to_string()]);
        }
        all
    }

    pub(super) fn ask(&self, words: &[String], own: Duration) -> Result<Answer> {
        self.program.run(words, own + GRACE, &mut |_| {})
    }

    pub(super) fn look(&self, look: Look, step: &str) -> Result<Answer> {
        let own = Duration::from_secs_f64(look.seconds);
        let words = Job::Look(look).words()?;
        let mut see = |line: &str| {
            let Ok(value) = serde_json::from_str::<Value>(line) else { return };
            if let (Some(passes), Some(bytes)) = (value["passes"].as_u64(), value["bytes"].as_u64())
            {
                self.progress(step, &format!("{passes} passes, {} MiB", bytes >> 20));
            }
        };
        self.program.run(&words, own + GRACE, &mut see)
    }

    fn base(&self) -> Look {
        Look {
            device: self.place.uri.clone(),
            unprotected: self.args.protection.unprotected,
            part: self.part,
            quirks: self.args.quirks.names().to_vec(),
            regions: Vec::new(),
            seconds: 0.0,
            resets: 0,
        }
    }

    fn identity(&mut self, known: &mut Known) -> Result<End> {
        let answer = self.look(self.base(), "identity")?;
        let said = answer.value()?;
        let number = |name: &str| said[name].as_u64();
        let id = |name: &str| number(name).and_then(|id| u16::try_from(id).ok());
        let device = &mut self.report.device;
        device.vendor = device.vendor.or(id("vendor"));
        device.device = device.device.or(id("device"));
        device.class = device.class.or(number("class").map(|class| class as u32));
        (device.subsystem_vendor, device.subsystem_device) =
            (id("subsystem_vendor"), id("subsystem_device"));
        if device.name.is_empty() {
            device.name = name_of(device.vendor, device.device);
        }
        let disks: Vec<u64> =
            said["disks"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        device.kind = match (disks.len(), number("cards")) {
            (1.., _) => Kind::Disk,
            (0, Some(1..)) => Kind::Card,
            _ => Kind::Unknown,
        };
        let class = device.class;
        (known.class, known.disks) = (class, disks.len());
        self.describe(class)?;
        match &disks[..] {
            [] if self.is_card() => {}
            [] => return Ok(End::Failed("the driver starts, and has no disk".into())),
            [bytes] => known.capacity = *bytes,
            several => {
                let more = "it has several disks: choose one with --namespace or --drive";
                return Ok(End::Failed(format!("{more} ({} found)", several.len())));
            }
        }
        if known.regions.is_empty() {
            known.regions = self.regions(known.capacity);
        }
        known.starts = true;
        self.note_temperature("identity", class);
        let identity = &self.report.device.identity;
        let model = identity["model"].as_str().or(identity["drives"][0]["model"].as_str());
        let quirks = match &self.report.quirks[..] {
            [] => "no quirks".into(),
            quirks => format!("quirks {}", quirks.join(", ")),
        };
        Ok(End::Passed(format!("{}, {quirks}", model.unwrap_or("a device without a model"))))
    }

    /// Asks the device for all that it says of itself.
    fn describe(&mut self, class: Option<u32>) -> Result<()> {
        let command = self.identity_command(class);
        let mut identity = self.ask(&self.identity_words(&command), Duration::ZERO)?.value()?;
        self.secrets.take(&mut identity);
        let quirks = |value: &Value| -> Vec<String> {
            let names = value["quirks"].as_array().into_iter().flatten();
            names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
        };
        self.report.quirks = quirks(&identity);
        for drive in identity["drives"].as_array().into_iter().flatten() {
            self.report.quirks.extend(quirks(drive));
        }
        self.report.device.identity = identity;
        Ok(())
    }

    /// The command that says what the device is.
    fn identity_command(&self, class: Option<u32>) -> String {
        match class {
            Some(nvme::CLASS) => "nvme id --json",
            Some(class) if is_ata(class) => "ata id --json",
            _ if self.is_card() => "net info --json",
            _ => "blk info --json",
        }
        .into()
    }

    pub(super) fn identity_words(&self, command: &str) -> Vec<String> {
        match command {
            "blk info --json" => self.words_of_disk(command),
            "net info --json" => self.words(command),
            _ => {
                let mut words = self.words(command);
                for quirk in self.args.quirks.names() {
                    words.extend(["--quirk".into(), quirk.clone()]);
                }
                words
            }
        }
    }

    fn record(&mut self, known: &Known) -> Result<End> {
        let class = known.class.or(self.report.device.class).or_else(|| self.class_by_name());
        // Of what does not start, only the class says whether its registers hold an address.
        if self.report.device.kind != Kind::Disk && !class.is_some_and(is_disk) {
            let why = "only disks are recorded: a card's recording would hold its address";
            return Ok(End::Skipped(why.into()));
        }
        let Some(path) = self.recording_path("") else {
            return Ok(End::Skipped("nobody knows what the device is".into()));
        };
        let folder = place::folder()?;
        let raw = place::path_in(&folder, "raw.rec");
        let command = self.identity_command(class);
        let mut words = self.identity_words(&command);
        for word in words.iter_mut().filter(|word| **word == self.place.uri) {
            *word += &format!(",record={}", raw.display());
        }
        let answer = self.ask(&words, Duration::ZERO)?;
        let public = self.place.public_uri();
        let mut shown = self.identity_words(&command);
        shown.iter_mut().filter(|word| **word == self.place.uri).for_each(|word| {
            word.clone_from(&public);
        });
        recording::clean(&raw, &path, &self.secrets, (public, shown))?;
        self.report.recording = Some(recording::describe(&path, true, false)?);
        let file = path.file_name().unwrap_or_default().display();
        if !answer.is_good() {
            return Ok(End::Passed(format!("{file}, of a start that fails: {}", answer.why())));
        }
        let replay = ["replay".to_owned(), path.display().to_string()];
        let replayed = self.ask(&replay, Duration::ZERO)?;
        Ok(match replayed.is_good() {
            true => End::Passed(format!(
                "{file}, replayed without the device; it has no serial numbers and no data"
            )),
            false => End::Failed(format!("the recording does not replay: {}", replayed.why())),
        })
    }

    fn class_by_name(&self) -> Option<u32> {
        ring3_backend::class_of(&self.place.uri.parse().ok()?)
    }

    fn record_reads(&mut self, _: &mut Known) -> Result<End> {
        if !self.args.record_data || self.is_card() {
            return Ok(End::Skipped("--record-data was not given".into()));
        }
        let path = self.recording_path("data").context("the recording has no name")?;
        let mut words = self.words_of_disk("blk check --read-only --requests 50 --json");
        for word in words.iter_mut().filter(|word| **word == self.place.uri) {
            *word += &format!(",record={}", path.display());
        }
        let answer = self.ask(&words, Duration::ZERO)?;
        let file = path.file_name().unwrap_or_default().display();
        let what = format!("{file} holds data and serial numbers");
        Ok(if answer.is_good() { End::Passed(what) } else { End::Failed(answer.why()) })
    }

    fn same_data(&mut self, known: &mut Known) -> Result<End> {
        if self.is_card() {
            return Ok(End::Skipped("it is a card".into()));
        }
        let found = self.read(known, 0.0, 0, "same data")?;
        if found.errors > 0 {
            return Ok(End::Failed(found.first.unwrap_or_default()));
        }
        known.ours = found.digests;
        if known.before.is_empty() {
            return Ok(End::Skipped("the kernel's driver has read nothing to compare with".into()));
        }
        let count = known.before.len();
        let differ = known.before.iter().zip(&known.ours).filter(|(one, other)| one != other);
        Ok(match differ.count() {
            0 => End::Passed(format!("{count} regions read as the kernel's driver reads them")),
            wrong => End::Failed(format!(
                "{wrong} of {count} regions read otherwise than by the kernel's driver"
            )),
        })
    }

    pub(super) fn read(
        &self,
        known: &Known,
        seconds: f64,
        resets: u32,
        step: &str,
    ) -> Result<Found> {
        let regions = known.regions.clone();
        let look = Look { regions, seconds, resets, ..self.base() };
        serde_json::from_value(self.look(look, step)?.value()?).context("reading what was found")
    }

    fn conformance(&mut self, _: &mut Known) -> Result<End> {
        let words = match (self.is_card(), self.args.destroy) {
            (true, _) => match self.words_of_card() {
                Ok(words) => words,
                Err(why) => return Ok(End::Skipped(why)),
            },
            (false, true) => self.words_of_check("--destroy"),
            (false, false) => self.words_of_check("--read-only"),
        };
        let answer = self.ask(&words, 2 * GRACE)?;
        let mut values = answer.values();
        let Some(sum) = values.pop().filter(|sum| sum["checks"].is_u64()) else {
            return Ok(End::Failed(answer.why()));
        };
        let failed: Vec<_> = (values.iter())
            .filter(|check| check["verdict"] == "failed")
            .filter_map(|check| check["check"].as_str().map(str::to_owned))
            .collect();
        self.report.conformance = values;
        let text = format!("{} checks, {} skipped", sum["checks"], sum["skipped"]);
        Ok(match &failed[..] {
            [] if answer.is_good() => End::Passed(text),
            [] => End::Failed(answer.why()),
            failed => End::Failed(format!("{text}; failed: {}", failed.join("; "))),
        })
    }

    fn words_of_check(&self, how: &str) -> Vec<String> {
        let requests = self.depth.requests;
        self.words_of_disk(&format!("blk check {how} --json --requests {requests}"))
    }

    /// The suite of cards, or why it does not run.
    fn words_of_card(&self) -> Result<Vec<String>, String> {
        let packets = self.depth.requests;
        let mut words = self.words(&format!("net check --json --burst 8 --packets {packets}"));
        let (scheme, wire) = (&self.place.name.scheme, self.place.name.options.get("wire"));
        let peer = match &self.args.peer {
            Some(peer) => Some(peer.0.to_string()),
            // Both cards are in the process that has the cable.
            None if scheme == "sim" && wire.is_none() => {
                let cabled = format!("{},wire=cable/hardware", self.place.uri);
                words.iter_mut().filter(|word| **word == self.place.uri).for_each(|word| {
                    word.clone_from(&cabled);
                });
                Some(format!("sim:{},wire=cable/hardware", self.place.name.target))
            }
            None if scheme == "qtest" && wire.is_none() => None,
            None => return Err("nothing is at the other end of its cable: --peer names it".into()),
        };
        words.extend(peer.into_iter().flat_map(|peer| ["--peer".into(), peer]));
        Ok(words)
    }

    fn give_back(&mut self) -> Result<End> {
        let Some(bound) = &self.place.bound else {
            return Ok(End::Skipped("it is no PCI function of this machine".into()));
        };
        if !or_end(bound.with(|bound| bound.is_ours())) {
            return Ok(End::Skipped("it stays where it was".into()));
        }
        let driver = or_end(bound.with(Bound::release))?;
        Ok(match (driver, self.place.kernel_driver()) {
            (Some(driver), _) => End::Passed(format!("{driver} has it again")),
            (None, None) => End::Passed("no driver has it, as before".into()),
            (None, Some(before)) => End::Failed(format!("{before} has not taken it")),
        })
    }

    fn kernel_after(&mut self, known: &Known) -> Result<End> {
        if known.before.is_empty() {
            return Ok(End::Skipped("the kernel's driver was not measured before".into()));
        }
        let address = self.place.function.as_ref().map(|function| function.address);
        let disk = kernel::disk_again(address.context("no function")?, self.part)?;
        let after = disk.digests(&known.regions)?;
        let end = self.measure(&disk.path.display().to_string(), Measured::KernelAfter, &READS)?;
        let changed = known.before.iter().zip(&after).filter(|(one, other)| one != other).count();
        Ok(match (changed, end) {
            (1.., _) if !self.args.destroy => {
                End::Failed(format!("{changed} regions are not what they were before"))
            }
            (_, end) => end,
        })
    }
}

fn is_disk(class: u32) -> bool {
    class >> 16 == 0x01
}

/// Whether the class is one of ATA's controllers.
pub fn is_ata(class: u32) -> bool {
    // Base class and sub-class: an IDE controller's interface says how its channels work.
    [ahci::CLASS >> 8, ide::CLASS >> 8].contains(&(class >> 8))
}

/// What the PCI ID database calls it.
fn name_of(vendor: Option<u16>, device: Option<u16>) -> String {
    let (Some(vendor), Some(device)) = (vendor, device) else { return "unknown".into() };
    ring3_pci::name_of(vendor, device)
}
