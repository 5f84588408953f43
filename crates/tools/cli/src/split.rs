//! `ring3 split`: hands over to the Python package that reads and cuts kernel drivers.
//!
//! This program finds the package, fetches what it needs into the cache, and becomes it: signals
//! and the exit code are its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use ring3_lab::{Cache, DEFAULT_KERNEL, Need, prepare};
use ring3_process::log;

/// Arguments of `ring3 split`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// A command of the splitter and its options; `ring3 split --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Args {
    /// The same behind `command`.
    pub fn of(command: &str, args: Self) -> Self {
        Self { words: std::iter::once(command.into()).chain(args.words).collect() }
    }
}

/// What the splitter does. Its own help is longer, and needs its packages first.
const OVERVIEW: &str = "\
Cut a Linux driver into a small kernel half and a large user half.

Usage: ring3 split COMMAND [OPTIONS]

  study      how much of each driver of a family is critical
  show       what of a driver has to stay in the kernel, and why
  profile    how often functions call each other in a guest
  plan       where to cut
  annotate   what crosses the cut, and the questions that remain
  contexts   compare the tables of contexts with the kernel's source
  generate   write both halves of a driver
  build      generate, and build the modules and the program
  run        build, and run the split driver in a guest
  bench      build, and measure it beside the distribution's driver
  campaign   build, and count which faults the kernel survives

ring3 split COMMAND --help lists the options. The first command fetches Python packages, clang and a
kernel's source into the cache (ring3 split show e1000: about 250 MB).
";

/// Whether only the commands are asked for.
fn asks_for_the_overview(words: &[OsString]) -> bool {
    matches!(words, [] | [_])
        && words.iter().all(|word| word == "--help" || word == "-h" || word == "help")
}

