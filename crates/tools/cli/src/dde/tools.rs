//! What a developer looks at a hosted driver with: a debugger, checkers of memory, a profiler, and
//! counts of what was reached.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::build::Form;
use super::kernel::Kernel;

/// Arguments of commands that start a hosted driver.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "To look at the driver")]
pub struct Tools {
    /// The Linux version of the driver and of the kernel code below it: 6.12 or 7.2. The source of
    /// 7.2 is fetched by lab/setup.sh source 7.2. Default: 6.12.
    #[arg(long, requires = "driver", value_name = "VERSION")]
    kernel: Option<Kernel>,
    /// Run the driver under gdb, with the kernel's source. Arguments after -- are gdb's: --gdb --
    /// -batch -ex 'break e1000_probe' -ex run -ex bt
    #[arg(long, requires = "driver", conflicts_with_all = ["valgrind", "callgrind"])]
    gdb: bool,
    /// Check the driver and the kernel code below it with AddressSanitizer. The first time, all of
    /// it is compiled again.
    #[arg(long, requires = "driver", conflicts_with_all = ["valgrind", "callgrind", "coverage"])]
    asan: bool,
    /// Run the driver under valgrind's memcheck, which checks the kernel's objects, pages and
    /// stacks, too.
    #[arg(long, requires = "driver", conflicts_with_all = ["callgrind", "coverage"])]
    valgrind: bool,
    /// Count the driver's instructions with callgrind, into FILE; without =FILE into
    /// callgrind.out.dde.
    #[arg(
        long, requires = "driver", value_name = "FILE", num_args = 0..=1, require_equals = true,
        default_missing_value = "callgrind.out.dde",
    )]
    callgrind: Option<PathBuf>,
    /// Count the executed lines of the driver's own files. Prints a table at the end, and writes
    /// all counts to FILE as JSON.
    #[arg(long, requires = "driver", value_name = "FILE", num_args = 0..=1, require_equals = true)]
    coverage: Option<Option<PathBuf>>,
    /// A folder with changed files of the driver, which replace those of the same path in the
    /// kernel's source.
    #[arg(long, requires = "driver", value_name = "DIR")]
    overlay: Option<PathBuf>,
    /// Arguments of gdb.
    // Hidden because every use of the command would end in it; --gdb says what it is for.
    #[arg(last = true, requires = "gdb", value_name = "GDB", hide = true)]
    words: Vec<OsString>,
}

/// What gdb does unless it is told: with nobody to ask, what crashes is shown.
const BATCH: [&str; 5] = ["-batch", "-ex", "run", "-ex", "bt"];

impl Tools {
    /// What has to be built for that.
    pub fn form(&self) -> Form {
        Form {
            kernel: self.kernel,
            asan: self.asan,
            coverage: self.coverage.is_some(),
            valgrind: self.valgrind,
            overlay: self.overlay.clone(),
            ..Form::default()
        }
    }

    /// Whether a program that is there already is none of these.
    pub fn wants_a_build(&self) -> bool {
        self.kernel.is_some()
            || self.asan
            || self.valgrind
            || self.coverage.is_some()
            || self.overlay.is_some()
    }

    /// Whether the driver's lines are counted, and the file that gets all of it: an empty path is
    /// none.
    pub fn coverage(&self) -> Option<&Path> {
        self.coverage.as_ref().map(|file| file.as_deref().unwrap_or(Path::new("")))
    }

    /// Whether another program starts the driver, and has its standard output.
    pub fn debugs(&self) -> bool {
        self.gdb
    }

    /// Whether the driver needs many times the usual time.
    pub fn is_slow(&self) -> bool {
        self.gdb || self.valgrind || self.callgrind.is_some()
    }

    /// Refuses what is not installed.
    pub fn check(&self) -> Result<()> {
        let wanted = [
            ("gdb", self.gdb),
            ("valgrind", self.valgrind || self.callgrind.is_some()),
            ("gcov", self.coverage.is_some()),
        ];
        let missing =
            wanted.into_iter().find(|(program, wanted)| *wanted && !is_installed(program));
        if let Some((program, _)) = missing {
            let package = if program == "gcov" { "gcc" } else { program };
            bail!("{program} is not installed: as root, apt-get install {package}");
        }
        Ok(())
    }

