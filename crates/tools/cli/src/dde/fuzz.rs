//! Fuzzing a driver: AFL++ makes the bytes that its device consists of, AddressSanitizer watches.
//!
//! # Shape
//! A recording of a real device is what the inputs change (`dde/ddekit/fuzz`). Each input runs in a
//! child of the program, which AFL++ ends when it takes too long.
//! # Trust    What AFL++ has found is run again, alone, and only what happens again is a finding.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_bench::disk::machine;
use ring3_bench::report::{Fact, Report};
use ring3_lab::{Cache, Need, prepare};
use ring3_process::{PendingSignals, Signals};
use serde::Serialize;

use super::build::{Form, build_as};
use super::kernel::Kernel;
use super::{Class, catalogue};

/// Arguments of `ring3 dde fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// The driver, by its name in ring3 dde list, such as e1000e.
    driver: String,
    /// Stop after this many inputs.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// Stop after this many seconds, up to 30 days. Default: 60, or no limit with --runs.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=30 * 86_400))]
    seconds: Option<u64>,
    /// Seed of the fuzzer's random numbers. Default: a random one.
    #[arg(long)]
    seed: Option<u32>,
    /// Folder for the inputs that were found. An existing one is continued. Default:
    /// dde-fuzz-DRIVER.
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Run one input again, and show the outcome.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["runs", "seconds", "seed", "corpus"])]
    replay: Option<PathBuf>,
    /// The device that is recorded for the first input. Default: the QEMU device that the driver
    /// was tested with (ring3 dde list).
    #[arg(long, value_name = "URI")]
    device: Option<Uri>,
    /// A folder with changed files of the driver, which replace those of the same path.
    #[arg(long, value_name = "DIR")]
    overlay: Option<PathBuf>,
    /// The Linux version of the driver and of the kernel code below it: 6.12 or 7.2. The source of
    /// 7.2 is fetched by lab/setup.sh source 7.2. Default: 6.12.
    #[arg(long, value_name = "VERSION")]
    kernel: Option<Kernel>,
    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,
}

/// Milliseconds that one input may take under the fuzzer, and seconds that it may take alone: what
/// takes longer hangs.
const LIMIT_MS: u32 = 2000;
const LIMIT: u64 = 20;
/// Seconds that the device may need to be recorded.
const RECORDING: Duration = Duration::from_secs(60);

/// Something that goes wrong, each time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Finding {
    /// What: as AddressSanitizer, the kernel or ddekit has called it, or `hang`.
    what: String,
    /// In which function of the driver, and the file and line of the kernel's source.
    place: String,
}

#[derive(Debug, Serialize)]
struct Campaign {
    driver: String,
    kernel: String,
    runs: u64,
    seconds: u64,
    /// Edges of the driver's code that some input has taken, of 65,536 that can be told apart.
    edges: u64,
    inputs: u64,
    findings: Vec<Found>,
    /// Inputs of which the fuzzer said that they crash or hang, and that did not when they were run
    /// alone.
    unconfirmed: usize,
}

#[derive(Debug, Serialize)]
struct Found {
    #[serde(flatten)]
    finding: Finding,
    inputs: usize,
    example: PathBuf,
}

/// The program that runs inputs, and the recording that they change.
struct Target {
    program: PathBuf,
    library: PathBuf,
    recording: PathBuf,
}

