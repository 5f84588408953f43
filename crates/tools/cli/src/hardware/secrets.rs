//! What tells one device or machine from another of its kind, and has no place in the file.

use std::collections::BTreeSet;

use serde_json::Value;

use super::report::Report;

/// Fields of identities that are one device's own.
const FIELDS: [&str; 3] = ["serial", "mac", "name"];
/// Shorter texts are found by accident, and are in no field.
const SHORTEST: usize = 4;

/// Serial numbers, names by IEEE, addresses.
#[derive(Debug, Default)]
pub struct Secrets(BTreeSet<String>);

impl Secrets {
    /// Another one; what is empty, or all of one letter, tells nothing.
    pub fn add(&mut self, text: &str) {
        let text = text.trim();
        let first = text.chars().next();
        if text.len() >= SHORTEST && text.chars().any(|letter| Some(letter) != first) {
            self.0.insert(text.to_owned());
        }
    }

    /// All of them, as bytes that a device writes.
    pub fn bytes(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(|secret| secret.clone().into_bytes()).collect()
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

    /// `text` without any of them, in upper and lower case.
    fn clean_text(&self, text: &mut String) {
        for secret in &self.0 {
            // Of one length, so that a place in one is a place in the other.
            let (lower, wanted) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
            if !lower.contains(&wanted) {
                continue;
            }
            let (mut cleaned, mut at) = (String::new(), 0);
            while let Some(found) = lower[at..].find(&wanted) {
                cleaned += &text[at..at + found];
                cleaned += "(removed)";
                at += found + wanted.len();
            }
            *text = cleaned + &text[at..];
        }
    }

    /// Removes all of them from what steps and checks have said, wherever an error may have put
    /// them. The other fields are made here, or are what all devices of a kind have.
    pub fn clean(&self, report: &mut Report) {
        for step in &mut report.steps {
            self.clean_text(&mut step.detail);
        }
        for value in report.doctor.iter_mut().chain(&mut report.conformance) {
            self.clean_value(value);
        }
    }

    fn clean_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.clean_text(text),
            Value::Array(all) => all.iter_mut().for_each(|one| self.clean_value(one)),
            Value::Object(fields) => fields.values_mut().for_each(|one| self.clean_value(one)),
            _ => {}
        }
    }
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
        secrets.clean_value(&mut text);
        assert_eq!(text, json!(["disk (removed) of (removed), W1", { "Ä": "(removed)(removed)" }]));
    }

    #[test]
    fn what_tells_nothing_is_no_secret() {
        let mut secrets = Secrets::default();
        ["", "   ", "abc", "00000000"].iter().for_each(|text| secrets.add(text));
        assert!(secrets.bytes().is_empty());
    }
}
