//! `ring3 new`: the begin of a driver, outside of ring3's source.
//!
//! The files are in `skeleton`, where they are a crate that compiles: what is written is the same
//! with another name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

/// What can be begun.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Make a crate with a driver, a model of its device, and tests.
    ///
    /// It compiles and passes its tests at once (cargo test). docs/tutorial.md goes on from there.
    Driver(Args),
}

/// Options of `ring3 new driver`.
#[derive(clap::Args)]
pub struct Args {
    /// The driver's name: lower-case letters, digits and hyphens.
    name: String,
    /// The folder to make. Default: the name, in this folder.
    #[arg(long, value_name = "FOLDER")]
    at: Option<PathBuf>,
    /// The folder of ring3's source, whose crates the driver names. Default: the one that this
    /// program or this folder lies in.
    #[arg(long, value_name = "FOLDER")]
    source: Option<PathBuf>,
}

/// A file of the skeleton: its path, and its text.
type File = (&'static str, &'static str);

const FILES: [File; 11] = [
    ("Cargo.toml", include_str!("skeleton/Cargo.toml.in")),
    ("README.md", include_str!("skeleton/README.md.in")),
    ("rustfmt.toml", include_str!("skeleton/rustfmt.toml")),
    (".gitignore", include_str!("skeleton/gitignore.in")),
    ("src/lib.rs", include_str!("skeleton/src/lib.rs")),
    ("src/spec.rs", include_str!("skeleton/src/spec.rs")),
    ("src/model.rs", include_str!("skeleton/src/model.rs")),
    ("src/driver.rs", include_str!("skeleton/src/driver.rs")),
    ("src/manifest.toml", include_str!("skeleton/src/manifest.toml")),
    ("src/main.rs", include_str!("skeleton/src/main.rs")),
    ("tests/driver.rs", include_str!("skeleton/tests/driver.rs")),
];

/// Longest name: lines of the skeleton stay within 100 columns.
const LONGEST: usize = 24;
/// Names that are no crate's, or no identifier's.
const RESERVED: &[&str] = &[
    "abstract", "alloc", "as", "async", "await", "become", "box", "break", "const", "continue",
    "core", "crate", "do", "driver", "dyn", "else", "enum", "extern", "false", "final", "fn",
    "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod", "model", "move",
    "mut", "override", "priv", "pub", "ref", "return", "self", "spec", "static", "std", "struct",
    "super", "test", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// Makes it.
pub fn run(Command::Driver(args): &Command) -> Result<ExitCode> {
    check(&args.name)?;
    let folder = args.at.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let source = source(args.source.as_deref())?;
    // Its versions are known to work, and are there where ring3 was built without a network.
    let lock = fs::read_to_string(source.join("Cargo.lock"))
        .with_context(|| format!("reading {}", source.join("Cargo.lock").display()))?;
    make(&folder, &args.name, &source, &lock)?;
    crate::output::write(format_args!(
        "{} has the driver {}: spec, model, driver, manifest, tests\n\n    cd {}\n    cargo test\n",
        folder.display(),
        args.name,
        folder.display(),
    ));
    Ok(ExitCode::SUCCESS)
}

fn check(name: &str) -> Result<()> {
    let rule =
        "a driver's name has lower-case letters, digits and hyphens, and begins with a letter";
    let fits = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
    ensure!(
        name.starts_with(|letter: char| letter.is_ascii_lowercase())
            && name.chars().all(fits)
            && !name.ends_with('-')
            && !name.contains("--"),
        "{name:?}: {rule}: my-card"
    );
    ensure!(name.len() <= LONGEST, "{name}: a driver's name has at most {LONGEST} letters");
    ensure!(
        !RESERVED.contains(&name) && !name.starts_with("ring3"),
        "{name}: Rust or ring3 has that name; choose another, such as my-{name}"
    );
    Ok(())
}

/// ring3's source.
fn source(named: Option<&Path>) -> Result<PathBuf> {
    let is_source = |folder: &Path| folder.join("crates/access/device/Cargo.toml").is_file();
    if let Some(named) = named {
        ensure!(is_source(named), "{}: there is no source of ring3", named.display());
        return named.canonicalize().with_context(|| named.display().to_string());
    }
    let places = [std::env::current_exe().ok(), std::env::current_dir().ok()];
    for place in places.into_iter().flatten() {
        if let Some(found) = place.ancestors().find(|folder| is_source(folder)) {
            return Ok(found.to_owned());
        }
    }
    bail!(
        "ring3's source lies neither around this program nor around this folder: name it with \
        --source FOLDER; the driver's crate needs it"
    )
}

/// Makes the folder whole, or leaves nothing of it.
fn make(folder: &Path, name: &str, source: &Path, lock: &str) -> Result<()> {
    fs::create_dir(folder).with_context(|| match fs::symlink_metadata(folder) {
        Ok(_) => format!("{}: choose another name, or a folder with --at", folder.display()),
        Err(_) => format!("making {}: choose a folder of yours with --at", folder.display()),
    })?;
    let made = write(folder, name, source, lock);
    if made.is_err() {
        // Half a crate would only stand in the way of the next one.
        let _ = fs::remove_dir_all(folder);
    }
    made
}

fn write(folder: &Path, name: &str, source: &Path, lock: &str) -> Result<()> {
    for subfolder in ["src", "tests"] {
        let path = folder.join(subfolder);
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
    }
    for (file, text) in FILES {
        put(&folder.join(file), &renamed(text, name, source))?;
    }
    put(&folder.join("Cargo.lock"), lock)
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| {
        let full = "; nothing of the driver was kept";
        format!("writing {}{full}", path.display())
    })
}

