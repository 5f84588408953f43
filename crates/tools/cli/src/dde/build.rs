//! Building a hosted driver: the kernel's own makefiles compile its files, `dde/linux/Makefile`
//! puts the program together. What is built stays in the cache.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_lab::{Cache, Need, prepare};
use sha2::{Digest, Sha256};

use super::catalogue;
use super::kernel::Kernel;
use super::place;

/// What is compiled of the folder `dde`.
const PARTS: [&str; 3] = ["ddekit", "linux", "lwip"];
/// What its host's side includes.
const HEADER: &str = "ring3.h";
/// What a hosted driver is linked with.
pub(super) const LIBRARY: &str = "libring3.so";
/// The name by which a hosted driver's program finds it. crates/tools/capi/build.rs gives it that
/// name.
pub const SONAME: &str =
    concat!("libring3.so.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// Arguments of `ring3 dde build`.
#[derive(clap::Args)]
pub struct Args {
    /// The driver, by its name in ring3 dde list, such as e1000e.
    driver: String,
    #[command(flatten)]
    form: Form,
    /// Also put the program into this folder. ring3 and ring3d find it without a build in their own
    /// folder, and in lib/ring3 beside that, such as /usr/local/lib/ring3.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
    /// Print the result as a JSON object.
    #[arg(long)]
    json: bool,
}

/// How a driver is built, if not as usual.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Form {
    /// The Linux version of the driver and of the kernel code below it: 6.12 or 7.2. The source of
    /// 7.2 is fetched by lab/setup.sh source 7.2. Default: 6.12.
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<Kernel>,
    /// Build everything with AddressSanitizer, which then checks the kernel's objects and pages,
    /// too.
    #[arg(long)]
    pub asan: bool,
    /// Build the driver's own files with counters of executed lines.
    #[arg(long, conflicts_with = "asan")]
    pub coverage: bool,
    /// Have memcheck know the kernel's objects and pages.
    #[arg(skip)]
    pub valgrind: bool,
    /// Over a device that is made of bytes, with AddressSanitizer.
    #[arg(skip)]
    pub fuzz: bool,
    /// A folder with changed files of the kernel, which replace those of the same path:
    /// DIR/drivers/net/.../netdev.c.
    #[arg(long, value_name = "DIR")]
    pub overlay: Option<PathBuf>,
}

