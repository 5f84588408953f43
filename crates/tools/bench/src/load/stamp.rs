//! Contents that say where they belong: every sector is a function of its number and the seed.

/// Bytes that carry one stamp.
pub const SECTOR: usize = 512;

/// Writes what belongs at byte `offset` of the disk into `bytes`.
pub fn fill(bytes: &mut [u8], offset: u64, seed: u64) {
    for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        let number = offset / SECTOR as u64 + index as u64;
        for (word, chunk) in sector.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&word_of(number, word as u64, seed).to_le_bytes());
        }
    }
}

/// Whether `bytes` are what belongs at byte `offset`.
pub fn check(bytes: &[u8], offset: u64, seed: u64) -> bool {
    bytes.chunks(SECTOR).enumerate().all(|(index, sector)| {
        let number = offset / SECTOR as u64 + index as u64;
        sector
            .chunks_exact(8)
            .enumerate()
            .all(|(word, chunk)| chunk == word_of(number, word as u64, seed).to_le_bytes())
    })
}

fn word_of(sector: u64, word: u64, seed: u64) -> u64 {
    mix(seed ^ (sector << 6 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The finalizer of SplitMix64: every bit of `z` changes every bit of the result with probability
/// one half.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_in_the_wrong_place_or_with_one_wrong_bit_is_found() {
        let mut bytes = [0; 1024];
        fill(&mut bytes, 4096, 1);
        assert!(check(&bytes, 4096, 1));
        assert!(!check(&bytes, 4608, 1));
        assert!(!check(&bytes, 4096, 2));
        bytes[700] ^= 1;
        assert!(!check(&bytes, 4096, 1));
    }
}