/// Fuzzes.
pub fn run(args: &Args) -> Result<ExitCode> {
    crate::bench::begin();
    let target = Target::of(args)?;
    if let Some(input) = &args.replay {
        return replay(&target, input);
    }
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Afl], &mut |line| errln!("{line}"))?;
    let corpus = args.corpus.clone().unwrap_or_else(|| format!("dde-fuzz-{}", args.driver).into());
    let seeds = corpus.join("seeds");
    fs::create_dir_all(&seeds).with_context(|| format!("creating {}", seeds.display()))?;
    for (name, bytes) in seeds_of() {
        fs::write(seeds.join(name), bytes)
            .with_context(|| format!("writing {}", seeds.display()))?;
    }
    let start = Instant::now();
    fuzz(args, &cache, &target, &corpus)?;
    let stats = stats(&corpus);
    let number = |name: &str| stats.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    let (findings, unconfirmed) = confirm(&target, &corpus)?;
    let result = Campaign {
        driver: args.driver.clone(),
        kernel: args.kernel.unwrap_or_default().full_version(&cache)?,
        runs: number("execs_done"),
        seconds: start.elapsed().as_secs(),
        edges: number("edges_found"),
        inputs: number("corpus_count"),
        findings,
        unconfirmed,
    };
    match args.json {
        true => outln!("{}", serde_json::to_string(&result.report()?)?),
        false => show(&result),
    }
    Ok(if result.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Campaign {
    /// As all benchmarks tell their results.
    fn report(&self) -> Result<Report> {
        let placement = format!("dde:{}", self.driver);
        let mut report = Report::of("dde-fuzz", machine(false), ("fuzz", &placement), self)?;
        report.facts.extend(self.findings.iter().map(|found| {
            let value = format!("{}: {}", found.finding.what, found.finding.place);
            Fact { placement: placement.clone(), fact: "finding".into(), value }
        }));
        Ok(report)
    }
}

impl Target {
    fn of(args: &Args) -> Result<Self> {
        if !matches!(
            catalogue::class(&catalogue::root()?, &args.driver)?,
            Class::Net | Class::Block
        ) {
            bail!(
                "dde:{} drives no network card and no disk: the devices of other classes are not \
                fuzzed yet",
                args.driver
            );
        }
        let form = Form {
            kernel: args.kernel,
            fuzz: true,
            overlay: args.overlay.clone(),
            ..Form::default()
        };
        let built = build_as(&args.driver, &form, true)?;
        let recording = built.program.with_extension("recording");
        let target = Self { program: built.program, library: built.library, recording };
        if args.device.is_some() || !target.recording.exists() {
            target.record(args)?;
        }
        Ok(target)
    }

    /// Has the driver drive a real device, or QEMU's, until its link is up, and keeps what its
    /// registers gave.
    fn record(&self, args: &Args) -> Result<()> {
        let device = match &args.device {
            Some(device) => device.to_string(),
            None => catalogue::device(&catalogue::root()?, &args.driver)?,
        };
        let built = build_as(&args.driver, &Form { kernel: args.kernel, ..Form::default() }, true)?;
        let folder = tempfile::tempdir().context("creating a folder for a socket")?;
        let part = self.recording.with_extension("recording.new");
        let mut command = Command::new(&built.program);
        command
            .arg("--device")
            .arg(&device)
            .arg("--socket")
            .arg(folder.path().join("card"))
            .env("LD_LIBRARY_PATH", &built.library);
        command.env("DDEKIT_RECORD", &part).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child =
            command.spawn().with_context(|| format!("starting {}", built.program.display()))?;
        // The link comes after the card; some of what a driver does in a quiet second is wanted as
        // well.
        let served = wait_until(RECORDING, || {
            folder.path().join("card").exists() || matches!(child.try_wait(), Ok(Some(_)))
        });
        std::thread::sleep(Duration::from_secs(4));
        let status = end(&mut child)?;
        if !served || !status.success() {
            bail!("{device} could not be recorded: dde:{} has ended ({status})", args.driver);
        }
        fs::rename(&part, &self.recording)
            .with_context(|| format!("writing {}", self.recording.display()))
    }

    fn command(&self, input: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("LD_LIBRARY_PATH", &self.library)
            .arg("--recording")
            .arg(&self.recording)
            .arg("--input")
            .arg(input);
        command
    }

    /// One run alone, with all that it has to say.
    fn once(&self, input: &Path) -> Result<Output> {
        let mut command = self.command(input);
        command
            .args(["--seconds", &LIMIT.to_string()])
            .env_remove("ASAN_OPTIONS")
            .stdin(Stdio::null());
        command.output().with_context(|| format!("starting {}", self.program.display()))
    }
}

fn wait_until(limit: Duration, mut until: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if until() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// Tells it to end, and waits for that.
fn end(child: &mut Child) -> Result<std::process::ExitStatus> {
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(child),
        rustix::process::Signal::TERM,
    );
    if !wait_until(Duration::from_secs(20), || matches!(child.try_wait(), Ok(Some(_)))) {
        let _ = child.kill();
    }
    child.wait().context("waiting for a child")
}

/// What the fuzzer begins with: nothing; interrupts; frames; both with bytes of memory between
/// them. Events are taken from the back, and registers, from the front, are left alone.
fn seeds_of() -> [(&'static str, Vec<u8>); 4] {
    let seed = |mut events: Vec<u8>| {
        events.reverse();
        [vec![0x7f; 64], events].concat()
    };
    let interrupts = std::iter::repeat_n([0x80, 0x81, 0x82, 0x04], 40).flatten().collect();
    let frames = std::iter::repeat_n([0x7f, 0xd0, 0x40, 0x00, 0x02], 40).flatten().collect();
    let mixed = (0..60u8)
        .flat_map(|n| {
            [
                0x80 | n & 3,
                0xd0,
                0x40,
                0x00,
                0xa0 | 7,
                n & 7,
                n << 4,
                0,
                1,
                2,
                3,
                4,
                5,
                6,
                7,
                8,
                0x05,
            ]
        })
        .collect();
    [
        ("quiet", vec![0]),
        ("interrupts", seed(interrupts)),
        ("frames", seed(frames)),
        ("mixed", seed(mixed)),
    ]
}

fn fuzz(args: &Args, cache: &Cache, target: &Target, corpus: &Path) -> Result<()> {
    let mut afl = Command::new(cache.path("afl/bin/afl-fuzz"));
    afl.arg("-i").arg(corpus.join("seeds")).arg("-o").arg(corpus.join("afl"));
    afl.args(["-t", &LIMIT_MS.to_string(), "-m", "none", "-G", "16384"]);
    if let Some(runs) = args.runs {
        afl.arg("-E").arg(runs.to_string());
    }
    if let Some(seconds) = args.seconds.or(args.runs.is_none().then_some(60)) {
        afl.arg("-V").arg(seconds.to_string());
    }
    if let Some(seed) = args.seed {
        afl.arg("-s").arg(seed.to_string());
    }
    afl.arg("--")
        .arg(&target.program)
        .arg("--recording")
        .arg(&target.recording)
        .args(["--input", "@@"]);
    afl.env("AFL_NO_UI", "1")
        .env("AFL_AUTORESUME", "1")
        .env("AFL_SKIP_CPUFREQ", "1")
        .env("AFL_NO_AFFINITY", "1");
    afl.env("AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES", "1")
        .env("AFL_FORKSRV_INIT_TMOUT", "60000")
        .env("AFL_MAP_SIZE", "65536");
    // What a driver's program allocates is bounded by its arena; what AddressSanitizer does beside
    // it, here.
    afl.env(
        "ASAN_OPTIONS",
        "abort_on_error=1:symbolize=0:detect_leaks=0:hard_rss_limit_mb=1024:\
         detect_stack_use_after_return=0",
    );
    let log = corpus.join("afl.log");
    let file = fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    afl.env("LD_LIBRARY_PATH", &target.library)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    let signals = Signals::take().context("taking signals")?;
    let mut child = afl.spawn().context("starting afl-fuzz")?;
    let mut said = Instant::now();
    let status = loop {
        match child.try_wait().context("waiting for afl-fuzz")? {
            Some(status) => break status,
            None if signals.take_pending() != PendingSignals::default() => break end(&mut child)?,
            None => std::thread::sleep(Duration::from_millis(100)),
        }
        if said.elapsed() > Duration::from_secs(20) {
            said = Instant::now();
            let stats = stats(corpus);
            let word = |name: &str| stats.get(name).cloned().unwrap_or_else(|| "?".into());
            errln!(
                "{} inputs run, {} kept, {} crash, {} hang",
                word("execs_done"),
                word("corpus_count"),
                word("saved_crashes"),
                word("saved_hangs")
            );
        }
    };
    if !status.success() && !corpus.join("afl/default/fuzzer_stats").exists() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        bail!(
            "afl-fuzz has ended ({status}); all it said is in {}\n{}",
            log.display(),
            lines[lines.len().saturating_sub(8)..].join("\n")
        );
    }
    Ok(())
}

/// AFL++'s figures.
fn stats(corpus: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(corpus.join("afl/default/fuzzer_stats")).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

/// Runs alone what the fuzzer says crashes or hangs: the findings, each with one input, and how
/// many inputs did nothing.
fn confirm(target: &Target, corpus: &Path) -> Result<(Vec<Found>, usize)> {
    let mut inputs = Vec::new();
    for kind in ["crashes", "hangs"] {
        let folder = corpus.join("afl/default").join(kind);
        let entries =
            fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        inputs.extend(entries.filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("id:"))
        }));
    }
    inputs.sort();
    let (mut found, mut unconfirmed) = (BTreeMap::<Finding, Vec<PathBuf>>::new(), 0);
    for input in inputs {
        match finding(&target.once(&input)?) {
            Some(finding) => found.entry(finding).or_default().push(input),
            None => unconfirmed += 1,
        }
    }
    let kept = corpus.join("findings");
    fs::create_dir_all(&kept).with_context(|| format!("creating {}", kept.display()))?;
    let named = found.into_iter().map(|(finding, inputs)| -> Result<Found> {
        let example = kept.join(
            format!("{}-{}", finding.what, finding.place)
                .replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"),
        );
        fs::copy(&inputs[0], &example).with_context(|| format!("writing {}", example.display()))?;
        Ok(Found { finding, inputs: inputs.len(), example })
    });
    Ok((named.collect::<Result<_>>()?, unconfirmed))
}

