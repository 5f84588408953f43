//! IDENTIFY DEVICE data: 256 words of 16 bits. [ACS-3 7.12.6]

use crate::layout;

layout! {
    /// What a drive says about itself. Fields carry the number of their word; see the methods for
    /// what they mean together.
    pub struct Identify[512] {
        /// Word 0: bit 15 clear is an ATA drive.
        general, set_general: u16 @ 0;
        /// Word 47: bits 7:0, most sectors of one interrupt of READ MULTIPLE.
        max_multiple, set_max_multiple: u16 @ 94;
        /// Word 49: capabilities; bit 8 DMA, bit 9 LBA.
        capabilities, set_capabilities: u16 @ 98;
        /// Word 53: bit 1, words 64 to 70 hold; bit 2, word 88 holds.
        valid, set_valid: u16 @ 106;
        /// Word 59: bit 8, bits 7:0 are the sectors of READ MULTIPLE that are set.
        multiple, set_multiple: u16 @ 118;
        /// Words 60 and 61: sectors that 28 bits reach.
        sectors28, set_sectors28: u32 @ 120;
        /// Word 63: multiword DMA modes supported, bits 2:0.
        multiword_dma, set_multiword_dma: u16 @ 126;
        /// Word 64: PIO modes 3 and 4, bits 1:0.
        advanced_pio, set_advanced_pio: u16 @ 128;
        /// Word 69: additional support; bit 5, trimmed blocks read as zeroes.
        additional, set_additional: u16 @ 138;
        /// Word 75: bits 4:0, queue depth less one.
        queue_depth_0based, set_queue_depth_0based: u16 @ 150;
        /// Word 76: Serial ATA capabilities; bit 8 queued commands, bits 3:1 speeds. 0 or all ones:
        /// not Serial ATA.
        sata, set_sata: u16 @ 152;
        /// Word 80: versions of the standard, a bit each.
        versions, set_versions: u16 @ 160;
        /// Word 82: command sets supported; bit 5 write cache, bit 0 SMART.
        sets82, set_sets82: u16 @ 164;
        /// Word 83: bits 15:14 must be 01; bit 10 LBA48, bit 12 FLUSH CACHE, bit 13 FLUSH CACHE
        /// EXT.
        sets83, set_sets83: u16 @ 166;
        /// Word 84: bits 15:14 must be 01; bit 5 general purpose logs, bit 6 WRITE DMA FUA EXT.
        sets84, set_sets84: u16 @ 168;
        /// Word 85: command sets enabled, as word 82.
        enabled85, set_enabled85: u16 @ 170;
        /// Word 86: as word 83.
        enabled86, set_enabled86: u16 @ 172;
        /// Word 87: as word 84.
        enabled87, set_enabled87: u16 @ 174;
        /// Word 88: Ultra DMA modes; bits 6:0 supported, bits 14:8 selected.
        ultra_dma, set_ultra_dma: u16 @ 176;
        /// Word 93: hardware reset result of a parallel drive; bit 13, an 80-wire cable was seen.
        reset_result, set_reset_result: u16 @ 186;
        /// Words 100 to 103: sectors that 48 bits reach.
        sectors48, set_sectors48: u64 @ 200;
        /// Word 105: most 512-byte units of TRIM ranges in one command; 0 is not reported.
        max_trim_sectors, set_max_trim_sectors: u16 @ 210;
        /// Word 106: bits 15:14 are 01 if it holds; bit 12, words 117 and 118 hold; bit 13, several
        /// logical blocks to a physical one, bits 3:0 of it log2.
        sector_sizes, set_sector_sizes: u16 @ 212;
        /// Words 117 and 118: words of 16 bits in a logical block.
        block_words, set_block_words: u32 @ 234;
        /// Word 169: bit 0, TRIM.
        data_set_management, set_data_set_management: u16 @ 338;
        /// Word 217: rotations a minute; 1 is a drive that does not turn, 0 is not reported.
        rotation, set_rotation: u16 @ 434;
        /// Word 255: bits 7:0 are 0xa5 if bits 15:8 make the sum of all bytes zero.
        integrity, set_integrity: u16 @ 510;
    }
}

/// Words of the serial number. [ACS-3 7.12.7.10]
pub const SERIAL: core::ops::Range<usize> = 10..20;
/// Words of the firmware revision.
pub const FIRMWARE: core::ops::Range<usize> = 23..27;
/// Words of the model number.
pub const MODEL: core::ops::Range<usize> = 27..47;

