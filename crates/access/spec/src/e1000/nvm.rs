//! The words of the NVM (EEPROM) and how one is read. [82574 6; 8254x 5.6]

use crate::fields;

fields! {
    /// EERD of the 82574L. [82574 10.2.2]
    pub struct Read(u32) {
        /// START: read the word.
        start, with_start: 0..=0;
        /// DONE: the word is there.
        done, with_done: 1..=1;
        /// ADDR: which word.
        address, with_address: 15..=2;
        /// DATA: the word.
        data, with_data: 31..=16;
    }
}

fields! {
    /// EERD of 82540EM and 82545EM. [8254x 13.4.4]
    pub struct ReadLegacy(u32) {
        /// START: read the word.
        start, with_start: 0..=0;
        /// DONE: the word is there.
        done, with_done: 4..=4;
        /// ADDR: which word.
        address, with_address: 15..=8;
        /// DATA: the word.
        data, with_data: 31..=16;
    }
}

/// The first of three words with the Ethernet address, two bytes each, the first byte low. [82574
/// 6.1.1]
pub const ADDRESS: u16 = 0;
/// Words that the checksum is over, itself included. [82574 6.1]
pub const CHECKED_WORDS: u16 = 0x40;
/// What these words add up to. [82574 6.1]
pub const SUM: u16 = 0xbaba;
/// A word is read within this, in microseconds. The data sheets name no time; serial EEPROMs take
/// some tens a word.
pub const READ_MICROS: u64 = 100_000;
