//! What an entry of a table is compared with: a PCI function, what the device says, the board.

use std::fs;
use std::path::Path;

/// A PCI function by its ids. [PCI 6.2.1, 6.2.4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
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