    /// What starts `program`; the driver's own arguments come after. With `alone`, nobody is there
    /// to talk to gdb.
    pub fn command(&self, program: &Path, alone: bool) -> Command {
        if self.gdb {
            let mut gdb = Command::new("gdb");
            gdb.args([
                "-q",
                "-iex",
                "set debuginfod enabled off",
                "-iex",
                "set pagination off",
                "-iex",
                "handle SIGPIPE nostop noprint",
            ]);
            match alone && self.words.is_empty() {
                true => gdb.args(BATCH),
                false => gdb.args(&self.words),
            };
            gdb.arg("--args").arg(program);
            return gdb;
        }
        let mut command = Command::new("valgrind");
        match &self.callgrind {
            Some(file) => {
                let mut out = OsString::from("--callgrind-out-file=");
                out.push(file);
                command.arg("--tool=callgrind").arg(out);
            }
            None if self.valgrind => {
                command.args(["--tool=memcheck", "--error-exitcode=99", "--read-var-info=no"]);
                if let Ok(root) = super::catalogue::root() {
                    let mut suppressions = OsString::from("--suppressions=");
                    suppressions.push(root.join("ddekit/valgrind.supp"));
                    command.arg(suppressions);
                }
            }
            None => command = Command::new(program),
        }
        if command.get_program() == "valgrind" {
            command.arg(program);
        }
        command
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[arg(long)]
        driver: Option<String>,
        #[command(flatten)]
        tools: Tools,
    }

    fn tools(words: &[&str]) -> Result<Tools, clap::Error> {
        let line = Line::try_parse_from(["ring3", "--driver", "e1000e"].iter().chain(words))?;
        assert!(line.driver.is_some());
        Ok(line.tools)
    }

    fn words(command: &Command) -> String {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_driver_without_tools_is_started_as_it_is() {
        let tools = tools(&[]).unwrap();
        assert!(!tools.is_slow() && tools.coverage().is_none());
        assert_eq!(words(&tools.command(Path::new("/dde"), true)), "/dde");
    }

    #[test]
    fn gdb_gets_what_it_is_told_and_shows_a_crash_where_nobody_tells_it() {
        let told = tools(&["--gdb", "--", "-batch", "-ex", "run"]).unwrap();
        assert!(
            words(&told.command(Path::new("/dde"), true)).ends_with("-batch -ex run --args /dde")
        );
        let alone = tools(&["--gdb"]).unwrap();
        assert!(
            words(&alone.command(Path::new("/dde"), true))
                .ends_with("-batch -ex run -ex bt --args /dde")
        );
        assert!(!words(&alone.command(Path::new("/dde"), false)).contains("-batch"));
    }

    #[test]
    fn a_profile_has_the_file_that_was_named_or_one_that_says_whose_it_is() {
        let named = tools(&["--callgrind=/tmp/out"]).unwrap();
        assert_eq!(
            words(&named.command(Path::new("/dde"), true)),
            "valgrind --tool=callgrind --callgrind-out-file=/tmp/out /dde"
        );
        let unnamed = tools(&["--callgrind"]).unwrap();
        assert!(words(&unnamed.command(Path::new("/dde"), true)).contains("callgrind.out.dde"));
    }

    #[test]
    fn counts_go_to_the_file_that_was_named_or_to_none() {
        assert_eq!(tools(&["--coverage"]).unwrap().coverage(), Some(Path::new("")));
        assert_eq!(tools(&["--coverage=a.info"]).unwrap().coverage(), Some(Path::new("a.info")));
        assert_eq!(tools(&[]).unwrap().coverage(), None);
    }

    #[test]
    fn a_driver_of_another_kernel_is_built_and_none_that_lies_there_is_taken_for_it() {
        let other = tools(&["--kernel", "7.2"]).unwrap();
        assert!(other.wants_a_build());
        assert_eq!(other.form().kernel, "7.2".parse().ok());
        assert!(!tools(&[]).unwrap().wants_a_build());
        let error = tools(&["--kernel", "7.1"]).unwrap_err().to_string();
        assert!(error.contains("6.12 and 7.2"), "{error}");
    }

    #[test]
    fn checkers_that_exclude_each_other_are_refused_together() {
        for wrong in [["--asan", "--valgrind"], ["--gdb", "--valgrind"], ["--coverage", "--asan"]] {
            assert!(tools(&wrong).is_err(), "{wrong:?}");
        }
        assert!(tools(&["--gdb", "--asan"]).unwrap().form().asan);
    }
}