/// The status of a program of ours that hangs, and of one that AddressSanitizer has ended.
const HANGS: i32 = 98;
const REPORTED: i32 = 99;

/// What went wrong in a run, if anything.
fn finding(output: &Output) -> Option<Finding> {
    let said = String::from_utf8_lossy(&output.stderr);
    let what = match (output.status.code(), output.status.signal()) {
        (Some(0), _) => return None,
        (Some(HANGS), _) => "hang".into(),
        (Some(REPORTED), _) => {
            said.lines().find_map(|line| line.split_once("AddressSanitizer: ")).map_or_else(
                || "AddressSanitizer".into(),
                |(_, rest)| rest.split([' ', ':']).next().unwrap_or("").to_owned(),
            )
        }
        (_, Some(_)) => said
            .lines()
            .find(|line| line.contains("panics") || line.starts_with("dde:"))
            .map_or_else(|| "abort".into(), shorten),
        (code, None) => format!("exit {}", code.unwrap_or(-1)),
    };
    Some(Finding { what, place: place(&said) })
}

/// Without addresses and lengths, which differ from input to input.
fn shorten(line: &str) -> String {
    let kept: String = line.chars().take(60).collect();
    kept.split(|letter: char| letter.is_ascii_digit())
        .next()
        .unwrap_or("")
        .trim_end_matches([' ', ':', '0', 'x'])
        .to_owned()
}

