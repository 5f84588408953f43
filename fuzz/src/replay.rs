//! Runs the targets without libFuzzer: over their corpus, and a number of mutated inputs.
//!
//! # Shape
//! A target runs in a process of its own, which writes the number of the input before it runs it.
//! That process may die or hang; the parent reads the number, makes the input again, and keeps it.
//! An input depends on neither time nor chance. When a thread of a model has its turn does, as in
//! libFuzzer.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::mutate::{self, Inputs};
use crate::targets::{TARGETS, Target};
use crate::trap;

const USAGE: &str = "\
Replays fuzz targets without libFuzzer. docs/fuzzing.md says what they look for.

  ring3-fuzz [OPTION...] [NAME...]    all targets, or these
  ring3-fuzz NAME FILE                one input, such as a find

  --seed N       another seed of the mutated inputs
  --inputs N     so many mutated inputs of each target
  --limit N      seconds of one input, 10 if not given
  --root DIR     the folder of fuzz/corpus and of target/fuzz/finds, the current one if not given
";
/// The seed of the mutated inputs. Another one is as good.
const SEED: u64 = 0x0072_696e_6733;
/// Time of one input, as fuzz/run has it.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(20);

/// What the command line says.
#[derive(Clone, Debug)]
struct Options {
    seed: u64,
    inputs: Option<usize>,
    limit: Duration,
    root: PathBuf,
    /// Where this process writes the number of its input; it is the process of one target then.
    progress: Option<PathBuf>,
    names: Vec<String>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let (seed, limit, root) = (SEED, LIMIT, PathBuf::from("."));
        let (inputs, progress, names) = (None, None, Vec::new());
        let mut options = Self { seed, inputs, limit, root, progress, names };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--seed" => options.seed = words.next()?.parse().ok()?,
                "--inputs" => options.inputs = Some(words.next()?.parse().ok()?),
                "--limit" => options.limit = Duration::from_secs(words.next()?.parse().ok()?),
                "--root" => options.root = words.next()?.into(),
                "--progress" => options.progress = Some(words.next()?.into()),
                option if option.starts_with('-') => return None,
                _ => options.names.push(word),
            }
        }
        Some(options)
    }

    /// The inputs of `target`, and how many there are.
    fn inputs(&self, target: Target) -> io::Result<(Inputs, usize)> {
        let folder = self.root.join("fuzz/corpus").join(target.name);
        let entries = fs::read_dir(&folder)?.map(|entry| entry.map(|entry| entry.path()));
        let mut files = entries.collect::<io::Result<Vec<_>>>()?;
        // Mutations of nothing would pass and show nothing.
        if files.is_empty() {
            return Err(io::Error::other(format!("{} has no inputs", folder.display())));
        }
        // The order of a folder's entries is the file system's.
        files.sort();
        let corpus = files.iter().map(fs::read).collect::<io::Result<Vec<_>>>()?;
        let count = corpus.len() + self.inputs.unwrap_or(target.mutated);
        Ok((Inputs::new(target.name, corpus, self.seed), count))
    }
}

