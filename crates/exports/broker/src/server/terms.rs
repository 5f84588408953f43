//! What stands behind a socket's path: `PATH[,KEY=VALUE]...`.

use std::path::PathBuf;

use ring3_device::parse_size;

/// What `text` says: `new` of its path, with each of its terms `set`.
pub fn parse<A>(
    text: &str,
    new: impl FnOnce(PathBuf) -> A,
    set: impl Fn(&mut A, SocketOption<'_>) -> Result<(), String>,
) -> Result<A, String> {
    let mut parts = text.split(',');
    let path = parts.next().filter(|path| !path.is_empty()).ok_or("a socket's path is missing")?;
    let mut access = new(path.into());
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("option {part:?} has no value: write key=value"))?;
        set(&mut access, SocketOption { key, value })?;
    }
    Ok(access)
}

/// One of them.
#[derive(Clone, Copy)]
pub struct SocketOption<'a> {
    pub key: &'a str,
    pub value: &'a str,
}

impl SocketOption<'_> {
    /// That it should be something else.
    pub fn wrong(self, wanted: &str) -> String {
        format!("{}={} should be {wanted}", self.key, self.value)
    }

    /// That there is none of this name, but `keys`.
    pub fn unknown(self, keys: &str) -> String {
        format!("it has no option {:?}; there are: {keys}", self.key)
    }

    /// A number from `least` to `most`, or one such as 10M.
    pub fn number(self, least: u64, most: u64) -> Result<u64, String> {
        let found = parse_size(self.value).filter(|number| (least..=most).contains(number));
        found.ok_or_else(|| self.wrong(&format!("a number from {least} to {most}")))
    }

    /// A file's rights.
    pub fn mode(self) -> Result<u32, String> {
        let mode = u32::from_str_radix(self.value, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| self.wrong("rights such as 660"))
    }
}
