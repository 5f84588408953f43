//! Frames between controller and drive. [SATA 10.3, AHCI 4.2.1]

use crate::ata::{TaskFile, device};
use crate::layout;

/// Type of the frame that brings a command to the drive.
pub const REGISTER_TO_DEVICE: u8 = 0x27;
/// Type of the frame by which a drive ends a command.
pub const REGISTER_TO_HOST: u8 = 0x34;
/// Type of the frame before a queued command's data.
pub const DMA_SETUP: u8 = 0x41;
/// Type of the frame before a PIO command's data.
pub const PIO_SETUP: u8 = 0x5f;
/// Type of the frame by which a drive ends queued commands.
pub const SET_DEVICE_BITS: u8 = 0xa1;

/// Where a DMA set-up frame is put among the received frames. [AHCI 4.2.1]
pub const RECEIVED_DMA_SETUP: usize = 0x00;
/// Where a PIO set-up frame is put.
pub const RECEIVED_PIO_SETUP: usize = 0x20;
/// Where a register frame is put.
pub const RECEIVED_REGISTER: usize = 0x40;
/// Where a set-device-bits frame is put.
pub const RECEIVED_DEVICE_BITS: usize = 0x58;

layout! {
    /// A register frame to the drive: a command, or with `FLAG_COMMAND` clear its control register.
    /// [SATA 10.3.4]
    pub struct RegisterToDevice[20] {
        /// [`REGISTER_TO_DEVICE`].
        kind, set_kind: u8 @ 0;
        /// [`FLAG_COMMAND`], and the port of a multiplier in bits 3:0.
        flags, set_flags: u8 @ 1;
        /// Command code.
        command, set_command: u8 @ 2;
        /// Features 7:0.
        features, set_features: u8 @ 3;
        /// Address 23:0, and the device register in the uppermost byte.
        lba_device, set_lba_device: u32 @ 4;
        /// Address 47:24, and features 15:8 in the uppermost byte.
        lba_features, set_lba_features: u32 @ 8;
        /// Count.
        count, set_count: u16 @ 12;
        /// Control register.
        control, set_control: u8 @ 15;
    }
}

/// The frame updates the command register, not the control register.
pub const FLAG_COMMAND: u8 = 1 << 7;
/// Dwords of a register frame, as a command header counts. [AHCI 4.2.2]
pub const REGISTER_DWORDS: u32 = 5;

impl RegisterToDevice {
    /// The frame that brings `command`.
    pub const fn of(command: &TaskFile) -> Self {
        let [a, b, c, d, e, f] = command.lba_bytes();
        let [low, high] = command.features.to_le_bytes();
        let [count, count_high] = command.count.to_le_bytes();
        let mut frame = [0; 20];
        frame[0] = REGISTER_TO_DEVICE;
        frame[1] = FLAG_COMMAND;
        frame[2] = command.command;
        frame[3] = low;
        (frame[4], frame[5], frame[6], frame[7]) = (a, b, c, command.device_byte());
        (frame[8], frame[9], frame[10], frame[11]) = (d, e, f, if command.ext { high } else { 0 });
        (frame[12], frame[13]) = (count, if command.ext { count_high } else { 0 });
        Self(frame)
    }

    /// The first 16 bytes, as little-endian words, of the frame that brings the queued command
    /// `command` under `tag`, for `blocks` (0: 65536) from `lba` on; zeroes follow. [ACS-3 7.20.3]
    #[inline]
    pub const fn queued_words(command: u8, tag: u8, lba: u64, blocks: u16) -> [u64; 2] {
        let kind = REGISTER_TO_DEVICE as u64
            | (FLAG_COMMAND as u64) << 8
            | (command as u64) << 16
            | (device::LBA as u64) << 56;
        let (low, high) = ((blocks & 0xff) as u64, (blocks >> 8) as u64);
        [
            kind | low << 24 | (lba & 0xff_ffff) << 32,
            lba >> 24 & 0xff_ffff | high << 24 | (tag as u64) << 35,
        ]
    }

