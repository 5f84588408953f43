//! `ring3 report`: the four places and all figures of the papers on one page, from stored reports.

mod content;
pub mod list;
mod markdown;
mod page;
pub mod parts;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use ring3_bench::report::Report;
use time::OffsetDateTime;

use crate::bench::places;
use content::Content;
use markdown::Code;
use parts::{BEGUN, COMMIT, DONE, Folder};

/// How deep folders are looked into.
const DEPTH: u32 = 5;

/// Options of `ring3 report`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder with the reports, as benchmarks and `ring3 report --run` write them. Looked into with
    /// all of its folders.
    #[arg(long, value_name = "FOLDER", default_value = "out/report")]
    from: PathBuf,
    /// The page to write.
    #[arg(long, value_name = "FILE", default_value = "out/report.html")]
    out: PathBuf,
    /// First measure what is not in the folder yet. An interrupted run continues with the same
    /// command. Takes hours; with --quick about 15 minutes.
    #[arg(long)]
    run: bool,
    /// With --run: measure fewer and shorter rounds, which the page prints grey.
    #[arg(long, requires = "run")]
    quick: bool,
    /// Days after which a figure is old, and says so.
    #[arg(long, value_name = "N", default_value_t = 30)]
    days: u32,
    /// Instead of the HTML page: make the blocks of these Markdown files anew that stand between
    /// `<!-- ring3 report: NAME -->` and `<!-- end of NAME -->`. NAME is `places`, `places-brief`
    /// or a figure.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "out")]
    pages: Vec<PathBuf>,
    /// With --pages: change nothing; fail if a block differs from the reports, or if the code is
    /// more than --days newer than a report.
    #[arg(long, requires = "pages")]
    check: bool,
}

/// Measures if it is asked for, and writes the page. No success if a part has failed, or if a file
/// is no report.
pub fn run(args: &Args) -> Result<ExitCode> {
    let whole = if args.run { measure(args)? } else { true };
    ensure!(
        args.from.is_dir(),
        "{} is no folder: name one with reports by --from, or measure with ring3 report --run",
        args.from.display()
    );
    let mut content = Content {
        reports: Vec::new(),
        unreadable: Vec::new(),
        commit: COMMIT.map(Into::into),
        now: OffsetDateTime::now_utc().truncate_to_second(),
        days: args.days,
    };
    read(&args.from, &args.from, DEPTH, &mut content)?;
    for (path, why) in &content.unreadable {
        errln!("left out: {}: {why}", path.display());
    }
    if !args.pages.is_empty() {
        return Ok(if pages(args, &content)? && whole && content.unreadable.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    // Names of a report may be anything, and not all of that is a character of HTML.
    let text = crate::output::visible(format_args!("{}", page::page(&content)?));
    write(&args.out, &text).with_context(|| format!("writing {}", args.out.display()))?;
    outln!("{}: {} reports", args.out.display(), content.reports.len());
    let is_right = whole && content.unreadable.is_empty();
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the blocks of all pages anew, or checks them; whether each is right now.
fn pages(args: &Args, content: &Content) -> Result<bool> {
    let mut is_right = true;
    for path in &args.pages {
        let failed = || path.display().to_string();
        let text = fs::read_to_string(path).with_context(failed)?;
        let made = markdown::rewritten(&text, content, &Code::of(path)).with_context(failed)?;
        // Names of a report may be anything, and a terminal shows the page.
        let made = crate::output::visible(format_args!("{made}"));
        if made == text {
            continue;
        }
        if args.check {
            is_right = false;
            errln!(
                "{}: a block is not what the reports make: run ring3 report --from {} --pages {}",
                path.display(),
                args.from.display(),
                path.display()
            );
            continue;
        }
        write(path, &made).with_context(|| format!("writing {}", path.display()))?;
        outln!("{}", path.display());
    }
    Ok(is_right)
}

/// Runs all parts that are not there; whether all of them are now.
fn measure(args: &Args) -> Result<bool> {
    let folder = Folder::open(&args.from, args.quick)?;
    let found = folder.complete(&list::all())?;
    places::table(&found, args.quick).write(&args.from.join("places.json"))?;
    Ok(found.iter().all(|(_, reports)| reports.is_ok()))
}

/// Reads the reports of `folder` and of its folders; they are named as they lie below `root`.
fn read(root: &Path, folder: &Path, depth: u32, content: &mut Content) -> Result<()> {
    let failed = || format!("reading {}", folder.display());
    let mut entries = fs::read_dir(folder)
        .with_context(failed)?
        .collect::<Result<Vec<_>, _>>()
        .with_context(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type().with_context(failed)?);
        let name = entry.file_name();
        if kind.is_dir() && depth > 1 {
            read(root, &path, depth - 1, content)?;
        }
        let is_report = path.extension().is_some_and(|end| end == "json");
        if !kind.is_file() || !is_report || name == BEGUN || name == DONE {
            continue;
        }
        let shown = path.strip_prefix(root).unwrap_or(&path).to_owned();
        match Report::read_all(&path) {
            Ok(reports) => {
                content.reports.extend(reports.into_iter().map(|report| (shown.clone(), report)));
            }
            Err(error) => content.unreadable.push((shown, error.to_string())),
        }
    }
    Ok(())
}

/// The whole file or none of it: what was there stays until the new one is complete. What is no
/// ordinary file is written to and not replaced.
fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Ok(fs::write(path, text)?);
    }
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".report").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    // A temporary file is its owner's alone; a page is for all.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(mode)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
