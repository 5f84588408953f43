//! What runs around a driver in its process.

use serde::Deserialize;

use crate::Error;

/// System calls by their names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemCalls {
    /// From the driver's opening to the end of the process.
    pub run: Vec<String>,
}

/// What a part does for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A way to the device.
    Backend,
    /// What waits for everything.
    Loop,
    /// The process itself: its threads and memory, its supervisor, and the export of its disks.
    Host,
    /// What several processes share of it.
    Broker,
}

/// The manifest of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it does.
    pub role: Role,
    /// Its name.
    pub name: String,
    /// The same in words.
    pub about: String,
    /// What it calls.
    pub system_calls: SystemCalls,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: String,
    about: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    backend: Option<Name>,
    r#loop: Option<Name>,
    host: Option<Name>,
    broker: Option<Name>,
    system_calls: SystemCalls,
}

impl Part {
    /// Of `text`, a TOML document.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let Text { backend, r#loop, host, broker, system_calls } =
            toml::from_str(text).map_err(|error| Error(error.to_string()))?;
        let named = [
            (Role::Backend, backend),
            (Role::Loop, r#loop),
            (Role::Host, host),
            (Role::Broker, broker),
        ];
        let mut named = named.into_iter().filter_map(|(role, name)| Some((role, name?)));
        let (Some((role, Name { name, about })), None) = (named.next(), named.next()) else {
            return Err(Error("a part is one of [backend], [loop], [host] and [broker]".into()));
        };
        Ok(Self { role, name, about, system_calls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLS: &str = "[system_calls]\nrun = [\"read\"]\n";

    #[test]
    fn a_part_is_one_thing_and_a_key_that_nobody_knows_is_an_error() {
        let of = |text: &str| Part::parse(&format!("{text}\n{CALLS}"));
        let name = "name = \"x\"\nabout = \"y\"";
        assert_eq!(of(&format!("[host]\n{name}")).unwrap().role, Role::Host);
        assert!(of("").is_err() && of(&format!("[host]\n{name}\n[loop]\n{name}")).is_err());
        assert!(
            of(&format!("[host]\n{name}\nusers = 3")).is_err()
                && of(&format!("[hosts]\n{name}")).is_err()
        );
        assert!(Part::parse(&format!("[host]\n{name}\n{CALLS}start = []")).is_err());
    }
}
