//! Log pages. [NVMe 5.1.12.1]

use crate::layout;

/// Error information: an array of [`ErrorEntry`], the newest first. [NVMe 5.1.12.1.2]
pub const ERRORS: u8 = 0x01;
/// SMART / health information: a [`Smart`]. [NVMe 5.1.12.1.3]
pub const SMART: u8 = 0x02;
/// Firmware slots; reading it lets notices of firmware activation come again. [NVMe 5.1.12.1.4]
pub const FIRMWARE_SLOTS: u8 = 0x03;
/// Changed attached namespace list: 1024 identifiers. [NVMe 5.1.12.1.5]
pub const CHANGED_NAMESPACES: u8 = 0x04;

layout! {
    /// SMART / health information of the controller. [NVMe 5.1.12.1.3]
    ///
    /// Counters count since the device was made, over power cycles.
    pub struct Smart[512] {
        /// Critical warnings, one bit each; see the `WARNING_` constants.
        critical_warning, set_critical_warning: u8 @ 0;
        /// Composite temperature in kelvin.
        temperature_kelvin, set_temperature_kelvin: u16 @ 1;
        /// Spare that is left, in percent.
        available_spare, set_available_spare: u8 @ 3;
        /// Spare below which a warning is raised, in percent.
        spare_threshold, set_spare_threshold: u8 @ 4;
        /// Life used, in percent of what the maker expects; may pass 100.
        percentage_used, set_percentage_used: u8 @ 5;
        /// Read by the host, in units of 1000 blocks of 512 bytes.
        data_units_read, set_data_units_read: u128 @ 32;
        /// Written by the host, in units of 1000 blocks of 512 bytes.
        data_units_written, set_data_units_written: u128 @ 48;
        /// Read commands completed.
        host_reads, set_host_reads: u128 @ 64;
        /// Write commands completed.
        host_writes, set_host_writes: u128 @ 80;
        /// Minutes that the controller was busy with I/O.
        busy_minutes, set_busy_minutes: u128 @ 96;
        /// Power cycles.
        power_cycles, set_power_cycles: u128 @ 112;
        /// Hours with power.
        power_on_hours, set_power_on_hours: u128 @ 128;
        /// Power losses without a shutdown notification.
        unsafe_shutdowns, set_unsafe_shutdowns: u128 @ 144;
        /// Times that data could not be recovered.
        media_errors, set_media_errors: u128 @ 160;
        /// Entries that the error log ever had.
        error_log_entries, set_error_log_entries: u128 @ 176;
        /// Minutes above the warning temperature.
        warning_minutes, set_warning_minutes: u32 @ 192;
        /// Minutes above the critical temperature.
        critical_minutes, set_critical_minutes: u32 @ 196;
    }
}

layout! {
    /// Firmware slot information. [NVMe 5.1.12.1.4]
    pub struct FirmwareSlots[512] {
        /// AFI: bits 2:0 the active slot, bits 6:4 the one after the next reset; 0 is unknown.
        info, set_info: u8 @ 0;
    }
}

impl FirmwareSlots {
    /// The slot whose firmware runs.
    pub const fn active(&self) -> u8 {
        self.info() & 7
    }

    /// The slot whose firmware runs after the next reset; 0 if that was not said.
    pub const fn next(&self) -> u8 {
        self.info() >> 4 & 7
    }

    /// The revision of the firmware in slot `number`, 1 to 7; without text if there is none.
    pub fn revision(&self, number: u8) -> &[u8] {
        let at = 8 * usize::from(number.clamp(1, 7));
        let bytes = &self.0[at..at + 8];
        let end =
            bytes.iter().rposition(|&byte| byte != b' ' && byte != 0).map_or(0, |end| end + 1);
        &bytes[..end]
    }

    /// Says that slot `number`, 1 to 7, holds firmware of this `revision`, cut to its place.
    pub fn set_revision(&mut self, number: u8, revision: &str) -> &mut Self {
        let at = 8 * usize::from(number.clamp(1, 7));
        let len = revision.len().min(8);
        self.0[at..at + 8].fill(b' ');
        self.0[at..at + len].copy_from_slice(&revision.as_bytes()[..len]);
        self
    }
}

impl Smart {
    /// The spare is below its threshold.
    pub const WARNING_SPARE: u8 = 1 << 0;
    /// A temperature is beyond a threshold.
    pub const WARNING_TEMPERATURE: u8 = 1 << 1;
    /// Reliability is degraded.
    pub const WARNING_RELIABILITY: u8 = 1 << 2;
    /// All of the medium is read only.
    pub const WARNING_READ_ONLY: u8 = 1 << 3;
    /// The backup of volatile memory failed.
    pub const WARNING_BACKUP: u8 = 1 << 4;
}

layout! {
    /// One entry of the error log. [NVMe 5.1.12.1.2]
    pub struct ErrorEntry[64] {
        /// Counts errors, from 1; zero means that the entry is unused.
        count, set_count: u64 @ 0;
        /// Submission queue of the command.
        queue, set_queue: u16 @ 8;
        /// Command id.
        command, set_command: u16 @ 10;
        /// Status field with the phase tag in bit 0; see [`ErrorEntry::status`].
        raw_status, set_raw_status: u16 @ 12;
        /// Byte and bit of the command that was wrong; all ones if it does not apply.
        location, set_location: u16 @ 14;
        /// First block with an error.
        lba, set_lba: u64 @ 16;
        /// Namespace.
        namespace, set_namespace: u32 @ 24;
    }
}

impl ErrorEntry {
    /// How the command ended.
    pub const fn status(&self) -> super::Status {
        super::Status(self.raw_status() >> 1)
    }
}
