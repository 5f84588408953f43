//! What an entry of a table is compared with: a PCI function, what the device says, the board.

use std::path::Path;
use std::{fmt, fs};

/// A PCI function by its ids. [PCI 6.2.1, 6.2.4]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Function {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
}

/// `VENDOR:DEVICE`, each of four hexadecimal digits.
impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

impl From<Function> for String {
    fn from(function: Function) -> Self {
        function.to_string()
    }
}

impl TryFrom<String> for Function {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = |text: &str| u16::from_str_radix(text, 16).ok().filter(|_| text.len() == 4);
        let ids = text.split_once(':').and_then(|(vendor, device)| {
            Some(Self { vendor: number(vendor)?, device: number(device)? })
        });
        ids.ok_or_else(|| format!("{text:?} is no VENDOR:DEVICE in hexadecimal"))
    }
}

/// What a device says about itself once it runs; nothing before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strings<'a> {
    /// The maker's name for it.
    pub model: Option<&'a str>,
    /// The revision of its firmware.
    pub firmware: Option<&'a str>,
    /// The version of the specification that it follows, as its register says it.
    pub version: Option<u32>,
}

/// The machine, as its firmware describes it; fields that are not known match no entry. [SMBIOS
/// 3.3.2, 3.3.3]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Board {
    /// Maker of the machine.
    pub sys_vendor: Option<String>,
    /// The machine's name.
    pub product_name: Option<String>,
    /// Maker of the board.
    pub board_vendor: Option<String>,
    /// The board's name.
    pub board_name: Option<String>,
}

impl Board {
    /// This machine. Each file is readable for everybody.
    pub fn this() -> Self {
        Self::at(Path::new("/sys/class/dmi/id"))
    }

    fn at(folder: &Path) -> Self {
        let read = |file| {
            fs::read_to_string(folder.join(file)).ok().map(|text| text.trim_end().to_owned())
        };
        Self {
            sys_vendor: read("sys_vendor"),
            product_name: read("product_name"),
            board_vendor: read("board_vendor"),
            board_name: read("board_name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_is_known_as_far_as_the_machine_describes_itself() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("board_name"), "PRIME Z370-A\n").unwrap();
        let board = Board::at(folder.path());
        assert_eq!((board.board_name.as_deref(), board.sys_vendor), (Some("PRIME Z370-A"), None));
    }
}
