//! MAC addresses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Everybody's.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it names a group, everybody included.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no Ethernet address: write it as 52:54:00:12:34:56");
        let octets: Option<Vec<u8>> = text
            .split(':')
            .map(|octet| {
                u8::from_str_radix(octet, 16)
                    .ok()
                    .filter(|_| octet.len() == 2 && !octet.starts_with('+'))
            })
            .collect();
        octets.and_then(|octets| octets.try_into().ok()).map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_it_is_read() {
        let mac: Mac = "52:54:00:12:34:5F".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:12:34:5f");
        assert_eq!(
            serde_json::from_str::<Mac>(&serde_json::to_string(&mac).unwrap()).unwrap(),
            mac
        );
        for wrong in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:5f:00",
            "52:54:00:12:34:+5",
            "5254:00:12:34:5f:0",
            "x2:54:00:12:34:5f",
        ] {
            assert!(wrong.parse::<Mac>().unwrap_err().contains("no Ethernet address"), "{wrong}");
        }
    }
}
