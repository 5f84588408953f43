//! Which lines of a driver's own files were reached, as gcov has it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Where a driver that counts leaves its counts.
pub struct Counts {
    folder: tempfile::TempDir,
    /// Where the compiler has put its notes.
    notes: PathBuf,
    driver: String,
}

/// What was reached of a driver.
#[derive(Debug, Serialize)]
pub struct Coverage {
    driver: String,
    #[serde(flatten)]
    sum: Sum,
    files: Vec<Reached>,
}

/// How much of something was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Sum {
    /// Lines with code.
    lines: usize,
    /// Of these, lines that were executed.
    lines_reached: usize,
    functions: usize,
    functions_called: usize,
}

/// One file of the driver.
#[derive(Debug, Serialize)]
struct Reached {
    /// As the kernel's source has it.
    file: String,
    #[serde(flatten)]
    sum: Sum,
    /// How often each line with code was executed, by its number.
    counts: BTreeMap<u32, u64>,
    #[serde(skip)]
    called: BTreeMap<String, u64>,
}

/// A document of gcov's.
#[derive(Deserialize)]
struct Document {
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    file: String,
    functions: Vec<Function>,
    lines: Vec<Line>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    execution_count: u64,
}

#[derive(Deserialize)]
struct Line {
    line_number: u32,
    count: u64,
}

impl Counts {
    /// For a driver that was built as `program`.
    pub fn of(driver: &str, program: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("creating a folder for counts")?;
        let notes = program.parent().unwrap_or(Path::new("/")).join(driver).join("again");
        Ok(Self { folder, notes, driver: driver.into() })
    }

    /// Has what `command` starts leave its counts here.
    pub fn take(&self, command: &mut Command) {
        command.env("GCOV_PREFIX", self.folder.path()).env("GCOV_PREFIX_STRIP", "0");
    }

    /// What was reached, once the driver has ended.
    pub fn coverage(self) -> Result<Coverage> {
        // gcov looks for a file's notes beside its counts.
        let left = self.folder.path().join(self.notes.strip_prefix("/").unwrap_or(&self.notes));
        let mut counted = Vec::new();
        find(&left, &mut counted)?;
        if counted.is_empty() {
            bail!("the driver has left no counts, which it writes when it ends by itself");
        }
        counted.sort();
        let mut files = Vec::new();
        for counts in counted {
            let within = counts.strip_prefix(&left).unwrap_or(&counts).with_extension("");
            let notes = counts.with_extension("gcno");
            std::os::unix::fs::symlink(self.notes.join(&within).with_extension("gcno"), &notes)
                .with_context(|| format!("putting {} beside the counts", notes.display()))?;
            files.push(read(&counts, &within)?);
        }
        let sum = files.iter().fold(Sum::default(), |sum, file| sum.and(file.sum));
        Ok(Coverage { driver: self.driver, sum, files })
    }
}

/// The files of counts below `folder`.
fn find(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        match path.extension() {
            Some(extension) if extension == "gcda" => into.push(path),
            _ if path.is_dir() => find(&path, into)?,
            _ => {}
        }
    }
    Ok(())
}

