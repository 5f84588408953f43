//! Building a hosted driver: the kernel's own makefiles compile its files, `dde/linux/Makefile` puts the program together. What is built stays in the cache.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_lab::{Cache, DEFAULT_KERNEL, Need, prepare};
use sha2::{Digest, Sha256};

use super::catalogue;

/// Arguments of `ring3 dde build`.
#[derive(clap::Args)]
pub struct Args {
    /// The driver, as ring3 dde list has it: e1000e.
    driver: String,
    /// Print one JSON object with the result.
    #[arg(long)]
    json: bool,
}

/// A driver that was built.
pub struct Built {
    /// The program.
    pub program: PathBuf,
    /// The folder of `libring3.so`, which it is linked with.
    pub library: PathBuf,
    /// Whether nothing had to be done.
    pub cached: bool,
}

/// Builds it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let Built { program, cached, .. } = build(&args.driver, true)?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        outln!("{}", serde_json::json!({ "driver": args.driver, "program": program, "cached": cached, "seconds": seconds }));
    } else {
        let how = if cached { "was built before" } else { "is built" };
        outln!("dde:{} {how}: {}", args.driver, program.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The program of `driver`, built now unless nothing has changed since it was. With `loud`, progress goes to standard error.
pub fn build(driver: &str, loud: bool) -> Result<Built> {
    let root = catalogue::root()?;
    catalogue::check(&root, driver)?;
    let library = library()?;
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Hosting], &mut |line| errln!("{line}"))?;
    let root = fs::canonicalize(&root).with_context(|| format!("opening {}", root.display()))?;
    let out = cache.built("dde").join(DEFAULT_KERNEL).join(place(&root, &cache)?);
    let source = cache.path(format!("sources/{DEFAULT_KERNEL}/source"));
    for (path, next) in [
        (&root, "name another place of ring3's source by RING3_DDE"),
        (&library, "put ring3 and libring3.so elsewhere"),
        (&source, "name another cache by RING3_CACHE"),
        (&out, "name another cache by RING3_CACHE"),
    ] {
        check_path(path, next)?;
    }
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    let lock = File::create(out.join("lock")).context("locking the folder where drivers are built")?;
    if lock.try_lock().is_err() {
        errln!("another process builds a driver in {}; it is waited for", out.display());
        lock.lock().context("locking the folder where drivers are built")?;
    }
    let program = out.join(format!("dde-{driver}"));
    let (stamp, key) = (out.join(format!("dde-{driver}.key")), key(&root, &cache)?);
    if program.exists() && fs::read_to_string(&stamp).is_ok_and(|built| built == key) {
        return Ok(Built { program, library, cached: true });
    }
    // Times of files do not say that one is gone.
    for linked in [&program, &out.join(driver).join("open.o")] {
        match fs::remove_file(linked) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", linked.display()));
            }
            _ => {}
        }
    }
    compile(driver, &root, &cache, &Folders { source: &source, out: &out, library: &library, lock: &lock }, loud)?;
    fs::write(&stamp, key).with_context(|| format!("writing {}", stamp.display()))?;
    Ok(Built { program, library, cached: false })
}

/// The name of the folder to build in. Makefiles compare times of files, so that each source tree, each kernel and each compiler has its own.
fn place(root: &Path, cache: &Cache) -> Result<String> {
    let release = cache.path(format!("sources/{DEFAULT_KERNEL}/release"));
    let mut hash = Sha256::new();
    hash.update(root.as_os_str().as_encoded_bytes());
    hash.update([0]);
    hash.update(fs::read(&release).with_context(|| format!("reading {}", release.display()))?);
    hash.update(compiler()?);
    Ok(hex(&hash.finalize()[..4]))
}

/// What the C compiler says of itself.
fn compiler() -> Result<Vec<u8>> {
    Ok(Command::new("cc").arg("--version").output().context("starting cc, the C compiler")?.stdout)
}

/// Makefiles and the shell take such names as they are: no letter of theirs is more than a letter.
fn check_path(path: &Path, next: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@,".contains(&byte) || !byte.is_ascii();
    match path.as_os_str().as_encoded_bytes().iter().find(|&&byte| !plain(byte)) {
        None => Ok(()),
        Some(&byte) => bail!("{}: makefiles have no paths with {:?}; {next}", path.display(), char::from(byte)),
    }
}