/// The first frame of a stack that is the driver's: below `drivers/`, and not the bus's or the
/// model's.
fn place(said: &str) -> String {
    let frame = |line: &str| {
        let (_, rest) = line.trim_start().strip_prefix('#')?.split_once(" in ")?;
        let (function, at) = rest.split_once(' ')?;
        let from = at.find("/drivers/")? + 1;
        let at = at[from..].split_whitespace().next()?;
        let own = !at.starts_with("drivers/base/") && !at.starts_with("drivers/pci/");
        // Of file:line:column, the column is no help.
        let at = at.splitn(3, ':').take(2).collect::<Vec<_>>().join(":");
        own.then(|| format!("{function} {at}"))
    };
    said.lines().find_map(frame).unwrap_or_else(|| "outside of the driver".into())
}

fn replay(target: &Target, input: &Path) -> Result<ExitCode> {
    fs::metadata(input).with_context(|| format!("opening {}", input.display()))?;
    let output = target.once(input)?;
    String::from_utf8_lossy(&output.stderr).lines().for_each(|line| errln!("{line}"));
    Ok(match finding(&output) {
        None => {
            outln!("nothing goes wrong");
            ExitCode::SUCCESS
        }
        Some(Finding { what, place }) => {
            outln!("{what}: {place}");
            ExitCode::FAILURE
        }
    })
}

