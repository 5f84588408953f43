//! Patterns of the kernel's tables, as its `glob_match` reads them. [Linux, lib/glob.c]

/// Whether all of `text` is as `pattern` has it. `*` stands for any text, `?` for any letter, and
/// `[3-5x]` for one of those letters. The tables have no other special letter. A bracket that is
/// not closed stands for itself.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    at(pattern.as_bytes(), text.as_bytes())
}

fn at(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], _) => text.is_empty(),
        // Models have forty letters and patterns four stars at most.
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|from| at(rest, &text[from..])),
        (_, []) => false,
        ([b'?', rest @ ..], [_, text @ ..]) => at(rest, text),
        ([b'[', class @ ..], [letter, text @ ..]) if class.contains(&b']') => {
            let (class, rest) = class.split_at(class.iter().position(|&c| c == b']').unwrap_or(0));
            has(class, *letter) && at(&rest[1..], text)
        }
        ([wanted, rest @ ..], [letter, text @ ..]) => wanted == letter && at(rest, text),
    }
}

fn has(class: &[u8], letter: u8) -> bool {
    match class {
        [first, b'-', last, rest @ ..] => (first..=last).contains(&&letter) || has(rest, letter),
        [one, rest @ ..] => *one == letter || has(rest, letter),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_compared_with_the_whole_text() {
        for (pattern, text, is) in [
            ("CRD-84", "CRD-84", true),
            ("CRD-84", "CRD-8400", false),
            ("CRD-848[02]B", "CRD-8482B", true),
            ("CRD-848[02]B", "CRD-8481B", false),
            ("SD1[5-9]", "SD17", true),
            ("SD1[5-9]", "SD1A", false),
            ("ST[1248][0248]0[FH]*", "ST200FM0053", true),
            ("Crucial_CT*M500*", "Crucial_CT240M500SSD1", true),
            ("Crucial_CT*M500*", "Crucial_CT240MX200SSD1", false),
            ("INTEL*SSD*", "INTEL SSDSC2BW180A4", true),
            ("*", "", true),
            ("", "x", false),
            ("a?c", "abc", true),
            ("a[b", "a[b", true),
            ("a[]", "a", false),
        ] {
            assert_eq!(matches(pattern, text), is, "{pattern} {text}");
        }
    }
}