/// What the program depends on: our files, the kernel's version, and the compiler.
fn key(root: &Path, cache: &Cache) -> Result<String> {
    let mut hash = Sha256::new();
    let mut folders = vec![root.join("ddekit"), root.join("linux"), root.join("../crates/capi/include")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    files.push(cache.path(format!("sources/{DEFAULT_KERNEL}/release")));
    for file in files {
        hash.update(file.as_os_str().as_encoded_bytes());
        let mut bytes = Vec::new();
        File::open(&file)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .with_context(|| format!("reading {}", file.display()))?;
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    hash.update(compiler()?);
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where `libring3.so` is: beside this program, in the folder `lib` beside that, or where cargo has put it for tests.
fn library() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.to_owned(), folder.join("../lib"), folder.join("deps")];
    let found = places.into_iter().find(|place| place.join("libring3.so").is_file());
    found.with_context(|| {
        format!(
            "libring3.so, which a hosted driver stands on, is not beside {}: cargo build --release -p ring3-capi",
            program.display()
        )
    })
}

/// Where what make reads and writes lies.
struct Folders<'a> {
    source: &'a Path,
    out: &'a Path,
    library: &'a Path,
    lock: &'a File,
}

/// What make is told of the user's environment: a kernel developer's words would build another kernel.
const KEPT: [&str; 2] = ["HOME", "TMPDIR"];

fn compile(driver: &str, root: &Path, cache: &Cache, folders: &Folders<'_>, loud: bool) -> Result<()> {
    let &Folders { source, out, library, lock } = folders;
    let include = root.join("../crates/capi/include");
    let tools = cache.path("kbuild/bin");
    let path =
        std::env::join_paths([tools].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())))?;
    let log = out.join(format!("dde-{driver}.log"));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("make");
    make.arg("-f").arg(root.join("linux/Makefile")).arg(format!("-j{jobs}"));
    for (name, value) in [("SOURCE", source), ("OUT", out), ("INCLUDE", &include), ("LIB", library)] {
        let mut word = std::ffi::OsString::from(format!("{name}="));
        word.push(value);
        make.arg(word);
    }
    make.arg(format!("DRIVER={driver}"));
    if std::env::var_os("RING3_WERROR").is_some() {
        make.arg("WERROR=1");
    }
    make.env_clear().env("PATH", path).env("LC_ALL", "C");
    make.envs(KEPT.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    let errors = File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    // Holds the lock, too: it goes on for a moment when this process is killed.
    let held = lock.try_clone().context("locking the folder where drivers are built")?;
    make.stdin(held).stdout(Stdio::piped()).stderr(errors);
    let mut child = make.spawn().context("starting make")?;
    let bar = bar(root, driver, loud)?;
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
        let mut words = line.split_whitespace();
        if let (Some(verb @ ("CC" | "EMUL" | "LD" | "LINK" | "CONFIG" | "STUBS")), Some(what)) = (words.next(), words.next()) {
            bar.inc(1);
            bar.set_message(format!("{verb} {what}"));
        }
    }
    bar.finish_and_clear();
    let status = child.wait().context("waiting for make")?;
    if !status.success() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<_> = said.lines().filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        bail!("building dde:{driver} failed; all of it is in {}\n{last}", log.display());
    }
    Ok(())
}

/// Counts files: about as many as the lists have.
fn bar(root: &Path, driver: &str, loud: bool) -> Result<ProgressBar> {
    if !loud || !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let lists =
        ["lists/core.list", "lists/pci.list", "lists/net.list", "lists/lib.list"].map(|list| root.join("linux").join(list));
    let own = root.join("linux/drivers").join(driver).join("driver.list");
    let count: usize =
        lists.iter().chain([&own]).filter_map(|list| fs::read_to_string(list).ok()).map(|text| text.lines().count()).sum();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}").context("a progress bar")?;
    Ok(ProgressBar::new(count as u64 + 24).with_style(style))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_makefiles_would_take_apart_is_refused_with_what_names_another() {
        check_path(Path::new("/home/jos\u{e9}/.cache/ring3/dde_1-2+3"), "RING3_CACHE").unwrap();
        for wrong in ["/a b", "/a:b", "/a$b", "/a#b", "/a%b", "/a'b", "/a;b", "/a\\b"] {
            assert!(check_path(Path::new(wrong), "name RING3_CACHE").unwrap_err().to_string().contains("RING3_CACHE"), "{wrong}");
        }
    }
}
