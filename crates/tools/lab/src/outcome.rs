//! What comes back from a guest: a stream of marked lines and bytes, read into events and an
//! outcome.

use crate::archive;
use crate::error::Error;
use std::collections::BTreeMap;
use std::io::{Write as _, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

/// When a guest has not said yet that it has its job.
pub(crate) const BEFORE: &str = "before the job began";
/// Byte that begins a line of the protocol in the job's output.
const MARK: u8 = 1;
/// Most that a guest may send back as files.
const FILES_LIMIT: usize = 1 << 30;
/// Most of one step's output that is kept.
const OUTPUT_LIMIT: usize = 16 << 20;

/// Last lines of a step that an error shows.
const SAID: usize = 25;

/// Something that happened in a run, for whoever watches.
#[derive(Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Something missing is being fetched or built.
    Progress(&'a str),
    /// The guest runs and has its job.
    Started,
    /// A step begins.
    Step(&'a str),
    /// A line of output, without its end.
    Line(&'a str),
    /// A step ended.
    Done(&'a StepOutcome),
}

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct StepOutcome {
    /// The step's name.
    pub name: String,
    /// Exit code of its command; 128 and the signal's number when it was killed.
    pub exit: i32,
    /// Seconds that it took by the guest's clock.
    pub seconds: f64,
    /// What it printed, on both its outputs.
    pub output: String,
    /// Text that should have been in the output and was not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missed: Vec<String>,
}

/// An outcome that several tests look at. Its run happens once, whether it fails or not: after a
/// panic, a [`OnceLock`] alone would run it again for each of them.
#[derive(Default)]
pub struct SharedOutcome(OnceLock<Option<Outcome>>);

impl SharedOutcome {
    /// Of a run that did not happen yet.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The outcome of `run`, which the first caller runs.
    ///
    /// # Panics
    /// If `run` did. The first test shows why; standard error does at once, because a test program
    /// that is ended before its time shows nothing of its tests.
    pub fn get_or_run(&self, run: impl FnOnce() -> Outcome) -> &Outcome {
        let once = || {
            catch_unwind(AssertUnwindSafe(run))
                .inspect(Outcome::show_if_wanted)
                .inspect_err(|why| {
                    let why = why.downcast_ref::<String>().map_or("it panicked", |why| why);
                    let _ = writeln!(stderr(), "the run that tests share failed: {why}");
                })
                .ok()
        };
        let outcome = self.0.get_or_init(once).as_ref();
        outcome.expect("the run that tests share failed: the first of them shows why")
    }
}

/// The end of a run that reached its verdict.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The job's exit code: of the first step that failed, or 0. 125: a module or a device did not
    /// come up.
    pub exit: i32,
    /// The steps that ran.
    pub steps: Vec<StepOutcome>,
    /// What was printed outside of steps, such as why a module did not load.
    pub messages: String,
    /// Files that the job left in `$OUT`, by relative path.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The guest's kernel, as `uname -r` has it.
    pub kernel: String,
    /// QEMU's version.
    pub qemu: String,
    /// Seconds on the host's clock from the start of QEMU to the job, and to the end.
    pub seconds: (f64, f64),
    /// What the guest's console said.
    pub console: String,
    /// The fault of QEMU's for which this is the second try; nothing of the first is in here.
    pub retried: Option<String>,
}

impl Outcome {
    /// Whether every step succeeded.
    pub fn succeeded(&self) -> bool {
        self.exit == 0
    }

    /// A file from `$OUT` as JSON.
    pub fn json(&self, name: &str) -> Result<serde_json::Value, Error> {
        let there = || self.files.keys().cloned().collect::<Vec<_>>().join(", ");
        let bytes = self.files.get(name).ok_or_else(|| {
            Error::Request(format!("the guest left no file {name}; it left: {}", there()))
        })?;
        serde_json::from_slice(bytes).map_err(|e| Error::Format {
            what: format!("{name} from the guest"),
            why: e.to_string(),
        })
    }

    /// What the step `name` printed; `None` if there was none such.
    pub fn said(&self, name: &str) -> Option<&str> {
        self.steps.iter().find(|step| step.name == name).map(|step| &*step.output)
    }

    /// Prints it all where `RING3_TEST_SHOW` is set, for who looks into a test.
    fn show_if_wanted(&self) {
        if std::env::var_os("RING3_TEST_SHOW").is_some() {
            let show = |step: &StepOutcome| println!("=== {}\n{}", step.name, step.output);
            self.steps.iter().for_each(show);
        }
    }

    /// All steps' output in one text.
    pub fn output(&self) -> String {
        self.steps.iter().map(|step| step.output.as_str()).collect()
    }

    /// Writes the files from `$OUT` into `folder`.
    pub fn save(&self, folder: &Path) -> Result<(), Error> {
        use crate::error::Doing;
        for (name, bytes) in &self.files {
            let path = folder.join(name);
            let above = path.parent().unwrap_or(folder);
            std::fs::create_dir_all(above).doing("creating a folder for results", above)?;
            std::fs::write(&path, bytes).doing("writing a result", &path)?;
        }
        Ok(())
    }
}

/// Reads the port's bytes, in whatever pieces they come.
pub(crate) struct Reader<'a> {
    names: &'a [String],
    line: Vec<u8>,
    state: State,
    began: f64,
    pub(crate) outcome: Outcome,
    /// Set by the last line of the protocol.
    pub(crate) finished: bool,
    /// Set when the guest waits for a job.
    pub(crate) ready: bool,
}

enum State {
    Text,
    Mark,
    Files(usize, Vec<u8>),
}

impl<'a> Reader<'a> {
    /// `names` are the steps' names, in order.
    pub(crate) fn new(names: &'a [String]) -> Self {
        Self {
            names,
            line: Vec::new(),
            state: State::Text,
            began: 0.0,
            outcome: Outcome::default(),
            finished: false,
            ready: false,
        }
    }

    /// Takes the next bytes and tells `watch` what they mean.
    pub(crate) fn take(
        &mut self,
        mut bytes: &[u8],
        watch: &mut dyn FnMut(Event),
    ) -> Result<(), Error> {
        while let Some(&first) = bytes.first() {
            if let State::Files(size, content) = &mut self.state {
                let part = bytes.len().min(*size - content.len());
                content.extend_from_slice(&bytes[..part]);
                bytes = &bytes[part..];
                self.end_of_files()?;
                continue;
            }
            bytes = &bytes[1..];
            match (&self.state, first) {
                (State::Text, MARK) => {
                    self.end_of_line(watch);
                    self.state = State::Mark;
                }
                (State::Text, b'\n') => self.end_of_line_with(true, watch),
                (State::Mark, b'\n') => self.end_of_mark(watch)?,
                _ => self.line.push(first),
            }
        }
        Ok(())
    }

    /// Where the run is, for an error.
    pub(crate) fn position(&self) -> String {
        match self.outcome.steps.last() {
            _ if self.finished => "after the job".into(),
            Some(step) => format!("in step '{}'", step.name),
            None if self.ready => "before the first step".into(),
            None => BEFORE.into(),
        }
    }

    /// Where the run is, and the last that was said there, for who waited in vain.
    pub(crate) fn situation(&self) -> String {
        let said = self.outcome.steps.last().map_or("", |step| &step.output);
        let lines: Vec<_> = said.lines().collect();
        match &lines[lines.len().saturating_sub(SAID)..] {
            [] => self.position(),
            last => format!("{}, after it said\n{}", self.position(), last.join("\n")),
        }
    }

    fn end_of_line(&mut self, watch: &mut dyn FnMut(Event)) {
        if !self.line.is_empty() {
            self.end_of_line_with(false, watch);
        }
    }

    fn end_of_line_with(&mut self, newline: bool, watch: &mut dyn FnMut(Event)) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let output = match self.outcome.steps.last_mut() {
            Some(step) => &mut step.output,
            None => &mut self.outcome.messages,
        };
        if output.len() < OUTPUT_LIMIT {
            output.push_str(&line);
            output.push_str(if newline { "\n" } else { "" });
        }
        watch(Event::Line(line.trim_end_matches('\r')));
    }

    fn end_of_mark(&mut self, watch: &mut dyn FnMut(Event)) -> Result<(), Error> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line).into_owned();
        self.state = State::Text;
        let wrong = || Error::Format {
            what: "the guest's report".into(),
            why: format!("'{line}' means nothing"),
        };
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["ready"] => self.ready = true,
            ["start", _] => watch(Event::Started),
            ["failed", ..] => {}
            ["step", number, seconds] => {
                let index: usize = number.parse().map_err(|_| wrong())?;
                let name = self.names.get(index).ok_or_else(wrong)?;
                self.began = seconds.parse().map_err(|_| wrong())?;
                watch(Event::Step(name));
                self.outcome
                    .steps
                    .push(StepOutcome { name: name.clone(), ..StepOutcome::default() });
            }
            ["done", _, exit, seconds] => {
                let step = self.outcome.steps.last_mut().ok_or_else(wrong)?;
                step.exit = exit.parse().map_err(|_| wrong())?;
                let seconds: f64 = seconds.parse().map_err(|_| wrong())?;
                step.seconds = ((seconds - self.began) * 100.0).round() / 100.0;
                watch(Event::Done(step));
            }
            ["files", size] => {
                let size =
                    size.parse().ok().filter(|size| *size <= FILES_LIMIT).ok_or_else(wrong)?;
                self.state = State::Files(size, Vec::new());
                self.end_of_files()?;
            }
            ["exit", code] => {
                self.outcome.exit = code.parse().map_err(|_| wrong())?;
                self.finished = true;
            }
            _ => return Err(wrong()),
        }
        Ok(())
    }

    fn end_of_files(&mut self) -> Result<(), Error> {
        let State::Files(size, content) = &self.state else { return Ok(()) };
        if content.len() < *size {
            return Ok(());
        }
        if *size > 0 {
            self.outcome.files =
                archive::files(content)?.into_iter().map(|f| (f.path, f.content)).collect();
        }
        self.state = State::Text;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut archive = archive::Writer::new();
        archive.file("r.json", 0o644, b"{\"a\": \"\x01\\n\"}").unwrap();
        let archive = archive.finish();
        let mut bytes =
            b"\x01start 1.0\n\x01step 0 1.50\nhello\nno end\x01done 0 0 2.75\n\x01step 1 \
              2.80\n\x01done 1 3 2.80\n"
                .to_vec();
        bytes.extend_from_slice(format!("\x01files {}\n", archive.len()).as_bytes());
        bytes.extend_from_slice(&archive);
        bytes.extend_from_slice(b"\x01exit 3\n");
        bytes
    }

    fn names() -> Vec<String> {
        vec!["first".into(), "second".into()]
    }

    #[test]
    fn a_run_that_fails_is_not_run_again_for_the_next_test() {
        let (shared, mut runs) = (SharedOutcome::new(), 0);
        for _ in 0..2 {
            let run = || {
                runs += 1;
                panic!("run {runs}")
            };
            catch_unwind(AssertUnwindSafe(|| drop(shared.get_or_run(run).clone()))).unwrap_err();
        }
        assert_eq!(runs, 1);
    }

    #[test]
    fn the_stream_may_come_in_pieces_of_any_size() {
        let (bytes, names) = (stream(), names());
        for size in 1..bytes.len() {
            let mut reader = Reader::new(&names);
            bytes.chunks(size).for_each(|piece| reader.take(piece, &mut |_| {}).unwrap());
            assert!(reader.finished);
            assert_eq!(reader.outcome.exit, 3);
            assert_eq!(reader.outcome.steps[0].output, "hello\nno end");
            assert_eq!(reader.outcome.steps[0].seconds, 1.25);
            assert_eq!(reader.outcome.steps[1].exit, 3);
            assert_eq!(reader.outcome.files["r.json"], b"{\"a\": \"\x01\\n\"}");
        }
    }

    #[test]
    fn lines_are_told_as_they_come() {
        let names = names();
        let mut seen = Vec::new();
        let mut reader = Reader::new(&names);
        reader
            .take(b"\x01step 0 0\none\ntw", &mut |event| seen.push(format!("{event:?}")))
            .unwrap();
        assert_eq!(seen, ["Step(\"first\")", "Line(\"one\")"]);
    }

    #[test]
    fn a_report_that_makes_no_sense_is_an_error_and_no_panic() {
        for wrong in [
            "step 9 0",
            "step x 0",
            "done 0 0 0",
            "files -1",
            "files 99999999999999",
            "exit",
            "nonsense",
            "step 0 zero",
        ] {
            let names = names();
            let result = Reader::new(&names).take(format!("\x01{wrong}\n").as_bytes(), &mut |_| {});
            assert!(result.is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_missing_file_is_an_error_that_lists_what_is_there() {
        let outcome = Outcome {
            files: BTreeMap::from([("a.json".to_string(), vec![])]),
            ..Outcome::default()
        };
        assert!(outcome.json("b.json").unwrap_err().to_string().contains("a.json"));
    }
}
