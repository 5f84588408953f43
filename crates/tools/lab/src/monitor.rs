//! QEMU's machine protocol: one question, one answer, with a deadline.
//!
//! References: [QMP] QEMU, docs/interop/qmp-spec.rst, version 2.0.

use crate::error::Error;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The longest that one command may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A conversation with QEMU's monitor.
pub(crate) struct Monitor<'a> {
    to: &'a UnixStream,
    from: BufReader<&'a UnixStream>,
}

impl<'a> Monitor<'a> {
    /// Reads the greeting and agrees on no extras. [QMP "Capabilities Negotiation"]
    pub(crate) fn greet(stream: &'a UnixStream) -> Result<Self, Error> {
        stream.set_read_timeout(Some(LIMIT)).map_err(|e| failed("the monitor", &e.to_string()))?;
        let mut monitor = Self { to: stream, from: BufReader::new(stream) };
        monitor.next("the greeting")?;
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Runs `command` and gives its answer. Events that come before it are passed over.
    pub(crate) fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, Error> {
        let question = json!({ "execute": command, "arguments": arguments });
        writeln!(&mut self.to, "{question}").map_err(|e| failed(command, &e.to_string()))?;
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            let answer = self.next(command)?;
            if let Some(error) = answer.get("error") {
                return Err(failed(command, error["desc"].as_str().unwrap_or("refused")));
            }
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
        Err(failed(command, "no answer"))
    }

    /// Waits for the end of a migration, in whichever direction.
    pub(crate) fn migrated(&mut self, limit: Duration) -> Result<(), Error> {
        let until = Instant::now() + limit;
        loop {
            let state = self.ask("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    return Err(failed(
                        "migration",
                        state["error-desc"].as_str().unwrap_or("failed without a reason"),
                    ));
                }
                _ if Instant::now() > until => {
                    return Err(failed("migration", &format!("not over after {limit:?}")));
                }
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    fn next(&mut self, command: &str) -> Result<Value, Error> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err(failed(command, "QEMU closed its monitor")),
            Ok(_) => serde_json::from_str(&line).map_err(|e| failed(command, &e.to_string())),
            Err(e) => Err(failed(command, &e.to_string())),
        }
    }
}

fn failed(command: &str, why: &str) -> Error {
    Error::Monitor { command: command.into(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A monitor whose other side greets and then gives `answers`, one per question.
    fn monitor_with(
        answers: &'static [&'static str],
    ) -> (UnixStream, thread::JoinHandle<Vec<String>>) {
        let (here, there) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || {
            let mut questions = Vec::new();
            let mut lines = BufReader::new(&there).lines();
            writeln!(&there, r#"{{"QMP": {{}}}}"#).unwrap();
            for answer in ["{\"return\": {}}"].iter().chain(answers) {
                questions.push(lines.next().unwrap().unwrap());
                writeln!(&there, "{answer}").unwrap();
            }
            questions
        });
        (here, other)
    }

    #[test]
    fn events_before_an_answer_are_passed_over() {
        let (stream, other) = monitor_with(&["{\"event\": \"STOP\"}\n{\"return\": 7}"]);
        assert_eq!(Monitor::greet(&stream).unwrap().ask("stop", json!({})).unwrap(), 7);
        assert!(other.join().unwrap()[1].contains("\"stop\""));
    }

    #[test]
    fn a_refusal_is_an_error_with_qemus_words() {
        let (stream, _other) = monitor_with(&["{\"error\": {\"desc\": \"no such bus\"}}"]);
        let error = Monitor::greet(&stream).unwrap().ask("device_add", json!({})).unwrap_err();
        assert!(error.to_string().contains("no such bus"), "{error}");
    }

    #[test]
    fn a_monitor_that_closes_is_an_error() {
        let (stream, other) = monitor_with(&[]);
        let mut monitor = Monitor::greet(&stream).unwrap();
        other.join().unwrap();
        assert!(monitor.ask("cont", json!({})).is_err());
    }

    #[test]
    fn a_failed_migration_says_why() {
        let (stream, _other) = monitor_with(&[
            "{\"return\": {\"status\": \"failed\", \"error-desc\": \"disk full\"}}",
        ]);
        let error = Monitor::greet(&stream).unwrap().migrated(LIMIT).unwrap_err();
        assert!(error.to_string().contains("disk full"), "{error}");
    }
}
