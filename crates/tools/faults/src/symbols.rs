//! Where the functions of drivers are in this program's file. [ELF-64 1.5, Tables 3 and 14]

use std::fs;
use std::io;
use std::path::Path;

/// A symbol is a function. [ELF-64 Table 16]
const FUNCTION: u8 = 2;
/// A section is a table of symbols. [ELF-64 Table 8]
const SYMBOLS: u32 = 2;

/// The functions of a program: where each begins, as the file numbers addresses, and its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols(Vec<(u64, u64)>);

impl Symbols {
    /// Those of the program at `path` whose names contain `part`. None if it has no symbols.
    pub fn read(path: &Path, part: &str) -> io::Result<Self> {
        let file = fs::read(path)?;
        Ok(Self(functions(&file, part).unwrap_or_default()))
    }

    /// An address in one of them that follows from `word`; each byte is as likely as any other.
    pub fn pick(&self, word: u64) -> Option<u64> {
        let mut at = word.checked_rem(self.bytes())?;
        self.0.iter().find_map(|&(start, len)| {
            let here = (at < len).then_some(start + at);
            at = at.saturating_sub(len);
            here
        })
    }

    /// Of all of them.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, len)| len).sum()
    }
}

fn functions(file: &[u8], part: &str) -> Option<Vec<(u64, u64)>> {
    let word = |at: usize| Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?));
    let short =
        |at: usize| Some(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?) as usize);
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (sections, size, count) = (word(0x28)? as usize, short(0x3a)?, short(0x3c)?);
    let section = |index: usize| sections.checked_add(index.checked_mul(size)?);
    let table = (0..count).filter_map(section).find(|at| half(at + 4) == Some(SYMBOLS))?;
    let (start, len, names) =
        (word(table + 0x18)? as usize, word(table + 0x20)? as usize, half(table + 0x28)? as usize);
    let names = word(section(names)? + 0x18)? as usize;
    let mut found = Vec::new();
    for symbol in file.get(start..start.checked_add(len)?)?.chunks_exact(24) {
        let name = names + u32::from_le_bytes(symbol[..4].try_into().ok()?) as usize;
        let (address, len) = (
            u64::from_le_bytes(symbol[8..16].try_into().ok()?),
            u64::from_le_bytes(symbol[16..].try_into().ok()?),
        );
        let text = file.get(name..).and_then(|rest| rest.split(|&byte| byte == 0).next());
        if symbol[4] & 15 == FUNCTION
            && len > 0
            && text.is_some_and(|text| contains(text, part.as_bytes()))
        {
            found.push((address, len));
        }
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_programs_functions_are_found_by_a_part_of_their_names() {
        let program = std::env::current_exe().unwrap();
        let all = Symbols::read(&program, "").unwrap();
        let some = Symbols::read(&program, "ring3_faults").unwrap();
        assert!(some.bytes() > 0 && some.bytes() < all.bytes());
        let (start, len) = some.0[some.0.len() / 2];
        assert!((0..1000).filter_map(|word| some.pick(word * 7919)).any(|at| at < start + len));
        assert_eq!(Symbols::read(&program, "no such name at all").unwrap().pick(3), None);
    }

    #[test]
    fn what_is_no_program_has_no_functions() {
        for file in [&b""[..], b"\x7fELF\x02\x01", &[0x7f; 100]] {
            assert_eq!(functions(file, ""), None);
        }
        let mut cut = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        cut.truncate(200);
        assert!(functions(&cut, "").is_none_or(|found| found.is_empty()));
    }
}