impl Identify {
    /// Whether it is a disk, not a packet drive. [ACS-3 7.12.7.2]
    pub const fn is_ata(&self) -> bool {
        self.general() & 1 << 15 == 0
    }

    /// Whether words 82 to 84 hold. [ACS-3 7.12.7.36]
    const fn sets_hold(&self) -> bool {
        self.sets83() >> 14 == 0b01
    }

    /// Whether it takes 48-bit commands.
    pub const fn has_lba48(&self) -> bool {
        self.sets_hold() && self.sets83() & 1 << 10 != 0
    }

    /// Whether it takes commands by LBA at all.
    pub const fn has_lba(&self) -> bool {
        self.capabilities() & 1 << 9 != 0
    }

    /// Whether it can do DMA.
    pub const fn has_dma(&self) -> bool {
        self.capabilities() & 1 << 8 != 0
    }

    /// Logical blocks.
    pub const fn blocks(&self) -> u64 {
        if self.has_lba48() && self.sectors48() > 0 {
            self.sectors48() & ((1 << 48) - 1)
        } else {
            self.sectors28() as u64
        }
    }

    /// Bytes of a logical block: 512 unless it says otherwise. Not checked: the drive's word.
    /// [ACS-3 7.12.7.61]
    pub const fn block_size(&self) -> u32 {
        let long = self.sector_sizes() >> 14 == 0b01 && self.sector_sizes() & 1 << 12 != 0;
        if long { self.block_words().saturating_mul(2) } else { 512 }
    }

    /// Bytes of a physical block. [ACS-3 7.12.7.61]
    pub const fn physical_block_size(&self) -> u32 {
        let several = self.sector_sizes() >> 14 == 0b01 && self.sector_sizes() & 1 << 13 != 0;
        self.block_size().saturating_mul(if several { 1 << (self.sector_sizes() & 0xf) } else { 1 })
    }

    /// Most commands that it queues (READ FPDMA QUEUED): 1 to 32, or 0 if it does not. [SATA
    /// 13.2.1]
    pub const fn queue_depth(&self) -> u16 {
        let sata = self.sata() != 0 && self.sata() != u16::MAX;
        if sata && self.sata() & 1 << 8 != 0 { (self.queue_depth_0based() & 0x1f) + 1 } else { 0 }
    }

    /// Whether it has FLUSH CACHE.
    pub const fn has_flush(&self) -> bool {
        self.sets_hold() && self.sets83() & 1 << 12 != 0
    }

    /// Whether it has FLUSH CACHE EXT.
    pub const fn has_flush_ext(&self) -> bool {
        self.sets_hold() && self.sets83() & 1 << 13 != 0
    }

    /// Whether it has the commands that write through: WRITE DMA FUA EXT and WRITE MULTIPLE FUA
    /// EXT.
    pub const fn has_fua(&self) -> bool {
        self.has_lba48() && self.sets84() >> 14 == 0b01 && self.sets84() & 1 << 6 != 0
    }

    /// Whether it has READ LOG EXT and the directory of logs, which it says in either of two words.
    /// [ACS-3 7.12.6, words 84 and 87]
    pub const fn has_general_logs(&self) -> bool {
        const fn says_so(word: u16) -> bool {
            word >> 14 == 0b01 && word & 1 << 5 != 0
        }
        self.has_lba48() && (says_so(self.sets84()) || says_so(self.enabled87()))
    }

    /// Whether its write cache is on. [ACS-3 7.12.7.39]
    pub const fn cache_enabled(&self) -> bool {
        self.enabled85() & 1 << 5 != 0
    }

    /// Whether it has SMART.
    pub const fn has_smart(&self) -> bool {
        self.sets_hold() && self.sets82() & 1 != 0
    }

    /// Whether it has TRIM.
    pub const fn has_trim(&self) -> bool {
        self.data_set_management() & 1 != 0
    }

    /// The highest Ultra DMA mode that it has, 0 to 6.
    pub const fn best_ultra_dma(&self) -> Option<u8> {
        let modes = if self.valid() & 1 << 2 != 0 { self.ultra_dma() & 0x7f } else { 0 };
        if modes == 0 { None } else { Some(15 - modes.leading_zeros() as u8) }
    }

