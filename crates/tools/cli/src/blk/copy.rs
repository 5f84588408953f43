//! `ring3 blk read` and `ring3 blk write`: between a disk and a file.

use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::flow::{BUFFERS, Flow};
use super::target::{Amount, Span, Target};
use crate::leave::INTERRUPTED;

/// Where on the disk.
#[derive(clap::Args)]
struct Place {
    #[command(flatten)]
    target: Target,
    /// Where to start: bytes (4096, 64M) or blocks (8b).
    #[arg(long, value_name = "SIZE", default_value = "0")]
    offset: Amount,
    /// How much to copy: bytes (4096, 64M) or blocks (8b). Default: to the end of the disk, or of
    /// the input.
    #[arg(long, value_name = "SIZE")]
    length: Option<Amount>,
    /// Print the result as a JSON object; on standard error if standard output carries the data.
    #[arg(long)]
    json: bool,
}

/// Arguments of `ring3 blk read`.
#[derive(clap::Args)]
pub struct ReadArgs {
    #[command(flatten)]
    place: Place,
    /// The file to write. Default, or -: standard output.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Leave holes in the file where the disk has zeroes.
    #[arg(long, requires = "to")]
    sparse: bool,
}

/// Arguments of `ring3 blk write`.
#[derive(clap::Args)]
pub struct WriteArgs {
    #[command(flatten)]
    place: Place,
    /// The file to read. Default, or -: standard input.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Let the device write the zeroes of the input itself (write zeroes), instead of transferring
    /// them.
    #[arg(long)]
    sparse: bool,
    /// Fill the last block with zeroes if the input ends within it. Without this, such an input is
    /// refused.
    #[arg(long)]
    pad: bool,
    /// Do not flush the disk's cache at the end.
    #[arg(long)]
    no_flush: bool,
}

/// How long a copy that is interrupted has to end by itself and to say how far it was.
const GRACE: Duration = Duration::from_secs(2);

/// Whether Ctrl-C or a signal interrupts the copy.
fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    // In a thread of its own. The copy itself may wait for a pipe that nobody fills or empties.
    let end = move || {
        flag.store(true, Ordering::Release);
        std::thread::sleep(GRACE);
        errln!(
            "ring3: interrupted; the copy was ended in the middle, because it still waited for the \
             disk or for the other end of a pipe after {} s",
            GRACE.as_secs()
        );
        std::process::exit(INTERRUPTED);
    };
    ctrlc::set_handler(end).context("taking signals")?;
    Ok(interrupted)
}

/// Copies from the disk.
pub fn read(args: &ReadArgs) -> Result<ExitCode> {
    let disk = args.place.target.open(1, BUFFERS)?;
    let span =
        Span::of(disk.info(), args.place.offset, args.place.length).with_context(|| disk.name())?;
    let bytes = span.blocks * u64::from(disk.info().block_size);
    let path = named(&args.to);
    let mut output: Box<dyn Output> = match path {
        Some(path) => Box::new(File::create(path).with_context(|| path.display().to_string())?),
        None if std::io::stdout().is_terminal() => {
            bail!("the content of a disk is not for a terminal: use --to FILE or a pipe")
        }
        None => Box::new(std::io::stdout().lock()),
    };
    let (start, bar, interrupted) = (Instant::now(), bar(&args.place, bytes), interruption()?);
    let mut copied = 0;
    let sink = |piece: &[u8]| {
        ensure!(
            !interrupted.load(Ordering::Acquire),
            "interrupted: {copied} of {bytes} bytes were copied from the disk"
        );
        copied += piece.len();
        match args.sparse && piece.iter().all(|&byte| byte == 0) {
            true => output.skip(piece.len() as u64).context("writing the output"),
            false => output.write_all(piece).context("writing the output"),
        }
    };
    Flow::new(&*disk)?.read(span, sink, &mut |done| bar.inc(done))?;
    output.end(bytes).context("writing the output")?;
    bar.finish_and_clear();
    report(&args.place, "read", &disk.name(), bytes, start, path.is_some());
    Ok(ExitCode::SUCCESS)
}

