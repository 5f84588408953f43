//! How a drive says how it is. [ACS-3 6.2, 6.3]

use crate::fields;

fields! {
    /// Status register. While `busy` is set no other bit means anything. [ACS-3 6.2]
    pub struct Status(u8) {
        /// ERR: the last command failed; the error register says how.
        error, with_error: 0..=0;
        /// DRQ: the drive waits for a PIO transfer.
        data_request, with_data_request: 3..=3;
        /// DF: the drive itself is broken; the command was not done.
        fault, with_fault: 5..=5;
        /// DRDY: the drive takes commands.
        ready, with_ready: 6..=6;
        /// BSY: the drive works, and the other registers are not to be touched.
        busy, with_busy: 7..=7;
    }
}

impl Status {
    /// What a bus without a drive answers: the lines float high, or are pulled down at bit 7.
    /// [ATA-6 9.16]
    pub const fn is_floating(self) -> bool {
        self.0 == 0xff || self.0 == 0x7f
    }

    /// Whether the command that has ended failed.
    pub const fn failed(self) -> bool {
        self.error() != 0 || self.fault() != 0
    }
}

fields! {
    /// Error register, valid while ERR is set. [ACS-3 6.3]
    pub struct ErrorBits(u8) {
        /// AMNF: address mark not found; or the unit of data was not delivered.
        no_address_mark, with_no_address_mark: 0..=0;
        /// ABRT: the drive does not do this command, or not with these parameters.
        aborted, with_aborted: 2..=2;
        /// IDNF: no such address.
        id_not_found, with_id_not_found: 4..=4;
        /// UNC: data that cannot be read.
        uncorrectable, with_uncorrectable: 6..=6;
        /// ICRC: the transfer was damaged on the cable.
        interface_crc, with_interface_crc: 7..=7;
    }
}
