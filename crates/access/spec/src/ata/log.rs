//! Logs that READ LOG EXT reads, in pages of 512 bytes. [ACS-4 9]

use super::SECTOR;
use crate::layout;

/// The directory: which logs there are. [ACS-4 9.2]
pub const DIRECTORY: u8 = 0x00;
/// Device statistics. [ACS-4 9.5]
pub const STATISTICS: u8 = 0x04;
/// The page of the queued command that failed. [ACS-3 9.13]
pub const QUEUED_ERROR: u8 = 0x10;

/// Page of the device statistics: general statistics. [ACS-4 9.5]
pub const GENERAL: u16 = 0x01;

/// What the address field of READ LOG EXT is for a page of a log: the log in bits 7:0, the page in
/// bits 15:8 and 39:32. [ACS-3 7.24]
pub const fn address(log: u8, page: u16) -> u64 {
    let [low, high] = page.to_le_bytes();
    log as u64 | (low as u64) << 8 | (high as u64) << 32
}

/// The log and its page that are at the address `lba`.
pub const fn at_address(lba: u64) -> (u8, u16) {
    let [log, low, _, _, high, ..] = lba.to_le_bytes();
    (log, u16::from_le_bytes([low, high]))
}

/// The directory: a word for each log, how many pages it has. [ACS-4 9.2]
pub struct Directory(pub [u8; SECTOR]);

impl Directory {
    /// What its first word is. Other versions are not known.
    pub const VERSION: u16 = 1;

    /// Pages of `log`; 0 if there is no such log, or if the directory is none.
    pub fn pages(&self, log: u8) -> u16 {
        let (words, _) = self.0.as_chunks::<2>();
        let word = |index: u8| words.get(usize::from(index)).map_or(0, |w| u16::from_le_bytes(*w));
        if log == DIRECTORY || word(DIRECTORY) != Self::VERSION { 0 } else { word(log) }
    }

    /// Has `log` have so many pages.
    pub fn set_pages(&mut self, log: u8, pages: u16) {
        let at = usize::from(log) * 2;
        self.0[at..at + 2].copy_from_slice(&pages.to_le_bytes());
    }
}

layout! {
    /// The page of general statistics. [ACS-4 9.5]
    pub struct GeneralStatistics[512] {
        /// Revision of the page.
        revision, set_revision: u16 @ 0;
        /// Number of the page: [`GENERAL`].
        page, set_page: u8 @ 2;
        /// How often it was powered on, as a statistic: see
        /// [`power_on_resets`](Self::power_on_resets).
        power_on_resets_raw, set_power_on_resets_raw: u64 @ 8;
    }
}

/// The statistic is one that the device has. [ACS-4 9.5]
pub const SUPPORTED: u64 = 1 << 63;
/// Its value holds.
pub const VALID: u64 = 1 << 62;

impl GeneralStatistics {
    /// How often the device has processed a power-on reset, which resets of other kinds are not;
    /// `None` if it does not say, or if this is another page.
    pub const fn power_on_resets(&self) -> Option<u32> {
        let raw = self.power_on_resets_raw();
        let holds = raw & (SUPPORTED | VALID) == SUPPORTED | VALID;
        if holds && self.page() as u16 == GENERAL { Some(raw as u32) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_log_is_in_two_parts_of_the_address() {
        assert_eq!(address(STATISTICS, 0x1234), 0x12_0000_3404);
        assert_eq!(at_address(0x12_0000_3404), (STATISTICS, 0x1234));
    }

    #[test]
    fn a_directory_of_another_version_lists_nothing() {
        let mut directory = Directory([0; SECTOR]);
        directory.set_pages(STATISTICS, 8);
        assert_eq!(directory.pages(STATISTICS), 0);
        directory.set_pages(DIRECTORY, Directory::VERSION);
        assert_eq!(
            [STATISTICS, QUEUED_ERROR, DIRECTORY].map(|log| directory.pages(log)),
            [8, 0, 0]
        );
    }

    #[test]
    fn a_statistic_says_something_if_the_drive_has_it_and_its_value_holds() {
        let said = |page, raw| {
            let mut statistics = GeneralStatistics::zeroed();
            statistics.set_page(page).set_power_on_resets_raw(raw);
            statistics.power_on_resets()
        };
        assert_eq!(said(1, SUPPORTED | VALID | 0x3f << 56 | 77), Some(77));
        for (page, raw) in [(1, SUPPORTED | 77), (1, VALID | 77), (2, SUPPORTED | VALID | 77)] {
            assert_eq!(said(page, raw), None);
        }
    }
}
