//! Data ports: many accesses to one place, sent together, so that their round trips overlap.

use ring3_device::{Deadline, Error};

use super::wire::Wire;

/// Accesses that are sent together. Their replies, with those that are owed for posted writes, fit
/// into the socket's buffer.
const TOGETHER: usize = 64;

impl Wire {
    /// Reads `bytes`, `width` of them in each answer to `line`, lowest byte first.
    pub(super) fn read_stream(
        &self,
        line: &str,
        width: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        for part in bytes.chunks_mut(TOGETHER * width) {
            let mut inbox = self.inbox();
            self.send_text(format!("{line}\n").repeat(part.len() / width).as_bytes())?;
            let deadline = Deadline::after(self.limit());
            self.collect(&mut inbox, 0, deadline)?;
            for word in part.chunks_exact_mut(width) {
                let value = self.reply(&mut inbox, deadline)?;
                word.copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
        Ok(())
    }

    /// Writes `bytes`, `width` of them with each `line`, lowest byte first; posted.
    pub(super) fn write_stream(&self, line: &str, width: usize, bytes: &[u8]) {
        for part in bytes.chunks(TOGETHER * width) {
            let words = part
                .chunks_exact(width)
                .map(|word| word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
            let text: String = words.map(|word| format!("{line} {word:#x}\n")).collect();
            self.post_text(&text, part.len() / width);
        }
    }
}
