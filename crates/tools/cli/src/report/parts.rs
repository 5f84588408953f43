//! Parts of a report: commands of this program whose results are kept in a folder, so that what was
//! finished is not measured again.
//!
//! # The folder
//! `lock` is held by the run that writes. `parts/NAME` has the reports of a part, what its command
//! said (`log`), and at the end `done.json`: by which commit and which command it was made, and how
//! long that took. A part of another commit or of other options is made anew; one that was
//! interrupted goes on where its own command can.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_bench::report::{Lab, Report};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::split;

/// A command whose results are part of a report.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its folder's name.
    pub name: &'static str,
    /// What it measures, for who waits.
    pub about: &'static str,
    /// The command behind `ring3`. `{A|B}` is A, and B in its short form.
    pub command: &'static str,
    /// What the command gives.
    pub gives: Gives,
    /// Minutes that it takes on two cores, for who waits for the first time.
    pub minutes: u32,
    /// Seconds that its short form takes there.
    pub quick_seconds: u32,
}

impl Part {
    /// The command's words, or those of its short form.
    pub fn words(&self, quick: bool) -> String {
        let (mut words, mut rest) = (String::new(), self.command);
        while let Some((before, (choice, after))) =
            rest.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        {
            let (whole, short) = choice.split_once('|').unwrap_or((choice, choice));
            words.extend([before, if quick { short } else { whole }]);
            rest = after;
        }
        words.push_str(rest);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The command as a user types it.
    pub fn shown(&self, quick: bool) -> String {
        format!("ring3 {}", self.words(quick).replace('@', "split/"))
    }
}

/// What a command gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// Reports in the folder of its option `--out`.
    Folder,
    /// A report on standard output.
    Output,
    /// The totals of `ring3 split plan`, of this driver.
    Plan(&'static str),
}

/// The commit that this program was built from.
pub const COMMIT: Option<&str> = option_env!("RING3_COMMIT");
/// Files of a part: by what it was begun, and that it is whole.
pub const BEGUN: &str = "begun.json";
pub const DONE: &str = "done.json";
/// Between two looks at a command that runs.
const LOOK: Duration = Duration::from_millis(200);
/// How many bytes of a command's last words are looked at.
const LAST: u64 = 4096;

/// How a part began, and how it ended.
#[derive(Debug, Serialize, Deserialize)]
struct Done {
    commit: Option<String>,
    words: Vec<String>,
    seconds: u64,
}

/// Reports of parts by their names, or why there are none.
pub type Found = Vec<(&'static str, Result<Vec<Report>, String>)>;

/// Set when the program is told to end.
static ENDED: AtomicBool = AtomicBool::new(false);

/// A folder of parts.
pub struct Folder {
    root: PathBuf,
    quick: bool,
    _lock: File,
}

impl Folder {
    /// Opens it for a run, which nobody else may do at the same time.
    pub fn open(root: &Path, quick: bool) -> Result<Self> {
        let failed = || format!("making {}", root.display());
        fs::create_dir_all(root).with_context(failed)?;
        let root = &root.canonicalize().with_context(failed)?;
        let path = root.join("lock");
        let lock = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { root: root.into(), quick, _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => bail!(
                "another run measures into {}: wait for its end, or name another folder with --out",
                root.display()
            ),
            Err(fs::TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("locking {}", path.display()))
            }
        }
    }

    fn place(&self, part: &Part) -> PathBuf {
        self.root.join("parts").join(part.name)
    }

    /// The command of a part, as it is run here.
    fn words(&self, part: &Part) -> Vec<String> {
        let words = part.words(self.quick);
        let mut words: Vec<String> = words.split_whitespace().map(in_full).collect();
        if part.gives == Gives::Folder {
            words.extend(["--out".into(), self.place(part).display().to_string()]);
        }
        words
    }

    /// The same as a user types it, without this machine's folders.
    fn shown(&self, part: &Part) -> String {
        part.shown(self.quick)
    }

    fn done(&self, part: &Part) -> Option<Done> {
        let text = fs::read(self.place(part).join(DONE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Whether the part is there, by this program and these options.
    fn is_done(&self, part: &Part) -> bool {
        let words = self.words(part);
        self.done(part).is_some_and(|done| done.commit.as_deref() == COMMIT && done.words == words)
    }

    /// How long the part takes, by the last time.
    fn expected(&self, part: &Part) -> Duration {
        let usual = if self.quick { part.quick_seconds } else { 60 * part.minutes };
        let last = self.done(part).filter(|done| done.words == self.words(part));
        Duration::from_secs(last.map_or(u64::from(usual), |done| done.seconds))
    }

    /// Runs the parts that are not there yet. One that fails does not stop the others.
    ///
    /// # Errors
    /// The program was told to end, or the folder cannot be written.
    pub fn complete(&self, parts: &[Part]) -> Result<Found> {
        take_signals()?;
        let missing: Vec<_> = parts.iter().filter(|part| !self.is_done(part)).collect();
        let there = parts.len() - missing.len();
        if there > 0 {
            errln!("{there} of {} parts are there already", parts.len());
        }
        let mut failed: Vec<(&str, String)> = Vec::new();
        for (number, part) in missing.iter().enumerate() {
            let left: Duration = missing[number..].iter().map(|part| self.expected(part)).sum();
            let head = format!(
                "part {} of {}, {}: {}; about {} left",
                there + number + 1,
                parts.len(),
                part.name,
                part.about,
                minutes(left)
            );
            if let Err(error) = self.run(part, &head) {
                if ENDED.load(Ordering::Relaxed) {
                    bail!("interrupted; finished parts are kept, and the same command goes on");
                }
                errln!("{}: {error:#}", part.name);
                failed.push((part.name, format!("{error:#}")));
            }
        }
        let found = parts.iter().map(|part| {
            let why = failed.iter().find(|(name, _)| *name == part.name);
            let reports = match why {
                Some((_, why)) => Err(why.clone()),
                None => reports(&self.place(part)).map_err(|error| format!("{error:#}")),
            };
            (part.name, reports)
        });
        Ok(found.collect())
    }

    fn run(&self, part: &Part, head: &str) -> Result<()> {
        let (place, words) = (self.place(part), self.words(part));
        self.clear(part, &words)?;
        fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
        let key = Done { commit: COMMIT.map(Into::into), words: words.clone(), seconds: 0 };
        write_json(&place.join(BEGUN), &key)?;
        let (said, log) = (place.join("output"), place.join("log"));
        let began = Instant::now();
        let mut child = Command::new(program()?)
            .args(&words)
            // Some leave files where they are started.
            .current_dir(&place)
            .stdin(Stdio::null())
            .stdout(File::create(&said).with_context(|| format!("making {}", said.display()))?)
            .stderr(File::create(&log).with_context(|| format!("making {}", log.display()))?)
            .spawn()
            .with_context(|| format!("starting ring3 {}", words.join(" ")))?;
        let status = wait(&mut child, head, &log)?;
        if !status.success() {
            let why = last_line(&log).or_else(|| last_line(&said)).unwrap_or_default();
            bail!("{status}: {why} (all of it: {})", log.display());
        }
        match part.gives {
            Gives::Folder => {}
            Gives::Output => {
                fs::rename(&said, place.join(format!("{}.json", part.name)))?;
            }
            Gives::Plan(driver) => {
                plan(driver, &said)?.write(&place.join(format!("{}.json", part.name)))?;
            }
        }
        if !name_command(&place, &self.shown(part))? {
            bail!("ring3 {} has left no report", words.join(" "));
        }
        write_json(&place.join(DONE), &Done { seconds: began.elapsed().as_secs(), ..key })
    }

    /// What another program or other options have left is removed: rounds of both are not to be
    /// mixed.
    fn clear(&self, part: &Part, words: &[String]) -> Result<()> {
        let place = self.place(part);
        let begun: Option<Done> =
            fs::read(place.join(BEGUN)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let is_own = |begun: Done| begun.commit.as_deref() == COMMIT && begun.words == words;
        if begun.is_some_and(is_own) || !place.exists() {
            return Ok(());
        }
        fs::remove_dir_all(&place).with_context(|| format!("removing {}", place.display()))
    }
}

/// What a folder has of reports.
pub fn reports(folder: &Path) -> Result<Vec<Report>> {
    let paths = files(folder)?;
    let all = paths.iter().map(|path| Report::read_all(path));
    Ok(all.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Names `command` in all of a folder's reports; whether there is one. Their own has folders of
/// this machine, which say nothing to others.
fn name_command(folder: &Path, command: &str) -> Result<bool> {
    let mut any = false;
    for path in files(folder)? {
        let mut text = String::new();
        for mut report in Report::read_all(&path)? {
            report.provenance.command = command.to_owned();
            text += &report.text()?;
            any = true;
        }
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(any)
}

/// The files of reports in a folder: those of a part itself are none.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .with_context(|| format!("reading {}", folder.display()))?;
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default();
        path.extension().is_some_and(|end| end == "json") && name != BEGUN && name != DONE
    });
    paths.sort();
    Ok(paths)
}

/// What `ring3 split plan --json` says, as a report.
fn plan(driver: &str, said: &Path) -> Result<Report> {
    #[derive(Deserialize)]
    struct Plan {
        totals: Totals,
    }
    #[derive(Serialize, Deserialize)]
    struct Totals {
        functions: u32,
        lines: u32,
        kernel_functions: u32,
        kernel_lines: u32,
    }
    let text = fs::read(said).with_context(|| format!("reading {}", said.display()))?;
    let plan: Plan = serde_json::from_slice(&text).context("reading what a plan says")?;
    Ok(Report::of("split-plan", Lab::default(), ("plan", driver), &plan.totals)?)
}

/// A word as the command takes it: files of the splitter's folder by their whole name.
fn in_full(word: &str) -> String {
    let Some(name) = word.strip_prefix('@') else { return word.to_owned() };
    let folder = program().and_then(|program| split::package(&program)).ok().flatten();
    // Without the folder, the command says that there is no such file.
    folder.map_or(name.into(), |folder| folder.join(name).display().to_string())
}

/// This program.
fn program() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program, which measures")
}

/// From now on SIGINT, SIGTERM and SIGHUP end the part that runs, and then this program.
fn take_signals() -> Result<()> {
    ctrlc::set_handler(|| ENDED.store(true, Ordering::Relaxed)).context("taking signals")
}

/// Waits for `child`, and shows how far it is. If this program is told to end, the child is, too.
fn wait(child: &mut Child, head: &str, log: &Path) -> Result<std::process::ExitStatus> {
    let bar = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_prefix(head.to_owned());
    bar.enable_steady_tick(LOOK);
    if bar.is_hidden() {
        errln!("{head}");
    }
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a part")? {
            bar.finish_and_clear();
            return Ok(status);
        }
        if ENDED.load(Ordering::Relaxed) && !std::mem::replace(&mut told, true) {
            // A terminal tells both, and it is no harm to be told twice.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        if let Some(line) = last_line(log) {
            bar.set_message(line);
        }
        std::thread::sleep(LOOK);
    }
}

/// The last line that is not empty.
fn last_line(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

fn write_json(path: &Path, what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(what)?;
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn minutes(time: Duration) -> String {
    format!("{} min", time.as_secs().div_ceil(60))
}
