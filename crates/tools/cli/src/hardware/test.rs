//! `ring3 hardware test`: its options, its steps in order, and its file.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_bench::provenance::Provenance;

use super::place::{Name, Place};
use super::program::Program;
use super::report::{FORMAT, Kind, Options, Report, SCHEMA, Step, Verdict, Version};
use super::secrets::Secrets;
use super::{kernel, machine};
use crate::driving::{Protection, QuirkArgs};
use crate::leave::Watch;

/// Options of `ring3 hardware test`.
#[derive(clap::Args)]
pub struct Args {
    /// The device: 0000:01:00.0 (a PCI address, by VFIO), vfio:0000:01:00.0, uio:0000:01:00.0,
    /// qtest:MODEL, vfio-user:PATH or sim:MODEL.
    device: Name,
    #[command(flatten)]
    pub protection: Protection,
    /// Of a controller with several disks: the namespace (NVMe).
    #[arg(long, value_name = "ID", conflicts_with = "drive")]
    namespace: Option<u32>,
    /// Of a controller with several disks: the drive (AHCI, IDE), by its port or place, from 0.
    #[arg(long, value_name = "PLACE")]
    drive: Option<u32>,
    #[command(flatten)]
    pub quirks: QuirkArgs,
    /// Of a network card: the card at the other end of its cable, which must be unused.
    #[arg(long, value_name = "URI")]
    pub peer: Option<Name>,
    /// Confirm that the content of the disk may be lost, and run the steps that write, too.
    #[arg(long)]
    pub destroy: bool,
    /// Take a minute instead of more than an hour: fewer requests, kills and resets, and 5 seconds
    /// of verify.
    #[arg(long)]
    pub quick: bool,
    /// How long data is verified: a number and s, m or h. Default: 1h; 5s with --quick.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    verify: Option<Duration>,
    /// The file to write, which must not exist yet. Default: a name made of vendor, device and day,
    /// in the current folder.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The recording of the device's start and identity, which must not exist yet. Default: beside
    /// the file, with .rec as its end.
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// Record a check that reads the disk, too. The recording then holds data of the disk and
    /// serial numbers.
    #[arg(long)]
    pub record_data: bool,
    /// Print the file's content at the end instead of a line for each step.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The option by which commands name one of several disks.
    pub fn part_option(&self) -> &'static str {
        if self.drive.is_some() { "--drive" } else { "--namespace" }
    }
}

/// Longest time that data is verified: a week.
const LONGEST: u64 = 7 * 24 * 3600;

/// A time as `90`, `90s`, `5m` or `1h`.
fn duration(text: &str) -> Result<Duration, &'static str> {
    let (number, factor) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((number, "s")) => (number, 1),
        Some((number, "m")) => (number, 60),
        Some((number, "h")) => (number, 3600),
        _ => (text, 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    let seconds = seconds.filter(|seconds| (1..=LONGEST).contains(seconds));
    seconds.map(Duration::from_secs).ok_or("a time is a number and s, m or h, up to 168h")
}

/// How thorough the steps are.
#[derive(Clone, Copy)]
pub struct Depth {
    pub requests: u32,
    /// Of each load.
    pub seconds: f64,
    pub kills: u32,
    pub resets: u32,
    pub verify: Duration,
    /// Regions that are read again and again, and bytes of each.
    pub regions: (u64, u64),
}

/// How a step ended.
pub enum End {
    Passed(String),
    Failed(String),
    Skipped(String),
}

/// A test that runs.
pub struct Test {
    pub args: Args,
    pub depth: Depth,
    pub place: Place,
    pub program: Program,
    pub report: Report,
    pub secrets: Secrets,
    /// The chosen namespace or drive.
    pub part: Option<u32>,
    bar: ProgressBar,
    begin: Instant,
    /// The file, once its name is known.
    out: Option<PathBuf>,
}

