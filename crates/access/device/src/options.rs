//! The options of opening a device: the driver's, and those that the user overrides in the URI.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::dma::Region;
use crate::{Error, Uri, UriError};

/// What a driver needs of its DMA memory. The same for all backends; the URI keys in
/// [`KEYS`](OpenOptions::KEYS) override it.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Bytes of the arena, at least; a backend rounds up to its page size. URI: `arena=64M`.
    pub arena: usize,
    /// The whole arena lies below this device address: `1 << n` for a device that drives n address
    /// lines. URI: `below=4G`.
    pub below: u64,
    /// The user has said that no IOMMU need stand between the device and memory. No URI can say it.
    pub unprotected: bool,
    /// Memory that somebody gives for the arena, instead of new memory of `arena` bytes. No URI can
    /// say it.
    pub memory: Option<Arc<Region>>,
}

impl Default for OpenOptions {
    /// 64 MiB anywhere in 64 bits.
    fn default() -> Self {
        Self { arena: 64 << 20, below: u64::MAX, unprotected: false, memory: None }
    }
}

impl OpenOptions {
    /// The URI keys that [`overridden_by`](Self::overridden_by) reads, for a backend's list of
    /// known keys.
    pub const KEYS: [&str; 2] = ["arena", "below"];

    /// These options with the user's word on top. `below` can only be lowered: the driver knows
    /// what its device reaches.
    pub fn overridden_by(self, uri: &Uri) -> Result<Self, Error> {
        let given = self.memory.as_ref().map(|region| region.len() as u64);
        let arena = match (uri.size("arena")?, given) {
            (Some(_), Some(_)) => {
                return Err(Error::Invalid(format!(
                    "{uri}: arena= is a size for new memory, and there is memory given: leave it \
                    out"
                )));
            }
            (asked, given) => asked.or(given).unwrap_or(self.arena as u64),
        };
        let below = uri.size("below")?.unwrap_or(self.below).min(self.below);
        let arena = usize::try_from(arena).ok().filter(|&arena| arena > 0 && arena as u64 <= below);
        match arena {
            Some(arena) => Ok(Self { arena, below, ..self }),
            None => Err(Error::Invalid(format!(
                "{uri}: an arena of that size does not fit below device address {below:#x}"
            ))),
        }
    }
}

impl OpenOptions {
    /// The arena's memory, in whole pages of `page` bytes: what was given, or new memory.
    pub fn region(&self, page: usize) -> Result<Arc<Region>, Error> {
        match &self.memory {
            Some(region) if region.len().is_multiple_of(page) => Ok(region.clone()),
            Some(region) => Err(Error::Invalid(format!(
                "{region:?} as an arena: not whole pages of the IOMMU ({page} bytes)"
            ))),
            None => Ok(Arc::new(Region::new(self.arena.next_multiple_of(page))?)),
        }
    }

    /// Fails if memory was given, for a backend whose device reaches none but its own.
    pub fn check_own_memory(&self, uri: &Uri) -> Result<(), Error> {
        match &self.memory {
            None => Ok(()),
            Some(_) => Err(Error::Unsupported(format!(
                "{uri}: this device reaches only memory that its backend makes: give it none"
            ))),
        }
    }
}

impl Uri {
    /// The option `key` as a number of bytes: digits with an optional K, M, G or T (powers of
    /// 1024).
    pub fn size(&self, key: &str) -> Result<Option<u64>, UriError> {
        self.options
            .get(key)
            .map(|text| {
                parse_size(text)
                    .ok_or_else(|| self.bad_value(key, text, "a size such as 4096, 64M or 1G"))
            })
            .transpose()
    }

    /// The option `key` as a number.
    pub fn number(&self, key: &str) -> Result<Option<u64>, UriError> {
        self.options
            .get(key)
            .map(|text| text.parse().map_err(|_| self.bad_value(key, text, "a number")))
            .transpose()
    }

