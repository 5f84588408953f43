//! Protection information: 8 bytes with each block that say what its data are (a checksum, the
//! guard) and where it belongs (the reference tag). [NVMe-NVM 5.3]
//!
//! The controller makes them for what is written, and checks them and takes them off for what is
//! read (PRACT), so that requests look as on any other disk: from the controller to the medium and
//! back. What gets damaged there is an error of the read, and not other data. The way from memory
//! to the controller is not protected.

use ring3_device::Error;
use ring3_spec::nvme::identify::{self, ExtendedFormat, LbaFormat};
use ring3_spec::nvme::{ProtectionCheck, Submission};
use serde::{Deserialize, Serialize};

/// What of a namespace's blocks is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Protection {
    /// They have no protection information.
    #[default]
    None,
    /// Their data. The reference tag is not the controller's: type 3.
    Guard,
    /// Their data and where they lie: types 1 and 2.
    GuardAndPlace,
}

impl Protection {
    /// What `namespace` has, which is formatted with `format`; an error if its metadata are
    /// something else.
    pub(super) fn of(
        namespace: &identify::Namespace,
        format: LbaFormat,
        extended: ExtendedFormat,
    ) -> Result<Self, Error> {
        let bytes = format.metadata();
        let refused = |what: &str| {
            Err(Error::Unsupported(format!(
                "its blocks carry {bytes} bytes of metadata{what}: format it with an LBA format \
                 without metadata, or with 8 bytes and protection information"
            )))
        };
        match (bytes, namespace.protection_type()) {
            (0, _) => Ok(Self::None),
            (8, 1..=3) if !extended.is_plain() => {
                refused(", which hold more than a guard of 16 bits and a reference tag")
            }
            (8, 1 | 2) => Ok(Self::GuardAndPlace),
            (8, 3) => Ok(Self::Guard),
            (8, 0) => refused(" without protection information"),
            _ => refused(""),
        }
    }

    /// Whether there is none.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// `command`, a read or write of blocks from `lba` on, with the information made or checked by
    /// the controller. A reference tag is the low half of a block's number, as the kernel's driver
    /// has it.
    pub(super) fn protect(self, command: Submission, lba: u64) -> Submission {
        self.with_check(command, lba, self.check())
    }

    /// The same of a write zeroes, of which nothing is checked. [NVMe-NVM 3.3.8, PRINFO]
    pub(super) fn make(self, command: Submission, lba: u64) -> Submission {
        self.with_check(command, lba, ProtectionCheck::NONE)
    }

    fn check(self) -> ProtectionCheck {
        match self {
            Self::None => ProtectionCheck::NONE,
            Self::Guard => ProtectionCheck::GUARD,
            Self::GuardAndPlace => ProtectionCheck::GUARD_AND_REFERENCE,
        }
    }

    fn with_check(self, command: Submission, lba: u64, check: ProtectionCheck) -> Submission {
        match self {
            Self::None => command,
            Self::Guard => command.with_protection(check, 0),
            Self::GuardAndPlace => command.with_protection(check, lba as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(metadata: u32, kind: u8, extended: ExtendedFormat) -> Result<Protection, Error> {
        let mut namespace = identify::Namespace::zeroed();
        namespace.set_protection(kind);
        Protection::of(&namespace, LbaFormat::new(9, metadata), extended)
    }

    #[test]
    fn eight_bytes_of_protection_information_are_the_controllers_to_make_and_check() {
        let plain = |metadata, kind| of(metadata, kind, ExtendedFormat(0)).unwrap();
        assert_eq!(
            [(0, 0), (8, 1), (8, 2), (8, 3)].map(|(metadata, kind)| plain(metadata, kind)),
            [
                Protection::None,
                Protection::GuardAndPlace,
                Protection::GuardAndPlace,
                Protection::Guard
            ]
        );
        // In the first bytes of the metadata, which are all of them.
        assert_eq!(plain(8, 1 | 8), Protection::GuardAndPlace);
    }

    #[test]
    fn other_metadata_are_refused_with_their_size_and_the_formats_that_work() {
        for (metadata, kind) in [(8, 0), (16, 1), (64, 0), (8, 4)] {
            let error = of(metadata, kind, ExtendedFormat(0)).unwrap_err().to_string();
            assert!(error.contains(&format!("{metadata} bytes of metadata")), "{error}");
            assert!(error.contains("without metadata, or with 8 bytes"), "{error}");
        }
    }

    #[test]
    fn a_storage_tag_and_a_longer_guard_are_refused() {
        for extended in
            [ExtendedFormat(0).with_storage_tag_bits(16), ExtendedFormat(0).with_guard(2)]
        {
            assert!(of(8, 1, extended).is_err());
        }
    }
}