impl Form {
    /// As the makefile calls it.
    fn variant(&self) -> Option<&'static str> {
        match self {
            Self { asan: true, .. } => Some("asan"),
            Self { coverage: true, .. } => Some("coverage"),
            Self { valgrind: true, .. } => Some("valgrind"),
            Self { fuzz: true, .. } => Some("fuzz"),
            _ => None,
        }
    }

    /// Refuses what the compiler has not.
    fn check(&self) -> Result<()> {
        if (self.asan || self.fuzz) && !has_asan()? {
            bail!(
                "the C compiler has no AddressSanitizer: as root, apt-get install libgcc-12-dev, \
                or what has libasan.so of {}",
                compiler_name()?
            );
        }
        if self.valgrind && !compiles("#include <valgrind/memcheck.h>\n")? {
            bail!(
                "the header files of valgrind are missing, which describe the kernel's memory to \
                it: as root, apt-get install valgrind"
            );
        }
        Ok(())
    }

    /// The files of the overlay that are compiled, from its canonical path on.
    fn overlaid(&self) -> Result<Option<(PathBuf, Vec<PathBuf>)>> {
        let Some(overlay) = &self.overlay else { return Ok(None) };
        let folder = fs::canonicalize(overlay)
            .with_context(|| format!("opening the overlay {}", overlay.display()))?;
        let mut found = files(vec![folder.clone()])?;
        found.retain(|file| {
            file.extension().is_some_and(|extension| extension == "c" || extension == "h")
        });
        if !found.iter().any(|file| file.extension().is_some_and(|extension| extension == "c")) {
            bail!(
                "{} has no file of the kernel: a changed \
                drivers/net/ethernet/intel/e1000e/netdev.c, say, lies there by this path",
                folder.display()
            );
        }
        Ok(Some((folder, found)))
    }
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
    let Built { program, library, cached } = build_as(&args.driver, &args.form, true)?;
    let program =
        args.to.as_ref().map_or(Ok(program.clone()), |folder| put(&program, &library, folder))?;
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        outln!(
            "{}",
            serde_json::json!({
                "driver": args.driver, "program": program, "library": library, "cached": cached,
                "seconds": seconds,
            })
        );
    } else {
        let how = if cached { "was built before" } else { "is built" };
        outln!("dde:{} {how}: {}", args.driver, program.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts `program` into `folder`, with the library that it needs unless that is there or a folder
/// above, as where it was installed; where it is then.
fn put(program: &Path, library: &Path, folder: &Path) -> Result<PathBuf> {
    let failed = || format!("putting {} into {}", program.display(), folder.display());
    fs::create_dir_all(folder).with_context(failed)?;
    let library = library.join(SONAME);
    let found =
        [folder.join(SONAME), folder.join("..").join(SONAME), folder.join("../lib").join(SONAME)];
    let missing = (!found.iter().any(|path| path.is_file())).then_some(&*library);
    for file in missing.into_iter().chain([program]) {
        // One that runs cannot be written, and goes on as it is.
        let new = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
        fs::copy(file, new.path()).with_context(failed)?;
        new.persist(folder.join(file.file_name().unwrap_or_default())).with_context(failed)?;
    }
    Ok(folder.join(program.file_name().unwrap_or_default()))
}

/// The program of `driver`, built now unless nothing has changed since it was. With `loud`,
/// progress goes to standard error.
pub fn build(driver: &str, loud: bool) -> Result<Built> {
    build_as(driver, &Form::default(), loud)
}

/// The same, in another form.
pub fn build_as(driver: &str, form: &Form, loud: bool) -> Result<Built> {
    let root = catalogue::root()?;
    catalogue::check(&root, driver)?;
    form.check()?;
    let overlay = form.overlaid()?;
    let library = library()?;
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Hosting], &mut |line| errln!("{line}"))?;
    let kernel = form.kernel.unwrap_or_default();
    kernel.check(&cache)?;
    let root = fs::canonicalize(&root).with_context(|| format!("opening {}", root.display()))?;
    // Another class has a kernel that is configured otherwise.
    let class = catalogue::class(&root, driver)?.folder();
    let out = place::open(&cache, kernel)?.join(class);
    let source = kernel.source(&cache);
    let lwip = cache.path("lwip");
    for (path, next) in [
        (&library, "put ring3 and libring3.so elsewhere"),
        (&source, "name another cache by RING3_CACHE"),
        (&out, "name another cache by RING3_CACHE"),
    ] {
        check_path(path, next)?;
    }
    fs::create_dir_all(&out).with_context(|| format!("creating {}", out.display()))?;
    let lock = File::create(out.join(place::LOCK))
        .context("locking the folder where drivers are built")?;
    if lock.try_lock().is_err() {
        errln!("another process builds a driver in {}; it is waited for", out.display());
        lock.lock().context("locking the folder where drivers are built")?;
    }
    let mut work = form.variant().map_or_else(|| out.clone(), |variant| out.join(variant));
    if let Some((folder, _)) = &overlay {
        check_path(folder, "give the overlay another name")?;
        work.push(format!(
            "overlay-{}",
            hex(&Sha256::digest(folder.as_os_str().as_encoded_bytes())[..4])
        ));
    }
    fs::create_dir_all(&work).with_context(|| format!("creating {}", work.display()))?;
    let program = work.join(format!("dde-{driver}"));
    let (stamp, key) =
        (work.join(format!("dde-{driver}.key")), key(&root, &cache, kernel, overlay.as_ref())?);
    if program.exists() && fs::read_to_string(&stamp).is_ok_and(|built| built == key) {
        return Ok(Built { program, library, cached: true });
    }
    // Times of files do not say that one is gone.
    for linked in [&program, &work.join(driver).join("open.o")] {
        match fs::remove_file(linked) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", linked.display()));
            }
            _ => {}
        }
    }
    let (own, include) = (out.join("ring3"), out.join("include"));
    for part in PARTS {
        place::copy(&root.join(part), &own.join(part))?;
    }
    place::copy_file(&header(&root)?, &include.join(HEADER))?;
    let overlay = overlay.as_ref().map(|(folder, _)| folder.as_path());
    let folders = Folders {
        own: &own,
        include: &include,
        source: &source,
        lwip: &lwip,
        out: &out,
        work: &work,
        overlay,
        library: &library,
        lock: &lock,
    };
    compile(driver, form, &cache, &folders, loud)?;
    fs::write(&stamp, key).with_context(|| format!("writing {}", stamp.display()))?;
    Ok(Built { program, library, cached: false })
}