/// What gcov has to say of the file whose object is called `within`: of itself, without the header
/// files that it includes.
fn read(counts: &Path, within: &Path) -> Result<Reached> {
    let mut gcov = Command::new("gcov");
    gcov.args(["--json-format", "--stdout"])
        .arg(counts)
        .current_dir(counts.parent().unwrap_or(Path::new("/")));
    let output =
        gcov.stdin(Stdio::null()).output().context("starting gcov, which comes with gcc")?;
    if !output.status.success() {
        bail!("gcov: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let file = within.with_extension("c").display().to_string();
    parse(&output.stdout, file).with_context(|| format!("what gcov says of {}", counts.display()))
}

fn parse(said: &[u8], file: String) -> Result<Reached> {
    let name = Path::new(&file).file_name().map(ToOwned::to_owned);
    let documents = serde_json::Deserializer::from_slice(said).into_iter::<Document>();
    let (mut counts, mut called) = (BTreeMap::new(), BTreeMap::new());
    for document in documents {
        for part in document?
            .files
            .into_iter()
            .filter(|part| Path::new(&part.file).file_name() == name.as_deref())
        {
            for Line { line_number, count } in part.lines {
                let most: &mut u64 = counts.entry(line_number).or_default();
                *most = count.max(*most);
            }
            called.extend(
                part.functions
                    .into_iter()
                    .map(|function| (function.name, function.execution_count)),
            );
        }
    }
    let sum = Sum {
        lines: counts.len(),
        lines_reached: counts.values().filter(|&&count| count > 0).count(),
        functions: called.len(),
        functions_called: called.values().filter(|&&count| count > 0).count(),
    };
    Ok(Reached { file, sum, counts, called })
}

impl Sum {
    fn and(self, other: Self) -> Self {
        Self {
            lines: self.lines + other.lines,
            lines_reached: self.lines_reached + other.lines_reached,
            functions: self.functions + other.functions,
            functions_called: self.functions_called + other.functions_called,
        }
    }

    fn row(self, name: &str) -> String {
        let percent = if self.lines == 0 {
            0.0
        } else {
            100.0 * self.lines_reached as f64 / self.lines as f64
        };
        format!(
            "{name:<56} {:>6} of {:>6} lines {percent:>5.1} % {:>5} of {:>5} functions",
            self.lines_reached, self.lines, self.functions_called, self.functions
        )
    }
}

impl Coverage {
    /// Says it on standard output, as a table or without the lines as JSON, and writes all of it to
    /// `path`, unless that is empty: as JSON, or for lcov's programs if it ends in `.info`.
    pub fn tell(&self, path: &Path, json: bool) -> Result<()> {
        if json {
            let mut said = serde_json::to_value(self)?;
            for file in said["files"].as_array_mut().into_iter().flatten() {
                file.as_object_mut().map(|file| file.remove("counts"));
            }
            outln!("{}", serde_json::json!({ "coverage": said }));
        } else {
            self.files.iter().for_each(|file| outln!("{}", file.sum.row(&file.file)));
            outln!("{}", self.sum.row(&format!("dde:{}", self.driver)));
        }
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let text = match path.extension().is_some_and(|extension| extension == "info") {
            true => self.files.iter().map(Reached::trace).collect(),
            false => serde_json::to_string(self)? + "\n",
        };
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

impl Reached {
    /// As lcov writes it, geninfo(1).
    fn trace(&self) -> String {
        let called = self.called.iter().map(|(name, count)| format!("FNDA:{count},{name}\n"));
        let lines = self.counts.iter().map(|(line, count)| format!("DA:{line},{count}\n"));
        let end = format!("LF:{}\nLH:{}\nend_of_record\n", self.sum.lines, self.sum.lines_reached);
        std::iter::once(format!("TN:\nSF:{}\n", self.file))
            .chain(called)
            .chain(lines)
            .chain([end])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two functions on one line, and a header file.
    const SAID: &str = r#"{"files":[
        {"file":"/source/drivers/net/a.c",
         "functions":[{"name":"f","execution_count":3},{"name":"g","execution_count":0}],
         "lines":[{"line_number":7,"count":3},{"line_number":7,"count":0},
                  {"line_number":9,"count":0}]},
        {"file":"/source/include/linux/skbuff.h","functions":[],
         "lines":[{"line_number":1,"count":5}]}]}"#;

    #[test]
    fn a_line_is_reached_if_anything_on_it_was_and_header_files_are_not_the_drivers() {
        let reached = parse(SAID.as_bytes(), "drivers/net/a.c".into()).unwrap();
        assert_eq!(
            reached.sum,
            Sum { lines: 2, lines_reached: 1, functions: 2, functions_called: 1 }
        );
        assert_eq!(reached.counts[&7], 3);
        assert!(reached.trace().contains(
            "SF:drivers/net/a.c\nFNDA:3,f\nFNDA:0,g\nDA:7,3\nDA:9,0\nLF:2\nLH:1\nend_of_record"
        ));
    }

    #[test]
    fn what_is_no_document_of_gcov_is_an_error() {
        assert!(parse(b"{\"files\": 3}", "a.c".into()).is_err());
    }

    #[test]
    fn a_driver_that_was_killed_has_left_no_counts_and_that_is_said() {
        let counts = Counts::of("e1000e", Path::new("/nowhere/dde-e1000e")).unwrap();
        assert!(counts.coverage().unwrap_err().to_string().contains("when it ends by itself"));
    }
}