/// Tests a device. The exit code is 1 if a step failed.
pub fn run(args: Args) -> Result<ExitCode> {
    crate::bench::begin();
    check_names(&args)?;
    // First: threads and processes that are started from now on leave signals to it.
    let watch = Watch::start()?;
    let mut test = Test::new(args)?;
    test.run_steps()?;
    drop(test.place);
    drop(watch);
    let failed: Vec<_> = test.report.failed().collect();
    if test.args.json {
        outln!("{}", serde_json::to_string_pretty(&test.report)?);
    } else {
        let path = test.out.as_deref().map(Path::display);
        let path = path.map(|path| path.to_string()).unwrap_or_default();
        match &failed[..] {
            [] => outln!("passed; {path} has no serial numbers: you may send it"),
            steps => outln!("failed: {}; {path} has no serial numbers", steps.join(", ")),
        }
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Refuses names of files that cannot be made, before the device is touched.
fn check_names(args: &Args) -> Result<()> {
    let beside = args.out.as_deref().map(|out| out.with_extension("rec"));
    let recording = args.recording.clone().or(beside);
    let data = recording.as_deref().filter(|_| args.record_data);
    let data = data.map(|path| with_word(path, "data"));
    for path in [&args.out, &recording, &data].into_iter().flatten() {
        let name = path.display();
        ensure!(!path.exists(), "{name}: it exists: choose another name");
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        ensure!(folder.is_none_or(Path::is_dir), "{name}: its folder is not there: make it first");
    }
    let absolute = |path: &Option<PathBuf>| path.as_ref().map(std::path::absolute).transpose();
    ensure!(
        recording.is_none() || absolute(&args.out)? != absolute(&recording)?,
        "the file and the recording have the same name: choose another one with --recording"
    );
    for path in [&recording, &data].into_iter().flatten() {
        ensure!(
            !path.display().to_string().contains(','),
            "{}: the name of a recording has no comma: choose another one with --recording",
            path.display()
        );
    }
    Ok(())
}

/// A recording's path with `word` before its suffix.
fn with_word(path: &Path, word: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{word}.rec"))
}

impl Report {
    /// Names of the steps that failed.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        let failed = self.steps.iter().filter(|step| step.verdict == Verdict::Failed);
        failed.map(|step| step.step.as_str())
    }
}

impl Test {
    fn new(args: Args) -> Result<Self> {
        let depth = match args.quick {
            true => Depth {
                requests: 200,
                seconds: 0.5,
                kills: 5,
                resets: 2,
                verify: Duration::from_secs(5),
                regions: (8, 256 << 10),
            },
            false => Depth {
                requests: 2000,
                seconds: 5.0,
                kills: 50,
                resets: 10,
                verify: Duration::from_secs(3600),
                regions: (16, 1 << 20),
            },
        };
        let depth = Depth { verify: args.verify.unwrap_or(depth.verify), ..depth };
        let place = Place::new(args.device.0.clone())?;
        let Provenance { version, commit, date, .. } = Provenance::now();
        let report = Report {
            format: FORMAT.into(),
            schema: SCHEMA,
            ring3: Version { version, commit },
            date,
            options: Options {
                destroy: args.destroy,
                quick: args.quick,
                verify_seconds: depth.verify.as_secs(),
            },
            machine: machine::this(),
            ..Report::default()
        };
        let is_shown = std::io::stderr().is_terminal() && !args.json;
        let bar = if is_shown { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_style(
            ProgressStyle::with_template("{spinner} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_millis(200));
        let mut test = Self {
            part: args.namespace.or(args.drive),
            depth,
            place,
            program: Program::this()?,
            report,
            secrets: Secrets::default(),
            bar,
            begin: Instant::now(),
            out: None,
            args,
        };
        test.secrets.add_machine();
        let args = [&test.args.out, &test.args.recording];
        for path in args.into_iter().flatten() {
            test.secrets.add_path(path);
        }
        if let Ok(here) = std::env::current_dir() {
            test.secrets.add_path(&here.join("file"));
        }
        test.describe_function();
        Ok(test)
    }

    /// What sysfs says of a PCI function.
    fn describe_function(&mut self) {
        let device = &mut self.report.device;
        device.uri = self.place.public_uri();
        device.kernel_driver = self.place.kernel_driver().map(str::to_owned);
        let Some(function) = &self.place.function else { return };
        (device.vendor, device.device) = (Some(function.vendor), Some(function.device));
        (device.class, device.name) = (Some(function.class), function.name());
        device.reset_methods.clone_from(&function.reset_methods);
        kernel::add_secrets(function.address, &mut self.secrets);
    }

    /// Does a step, prints how it ended, and writes the file as far as it is.
    pub fn step(
        &mut self,
        name: &str,
        work: impl FnOnce(&mut Self) -> Result<End>,
    ) -> Result<Verdict> {
        let since = Instant::now();
        self.progress(name, "");
        let end = work(self).unwrap_or_else(|error| End::Failed(crate::explain(&error)));
        let (verdict, mut detail) = match end {
            End::Passed(detail) => (Verdict::Passed, detail),
            End::Failed(detail) => (Verdict::Failed, detail),
            End::Skipped(detail) => (Verdict::Skipped, detail),
        };
        let seconds = since.elapsed().as_secs_f64();
        // A path of this machine is nobody's business.
        detail = detail.replace(&self.place.uri, &self.report.device.uri);
        if !self.args.json {
            self.bar.suspend(|| {
                outln!("{:7} {name}: {detail} ({seconds:.1} s)", verdict.word());
            });
        }
        // It is a sentence of some process: no more of it than anybody reads.
        detail.truncate(detail.floor_char_boundary(1000));
        self.report.steps.push(Step { step: name.into(), verdict, detail, seconds });
        self.save(false)?;
        Ok(verdict)
    }

    /// Shows on a terminal what is being done.
    pub fn progress(&self, step: &str, what: &str) {
        let total = self.begin.elapsed().as_secs();
        let colon = if what.is_empty() { "" } else { ": " };
        self.bar.set_message(format!("{}:{:02}  {step}{colon}{what}", total / 60, total % 60));
    }

    /// Where the file will be; `None` as long as vendor and device are not known.
    fn name_file(&mut self) -> Option<PathBuf> {
        if self.out.is_none() {
            let device = &self.report.device;
            self.out = self.args.out.clone().or_else(|| {
                let (vendor, id) = (device.vendor?, device.device?);
                let day = self.report.date.split('T').next()?;
                let name = |number| match number {
                    1 => format!("ring3-{vendor:04x}-{id:04x}-{day}.json"),
                    _ => format!("ring3-{vendor:04x}-{id:04x}-{day}-{number}.json"),
                };
                let is_free = |path: &PathBuf| {
                    let recording = path.with_extension("rec");
                    let data = with_word(&recording, "data");
                    [path, &recording, &data].iter().all(|path| !path.exists())
                };
                (1..1000).map(name).map(PathBuf::from).find(is_free)
            });
        }
        self.out.clone()
    }

    /// Where the recording goes, beside the file. `what` is put before its suffix.
    pub fn recording_path(&mut self, what: &str) -> Option<PathBuf> {
        let beside = self.name_file().map(|out| out.with_extension("rec"));
        let path = self.args.recording.clone().or(beside)?;
        if what.is_empty() {
            return Some(path);
        }
        Some(with_word(&path, what))
    }

    /// Writes the file, whole or not at all.
    pub fn save(&mut self, finished: bool) -> Result<()> {
        self.report.finished = finished;
        self.report.seconds = self.begin.elapsed().as_secs_f64();
        let Some(path) = self.name_file() else { return Ok(()) };
        self.secrets.clean(&mut self.report);
        let text = serde_json::to_string_pretty(&self.report)? + "\n";
        write(&path, text.as_bytes()).with_context(|| path.display().to_string())
    }

    /// The last file, for a device whose ids nobody has said.
    pub fn finish(&mut self) -> Result<()> {
        self.bar.finish_and_clear();
        if self.name_file().is_none() {
            self.out = Some(PathBuf::from("ring3-unknown-device.json"));
        }
        self.save(true)
    }

    pub fn is_card(&self) -> bool {
        self.report.device.kind == Kind::Card
    }
}

/// Puts `bytes` into the place of the file at `path`, so that it is never half there. A device such
/// as /dev/stdout is written to.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if path.exists() && !path.is_file() {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    // Readable as any file that a user makes, and not by its owner alone.
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(permissions)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_or_is_of_seconds() {
        for (text, seconds) in
            [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("168h", LONGEST)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "h", "0", "-1", "169h", "1d", "1.5h", "ä", "18446744073709551615h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, b"long").unwrap();
        write(&path, b"b").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"b");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(Path::new("/no/such/folder/a"), b"b").is_err());
    }
}
