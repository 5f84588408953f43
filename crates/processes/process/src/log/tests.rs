use std::io::{PipeReader, Read};
use std::sync::Mutex;

use super::*;

/// Long enough on the busiest host; nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A log whose output is a pipe that nobody reads, and which is full.
fn stopped() -> (Log, PipeReader) {
    let (reader, mut writer) = io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (Log::new(writer), reader)
}

/// Bytes that others can look at.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Paper {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log(mut log: &Log, line: &str) {
    log.write_all(line.as_bytes()).unwrap();
}

#[test]
fn nobody_waits_for_a_reader_that_stands_still_and_what_waits_is_bounded() {
    let (stopped, _reader) = stopped();
    for number in 0..100_000 {
        log(&stopped, &format!("line {number}\n"));
    }
    assert!(stopped.waiting() <= LINES as u64 + 1, "{}", stopped.waiting());
    assert!(stopped.counts.full.load(Ordering::Relaxed) >= 100_000 - LINES as u64 - 1);
}

#[test]
fn a_flush_gives_up_at_its_limit() {
    let (stopped, _reader) = stopped();
    log(&stopped, "a line\n");
    assert!(!stopped.flush(Duration::from_millis(50)));
}

#[test]
fn when_the_reader_goes_on_it_learns_how_many_lines_it_missed() {
    let (stopped, mut reader) = stopped();
    for _ in 0..1000 {
        stopped.put(Kind::Notice, b"a line\n".to_vec());
    }
    let missed = stopped.counts.full.load(Ordering::Relaxed);
    let reading = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    assert!(stopped.flush(PATIENCE));
    drop(stopped);
    let text = reading.join().unwrap().unwrap();
    assert!(
        missed > 0 && text.contains(&format!("ring3: {missed} lines of the log were left out")),
        "{missed}: {text}"
    );
}

#[test]
fn lines_before_a_flush_are_written() {
    let paper = Paper::default();
    let written = Log::new(paper.clone());
    log(&written, "one\n");
    written.put(Kind::Notice, b"two\n".to_vec());
    assert!(written.flush(PATIENCE));
    assert_eq!(paper.text(), "one\ntwo\n");
}

#[test]
fn a_flood_is_cut_and_counted_while_a_notice_gets_through() {
    let paper = Paper::default();
    let mut scribe = LogWriter::new(paper.clone(), Arc::default());
    // Later than now, so that nothing is earned meanwhile.
    scribe.counted = Instant::now() + PATIENCE;
    for _ in 0..BURST + 300 {
        scribe.line(Kind::Logged, b"flood\n");
    }
    scribe.line(Kind::Notice, b"notice\n");
    scribe.report();
    let text = paper.text();
    assert_eq!(text.matches("flood").count(), BURST as usize);
    assert!(text.contains("notice\n") && text.contains("ring3: 300 lines"), "{text}");
}

#[test]
fn a_line_without_end_is_cut() {
    let paper = Paper::default();
    let written = Log::new(paper.clone());
    log(&written, &"x".repeat(10 * LINE));
    assert!(written.flush(PATIENCE));
    assert_eq!(paper.text().len(), LINE + 4);
}

#[test]
fn an_output_that_fails_costs_its_lines_and_nothing_else() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let broken = Log::new(writer);
    log(&broken, "nobody reads this\n");
    assert!(broken.flush(PATIENCE));
}

#[test]
fn what_was_logged_is_one_line_whoever_has_written_it() {
    let forged = b"INFO driver: fine\n2026-11-22 ring3d: all is well\r\x1b[2K\n";
    assert_eq!(
        super::one_line(forged, false),
        b"INFO driver: fine\\n2026-11-22 ring3d: all is well\\r\x1b[2K\n"
    );
    assert_eq!(super::one_line(b"long", true), b"long...\n");
    assert_eq!(super::plain("a\nb\x1b]0;x\x07\u{85}\u{e4}"), "a\\nb\\u{1b}]0;x\\u{7}\\u{85}\u{e4}");
}