/// Becomes the splitter.
pub fn run(args: Args) -> Result<ExitCode> {
    if asks_for_the_overview(&args.words) {
        let examples = crate::help::examples("split").unwrap_or_default();
        crate::output::write(format_args!("{OVERVIEW}\n{examples}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let program = std::env::current_exe().context("finding this program")?;
    let cache = Cache::open()?;
    let mut command = match package(&program)? {
        Some(package) => {
            let mut needs = vec![Need::Python(package.join("requirements.lock"))];
            needs.extend(reading(&args.words)?);
            prepare(&cache, &needs, &mut |line| errln!("{line}"))?;
            let mut python = Command::new(cache.path("python/bin/python"));
            python.args(["-m", "ring3_split"]).env("PYTHONPATH", package.join("src"));
            python
        }
        None => {
            prepare(&cache, &reading(&args.words)?, &mut |line| errln!("{line}"))?;
            Command::new("ring3-split")
        }
    };
    command
        .args(&args.words)
        .env("RING3", &program)
        .env("RING3_CACHE", cache.root())
        .env("RING3_SPLIT_PROGRAM", "ring3 split");
    log::flush(log::LAST_LINES);
    let error = command.exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        bail!(
            "the splitter is not beside this program and ring3-split is not on PATH; in ring3's \
            source: pip install ./split"
        );
    }
    Err(error).context("starting the splitter")
}

/// The package's folder: `$RING3_SPLIT`, or in a folder above the program, `split` as in ring3's
/// source tree, or `share/ring3/split` as it is installed.
pub fn package(program: &Path) -> Result<Option<PathBuf>> {
    match std::env::var_os("RING3_SPLIT").filter(|value| !value.is_empty()).map(PathBuf::from) {
        Some(named) if is_package(&named) => Ok(Some(named)),
        Some(named) => {
            bail!("RING3_SPLIT={} is not the folder split of ring3's source", named.display())
        }
        None => Ok(above(program)),
    }
}

fn above(program: &Path) -> Option<PathBuf> {
    let places = ["split", "share/ring3/split"];
    let folders = program.ancestors().flat_map(|folder| places.map(|place| folder.join(place)));
    folders.into_iter().find(|split| is_package(split))
}

fn is_package(folder: &Path) -> bool {
    folder.join("src/ring3_split").is_dir()
}

/// What reading a driver needs: the compiler, and the kernel's source unless the user brings one.
fn reading(words: &[OsString]) -> Result<Vec<Need>> {
    let reads = words.first().is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let is = |word: &OsString, name: &str| {
        word.as_encoded_bytes().split(|&byte| byte == b'=').next() == Some(name.as_bytes())
    };
    if !reads || words.iter().any(|word| is(word, "--help") || word == OsStr::new("-h")) {
        return Ok(Vec::new());
    }
    let clang = (!words.iter().any(|word| is(word, "--clang"))).then_some(Need::Clang);
    let own_source = words.iter().any(|word| is(word, "--tree") || is(word, "--compile-commands"));
    let kernel = kernel(words).unwrap_or_else(|| DEFAULT_KERNEL.into());
    // Said here, because fetching it would end in the advice to try the same again. The kernels
    // that lab/debug-kernel.sh builds have no number.
    if !is_version(&kernel) && !["debug", "debug-kcsan"].contains(&kernel.as_str()) {
        bail!(
            "--kernel {kernel:?}: a kernel's version is wanted, such as {DEFAULT_KERNEL}; for a \
            source tree of yours there is --tree FOLDER"
        );
    }
    let source = (!own_source).then_some(Need::Source(kernel));
    Ok(clang.into_iter().chain(source).collect())
}

/// Whether a word is a version prefix as the lab's set-up takes it: two or three numbers.
fn is_version(word: &str) -> bool {
    let numbers: Vec<&str> = word.split('.').collect();
    (2..=3).contains(&numbers.len())
        && numbers
            .iter()
            .all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The value of `--kernel`.
fn kernel(words: &[OsString]) -> Option<String> {
    let mut words = words.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if word == "--kernel" {
            return words.next().map(Into::into);
        }
        if let Some(value) = word.strip_prefix("--kernel=") {
            return Some(value.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(words: &str) -> Vec<Need> {
        reading(&words.split_whitespace().map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_command_stands_before_its_words() {
        let args = Args::of("bench", Args { words: vec!["e1000".into(), "--json".into()] });
        assert_eq!(args.words, ["bench", "e1000", "--json"]);
    }

    #[test]
    fn the_overview_names_the_commands_of_the_package_and_needs_nothing() {
        for words in [vec![], vec!["--help".into()], vec!["-h".into()]] {
            assert!(asks_for_the_overview(&words), "{words:?}");
        }
        assert!(
            !asks_for_the_overview(&["show".into()])
                && !asks_for_the_overview(&["show".into(), "--help".into()])
        );
        let package =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../split/src/ring3_split/commands");
        let sources = ["study", "show", "profile", "plan", "annotate", "contexts", "generate"]
            .map(|name| std::fs::read_to_string(package.join(format!("{name}.py"))).unwrap())
            .concat();
        let named: Vec<_> = OVERVIEW
            .lines()
            .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
            .collect();
        assert_eq!(named.len(), 11);
        for name in named {
            assert!(
                sources.contains(&format!("\"{name}\"")),
                "{name} is no command of the package"
            );
        }
    }

    #[test]
    fn help_needs_nothing() {
        assert_eq!(needs("--help"), []);
        assert_eq!(needs("show --help"), []);
    }

    #[test]
    fn the_source_is_that_of_the_kernel_asked_for_or_the_usual_one() {
        assert_eq!(needs("show e1000"), [Need::Clang, Need::Source(DEFAULT_KERNEL.into())]);
        assert_eq!(needs("show e1000 --kernel 7.2"), [Need::Clang, Need::Source("7.2".into())]);
        assert_eq!(needs("show --kernel=7.2 e1000"), [Need::Clang, Need::Source("7.2".into())]);
        let debug = Need::Source("debug".into());
        assert_eq!(needs("run e1000 --kernel debug"), [Need::Clang, debug]);
    }

    #[test]
    fn a_kernel_that_is_no_version_is_refused_before_anything_is_fetched() {
        for word in ["foo", "", "6", "6.12.1.1", "6.x", "debugger"] {
            let error =
                reading(&["show".into(), "e1000".into(), format!("--kernel={word}").into()])
                    .unwrap_err()
                    .to_string();
            assert!(error.contains("such as 6.12"), "{error}");
        }
    }

    #[test]
    fn who_brings_tree_and_compiler_is_not_given_others() {
        assert_eq!(needs("study --tree linux --clang=/usr/bin/clang"), []);
        assert_eq!(needs("show e1000 --compile-commands cc.json"), [Need::Clang]);
    }

    #[test]
    fn the_package_is_found_above_the_program() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("split/src/ring3_split")).unwrap();
        assert_eq!(
            above(&tree.path().join("target/release/ring3")),
            Some(tree.path().join("split"))
        );
        let installed = tree.path().join("usr/share/ring3/split");
        std::fs::create_dir_all(installed.join("src/ring3_split")).unwrap();
        assert_eq!(above(&tree.path().join("usr/bin/ring3")), Some(installed));
        assert_eq!(above(Path::new("/nowhere/bin/ring3")), None);
    }
}