    /// The highest multiword DMA mode that it has, 0 to 2.
    pub const fn best_multiword_dma(&self) -> Option<u8> {
        let modes = self.multiword_dma() & 0x7;
        if modes == 0 { None } else { Some(15 - modes.leading_zeros() as u8) }
    }

    /// Most sectors of one interrupt of READ MULTIPLE; 0 if it has none.
    pub const fn multiple_limit(&self) -> u8 {
        self.max_multiple() as u8
    }

    /// The sum of all bytes is zero, or no sum was given. [ACS-3 7.12.7.94]
    pub fn is_intact(&self) -> bool {
        self.integrity() as u8 != 0xa5
            || self.0.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
    }

    /// Gives it the sum that [`is_intact`](Self::is_intact) looks for; to be called last.
    pub fn seal(&mut self) {
        self.set_integrity(0xa5);
        let sum = self.0.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        self.0[511] = sum.wrapping_neg();
    }

    /// The characters in `words`, which hold two each, the first in the upper byte. Padding is left
    /// in. [ACS-3 3.4.9]
    pub fn text(&self, words: core::ops::Range<usize>) -> impl Iterator<Item = u8> + '_ {
        words.flat_map(|word| [word * 2 + 1, word * 2]).filter_map(|at| self.0.get(at).copied())
    }

    /// Writes `text`, padded with spaces and cut to fit, into `words`.
    pub fn set_text(&mut self, words: core::ops::Range<usize>, text: &str) {
        let mut bytes = text.bytes();
        for word in words {
            let [first, second] = [(); 2].map(|()| bytes.next().unwrap_or(b' '));
            self.0[word * 2..word * 2 + 2].copy_from_slice(&[second, first]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_stored_with_the_bytes_of_each_word_swapped() {
        let mut identify = Identify::zeroed();
        identify.set_text(FIRMWARE, "1.2abc");
        assert_eq!(identify.0[46..54], *b".1a2cb  ");
        assert!(identify.text(FIRMWARE).eq(*b"1.2abc  "));
    }

    #[test]
    fn words_that_do_not_hold_say_nothing() {
        let mut identify = Identify::zeroed();
        identify.set_sets83(1 << 10).set_sectors48(1 << 40).set_sectors28(77);
        assert!(!identify.has_lba48());
        assert_eq!(identify.blocks(), 77);
    }

    #[test]
    fn either_word_that_holds_says_that_there_are_logs() {
        let with = |sets84, enabled87| {
            let mut identify = Identify::zeroed();
            identify.set_sets83(1 << 14 | 1 << 10).set_sets84(sets84).set_enabled87(enabled87);
            identify.has_general_logs()
        };
        assert!(with(1 << 14 | 1 << 5, 0) && with(0, 1 << 14 | 1 << 5));
        assert!(!with(1 << 5, 1 << 5) && !with(3 << 14 | 1 << 5, 1 << 14));
    }

    #[test]
    fn a_block_of_4096_bytes_is_given_in_words() {
        let mut identify = Identify::zeroed();
        identify.set_sector_sizes(1 << 14 | 1 << 12).set_block_words(2048);
        assert_eq!((identify.block_size(), identify.physical_block_size()), (4096, 4096));
    }

    #[test]
    fn small_logical_blocks_in_large_physical_ones() {
        let mut identify = Identify::zeroed();
        identify.set_sector_sizes(1 << 14 | 1 << 13 | 3);
        assert_eq!((identify.block_size(), identify.physical_block_size()), (512, 4096));
    }

    #[test]
    fn a_drive_without_serial_ata_queues_nothing() {
        let mut identify = Identify::zeroed();
        identify.set_sata(u16::MAX).set_queue_depth_0based(31);
        assert_eq!(identify.queue_depth(), 0);
        identify.set_sata(1 << 8 | 1 << 2);
        assert_eq!(identify.queue_depth(), 32);
    }

    #[test]
    fn the_best_mode_is_the_highest() {
        let mut identify = Identify::zeroed();
        identify.set_ultra_dma(0x203f);
        assert_eq!(identify.best_ultra_dma(), None);
        identify.set_valid(1 << 2);
        assert_eq!(identify.best_ultra_dma(), Some(5));
    }

    #[test]
    fn a_changed_byte_is_found_by_the_sum() {
        let mut identify = Identify::zeroed();
        identify.set_text(MODEL, "drive");
        identify.seal();
        assert!(identify.is_intact());
        identify.0[60] ^= 1;
        assert!(!identify.is_intact());
    }
}
