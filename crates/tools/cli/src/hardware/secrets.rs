//! What tells one device or machine from another of its kind, and has no place in the file.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::report::Report;

/// Fields of identities that are one device's own.
const FIELDS: [&str; 3] = ["serial", "mac", "name"];
/// Shorter texts are found by accident, and are in no field.
const SHORTEST: usize = 4;

/// What stands in the place of what was removed.
const REMOVED: &str = "(removed)";
/// Folders whose next part is a user's name.
const HOMES: [&str; 2] = ["/home/", "/run/user/"];

/// Serial numbers, names by IEEE, addresses; and where the user's files are.
#[derive(Debug, Default)]
pub struct Secrets {
    own: BTreeSet<String>,
    /// Paths, and the machine's name: words of these, and not parts of words, are removed.
    places: BTreeSet<String>,
}

impl Secrets {
    /// Another one; what is empty, or all of one letter, tells nothing.
    pub fn add(&mut self, text: &str) {
        let text = text.trim();
        let first = text.chars().next();
        if text.len() >= SHORTEST && text.chars().any(|letter| Some(letter) != first) {
            self.own.insert(text.to_owned());
        }
    }

    /// A path of the user's, and the folder that it lies in, both also as absolute ones.
    pub fn add_path(&mut self, path: &Path) {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folders = [path.parent(), whole.parent()].map(|folder| folder.unwrap_or(path));
        for path in [path, &whole].into_iter().chain(folders) {
            let text = path.display().to_string();
            // A name without a folder says nothing of the machine.
            if text.len() >= SHORTEST && text.contains('/') {
                self.places.insert(text);
            }
        }
    }

    /// Adds the user's and the temporary folder, and the machine's name.
    pub fn add_machine(&mut self) {
        let home = std::env::var("HOME").unwrap_or_default();
        let temporary = std::env::temp_dir().display().to_string();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        for place in [home.trim_end_matches('/'), temporary.trim_end_matches('/'), host.trim()] {
            if place.len() >= SHORTEST {
                self.places.insert(place.to_owned());
            }
        }
    }

    /// All of them, as bytes that a device writes.
    pub fn bytes(&self) -> Vec<Vec<u8>> {
        self.own.iter().map(|secret| secret.clone().into_bytes()).collect()
    }

    /// Takes the fields that are one device's own out of `identity`, and remembers them. A `name`
    /// is made of the device's URI, which may have a path.
    pub fn take(&mut self, identity: &mut Value) {
        match identity {
            Value::Array(all) => all.iter_mut().for_each(|one| self.take(one)),
            Value::Object(fields) => {
                for name in FIELDS {
                    if let Some(Value::String(text)) = fields.remove(name)
                        && name != "name"
                    {
                        self.add(&text);
                    }
                }
                fields.values_mut().for_each(|one| self.take(one));
            }
            _ => {}
        }
    }

    /// `text` without any of them, in upper and lower case, and without what has their form.
    fn clean_text(&self, text: &mut String) {
        // The longest first: a folder is the start of the paths in it.
        let mut places: Vec<_> = self.places.iter().collect();
        places.sort_by_key(|place| std::cmp::Reverse(place.len()));
        places.into_iter().for_each(|place| remove(text, place, true));
        remove_users(text);
        remove_numbers(text);
        self.own.iter().for_each(|secret| remove(text, secret, false));
    }

    /// Removes all of them from what steps and checks have said, wherever an error may have put
    /// them, and what has the form of one from what the device says of itself. The other fields are
    /// made here.
    pub fn clean(&self, report: &mut Report) {
        for step in &mut report.steps {
            self.clean_text(&mut step.detail);
        }
        for value in report.doctor.iter_mut().chain(&mut report.conformance) {
            each_text(value, &mut |text| self.clean_text(text));
        }
        each_text(&mut report.device.identity, &mut remove_numbers);
        if let Some(health) = &mut report.health {
            each_text(&mut health.smart, &mut remove_numbers);
        }
    }
}

/// Does something with all texts in `value`.
fn each_text(value: &mut Value, work: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => work(text),
        Value::Array(all) => all.iter_mut().for_each(|one| each_text(one, work)),
        Value::Object(fields) => fields.values_mut().for_each(|one| each_text(one, work)),
        _ => {}
    }
}

/// Removes `secret` from `text`, in upper and lower case; if it `is_word`, only as a word.
fn remove(text: &mut String, secret: &str, is_word: bool) {
    // Of one length, so that a place in one is a place in the other.
    let (lower, wanted) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
    let stands_alone = |start: usize, end: usize| {
        let is_part = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        !is_part(lower[..start].chars().next_back()) && !is_part(lower[end..].chars().next())
    };
    let (mut cleaned, mut at) = (String::new(), 0);
    while let Some(found) = lower[at..].find(&wanted) {
        let (start, end) = (at + found, at + found + wanted.len());
        cleaned += &text[at..start];
        cleaned += if !is_word || stands_alone(start, end) { REMOVED } else { &text[start..end] };
        at = end;
    }
    *text = cleaned + &text[at..];
}