    /// The option `key` as a switch, `on` or `off`.
    pub fn switch(&self, key: &str) -> Result<Option<bool>, UriError> {
        match self.options.get(key).map(String::as_str) {
            None => Ok(None),
            Some("on") => Ok(Some(true)),
            Some("off") => Ok(Some(false)),
            Some(text) => Err(self.bad_value(key, text, "on or off")),
        }
    }

    /// The option `key` as one of `words`.
    pub fn word<'a>(&self, key: &str, words: &[&'a str]) -> Result<Option<&'a str>, UriError> {
        let Some(text) = self.options.get(key) else { return Ok(None) };
        let found = words.iter().copied().find(|word| word == text);
        found
            .map(Some)
            .ok_or_else(|| self.bad_value(key, text, format!("one of {}", words.join(", "))))
    }

    fn bad_value(&self, key: &str, value: &str, wanted: impl Into<String>) -> UriError {
        UriError::Value {
            scheme: self.scheme.clone(),
            key: key.into(),
            value: value.into(),
            wanted: wanted.into(),
        }
    }
}

/// Bytes in `text`: digits with an optional K, M, G or T.
pub fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        (at, 't' | 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A number, decimal or with 0x.
pub fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A time of at most a minute, in us, ms or s.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let count = digits.parse().ok()?;
    let duration = match unit {
        "us" => Duration::from_micros(count),
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        _ => return None,
    };
    (duration <= Duration::from_secs(60)).then_some(duration)
}

/// Two numbers with a dash between, both included.
pub fn parse_range(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (parse_number(first)?, parse_number(last)?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(uri: &str, asked: OpenOptions) -> Result<OpenOptions, Error> {
        asked.overridden_by(&uri.parse::<Uri>().unwrap())
    }

    #[test]
    fn sizes_have_binary_suffixes_and_do_not_overflow() {
        assert_eq!(parse_size("64M"), Some(64 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size("99999999999T"), None);
        assert_eq!(parse_size("M"), None);
        assert_eq!(parse_size("1µ"), None);
    }

    #[test]
    fn times_are_read_with_their_units() {
        assert_eq!(parse_duration("5ms"), Some(Duration::from_millis(5)));
        assert_eq!(
            (parse_duration("5"), parse_duration("ms"), parse_duration("61s")),
            (None, None, None)
        );
    }

    #[test]
    fn the_user_chooses_the_arena() {
        assert_eq!(options("sim:edu,arena=2M", OpenOptions::default()).unwrap().arena, 2 << 20);
    }

    #[test]
    fn the_user_cannot_raise_what_the_device_reaches() {
        let asked = OpenOptions { below: 1 << 28, ..OpenOptions::default() };
        assert_eq!(options("sim:edu,below=4G", asked).unwrap().below, 1 << 28);
    }

    #[test]
    fn memory_that_was_given_is_the_arena_and_has_its_own_size() {
        let region = Arc::new(Region::new(8192).unwrap());
        let asked = || OpenOptions { memory: Some(region.clone()), ..OpenOptions::default() };
        let given = options("sim:edu", asked()).unwrap();
        assert_eq!((given.arena, given.region(4096).unwrap().id()), (region.len(), region.id()));
        assert!(
            given.region(1 << 30).is_err()
                && given.check_own_memory(&"uio:it".parse().unwrap()).is_err()
        );
        assert!(
            options("sim:edu,arena=2M", asked()).is_err()
                && options("sim:edu,below=4K", asked()).is_err()
        );
    }

    #[test]
    fn an_arena_that_does_not_fit_below_its_limit_is_refused() {
        assert!(matches!(
            options("sim:edu,arena=1G,below=256M", OpenOptions::default()),
            Err(Error::Invalid(_))
        ));
    }

    #[test]
    fn a_size_that_is_none_is_refused_by_key_and_value() {
        let error = options("sim:edu,arena=big", OpenOptions::default()).unwrap_err();
        assert!(error.to_string().contains("arena=big"), "{error}");
    }
}