/// Copies to the disk.
pub fn write(args: &WriteArgs) -> Result<ExitCode> {
    let disk = args.place.target.open(1, BUFFERS)?;
    let span =
        Span::of(disk.info(), args.place.offset, args.place.length).with_context(|| disk.name())?;
    let room = span.blocks * u64::from(disk.info().block_size);
    let mut input: Box<dyn Read> = match named(&args.from) {
        Some(path) => Box::new(input_file(path, room, args).with_context(|| disk.name())?),
        None => Box::new(std::io::stdin().lock()),
    };
    let (start, bar, block_size) =
        (Instant::now(), bar(&args.place, room), disk.info().block_size as usize);
    let (interrupted, mut taken) = (interruption()?, 0);
    let source = |piece: &mut [u8]| {
        ensure!(
            !interrupted.load(Ordering::Acquire),
            "interrupted: the first {taken} bytes were submitted to the disk, and its cache was \
             not flushed"
        );
        let len = fill(&mut *input, piece).context("reading the input")?;
        let whole = len.next_multiple_of(block_size);
        ensure!(
            len == whole || args.pad,
            "the input ends within a block of {block_size} bytes: add --pad to fill it with zeroes"
        );
        piece[len..whole].fill(0);
        taken += whole;
        Ok(whole)
    };
    let mut flow = Flow::new(&*disk)?;
    let bytes = flow.write(span, source, args.sparse, &mut |done| bar.inc(done))?;
    if !args.no_flush {
        flow.flush()?;
    }
    bar.finish_and_clear();
    if bytes == room && args.place.length.is_none() {
        let left = fill(&mut *input, &mut [0]).context("reading the input")?;
        ensure!(
            left == 0,
            "{}: the disk ends before the input: {bytes} bytes were written",
            disk.name()
        );
    }
    if let Some(length) = args.place.length {
        ensure!(
            bytes == room,
            "{}: the input ends after {bytes} bytes, before the length of {length:?}",
            disk.name()
        );
    }
    report(&args.place, "written", &disk.name(), bytes, start, true);
    Ok(ExitCode::SUCCESS)
}

/// Opens the input; one that is known to be too long is refused before anything is written.
fn input_file(path: &Path, room: u64, args: &WriteArgs) -> Result<File> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let metadata = file.metadata().with_context(|| path.display().to_string())?;
    if metadata.is_file() && metadata.len() > room && args.place.length.is_none() {
        bail!(
            "{} has {} bytes, but only {room} fit: use --length to write its start",
            path.display(),
            metadata.len()
        );
    }
    Ok(file)
}

/// Reads until `piece` is full or the input ends.
fn fill(input: &mut dyn Read, piece: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < piece.len() {
        match input.read(&mut piece[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

fn named(path: &Option<PathBuf>) -> Option<&Path> {
    path.as_deref().filter(|path| *path != Path::new("-"))
}

/// Where read data goes.
trait Output: Write {
    /// Leaves a hole.
    fn skip(&mut self, bytes: u64) -> std::io::Result<()>;
    /// Nothing more comes after `bytes` in all.
    fn end(&mut self, bytes: u64) -> std::io::Result<()>;
}

impl Output for File {
    fn skip(&mut self, bytes: u64) -> std::io::Result<()> {
        let bytes = i64::try_from(bytes).map_err(std::io::Error::other)?;
        self.seek(SeekFrom::Current(bytes)).map(drop)
    }

    fn end(&mut self, bytes: u64) -> std::io::Result<()> {
        // A hole at the end is not there until the length says so.
        if self.metadata()?.is_file() { self.set_len(bytes) } else { Ok(()) }
    }
}

impl Output for std::io::StdoutLock<'_> {
    fn skip(&mut self, bytes: u64) -> std::io::Result<()> {
        std::io::copy(&mut std::io::repeat(0).take(bytes), self).map(drop)
    }

    fn end(&mut self, _: u64) -> std::io::Result<()> {
        self.flush()
    }
}

fn bar(place: &Place, bytes: u64) -> ProgressBar {
    if place.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{bar:40} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
    );
    ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn report(place: &Place, verb: &str, disk: &str, bytes: u64, start: Instant, stdout_is_free: bool) {
    let seconds = start.elapsed().as_secs_f64();
    let rate = bytes as f64 / seconds / (1 << 20) as f64;
    let line = match place.json {
        true => json!({
            "disk": disk, "operation": verb, "bytes": bytes, "seconds": seconds, "mib_s": rate,
        })
        .to_string(),
        false => format!("{disk}: {bytes} bytes {verb} in {seconds:.2} s, {rate:.0} MiB/s"),
    };
    if place.json && stdout_is_free { outln!("{line}") } else { errln!("{line}") }
}