/// Removes the part of a path that is a user's name.
fn remove_users(text: &mut String) {
    for home in HOMES {
        let mut at = 0;
        while let Some(found) = text[at..].find(home) {
            let start = at + found + home.len();
            let is_end = |letter: char| letter.is_whitespace() || "/:,;'\"".contains(letter);
            let end = text[start..].find(is_end).map_or(text.len(), |len| start + len);
            text.replace_range(start..end, REMOVED);
            at = start + REMOVED.len();
        }
    }
}

/// Removes what has the form of a MAC address (six or more pairs of hexadecimal digits), of a
/// UUID, or of an EUI64, an NGUID or a world wide name (16 or 32 of these digits).
fn remove_numbers(text: &mut String) {
    let (mut cleaned, mut at, mut is_start) = (String::new(), 0, true);
    while let Some(letter) = text[at..].chars().next() {
        match number_at(&text.as_bytes()[at..]).filter(|_| is_start) {
            Some(len) => {
                cleaned += REMOVED;
                (at, is_start) = (at + len, true);
            }
            None => {
                cleaned.push(letter);
                (at, is_start) = (at + letter.len_utf8(), !letter.is_alphanumeric());
            }
        }
    }
    *text = cleaned;
}

/// Bytes of the number of such a form that `text` begins with.
fn number_at(text: &[u8]) -> Option<usize> {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let ends = |len: usize| !text.get(len).is_some_and(u8::is_ascii_alphanumeric);
    let prefix = if text.starts_with(b"0x") { 2 } else { 0 };
    let len = digits(&text[prefix..]);
    if [16, 32].contains(&len) && ends(prefix + len) {
        return Some(prefix + len);
    }
    if prefix > 0 {
        return None;
    }
    // Groups of digits with one kind of letter between them.
    let separator = *text.get(len).filter(|byte| [b':', b'-'].contains(byte))?;
    let (mut lens, mut end) = (vec![len], len);
    while text.get(end) == Some(&separator)
        && let next @ 1.. = digits(&text[end + 1..])
    {
        lens.push(next);
        end += 1 + next;
    }
    let is_address = lens.len() >= 6 && lens.iter().all(|len| *len == 2);
    let is_uuid = separator == b'-' && lens == [8, 4, 4, 4, 12];
    ((is_address || is_uuid) && ends(end)).then_some(end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_one_devices_own_is_taken_and_found_in_errors() {
        let mut secrets = Secrets::default();
        let mut identity = json!({
            "model": "M", "serial": " S3Z1NX0K ", "drives": [{ "serial": "W1", "name": "/home/x" }],
            "mac": "52:54:00:12:34:56",
        });
        secrets.take(&mut identity);
        assert_eq!(identity, json!({ "model": "M", "drives": [{}] }));
        let mut text =
            json!(["disk s3z1nx0k of 52:54:00:12:34:56, W1", { "Ä": "S3Z1NX0KS3Z1NX0K" }]);
        each_text(&mut text, &mut |text| secrets.clean_text(text));
        assert_eq!(text, json!(["disk (removed) of (removed), W1", { "Ä": "(removed)(removed)" }]));
    }

    #[test]
    fn what_has_the_form_of_an_address_is_removed_though_nobody_knows_it() {
        for (text, cleaned) in [
            ("its MAC 52:54:00:12:34:56 is", "its MAC (removed) is"),
            ("(5A-54-00-ab-CD-ef)", "((removed))"),
            ("eui.0025385b71b00b7a, 0x5000c500a1b2c3d4", "eui.(removed), (removed)"),
            ("ä00112233445566778899aabbccddeeff", "ä00112233445566778899aabbccddeeff"),
            ("nguid 00112233445566778899aabbccddeeff", "nguid (removed)"),
            ("uuid 12345678-1234-1234-1234-123456789abc.", "uuid (removed)."),
            ("0000:01:00.0 at 2026-12-01T04:16:36Z", "0000:01:00.0 at 2026-12-01T04:16:36Z"),
            ("52:54:00:12:34 and 0123456789abcde", "52:54:00:12:34 and 0123456789abcde"),
        ] {
            let mut text = text.to_owned();
            remove_numbers(&mut text);
            assert_eq!(text, cleaned);
        }
    }

    #[test]
    fn paths_and_the_machines_name_are_removed_as_words() {
        let mut secrets = Secrets::default();
        secrets.add_path(Path::new("/srv/mine/out.json"));
        secrets.places.insert("disk".into());
        for (text, cleaned) in [
            ("/srv/mine/out.json: full", "(removed): full"),
            ("/srv/mine/other: full", "(removed)/other: full"),
            ("disks of disk: /home/me/x", "disks of (removed): /home/(removed)/x"),
        ] {
            let mut text = text.to_owned();
            secrets.clean_text(&mut text);
            assert_eq!(text, cleaned);
        }
    }

    #[test]
    fn what_tells_nothing_is_no_secret() {
        let mut secrets = Secrets::default();
        ["", "   ", "abc", "00000000"].iter().for_each(|text| secrets.add(text));
        assert!(secrets.bytes().is_empty());
    }
}
