//! Memory that a device writes wrong.

use ring3_device::dma::Dma;

/// Words that are changed at a time, at most.
const MOST: u64 = 4;
/// Words that are looked at for one that is in use.
const TRIES: u64 = 64;

/// Has `access` done, and changes words of the memory in `dma` then, which follow from `word`: of
/// those that have changed meanwhile, or else of any that are in use.
pub(crate) fn after(dma: &Dma, word: u64, access: impl FnOnce()) {
    let before = words(dma);
    access();
    let now = words(dma);
    let is_new = |(old, new): &(&(u64, u64), &(u64, u64))| old != new;
    let written: Vec<_> = before.iter().zip(&now).filter(is_new).map(|(_, new)| *new).collect();
    for number in 0..1 + word % MOST {
        let pick = mix(word ^ number << 32);
        let chosen = match written.len() as u64 {
            0 => in_use(&now, pick),
            count => Some(written[(pick % count) as usize]),
        };
        if let Some((iova, value)) = chosen {
            // The driver may have given it back meanwhile; then it hurts nobody.
            let _ = dma.write(iova, &changed(value, mix(pick)).to_le_bytes());
        }
    }
}

/// The words of all that the driver has taken, with their device addresses.
fn words(dma: &Dma) -> Vec<(u64, u64)> {
    let base = dma.arena().iova();
    let mut all = Vec::new();
    for (at, len, _) in dma.arena().taken() {
        let mut bytes = vec![0; len as usize];
        if dma.read(base + at, &mut bytes).is_err() {
            continue;
        }
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        all.extend((base + at..).step_by(8).zip(bytes.chunks_exact(8).map(word)));
    }
    all
}

fn in_use(words: &[(u64, u64)], pick: u64) -> Option<(u64, u64)> {
    let count = words.len() as u64;
    (0..TRIES)
        .filter_map(|attempt| words.get(mix(pick ^ attempt).checked_rem(count)? as usize))
        .find(|word| word.1 != 0)
        .copied()
}

/// A flipped bit, a byte of ones, all ones, nothing, one more, one less.
fn changed(value: u64, pick: u64) -> u64 {
    let bit = (pick >> 8) % 64;
    match pick % 8 {
        0..3 => value ^ 1 << bit,
        3 => value | 0xff << (bit / 8 * 8),
        4 => u64::MAX,
        5 => 0,
        6 => value.wrapping_add(1),
        _ => value.wrapping_sub(1),
    }
}

/// The finaliser of SplitMix64, by Vigna, in the public domain.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
