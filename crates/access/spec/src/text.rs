//! Text that a device, or another user, has chosen, made fit for a terminal.
//!
//! A serial number may hold anything: bytes that move the cursor, that change colours or the title
//! of a window, or that turn the direction of writing, so that a line reads as something else. All
//! such text is shown through [`Printable`], and through nothing else.

use core::fmt;

/// Shows text with everything that is no visible character escaped: control characters and bytes
/// that are not UTF-8 as `\x1b`, characters that change the direction of writing or that cannot be
/// seen as `\u{202e}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    _ if is_visible(character) => f.write_char(character)?,
                    '\0'..='\x1f' | '\x7f'..='\u{9f}' => write!(f, "\\x{:02x}", character as u32)?,
                    _ => write!(f, "\\u{{{:x}}}", character as u32)?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Whether a terminal shows a character as a sign, and does nothing else with it.
pub fn is_visible(character: char) -> bool {
    !matches!(character, '\0'..='\x1f' | '\x7f'..='\u{9f}') && !is_unseen(character)
}

/// Whether a character is no sign of its own: marks of direction, separators of lines, joiners,
/// tags. [Unicode 15.1, Bidi_Control, Cf, Zl, Zp]
fn is_unseen(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn what_can_be_seen_stays_as_it_is() {
        let text = "QEMU NVMe Ctrl/8.2 [Größe 1 µs] 磁盘";
        assert_eq!(Printable(text.as_bytes()).to_string(), text);
    }

    #[test]
    fn control_characters_and_escape_sequences_are_shown_as_their_numbers() {
        assert_eq!(Printable(b"A\x1b[2J\r\n\x07\x7f").to_string(), "A\\x1b[2J\\x0d\\x0a\\x07\\x7f");
        assert_eq!(Printable("\u{9b}31m".as_bytes()).to_string(), "\\x9b31m");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_their_numbers() {
        assert_eq!(Printable(b"S\xff\xc3").to_string(), "S\\xff\\xc3");
    }

    #[test]
    fn the_direction_of_writing_cannot_be_turned() {
        assert_eq!(
            Printable("a\u{202e}b\u{2066}c\u{200f}".as_bytes()).to_string(),
            "a\\u{202e}b\\u{2066}c\\u{200f}"
        );
    }
}
