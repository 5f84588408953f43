//! What a device's driver wrote, and what the supervisor has to say about it: the last lines, with
//! their times.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring3_process::log::plain;

/// Lines that are kept.
const LINES: usize = 2000;
/// Most bytes of a line.
const LINE: usize = 1000;

/// The lines of one device.
#[derive(Debug, Default)]
pub struct Journal {
    lines: VecDeque<String>,
    /// Of a line whose end has not come yet.
    partial: Vec<u8>,
}

impl Journal {
    /// A line of the supervisor's.
    pub fn note(&mut self, text: &str) {
        self.push("ring3d", text.as_bytes());
    }

    /// Bytes that process `pid` wrote.
    pub fn written(&mut self, pid: u32, bytes: &[u8]) {
        for &byte in bytes {
            if byte != b'\n' && self.partial.len() < LINE {
                self.partial.push(byte);
            }
            if byte == b'\n' {
                let line = std::mem::take(&mut self.partial);
                self.push(&pid.to_string(), &line);
            }
        }
    }

    /// Process `pid` writes no more.
    pub fn ended(&mut self, pid: u32) {
        if !self.partial.is_empty() {
            let line = std::mem::take(&mut self.partial);
            self.push(&pid.to_string(), &line);
        }
    }

    /// The last `count` lines whose bytes are `room` at most, the oldest first.
    pub fn last(&self, count: usize, room: usize) -> Vec<String> {
        let mut used = 0;
        let fits = |line: &&String| {
            used += 2 * line.len() + 4;
            used <= room
        };
        let mut lines: Vec<_> =
            self.lines.iter().rev().take(count).take_while(fits).cloned().collect();
        lines.reverse();
        lines
    }

    /// Whether a line ends so.
    pub fn has(&self, text: &str) -> bool {
        self.lines.iter().any(|line| line.ends_with(text))
    }

    fn push(&mut self, who: &str, text: &[u8]) {
        let text = plain(&String::from_utf8_lossy(&text[..text.len().min(LINE)]));
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{} {who}: {text}", stamp(SystemTime::now())));
    }
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// UTC: `2026-11-22 12:35:00.123`.
fn stamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, rest) = (second / 3600, second / 60 % 60, second % 60);
    format!(
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{rest:02}.{:03}",
        since.subsec_millis()
    )
}

/// Year, month and day of a day since 1970, in the Gregorian calendar: eras of 400 years, each
/// beginning in March.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) =
        (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_time_and_its_process_and_no_control_characters() {
        let mut journal = Journal::default();
        journal.written(7, b"half");
        assert!(journal.last(9, 9999).is_empty());
        journal.written(7, b" a line\x1b[31m\nand what is not ended");
        journal.ended(7);
        let lines = journal.last(9, 9999);
        assert!(
            lines[0].ends_with(" 7: half a line\\u{1b}[31m") && lines[1].ends_with("not ended"),
            "{lines:?}"
        );
    }

    #[test]
    fn however_much_is_written_the_last_lines_are_kept_and_memory_is_bounded() {
        let mut journal = Journal::default();
        (0..3 * LINES).for_each(|number| journal.written(7, format!("{number}\n").as_bytes()));
        journal.written(7, &vec![b'x'; 100 * LINE]);
        assert_eq!((journal.lines.len(), journal.partial.len()), (LINES, LINE));
        assert!(journal.last(1, 9999)[0].ends_with(&format!(" {}", 3 * LINES - 1)));
        assert_eq!(
            journal.last(LINES, 1000).len(),
            1000 / (2 * journal.last(1, 9999)[0].len() + 4)
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| stamp(UNIX_EPOCH + Duration::from_millis(seconds));
        assert_eq!(at(0), "1970-01-01 00:00:00.000");
        assert_eq!(at(1_709_208_000_500), "2024-02-29 12:00:00.500");
        assert_eq!(at(1_798_761_599_999), "2026-12-31 23:59:59.999");
    }
}
