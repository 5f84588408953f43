//! The registers in which a command is written, whatever carries them to the drive. [ACS-3 7.1]

/// Bits of the device register. [ACS-3 7.1.4]
pub mod device {
    /// LBA addressing; also bits 7 and 5 in the drives before ATA-6, where they are always one.
    /// [ATA-6 7.10]
    pub const LBA: u8 = 1 << 6;
    /// The second drive of an IDE channel.
    pub const SLAVE: u8 = 1 << 4;
    /// Bits that old drives want to be one.
    pub const OBSOLETE: u8 = 1 << 7 | 1 << 5;
    /// WRITE FPDMA QUEUED: durable before it ends. [ACS-3 7.58.3]
    pub const FUA: u8 = 1 << 7;
}

/// One command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskFile {
    /// Command code.
    pub command: u8,
    /// Features: 8 bits, 16 for a 48-bit command.
    pub features: u16,
    /// Count: 8 bits, 16 for a 48-bit command.
    pub count: u16,
    /// Address, 28 or 48 bits.
    pub lba: u64,
    /// Device register, without the bits of the address and the drive's number.
    pub device: u8,
    /// Whether it is a 48-bit command, whose features, count and address are written in two halves.
    pub ext: bool,
}

impl TaskFile {
    /// The six bytes of the address, lowest first; for a 28-bit command its topmost four bits go to
    /// the device register.
    pub const fn lba_bytes(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.lba.to_le_bytes();
        if self.ext { [a, b, c, d, e, f] } else { [a, b, c, 0, 0, 0] }
    }

    /// The device register, with bits 27:24 of the address of a 28-bit command. [ACS-3 7.1.2]
    pub const fn device_byte(&self) -> u8 {
        if self.ext { self.device } else { self.device | (self.lba >> 24) as u8 & 0xf }
    }
}

/// What a drive leaves in count and address after a reset: which kind it is. [ACS-3 9.3, ATA-6
/// 9.12]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// A disk.
    Ata,
    /// A drive with the packet interface: CD, DVD, tape.
    Atapi,
    /// A port multiplier. [SATA 16.3]
    PortMultiplier,
    /// An enclosure management bridge. [SATA 13.14]
    Enclosure,
    /// Something else.
    Unknown(u32),
}

impl Signature {
    /// From the registers, as AHCI's PxSIG holds them: count, then address bits 7:0, 15:8 and
    /// 23:16, lowest byte first.
    pub const fn from_raw(raw: u32) -> Self {
        match raw >> 8 {
            0x00_0001 if raw as u8 == 1 => Self::Ata,
            0x00eb_1401 => Self::Atapi,
            0x0096_6901 => Self::PortMultiplier,
            0x00c3_3c01 => Self::Enclosure,
            _ => Self::Unknown(raw),
        }
    }

    /// The same, written.
    pub const fn into_raw(self) -> u32 {
        match self {
            Self::Ata => 0x0000_0101,
            Self::Atapi => 0xeb14_0101,
            Self::PortMultiplier => 0x9669_0101,
            Self::Enclosure => 0xc33c_0101,
            Self::Unknown(raw) => raw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_28_bit_address_goes_on_in_the_device_register() {
        let command = TaskFile { lba: 0xabc_1234, device: device::LBA, ..TaskFile::default() };
        assert_eq!(
            (command.lba_bytes(), command.device_byte()),
            ([0x34, 0x12, 0xbc, 0, 0, 0], 0x4a)
        );
    }

    #[test]
    fn a_48_bit_address_leaves_the_device_register_alone() {
        let command = TaskFile {
            lba: 0xf0de_bc9a_7856,
            device: device::LBA,
            ext: true,
            ..TaskFile::default()
        };
        assert_eq!(
            (command.lba_bytes(), command.device_byte()),
            ([0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0], 0x40)
        );
    }

    #[test]
    fn signatures_are_read_as_they_are_written() {
        for signature in [
            Signature::Ata,
            Signature::Atapi,
            Signature::PortMultiplier,
            Signature::Enclosure,
            Signature::Unknown(7),
        ] {
            assert_eq!(Signature::from_raw(signature.into_raw()), signature);
        }
    }
}
