//! What QEMU says on its qtest socket, taken apart into lines.

use ring3_device::Error;

/// No line is longer.
const LINE_LIMIT: usize = 4096;

/// Bytes that have been received, and how many replies are still to come.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Where the lines that were not taken yet begin.
    start: usize,
    /// Replies to posted writes that were not taken yet.
    pub(super) owed: usize,
}

/// One line.
#[derive(Debug)]
pub(super) enum Line {
    /// `OK`, `OK 0x12`, or a refusal.
    Reply(Result<u64, Error>),
    /// `IRQ raise 20` and `IRQ lower 20`.
    Pin { number: u32, level: bool },
}

impl Inbox {
    /// Nothing.
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(2 * LINE_LIMIT), start: 0, owed: 0 }
    }

    /// Adds what has been received. False if it makes a line that is too long to be one.
    pub(super) fn add(&mut self, bytes: &[u8]) -> bool {
        self.bytes.drain(..std::mem::take(&mut self.start));
        self.bytes.extend_from_slice(bytes);
        self.bytes.len() <= LINE_LIMIT || self.bytes[..LINE_LIMIT].contains(&b'\n')
    }

    /// Takes the next whole line.
    pub(super) fn line(&mut self) -> Option<Line> {
        let rest = &self.bytes[self.start..];
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let line = Line::parse(&rest[..end]);
        self.start += end + 1;
        Some(line)
    }
}

impl Line {
    fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).unwrap_or_default().trim_end();
        let pin = text.strip_prefix("IRQ ").and_then(|event| event.split_once(' '));
        match pin.and_then(|(level, number)| Some((level == "raise", number.parse().ok()?))) {
            Some((level, number)) => Self::Pin { number, level },
            None => Self::Reply(value(text).ok_or_else(|| refusal(bytes))),
        }
    }
}

/// The number in `OK 0x12`; zero in `OK`.
fn value(text: &str) -> Option<u64> {
    match text.strip_prefix("OK")? {
        "" => Some(0),
        rest => u64::from_str_radix(rest.trim().strip_prefix("0x")?, 16).ok(),
    }
}

#[cold]
fn refusal(bytes: &[u8]) -> Error {
    Error::Protocol(format!(
        "QEMU answered {:?} on its qtest socket",
        String::from_utf8_lossy(bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn replies_and_pins_are_told_apart() {
        let mut inbox = Inbox::new();
        assert!(inbox.add(b"OK 0x0000000000000010\nIRQ raise 20\nOK\nIRQ lower 3\nFAIL x\nOK"));
        assert!(matches!(inbox.line(), Some(Line::Reply(Ok(16)))));
        assert!(matches!(inbox.line(), Some(Line::Pin { number: 20, level: true })));
        assert!(matches!(inbox.line(), Some(Line::Reply(Ok(0)))));
        assert!(matches!(inbox.line(), Some(Line::Pin { number: 3, level: false })));
        assert!(matches!(
            inbox.line(),
            Some(Line::Reply(Err(Error::Protocol(text)))) if text.contains("FAIL x"),
        ));
        assert!(inbox.line().is_none());
    }

    #[test]
    fn a_line_that_never_ends_is_none() {
        let mut inbox = Inbox::new();
        assert!(!inbox.add(&[b'x'; LINE_LIMIT + 1]));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_they_are_cut(
            values in prop::collection::vec(any::<u64>(), 1..50), cut in 1usize..40,
        ) {
            let text: String = values.iter().map(|value| format!("OK {value:#018x}\n")).collect();
            let mut inbox = Inbox::new();
            let mut got = Vec::new();
            for piece in text.as_bytes().chunks(cut) {
                prop_assert!(inbox.add(piece));
                while let Some(Line::Reply(Ok(value))) = inbox.line() {
                    got.push(value);
                }
            }
            prop_assert_eq!(got, values);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut inbox = Inbox::new();
            inbox.add(&bytes);
            while inbox.line().is_some() {}
        }
    }
}