fn show(result: &Campaign) {
    let Campaign { driver, kernel, runs, seconds, edges, inputs, findings, unconfirmed } = result;
    outln!(
        "dde:{driver} of Linux {kernel}: {runs} inputs run in {seconds} s, {inputs} kept, {edges} \
        edges"
    );
    for Found { finding: Finding { what, place }, inputs, example } in findings {
        outln!("{what}: {place}");
        outln!("    {inputs} inputs; ring3 dde fuzz {driver} --replay {}", example.display());
    }
    if *unconfirmed > 0 {
        outln!("{unconfirmed} inputs crashed or hung under the fuzzer and not alone");
    }
    if findings.is_empty() {
        outln!("nothing found");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use std::process::ExitStatus;

    const REPORT: &str = "0x1 is byte 3 of 64 that were freed by\n    #0 0x5 in kfree \
                          /ring3/dde/linux/emul/slab.c:200:3\n\
                          ==7==ERROR: AddressSanitizer: use-after-poison on address 0x1\n    #0 \
                          0x1 in skb_put /k/net/core/skbuff.c:10\n\
                          #1 0x2 in pci_read /k/drivers/pci/access.c:9\n    #2 0x2 in e1000_clean \
                          /k/source/drivers/net/ethernet/intel/e1000e/netdev.c:12:4\n";

    fn ended(raw: i32, stderr: &str) -> Output {
        Output { status: ExitStatus::from_raw(raw), stdout: vec![], stderr: stderr.into() }
    }

    #[test]
    fn a_finding_is_named_by_the_report_and_the_first_frame_of_the_driver() {
        let found = finding(&ended(REPORTED << 8, REPORT)).unwrap();
        assert_eq!(found.what, "use-after-poison");
        assert_eq!(found.place, "e1000_clean drivers/net/ethernet/intel/e1000e/netdev.c:12");
    }

    #[test]
    fn a_run_that_ends_well_is_no_finding_and_one_that_does_not_end_is() {
        assert_eq!(finding(&ended(0, "")), None);
        assert_eq!(
            finding(&ended(HANGS << 8, "")).unwrap(),
            Finding { what: "hang".into(), place: "outside of the driver".into() }
        );
    }

    #[test]
    fn panics_that_differ_in_numbers_are_one() {
        let of = |line: &str| finding(&ended(6, line)).unwrap().what;
        assert_eq!(
            of("Linux panics: skb_over_panic: text:0x12 len:9"),
            of("Linux panics: skb_over_panic: text:0x77 len:8")
        );
    }

    #[test]
    fn a_campaign_is_reported_with_its_figures_as_rows_and_its_findings_as_facts() {
        let finding = finding(&ended(REPORTED << 8, REPORT)).unwrap();
        let campaign = Campaign {
            driver: "e1000e".into(),
            kernel: "6.12".into(),
            runs: 1000,
            seconds: 60,
            edges: 3,
            inputs: 2,
            findings: vec![Found { finding, inputs: 1, example: "x".into() }],
            unconfirmed: 0,
        };
        let report = campaign.report().unwrap();
        assert_eq!(report.get("fuzz", "dde:e1000e", "runs").unwrap().median, 1000.0);
        assert!(report.fact("dde:e1000e", "finding").unwrap().starts_with("use-after-poison: "));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["findings"][0]["inputs"], 1);
        let own = serde_json::to_value(&report.own).unwrap();
        let mut schema: Value =
            serde_json::from_str(include_str!("../../../../../docs/output.schema.json")).unwrap();
        schema["$ref"] = "#/$defs/dde-fuzz".into();
        jsonschema::validate(&schema, &own).unwrap();
    }

    #[test]
    fn seeds_are_small_and_differ() {
        let seeds = seeds_of();
        assert!(seeds.iter().all(|(_, bytes)| !bytes.is_empty() && bytes.len() < 4096));
        assert!(seeds[1].1 != seeds[2].1);
    }
}