/// The program: does what the command line `words` says.
pub fn main(words: impl Iterator<Item = String>) -> ExitCode {
    let Some(options) = Options::parse(words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let done = match (options.names.as_slice(), &options.progress) {
        ([name], Some(progress)) => run_inputs(&options, name, progress),
        ([name, file], None) if Path::new(file).is_file() => run_file(name, Path::new(file)),
        _ => return replay_all(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ring3-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn named(name: &str) -> io::Result<Target> {
    let unknown = || io::Error::other(format!("there is no target {name}"));
    Target::named(name).ok_or_else(unknown)
}

/// Makes this process one that runs inputs, and ends at a find.
fn prepare() -> io::Result<()> {
    trap::install()?;
    // A panic in any thread is a find, whoever joins that thread, as in libFuzzer.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
    Ok(())
}

/// Runs the input in `file`.
fn run_file(name: &str, file: &Path) -> io::Result<()> {
    let (target, input) = (named(name)?, fs::read(file)?);
    prepare()?;
    (target.run)(&input);
    Ok(())
}

/// Runs all inputs of the target `name`, in the process for it.
fn run_inputs(options: &Options, name: &str, progress: &Path) -> io::Result<()> {
    let target = named(name)?;
    let (inputs, count) = options.inputs(target)?;
    let progress = File::options().write(true).open(progress)?;
    prepare()?;
    for index in 0..=count {
        // Behind the last input, too: a process that exits within an input has not come so far.
        progress.write_all_at(&(index as u64).to_ne_bytes(), 0)?;
        if index < count {
            (target.run)(&inputs.get(index));
        }
    }
    Ok(())
}

/// What came of a target's process.
struct Ran {
    target: Target,
    given: usize,
    count: usize,
    time: Duration,
    find: Option<Find>,
}

/// An input that breaks a promise.
struct Find {
    why: String,
    /// What the process has written.
    output: String,
    index: usize,
    file: PathBuf,
}

/// Runs the targets that `options` name, or all, side by side, and prints what came of them. The
/// last line is one that tests/run counts.
fn replay_all(options: &Options) -> ExitCode {
    let named = options.names.iter().map(|name| named(name)).collect::<io::Result<VecDeque<_>>>();
    let targets = match named {
        Ok(named) if named.is_empty() => TARGETS.into(),
        Ok(named) => named,
        Err(error) => {
            eprint!("ring3-fuzz: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}", options.seed);
    let (queue, counts) = (Mutex::new(targets), Mutex::new([0, 0]));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        while let Some(target) = next() {
            // Held while it prints, so that the lines of two targets do not mix.
            let ran = replay(options, target);
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            counts[usize::from(!report(options, target, ran))] += 1;
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let [passed, failed] = counts.into_inner().unwrap_or_else(PoisonError::into_inner);
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what came of `target`, and returns whether it has passed.
fn report(options: &Options, target: Target, ran: io::Result<Ran>) -> bool {
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) => {
            println!("FAILED {}: {error}", target.name);
            return false;
        }
    };
    let (name, given, seconds) = (ran.target.name, ran.given, ran.time.as_secs_f32());
    let mutated = ran.count - given;
    let Some(find) = ran.find else {
        println!("{name:16} {given:>3} inputs and {mutated:>5} mutations in {seconds:>4.1} s");
        return true;
    };
    let kind = if find.index < given { "of the corpus" } else { "a mutation" };
    println!("FAILED {name}: {} at input {}, {kind}, seed {}", find.why, find.index, options.seed);
    print!("{}", find.output);
    println!("  again: target/debug/ring3-fuzz {name} {}", find.file.display());
    println!("     or: fuzz/run {name} {}", find.file.display());
    false
}

/// Runs the process of `target`, and looks at how it ends.
fn replay(options: &Options, target: Target) -> io::Result<Ran> {
    let (inputs, count) = options.inputs(target)?;
    // Sockets and memory of the targets: not on a disk, and gone when the process is killed.
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let progress = NamedTempFile::new_in(&folder)?;
    let mut output = tempfile::tempfile()?;
    let began = Instant::now();
    // Not by its path: a build may have put another program there meanwhile.
    let mut child = Command::new("/proc/self/exe")
        .args(["--seed", &options.seed.to_string(), "--root"])
        .arg(&options.root)
        .args(options.inputs.iter().flat_map(|count| ["--inputs".into(), count.to_string()]))
        .arg("--progress")
        .args([progress.path(), Path::new(target.name)])
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output.try_clone()?)
        .spawn()?;
    let (ended, index) = watch(&mut child, progress.as_file(), options.limit)?;
    let (given, time) = (inputs.given(), began.elapsed());
    let why = match ended {
        Some(status) if status.success() && index == Some(count) => {
            return Ok(Ran { target, given, count, time, find: None });
        }
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("the process ended with exit code {code}"),
            (_, signal) => format!("the process died of signal {}", signal.unwrap_or(0)),
        },
        None => format!("an input took {} s", options.limit.as_secs()),
    };
    let mut text = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut text)?;
    let output = String::from_utf8_lossy(&text).into_owned();
    let Some(index) = index.filter(|index| *index < count) else {
        return Err(io::Error::other(format!("{why}, in no input\n{output}")));
    };
    let file = keep(&options.root, target.name, &inputs.get(index))?;
    Ok(Ran { target, given, count, time, find: Some(Find { why, output, index, file }) })
}

/// Waits for the end of `child`, or kills it when it stays `limit` at one input: how it has ended,
/// and the input that it ran last.
fn watch(
    child: &mut Child,
    progress: &File,
    limit: Duration,
) -> io::Result<(Option<ExitStatus>, Option<usize>)> {
    let read = || {
        let mut number = [0; 8];
        progress.read_exact_at(&mut number, 0).ok().map(|()| u64::from_ne_bytes(number) as usize)
    };
    let (mut last, mut since) = (None, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((Some(status), read()));
        }
        let now = read();
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok((None, read()));
        }
        thread::sleep(LOOK);
    }
}

/// Writes a find, named by its bytes: the same find is one file.
fn keep(root: &Path, name: &str, input: &[u8]) -> io::Result<PathBuf> {
    let place = Path::new("target/fuzz/finds").join(name);
    fs::create_dir_all(root.join(&place))?;
    let file = place.join(format!("replay-{:016x}", mutate::hash(input)));
    File::create(root.join(&file))?.write_all(input)?;
    Ok(file)
}