/// Where `ring3.h` is, from the folder of the drivers' source: in ring3's source, or where both
/// were installed.
fn header(root: &Path) -> Result<PathBuf> {
    let places = ["../crates/tools/capi/include", "../../../include"]
        .map(|place| root.join(place).join(HEADER));
    let found = places.into_iter().find(|place| place.is_file());
    found.with_context(|| {
        format!(
            "{HEADER} is neither in ring3's source nor installed beside {}: make install",
            root.display()
        )
    })
}

/// Makefiles and the shell take such names as they are: no letter of theirs is more than a letter.
fn check_path(path: &Path, next: &str) -> Result<()> {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@,".contains(&byte) || !byte.is_ascii();
    match path.as_os_str().as_encoded_bytes().iter().find(|&&byte| !plain(byte)) {
        None => Ok(()),
        Some(&byte) => {
            bail!("{}: makefiles have no paths with {:?}; {next}", path.display(), char::from(byte))
        }
    }
}

/// The first line of that.
fn compiler_name() -> Result<String> {
    Ok(String::from_utf8_lossy(&place::compiler()?).lines().next().unwrap_or("cc").to_owned())
}

/// Whether the compiler finds its library of AddressSanitizer: else it gives the name alone.
fn has_asan() -> Result<bool> {
    let output = Command::new("cc")
        .arg("-print-file-name=libasan.so")
        .output()
        .context("starting cc, the C compiler")?;
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_absolute())
}