/// The text of the skeleton, for the driver `name`.
fn renamed(text: &str, name: &str, source: &Path) -> String {
    let title = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    let title: String = name.split('-').filter_map(title).collect();
    let quoted = format!("\"{name}\"");
    let text = text
        .replace("@SOURCE@", &source.display().to_string())
        .replace("Skeleton", &title)
        .replace("\"skeleton\"", &quoted)
        .replace("sim:skeleton", &format!("sim:{name}"));
    // What is left in Rust's code is an identifier; elsewhere, a name.
    let is_rust = text.starts_with("//!");
    text.replace("skeleton", &if is_rust { name.replace('-', "_") } else { name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_crates_are_refused_with_what_a_name_is() {
        for name in ["", "Card", "9p", "a_b", "a--b", "card-", "../x", "a b", "ä"] {
            let error = check(name).unwrap_err().to_string();
            assert!(error.contains("lower-case letters"), "{name}: {error}");
        }
        for name in ["fn", "test", "driver", "ring3-device"] {
            let error = check(name).unwrap_err().to_string();
            assert!(error.contains("choose another"), "{name}: {error}");
        }
        assert!(check(&"a".repeat(25)).is_err());
        for name in ["a", "my-card", "adder2", "dummy-nic-9"] {
            check(name).unwrap();
        }
    }

    #[test]
    fn a_folder_that_exists_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let error = make(folder.path(), "adder", Path::new("/"), "").unwrap_err();
        assert!(format!("{error:#}").contains("File exists"), "{error:#}");
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    }

    #[test]
    fn nothing_is_left_of_a_driver_that_could_not_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("adder");
        // No file system has a name so long.
        let error = put(&folder.path().join("x".repeat(300)), "").unwrap_err();
        assert!(format!("{error:#}").contains("nothing of the driver was kept"), "{error:#}");
        make(&at, "adder", Path::new("/"), "").unwrap();
        assert!(at.join("src/driver.rs").is_file());
    }

    #[test]
    fn no_file_has_the_skeletons_name() {
        for (file, text) in FILES {
            let text = renamed(text, "my-card", Path::new("/source"));
            assert!(!text.to_lowercase().contains("skeleton"), "{file}");
            assert!(text.lines().all(|line| line.len() <= 110), "{file}");
        }
        let lib = renamed(FILES[7].1, "my-card", Path::new("/source"));
        assert!(lib.contains("pub struct MyCard {"), "{lib}");
    }

    #[test]
    fn a_source_that_is_none_is_refused_and_one_that_lies_around_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(source(Some(folder.path())).unwrap_err().to_string().contains("no source"));
        assert!(source(None).unwrap().join("crates/access/device").is_dir());
    }
}
