//! Interrupt throttling of a card.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest interval that all cards have a register for.
const LONGEST: Duration = Duration::from_micros(8191);

/// Shortest time between two interrupts of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub enum Throttle {
    /// None: each packet that finds its queue asleep wakes it.
    #[default]
    Off,
    /// This: 1 to 8191 microseconds.
    Fixed(Duration),
    /// As the traffic is: none for who asks and waits, longer ones for a stream.
    Adaptive,
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Fixed(interval) => write!(f, "{}", interval.as_micros()),
            Self::Adaptive => f.write_str("adaptive"),
        }
    }
}

impl FromStr for Throttle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let longest = LONGEST.as_micros() as u64;
        match text {
            "off" => Ok(Self::Off),
            "adaptive" => Ok(Self::Adaptive),
            number => match number.parse() {
                Ok(interval) if (1..=longest).contains(&interval) => {
                    Ok(Self::Fixed(Duration::from_micros(interval)))
                }
                _ => Err(format!(
                    "{text:?} is no throttle: off, adaptive, or 1 to {longest} microseconds"
                )),
            },
        }
    }
}

/// As a file has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    Micros(u64),
}

impl TryFrom<Written> for Throttle {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Word(word) => word.parse(),
            Written::Micros(micros) => micros.to_string().parse(),
        }
    }
}

impl From<Throttle> for String {
    fn from(throttle: Throttle) -> Self {
        throttle.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_is_read_as_it_is_written_and_nothing_else_is_one() {
        for text in ["off", "adaptive", "1", "8191"] {
            assert_eq!(text.parse::<Throttle>().unwrap().to_string(), text);
        }
        for text in ["", "0", "8192", "-1", "on", "1.5", "18446744073709551616"] {
            assert!(
                text.parse::<Throttle>().unwrap_err().contains("off, adaptive, or 1 to 8191"),
                "{text}"
            );
        }
    }
}