/// Whether `text` is C, with the header files that there are.
fn compiles(text: &str) -> Result<bool> {
    let mut cc = Command::new("cc");
    cc.args(["-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = cc.spawn().context("starting cc, the C compiler")?;
    child
        .stdin
        .take()
        .map(|mut input| input.write_all(text.as_bytes()))
        .transpose()
        .context("asking the C compiler")?;
    Ok(child.wait().context("asking the C compiler")?.success())
}

/// All files below `folders`, in an order of their own.
pub(super) fn files(mut folders: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?
        {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// What the program depends on: our files, those of an overlay, the kernel's version, and the
/// compiler with the header files that may be there or not.
fn key(
    root: &Path,
    cache: &Cache,
    kernel: Kernel,
    overlay: Option<&(PathBuf, Vec<PathBuf>)>,
) -> Result<String> {
    let mut hash = Sha256::new();
    let mut files = files(PARTS.map(|part| root.join(part)).into())?;
    files.extend(overlay.iter().flat_map(|(_, overlaid)| overlaid.clone()));
    files.push(header(root)?);
    files.extend([kernel.release(cache), cache.path("lwip/release")]);
    for file in files {
        // Another tree's files have the same names.
        hash.update(file.strip_prefix(root).unwrap_or(&file).as_os_str().as_encoded_bytes());
        let mut bytes = Vec::new();
        File::open(&file)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .with_context(|| format!("reading {}", file.display()))?;
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(&bytes);
    }
    hash.update(SONAME);
    hash.update(place::compiler()?);
    hash.update([u8::from(compiles("#include <valgrind/valgrind.h>\n")?)]);
    Ok(hex(&hash.finalize()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Where `libring3.so` is: beside this program, in the folder `lib` beside that, in Debian's folder
/// for libraries of this architecture, or where cargo has put it for tests, which does not renew
/// the one beside this program. So the newest is taken.
fn library() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let multiarch = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = ["", "../lib", &multiarch, "deps"].map(|place| match place {
        "" => folder.to_owned(),
        place => folder.join(place),
    });
    let written = |place: &PathBuf| fs::metadata(place.join(LIBRARY))?.modified();
    let found = places
        .into_iter()
        .filter_map(|place| Some((written(&place).ok()?, place)))
        .max_by_key(|(written, _)| *written);
    found.map(|(_, place)| place).with_context(|| {
        format!(
            "libring3.so, which a hosted driver stands on, is not beside {}: cargo build --release \
            -p ring3-capi",
            program.display()
        )
    })
}

/// Where what make reads and writes lies.
struct Folders<'a> {
    /// The copy of ring3's source of hosted drivers.
    own: &'a Path,
    /// Of the copy of `ring3.h`.
    include: &'a Path,
    source: &'a Path,
    lwip: &'a Path,
    /// For all drivers.
    out: &'a Path,
    /// For the program.
    work: &'a Path,
    overlay: Option<&'a Path>,
    library: &'a Path,
    lock: &'a File,
}

/// What make is told of the user's environment: a kernel developer's words would build another
/// kernel.
const KEPT: [&str; 2] = ["HOME", "TMPDIR"];

fn compile(
    driver: &str,
    form: &Form,
    cache: &Cache,
    folders: &Folders<'_>,
    loud: bool,
) -> Result<()> {
    let &Folders { own, include, source, lwip, out, work, overlay, library, lock } = folders;
    let tools = cache.path("kbuild/bin");
    let path = std::env::join_paths(
        [tools]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )?;
    let log = work.join(format!("dde-{driver}.log"));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("make");
    make.arg("-f").arg(own.join("linux/Makefile")).arg(format!("-j{jobs}"));
    let overlay = overlay.map(|folder| ("OVERLAY", folder));
    for (name, value) in [
        ("SOURCE", source),
        ("OUT", out),
        ("WORK", work),
        ("INCLUDE", include),
        ("LIB", library),
        ("LWIP", lwip),
    ]
    .into_iter()
    .chain(overlay)
    {
        let mut word = std::ffi::OsString::from(format!("{name}="));
        word.push(value);
        make.arg(word);
    }
    make.arg(format!("DRIVER={driver}"));
    make.args(form.variant().map(|variant| format!("VARIANT={variant}")));
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
    let mut progress = Progress::of(own, driver, form, loud)?;
    for line in child
        .stdout
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
        .map_while(Result::ok)
    {
        let mut words = line.split_whitespace();
        if let (Some(verb @ ("CC" | "EMUL" | "LD" | "LINK" | "CONFIG" | "STUBS")), Some(what)) =
            (words.next(), words.next())
        {
            progress.step(&format!("{verb} {what}"));
        }
    }
    progress.bar.finish_and_clear();
    let status = child.wait().context("waiting for make")?;
    if !status.success() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<_> = said.lines().filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        bail!("building dde:{driver} failed; all of it is in {}\n{last}", log.display());
    }
    Ok(())
}

/// What is said while files are compiled: a bar on a terminal, else a line now and then, as the
/// first build of a form takes minutes.
struct Progress {
    driver: String,
    bar: ProgressBar,
    /// When the last line was said; `None` if nothing is.
    said: Option<Instant>,
}

/// Between two lines where standard error is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(20);

impl Progress {
    fn of(root: &Path, driver: &str, form: &Form, loud: bool) -> Result<Self> {
        let bar = bar(root, driver, loud && std::io::stderr().is_terminal())?;
        let said = (loud && bar.is_hidden()).then(Instant::now);
        if said.is_some() {
            let form = form.variant().map_or_else(String::new, |variant| format!(" ({variant})"));
            errln!(
                "building dde:{driver}{form}; the first time, the kernel below it is compiled, \
                which takes minutes"
            );
        }
        Ok(Self { driver: driver.to_owned(), bar, said })
    }

    fn step(&mut self, what: &str) {
        self.bar.inc(1);
        self.bar.set_message(what.to_owned());
        if self.said.is_some_and(|said| said.elapsed() >= LINES_EVERY) {
            errln!("building dde:{}: {} files so far, {what}", self.driver, self.bar.position());
            self.said = Some(Instant::now());
        }
    }
}

/// Counts files: about as many as the lists have.
fn bar(root: &Path, driver: &str, shown: bool) -> Result<ProgressBar> {
    if !shown {
        return Ok(ProgressBar::hidden());
    }
    let own = fs::read_to_string(root.join("linux/drivers").join(driver).join("driver.list"))
        .unwrap_or_default();
    let parts = own.lines().filter_map(|line| line.strip_prefix('@'));
    let lists =
        ["core", "pci", "lib", catalogue::class(root, driver)?.folder()].into_iter().chain(parts);
    let list =
        |name| fs::read_to_string(root.join("linux/lists").join(name).with_extension("list"));
    let files = lists.filter_map(|name| list(name).ok()).map(|text| text.lines().count());
    let count = files.sum::<usize>() + own.lines().count();
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}")
        .context("a progress bar")?;
    Ok(ProgressBar::new(count as u64 + 24).with_style(style))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_makefiles_would_take_apart_is_refused_with_what_names_another() {
        check_path(Path::new("/home/jos\u{e9}/.cache/ring3/dde_1-2+3"), "RING3_CACHE").unwrap();
        for wrong in ["/a b", "/a:b", "/a$b", "/a#b", "/a%b", "/a'b", "/a;b", "/a\\b"] {
            assert!(
                check_path(Path::new(wrong), "name RING3_CACHE")
                    .unwrap_err()
                    .to_string()
                    .contains("RING3_CACHE"),
                "{wrong}"
            );
        }
    }
}
