//! The guest's output, a line at a time, read into one [`Told`] a test.
//!
//! # Trust
//! What comes from the guest is input: a line that makes no sense belongs to the test's output.

/// What begins a line that is not a test's own.
const MARK: &str = "suites: ";
/// Bytes of a test's output that are kept: its end says most.
const KEPT: usize = 256 << 10;

/// A test that ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub test: String,
    pub exit: i32,
    pub seconds: f64,
    /// Deaths of the driver meanwhile.
    pub kills: u32,
    /// I/O errors of the disks under test meanwhile.
    pub errors: u32,
    pub output: String,
}

/// Reads lines.
#[derive(Debug, Default)]
pub struct Stream {
    running: Option<(String, String)>,
    /// What was said outside of tests.
    pub other: String,
}

impl Stream {
    /// The test that `line` is the end of.
    pub fn line(&mut self, line: &str) -> Option<Told> {
        let line = line.trim_end_matches('\r');
        let words: Vec<&str> =
            line.strip_prefix(MARK).map(|rest| rest.split(' ').collect()).unwrap_or_default();
        match (&words[..], &mut self.running) {
            (["begin", test], running) => {
                *running = Some((test.to_string(), String::new()));
                None
            }
            (["end", test, numbers @ ..], Some((running, _))) if running == test => {
                match ended(numbers) {
                    Some(told) => {
                        let (test, output) = self.running.take()?;
                        Some(Told { test, output, ..told })
                    }
                    None => None,
                }
            }
            (_, running) => {
                let output = running.as_mut().map_or(&mut self.other, |(_, output)| output);
                keep(output, line);
                None
            }
        }
    }

    /// The test that began and did not end, with its output.
    pub fn unfinished(self) -> Option<(String, String)> {
        self.running
    }
}

fn ended(numbers: &[&str]) -> Option<Told> {
    let [exit, seconds, kills, errors] = numbers else { return None };
    Some(Told {
        test: String::new(),
        exit: exit.parse().ok()?,
        seconds: seconds.parse().ok()?,
        kills: kills.parse().ok()?,
        // The kernel's log forgets its oldest lines.
        errors: errors.parse::<i64>().ok()?.max(0).try_into().ok()?,
        output: String::new(),
    })
}

fn keep(output: &mut String, line: &str) {
    output.push_str(line);
    output.push('\n');
    if output.len() > 2 * KEPT {
        let mut from = output.len() - KEPT;
        while !output.is_char_boundary(from) {
            from += 1;
        }
        output.drain(..from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<Told>, Stream) {
        let mut stream = Stream::default();
        let told = text.lines().filter_map(|line| stream.line(line)).collect();
        (told, stream)
    }

    #[test]
    fn each_test_has_its_own_output_and_figures() {
        let (told, stream) = read(
            "mounted\nsuites: begin a/1\nhello\nsuites: end a/1 0 1.25 3 0\n\
             suites: begin b\nsuites: end b 77 .5 0 -2\n",
        );
        let a = Told {
            test: "a/1".into(),
            exit: 0,
            seconds: 1.25,
            kills: 3,
            errors: 0,
            output: "hello\n".into(),
        };
        assert_eq!(told[0], a);
        assert_eq!((&*told[1].test, told[1].exit, told[1].errors), ("b", 77, 0));
        assert_eq!(stream.other, "mounted\n");
        assert_eq!(stream.unfinished(), None);
    }

    #[test]
    fn a_test_in_which_the_guest_died_is_known_with_its_output() {
        let (told, stream) = read("suites: begin a\nsuites: end a 0 1 0 0\nsuites: begin b\nlast");
        assert_eq!(told.len(), 1);
        assert_eq!(stream.unfinished(), Some(("b".into(), "last\n".into())));
    }

    #[test]
    fn a_line_that_only_looks_like_an_end_ends_nothing() {
        let (told, stream) =
            read("suites: begin a\nsuites: end b 0 1 0 0\nsuites: end a x 1 0 0\nmore\n");
        assert!(told.is_empty());
        assert_eq!(stream.unfinished().unwrap().0, "a");
    }

    #[test]
    fn an_endless_output_is_cut_at_its_begin() {
        let mut stream = Stream::default();
        stream.line("suites: begin a");
        for number in 0..200_000 {
            stream.line(&format!("line {number}"));
        }
        let output = stream.unfinished().unwrap().1;
        assert!(output.len() <= 2 * KEPT && output.ends_with("line 199999\n"));
    }
}