    /// The 28-bit address: 24 bits, and four of the device register.
    pub const fn lba28(&self) -> u64 {
        (self.lba_device() & 0x0fff_ffff) as u64
    }

    /// The 48-bit address.
    pub const fn lba48(&self) -> u64 {
        (self.lba_device() & 0xff_ffff) as u64 | ((self.lba_features() & 0xff_ffff) as u64) << 24
    }

    /// The device register.
    pub const fn device(&self) -> u8 {
        (self.lba_device() >> 24) as u8
    }

    /// Features 15:8.
    pub const fn features_high(&self) -> u8 {
        (self.lba_features() >> 24) as u8
    }
}

layout! {
    /// A register frame to the host: how a command ended. [SATA 10.3.5]
    pub struct RegisterToHost[20] {
        /// [`REGISTER_TO_HOST`].
        kind, set_kind: u8 @ 0;
        /// Bit 6: interrupt.
        flags, set_flags: u8 @ 1;
        /// Status register.
        status, set_status: u8 @ 2;
        /// Error register.
        error, set_error: u8 @ 3;
        /// Address 23:0, and the device register.
        lba_device, set_lba_device: u32 @ 4;
        /// Address 47:24.
        lba_high, set_lba_high: u32 @ 8;
        /// Count.
        count, set_count: u16 @ 12;
    }
}

layout! {
    /// A set-device-bits frame: which queued commands ended. [SATA 10.3.6]
    pub struct SetDeviceBits[8] {
        /// [`SET_DEVICE_BITS`].
        kind, set_kind: u8 @ 0;
        /// Bit 6: interrupt.
        flags, set_flags: u8 @ 1;
        /// Status register, without BSY and DRQ.
        status, set_status: u8 @ 2;
        /// Error register.
        error, set_error: u8 @ 3;
        /// A bit for each tag that ended: cleared in PxSACT.
        ended, set_ended: u32 @ 4;
    }
}

/// The frame raises an interrupt.
pub const FLAG_INTERRUPT: u8 = 1 << 6;

layout! {
    /// The page of the queued command that failed, 512 bytes of the log. [ACS-3 9.13]
    pub struct QueuedErrorLog[512] {
        /// Bit 7: it was no queued command; bits 4:0: its tag.
        tag_bits, set_tag_bits: u8 @ 0;
        /// Status register.
        status, set_status: u8 @ 2;
        /// Error register.
        error, set_error: u8 @ 3;
    }
}

impl QueuedErrorLog {
    /// The tag of the queued command that failed, if it was one.
    pub const fn tag(&self) -> Option<u8> {
        if self.tag_bits() & 1 << 7 == 0 { Some(self.tag_bits() & 0x1f) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ata::device;

    #[test]
    fn a_queued_command_has_its_count_in_the_features_and_its_tag_in_the_count() {
        let read = TaskFile {
            command: 0x60,
            features: 0x108,
            count: 5 << 3,
            lba: 0x0102_0304_0506,
            device: device::LBA,
            ext: true,
        };
        let frame = RegisterToDevice::of(&read);
        assert_eq!(frame.0[..14], [0x27, 0x80, 0x60, 0x08, 6, 5, 4, 0x40, 3, 2, 1, 0x01, 40, 0]);
        assert_eq!(frame.lba48(), 0x0102_0304_0506);
    }

    #[test]
    fn a_28_bit_command_leaves_the_upper_halves_empty() {
        let read = TaskFile {
            command: 0xc8,
            count: 0x100,
            lba: 0xabcdef1,
            device: device::LBA,
            ..TaskFile::default()
        };
        let frame = RegisterToDevice::of(&read);
        assert_eq!(frame.0[4..14], [0xf1, 0xde, 0xbc, 0x4a, 0, 0, 0, 0, 0, 0]);
        assert_eq!(frame.lba28(), 0xabcdef1);
    }
}
